"""What a benchmark is asked for and what it tells: options in, aligned tables and a JSON record out."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.measure import highest_memory

RESULTS = Path(__file__).parent / "results"
#: The last whole run of each command on the real data sets: kept in git, and shown in the documentation.
RECORDS = RESULTS / "records"

#: Commands that use no data sets, so that every whole run of them is one to keep.
WITHOUT_DATA = ("address",)

Cell = str | float | int | bool | None
Row = Mapping[str, Cell]


@dataclass(frozen=True)
class Options:
    """The command line's choices."""

    data: Path | None = None
    quick: bool = False
    seeds: int | None = None
    first_seed: int = 0
    max_points: int = 1_000_000


@dataclass
class Report:
    """Prints tables and notes as they come, and appends them all to ``results/<name>.json`` when closed."""

    name: str
    options: Options
    began: float = field(default_factory=time.perf_counter)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: bool = False
    """Something is not as it must be: the command ends with an error."""

    def progress(self, text: str) -> None:
        """Say on the error stream what is being done."""
        print(f"[{self.name} {time.perf_counter() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def table(self, title: str, rows: Sequence[Row]) -> None:
        """Print and keep a table."""
        self.tables[title] = list(rows)
        print(f"\n{title}\n{aligned(rows)}", flush=True)

    def note(self, text: str) -> None:
        """Print and keep a sentence."""
        self.notes.append(text)
        print(f"* {text}", flush=True)

    def fail(self, text: str) -> None:
        """Print and keep what is not as it must be."""
        self.failed = True
        self.note(f"FAILED: {text}")

    def picture(self, name: str) -> Path:
        """Where a plot of that name goes."""
        RESULTS.mkdir(exist_ok=True)
        self.note(f"Plot: benchmarks/results/{name}")
        return RESULTS / name

    def close(self) -> None:
        """Append everything to the record."""
        self.note(f"Peak memory of this process: {highest_memory():,.0f} MiB; {os.cpu_count()} cores.")
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        runs = json.loads(path.read_text()) if path.exists() else []
        options = asdict(self.options) | {"data": self.options.data is not None}
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        runs.append({"when": when, "options": options, **machine, "tables": self.tables, "notes": self.notes})
        path.write_text(json.dumps(runs, indent=1) + "\n")
        is_whole = self.options == Options(self.options.data)
        if is_whole and (self.options.data is not None or self.name in WITHOUT_DATA) and not self.failed:
            RECORDS.mkdir(exist_ok=True)
            (RECORDS / path.name).write_text(json.dumps(runs[-1], indent=1) + "\n")


def aligned(rows: Sequence[Row]) -> str:
    """Rows as text, words to the left and numbers to the right; a missing cell is a dash."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns, *([cell_text(row.get(column)) for column in columns] for row in rows)]
    words = [all(isinstance(row.get(column), str) for row in rows) for column in columns]
    widths = [max(len(line[c]) for line in cells) for c in range(len(columns))]
    lines = [
        "  ".join(
            text.ljust(width) if left else text.rjust(width)
            for text, width, left in zip(line, widths, words, strict=True)
        )
        for line in cells
    ]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def cell_text(cell: Cell) -> str:
    """A cell as it is shown."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
