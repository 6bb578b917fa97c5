"""The command line, ``homophily``: runs the service, and uses it.

Exit codes: 0 done · 1 the job or the service failed · 2 wrong usage or a wrong field · 3 the service cannot be reached
· 4 not found · 5 not allowed · 130 interrupted.

What is loaded with every command is typer and rich only; commands load what they need themselves.
"""

from homophily_service.cli.main import app, main

__all__ = ["app", "main"]
