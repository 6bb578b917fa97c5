"""From records to figures: means over draws with standard errors, and Markdown tables with the best in bold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, NamedTuple

from benchmarks.tables.cells import Record, Records
from benchmarks.tables.run import FAILED

TITLES = {
    "usps": "USPS",
    "text": "Text",
    "bci": "BCI",
    "pcmac": "Pcmac",
    "real-sim": "Real-sim",
    "ccat": "CCAT",
    "gcat": "GCAT",
    "mnist": "MNIST",
    "mnist-multi": "MNIST (multi-class)",
    "mnist-60k": "MNIST-60k",
    "diabetes": "Diabetes",
    "bcw": "BCW",
    "iris": "Iris",
    "wine": "Wine",
    "pendigits": "Pendigits",
}


@dataclass
class Group:
    """The draws of one method in one setting."""

    data: str
    method: str
    setting: Mapping[str, Any]
    records: list[Record] = field(default_factory=list)

    @property
    def results(self) -> list[dict[str, Any]]:
        """Of the draws that gave an answer."""
        return [record.result for record in self.records if FAILED not in record.result]

    @property
    def failed(self) -> int:
        """How many draws gave none."""
        return len(self.records) - len(self.results)

    def figure(self, name: str = "error") -> Figure | None:
        """Mean and standard error of a figure, if any draw has it."""
        values = [float(result[name]) for result in self.results if result.get(name) is not None]
        if not values:
            return None
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        return Figure(fmean(values), error, len(values), self.failed)


@dataclass(frozen=True)
class Figure:
    """A number of the page."""

    mean: float
    error: float | None = None
    """Standard error of the mean."""
    draws: int = 0
    """0 for the paper's."""
    failed: int = 0
    compared: bool = True
    """Whether it takes part in what is best."""

    def __str__(self) -> str:
        text = f"{self.mean:.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")
        if self.failed:
            text += f" ({self.failed} of {self.draws + self.failed} failed)"
        return text if self.compared else f"({text})"


def groups(records: Records | Iterable[Record]) -> list[Group]:
    """Records by everything but the draw."""
    found: dict[str, Group] = {}
    for record in records.values() if isinstance(records, dict) else records:
        cell = record.cell
        found.setdefault(cell.group, Group(cell.data, cell.method, cell.setting)).records.append(record)
    return list(found.values())


def pick(candidates: Iterable[Group], data: str, method: str, **setting: Any) -> Group | None:
    """The group of that setting; of several the one with most trials or graphs, then most draws, then the latest."""
    fitting = [
        group
        for group in candidates
        if group.data == data
        and group.method == method
        and all(group.setting.get(name) == value for name, value in setting.items())
    ]
    return max(
        fitting,
        key=lambda group: (
            group.setting.get("trials", 0),
            len(group.setting.get("neighbors", ())),
            len(group.records),
            max(record.when for record in group.records),
        ),
        default=None,
    )


Entry = Figure | str | None
"""A cell of a Markdown table: a figure, words, or nothing."""


def markdown(
    corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Entry]]], bold: bool = True
) -> str:
    """A table whose smallest figure of each column is bold, as it is printed: equal ones all are."""
    lines = [f"| {corner} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    lowest = [_lowest([entries[number] for _, entries in rows]) if bold else None for number in range(len(columns))]
    for title, entries in rows:
        texts = [_text(entry, best) for entry, best in zip(entries, lowest, strict=True)]
        lines.append(f"| {title} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _lowest(entries: Sequence[Entry]) -> str | None:
    means = [entry.mean for entry in entries if isinstance(entry, Figure) and entry.compared]
    # A single figure is best of nothing.
    return f"{min(means):.2f}" if len(means) > 1 else None


def _text(entry: Entry, lowest: str | None) -> str:
    if entry is None:
        return "–"
    if isinstance(entry, Figure) and entry.compared and f"{entry.mean:.2f}" == lowest:
        return f"**{entry}**"
    return str(entry)


def of(group: Group | None, name: str) -> Figure | None:
    return None if group is None else group.figure(name)


def seconds(group: Group | None) -> Entry:
    figure = of(group, "seconds")
    return None if figure is None else seconds_text(figure.mean)


def seconds_text(value: float) -> str:
    """Two digits or more of the seconds."""
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


class Shortfall(NamedTuple):
    """A figure of ours above the paper's."""

    table: str
    data: str
    what: str
    ours: Figure
    paper: float

    def __str__(self) -> str:
        more = self.ours.mean - self.paper
        close = self.ours.error is not None and more <= self.ours.error
        return (
            f"{self.what} {self.ours} against {self.paper:.2f}, {more:.2f} more"
            f"{' (within one standard error)' if close else ''}"
        )


def above(ours: Figure | None, theirs: float | None) -> bool:
    """Whether we are worse, as printed."""
    return ours is not None and theirs is not None and round(ours.mean, 2) > round(theirs, 2)
