"""The benchmark of graphs that grow runs, in its small form."""

from __future__ import annotations

from benchmarks import append
from benchmarks.report import Options, Report


def test_graphs_grow() -> None:
    options = Options(quick=True)
    report = Report("append", options)
    append.run(options, report)
    (rows,) = report.tables.values()
    # So few points are searched exactly.
    assert (
        {row["same edges %"] for row in rows} == {row["same labels %, 10 classes, 100 labels"] for row in rows} == {100}
    )
