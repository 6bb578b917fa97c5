"""The command line, ``homophily``: runs the service, and uses it.

Exit codes are told at the end of ``homophily --help``.

What is loaded with every command is typer and rich only; commands load what they need themselves.
"""

from homophily_service.cli.main import app, main

__all__ = ["app", "main"]
