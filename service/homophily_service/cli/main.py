"""The commands, put together."""

from __future__ import annotations

import sys

import typer

from homophily_service.cli import serving
from homophily_service.cli.screen import err
from homophily_service.errors import ServiceError

app = typer.Typer(
    help="Label and map data of which only a little is labelled.", no_args_is_help=True, add_completion=False
)
app.command()(serving.serve)
app.command()(serving.worker)
app.command("config")(serving.show_config)
app.command()(serving.health)
app.add_typer(serving.token, name="token")


def main() -> None:
    """Run a command; errors end it with a sentence and a code."""
    try:
        app()
    except ServiceError as error:
        err.print(error.message)
        sys.exit(1)
