"""The benchmark of datasets from a bucket runs, in its small form."""

from __future__ import annotations

from benchmarks import address
from benchmarks.report import Options, Report


def test_rows_in_a_bucket_become_datasets() -> None:
    options = Options(quick=True)
    report = Report("address", options)
    address.run(options, report)
    (rows,) = report.tables.values()
    assert [row["files"] for row in rows] == [
        "16 files in the bucket",
        "one file in the bucket",
        "the same in a folder",
    ]
    assert {row["rows"] for row in rows} == {10_000}
    assert not report.failed
