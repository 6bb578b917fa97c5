"""Tables by column, written into files."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any


def need_pyarrow() -> Any:
    """Import pyarrow with Parquet; raises ImportError, which says what to do, if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            "Parquet files need pyarrow, which is not installed: pip install 'homophily[parquet]'"
        ) from None
    return pyarrow


def write_table(columns: Mapping[str, Any], path: Path) -> None:
    """Write a Parquet file if the name ends in .parquet, else CSV."""
    if path.suffix.lower() == ".parquet":
        pyarrow = need_pyarrow()
        table = pyarrow.table({name: pyarrow.array(list(one)) for name, one in columns.items()})
        pyarrow.parquet.write_table(table, path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            write_csv(columns, file)


def write_csv(columns: Mapping[str, Any], file: IO[str]) -> None:
    """Write CSV with a header."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(getattr(one, "tolist", lambda one=one: one)() for one in columns.values()), strict=True))
