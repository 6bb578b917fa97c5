"""Tables out of files: CSV and its relatives, Parquet, Arrow and JSON lines, as Arrow tables."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from homophily_service.cli.failures import WrongInput
from homophily_service.contract.csv_text import (
    MISSING,
    THOUSANDS,
    first_rows,
    has_decimal_commas,
    is_header,
    is_number,
)

# Compressed text that grows more than this was made to fill a memory.
MOST_GROWTH, HARMLESS = 200, 64 << 20


class FileTable(NamedTuple):
    """A table, and whether its columns have names of their own rather than numbers."""

    #: An Arrow table.
    table: Any
    has_names: bool


def need_pyarrow(path: Path) -> Any:
    """Pyarrow, which is needed for this file."""
    from homophily_service.plots import tables

    try:
        return tables.need_pyarrow()
    except ImportError as error:
        raise WrongInput(f"{path}: {error}") from None


def read_table_file(path: Path, as_text: Collection[str] = (), expected: Collection[str] = ()) -> FileTable:
    """The table in a file.

    Of CSV, the columns named ``as_text`` are strings as they are written, and a first row with a name that is
    ``expected`` is a header.
    """
    pyarrow = need_pyarrow(path)
    try:
        found = READERS[table_suffix(path)](path, as_text, expected)
    except (pyarrow.ArrowException, EOFError, OSError, UnicodeDecodeError, csv.Error, gzip.BadGzipFile) as error:
        sentence = " ".join(str(error).split())
        if "UTF8" in sentence or isinstance(error, UnicodeDecodeError):
            sentence = "it is not UTF-8; save it as UTF-8"
        raise WrongInput(f"{path}: cannot be read: {sentence}") from error
    if not found.table.num_columns:
        raise WrongInput(f"{path}: is empty")
    if not found.table.num_rows:
        raise WrongInput(f"{path}: holds no rows below its header")
    return found


def table_suffix(path: Path) -> str:
    """The ending by which a table's reader is chosen: .csv of data.csv.gz."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, as_text: Collection[str], expected: Collection[str]) -> FileTable:
    from pyarrow import compute
    from pyarrow import csv as arrow_csv

    content = _text(path)
    rows = first_rows(content, "\t" if table_suffix(path) == ".tsv" else "")
    if not rows.rows:
        raise WrongInput(f"{path}: is empty")
    first = rows.rows[0]
    has_names = is_header(rows.rows) or any(cell.strip() in expected and not is_number(cell) for cell in first)
    decimal = "," if rows.delimiter != "," and has_decimal_commas(rows.rows[has_names:]) else "."
    # As pandas names columns without a name.
    names = [name.strip() or f"Unnamed: {place}" if has_names else str(place) for place, name in enumerate(first)]

    def read(null_values: list[str], **columns: Any) -> Any:
        return arrow_csv.read_csv(
            io.BytesIO(content),
            # Types follow from the first block, which is all of it. Threads that outlive an error abort the program.
            arrow_csv.ReadOptions(
                use_threads=False,
                block_size=len(content) + 1,
                column_names=names,
                skip_rows=rows.header_lines if has_names else 0,
            ),
            arrow_csv.ParseOptions(delimiter=rows.delimiter, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                decimal_point=decimal, null_values=null_values, strings_can_be_null=True, **columns
            ),
        )

    table = read(MISSING)
    if len(set(names)) < len(names):
        return FileTable(table, has_names)
    types = {field.name: str(field.type) for field in table.schema}
    # NA may be a country and None a kind of cheese, where entries are strings.
    strings = {name for name, kind in types.items() if kind == "string"} | (set(as_text) & set(names))
    whole = {name for name, kind in types.items() if kind == "int64"}
    if strings | whole:
        written = read(
            [""], include_columns=sorted(strings | whole), column_types=dict.fromkeys(strings | whole, "string")
        )
        # 007 is no number but a name, whose zeros count.
        strings |= {
            name for name in whole if compute.any(compute.match_substring_regex(written[name], r"^[+-]?0\d")).as_py()
        }
        for name in strings:
            table = table.set_column(names.index(name), name, written[name])
    if rows.delimiter == ";" and decimal == ".":
        _refuse_thousands(path, table, read)
    nameless = [name for name in names if name.startswith("Unnamed: ") and types[name] == "null"]
    return FileTable(table.drop_columns(nameless), has_names)


def _refuse_thousands(path: Path, table: Any, read: Callable[..., Any]) -> None:
    """Refuse 1.523 beside 852 where it may be 1523: in files with semicolons, which are written with decimal commas."""
    from pyarrow import compute

    for field in table.schema:
        if str(field.type) == "double":
            cells = read([""], include_columns=[field.name], column_types={field.name: "string"})[field.name]
            dotted = [cell for cell in compute.unique(cells).to_pylist() if cell and "." in cell]
            if len(dotted) > 2 and all(THOUSANDS.fullmatch(cell) for cell in dotted):
                raise WrongInput(
                    f"{path}: column {field.name!r}: is {dotted[0]} a thousand and more, or a little over "
                    f"{dotted[0].partition('.')[0]}? Write it without a dot, or with more digits after it."
                )


def csv_rows(path: Path) -> Iterator[list[str]]:
    """The rows of a CSV file, cell by cell; an empty line is a row without cells."""
    content = _text(path)
    text = io.StringIO(content.decode(), newline="")
    for row in csv.reader(text, delimiter=first_rows(content, "").delimiter):
        yield [cell.strip() for cell in row]


def _text(path: Path) -> bytes:
    """The bytes of a text file, unpacked, without a byte-order mark."""
    if path.suffix.lower() != ".gz":
        content = path.read_bytes()
    else:
        most = max(HARMLESS, MOST_GROWTH * path.stat().st_size)
        with gzip.open(path) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise WrongInput(f"{path}: unpacks to more than {MOST_GROWTH} times its size: unpack it yourself first")
    content = content.removeprefix(b"\xef\xbb\xbf")
    # Arrow would take other text for bytes.
    content.decode()
    return content


# -- others ------------------------------------------------------------------------------------------------------------


def _read_parquet(path: Path, *_: Collection[str]) -> FileTable:
    from pyarrow import parquet

    return FileTable(parquet.ParquetFile(path).read(use_threads=False), True)


def _read_arrow(path: Path, *_: Collection[str]) -> FileTable:
    from pyarrow import feather

    return FileTable(feather.read_table(path, use_threads=False), True)


def _read_json_lines(path: Path, *_: Collection[str]) -> FileTable:
    from pyarrow import json

    content = _text(path)
    return FileTable(
        json.read_json(io.BytesIO(content), json.ReadOptions(use_threads=False, block_size=len(content) + 1)), True
    )


READERS: dict[str, Callable[[Path, Collection[str], Collection[str]], FileTable]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
}
