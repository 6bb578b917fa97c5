"""What people see: tables and sentences on a terminal, or JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.", rich_help_panel="Output")]

# No markup: names of users and messages of the service may contain [brackets].
out = Console(highlight=False, markup=False, emoji=False)
# Progress and errors go to standard error, so that the result can be piped.
err = Console(stderr=True, highlight=False, markup=False, emoji=False)

# Piped lines are not wrapped.
_PIPED_WIDTH = 10_000


def print_status(sentence: str, style: str = "") -> None:
    """Print a sentence for people, not part of the result."""
    _print(err, Text(sentence, style))


def print_result(sentence: str, style: str = "") -> None:
    """Print a sentence that is the result, or a part of it."""
    _print(out, Text(sentence, style))


def print_json(value: Any) -> None:
    """Print a JSON document."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2, default=str)
    sys.stdout.write("\n")


def print_json_line(value: Any) -> None:
    """Print a JSON document on one line, and flush."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, with numbers aligned to the right."""
    table = Table(title=title or None, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    # Narrow, as names are long and terminals have 80 columns.
    table.show_edge, table.pad_edge, table.padding = False, False, (0, 1, 0, 0)
    listed = [list(row) for row in rows]
    for place, column in enumerate(columns):
        values = [row[place] for row in listed if row[place] is not None]
        numbers = bool(values) and all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
        # The first column is a name, which people copy.
        table.add_column(column, justify="right" if numbers else "left", overflow="fold", no_wrap=place == 0)
    for row in listed:
        table.add_row(*(shown(value) for value in row))
    _print(out, table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values below each other."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, shown(value))
    _print(out, table)


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def percent(share: float | None) -> str | None:
    """A share, such as an error rate."""
    return None if share is None else f"{100 * share:.2f} %"


def size(count: int) -> str:
    """Bytes, in the unit that makes a short number."""
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:,.0f} {unit}"


def _print(console: Console, what: Text | Table) -> None:
    if not console.is_terminal:
        console = Console(file=console.file, width=_PIPED_WIDTH, highlight=False, markup=False, emoji=False)
    console.print(what)
