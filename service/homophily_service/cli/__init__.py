"""The command line, ``homophily``: runs the service, and uses it.

Exit codes are listed at the end of ``homophily --help``.

Every command loads typer and rich; the rest is loaded by the commands that need it.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command."""
    try:
        from homophily_service.cli.commands import run

        run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("homophily", "homophily_service"):
            raise
        # `pip install homophily` brings the core and this command, but not what the service needs.
        sys.exit(f"Error: this command needs {error.name}, which is not installed: pip install 'homophily[service]'.")
