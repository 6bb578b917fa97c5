"""The command demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homophily_service.cli.failures import FAILED
from homophily_service.cli.options import command
from homophily_service.cli.screen import AsJson, print_status


@command
def demo(
    *,
    picture: Annotated[Path, typer.Option(metavar="FILE", dir_okay=False, help="Where the picture is written.")] = Path(
        "demo.png"
    ),
    as_json: AsJson = False,
) -> None:
    """Run a one-minute demonstration with its own service: label scikit-learn's digits from 50 labels."""
    from homophily_service.cli.demonstration import DemoFailed, run

    try:
        run(picture, as_json=as_json)
    except DemoFailed as error:
        print_status(f"Error: the demonstration failed: {error}", "red")
        raise typer.Exit(FAILED) from None
