"""What people see: tables and sentences on a terminal, or JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

out = Console(highlight=False)
# Progress and errors: what is printed as the result can be piped on.
err = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2, default=str)
    sys.stdout.write("\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers to the right."""
    table = Table(title=title or None, title_justify="left", header_style="bold")
    listed = [list(row) for row in rows]
    for place, column in enumerate(columns):
        numbers = all(isinstance(row[place], int | float) and not isinstance(row[place], bool) for row in listed)
        table.add_column(column, justify="right" if listed and numbers else "left", overflow="fold")
    for row in listed:
        table.add_row(*(_shown(value) for value in row))
    out.print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Names and values below each other."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, _shown(value))
    out.print(table)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
