"""What a table is made of: cells, each computed on its own and kept in a line of a file as soon as it is done.

The key of a cell holds everything of the protocol that its figures depend on, and nothing of the code. So a run that
was interrupted goes on where it stopped, and a run with more seeds or other parameters computes what is new only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Result = dict[str, Any]
"""Figures by name; ``error`` is in percent."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One measurement: a method on a data set with one draw of labels or links."""

    table: str
    data: str
    method: str
    seed: int
    setting: Mapping[str, Any] = field(default_factory=dict)
    """What else the figures depend on, in what JSON can hold."""

    @property
    def key(self) -> str:
        """The same text for the same cell, whatever the order of its setting."""
        return json.dumps([self.table, self.data, self.method, self.seed, self.setting], sort_keys=True)

    @property
    def group(self) -> str:
        """The key without the seed: cells whose figures are averaged."""
        return json.dumps([self.table, self.data, self.method, self.setting], sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        setting = ", ".join(f"{name} {value}" for name, value in self.setting.items())
        return f"{self.data}: {self.method}{f' ({setting})' if setting else ''}, draw {self.seed}"


@dataclass(frozen=True)
class Record:
    """A cell that was computed."""

    cell: Cell
    result: Result
    seconds: float
    """Of all that the cell took, with the graph if it had to be built: what the time left is told from."""
    when: str


Records = dict[str, Record]
"""By key."""

Plan = Callable[[Records], list[Cell]]
"""Which cells a table has, as far as the records so far tell; asked again when these are computed."""


class Store:
    """The records of one table in a file of JSON lines.

    A line that was not written to its end, as by a process that was killed, does not count and is computed again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Records:
        """All records; of a cell with several, the last."""
        if not self.path.exists():
            return {}
        records: Records = {}
        for line in self.path.read_text().splitlines():
            try:
                document = json.loads(line)
                record = Record(Cell(**document["cell"]), document["result"], document["seconds"], document["when"])
            except (ValueError, TypeError, KeyError):
                continue
            records[record.cell.key] = record
        return records

    def append(self, cell: Cell, result: Result, seconds: float) -> Record:
        """Keep a result; it is on the disk when this returns."""
        record = Record(cell, result, round(seconds, 3), time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        parts = {name: getattr(cell, name) for name in ("table", "data", "method", "seed")}
        document = {"cell": {**parts, "setting": dict(cell.setting)}, "result": result}
        line = json.dumps({**document, "seconds": record.seconds, "when": record.when})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return record


def missing(cells: Iterable[Cell], records: Records) -> list[Cell]:
    """The cells without a record, each once, in their order."""
    return list({cell.key: cell for cell in cells if cell.key not in records}.values())
