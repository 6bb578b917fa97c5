"""Tables out of files: CSV and its relatives, Parquet, Arrow and JSON lines, as Arrow tables."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from homophily_service.cli.failures import WrongInput

DELIMITERS = ",;\t|"
# Rows that are looked at to tell how a file is written.
LOOKED_AT = 200
_DECIMAL_COMMA, _DECIMAL_POINT = re.compile(r"[+-]?\d+,\d+"), re.compile(r"[+-]?\d+\.\d+")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+")
# What people and programs write for a missing value.
MISSING = ["", "?", "-", "NA", "na", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None"]
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
    rows = _first_rows(content, "\t" if table_suffix(path) == ".tsv" else "")
    if not rows.rows:
        raise WrongInput(f"{path}: is empty")
    first = rows.rows[0]
    has_names = _is_header(rows.rows) or any(cell.strip() in expected and not is_number(cell) for cell in first)
    decimal = "," if rows.delimiter != "," and _has_decimal_commas(rows.rows[has_names:]) else "."
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
            if len(dotted) > 2 and all(_THOUSANDS.fullmatch(cell) for cell in dotted):
                raise WrongInput(
                    f"{path}: column {field.name!r}: is {dotted[0]} a thousand and more, or a little over "
                    f"{dotted[0].partition('.')[0]}? Write it without a dot, or with more digits after it."
                )


def csv_rows(path: Path) -> Iterator[list[str]]:
    """The rows of a CSV file, cell by cell; an empty line is a row without cells."""
    content = _text(path)
    text = io.StringIO(content.decode(), newline="")
    for row in csv.reader(text, delimiter=_first_rows(content, "").delimiter):
        yield [cell.strip() for cell in row]


class _Rows(NamedTuple):
    rows: list[list[str]]
    delimiter: str
    #: A name may have a line end inside quotes.
    header_lines: int


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


def _first_rows(content: bytes, delimiter: str) -> _Rows:
    """The first rows, and what separates their cells: the mark that parts most rows alike, into the most cells."""
    text = content[: 1 << 20].decode(errors="replace")
    best = _Rows([], delimiter or ",", 1)
    score = (-1.0, 0)
    for mark in delimiter or DELIMITERS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
        rows, header_lines = [], 0
        for row in reader:
            if row and any(row):
                rows.append(row)
                header_lines = header_lines or reader.line_num
            if len(rows) == LOOKED_AT:
                break
        width, alike = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
        found = (alike / len(rows) if width > 1 else 0.0, width) if rows else (-1.0, 0)
        if found > score:
            best, score = _Rows(rows, mark, header_lines), found
    return best


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    cells = [cell.strip() for row in rows for cell in row]
    commas = sum(_DECIMAL_COMMA.fullmatch(cell) is not None for cell in cells)
    return commas > sum(_DECIMAL_POINT.fullmatch(cell) is not None for cell in cells)


def _is_header(rows: list[list[str]]) -> bool:
    """True if the first row names the columns: a word above numbers, or no number at all."""
    first, others = [cell.strip() for cell in rows[0]], rows[1:]

    def is_above_numbers(place: int) -> bool:
        below = [row[place] for row in others if place < len(row) and row[place].strip() not in MISSING]
        return bool(below) and all(map(_is_any_number, below))

    words = [place for place, cell in enumerate(first) if not _is_any_number(cell)]
    if any(map(is_above_numbers, words)):
        return True
    # Programs that number their columns, 0, 1, 2 …, may give one of them a name.
    counted = [str(number) for number in range(len(first))]
    is_counted = [counted[place] if place in words else cell for place, cell in enumerate(first)] == counted
    return bool(words) and (len(words) == len(first) or is_counted)


def is_number(text: str) -> bool:
    """True for what float() takes."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_any_number(text: str) -> bool:
    """True for a number with a decimal point or comma."""
    return is_number(text) or _DECIMAL_COMMA.fullmatch(text.strip()) is not None


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
