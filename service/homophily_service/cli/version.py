"""The versions of the program and of the service."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict
from typing import Annotated

import typer

from homophily_service.cli.options import Service, command
from homophily_service.cli.screen import AsJson, print_facts, print_json, print_result


def _own() -> str:
    return importlib.metadata.version("homophily")


def _print_own(is_asked: bool) -> None:
    if is_asked:
        print_result(f"homophily {_own()}")
        raise typer.Exit


def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_own, is_eager=True, help="Print the program's version.")
    ] = False,
) -> None:
    """Label a whole dataset from a handful of labels."""


@command
def version(*, service: Service, as_json: AsJson = False) -> None:
    """Show the versions of this program and of the service."""
    with service.client() as client:
        server = client.server_info()
    if as_json:
        print_json({"program": _own(), "service": asdict(server)})
    else:
        facts = {"program": _own(), "service": server.version, "interface": server.api_version}
        print_facts(facts | {"tracking": server.tracking})
