"""Tables by column, written into files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

Columns = Mapping[str, Any]

# Spreadsheets take cells that begin so for formulas, which may run programs or send data away.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def need_pyarrow() -> Any:
    """Pyarrow with its Parquet part; raises ImportError, with what to do, where there is none."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError("it needs pyarrow, which is not installed: pip install 'homophily[tables]'") from None
    return pyarrow


def write_table(columns: Columns, path: Path) -> None:
    """Write a file, in the format that its ending says."""
    WRITERS[path.suffix.lower()](columns, path)


def write_csv(columns: Columns, file: IO[str], delimiter: str = ",") -> None:
    """Write CSV with a header. Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    writer = csv.writer(file, lineterminator="\n", delimiter=delimiter)
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(cell) for cell in row] for row in _rows(columns))


def _rows(columns: Columns) -> Iterator[tuple[Any, ...]]:
    return zip(*(getattr(one, "tolist", lambda one=one: one)() for one in columns.values()), strict=True)


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _text(delimiter: str) -> Callable[[Columns, Path], None]:
    def write(columns: Columns, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            write_csv(columns, file, delimiter)

    return write


def _arrow_table(columns: Columns) -> Any:
    pyarrow = need_pyarrow()
    return pyarrow.table({name: pyarrow.array(list(one)) for name, one in columns.items()})


def _write_parquet(columns: Columns, path: Path) -> None:
    need_pyarrow().parquet.write_table(_arrow_table(columns), path)


def _write_arrow(columns: Columns, path: Path) -> None:
    from pyarrow import feather

    feather.write_feather(_arrow_table(columns), path)


def _write_json_lines(columns: Columns, path: Path) -> None:
    import json

    with path.open("w", encoding="utf-8") as file:
        for row in _rows(columns):
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=str) + "\n")


#: By ending.
WRITERS: dict[str, Callable[[Columns, Path], None]] = {
    ".csv": _text(","),
    ".tsv": _text("\t"),
    ".parquet": _write_parquet,
    ".arrow": _write_arrow,
    ".feather": _write_arrow,
    ".jsonl": _write_json_lines,
}
