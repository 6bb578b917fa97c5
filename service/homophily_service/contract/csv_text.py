"""How a CSV file is written: what separates its cells, whether it has a header, decimal commas or points."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from typing import NamedTuple

DELIMITERS = ",;\t|"
# Rows that are looked at to tell how a file is written.
LOOKED_AT = 200
_DECIMAL_COMMA, _DECIMAL_POINT = re.compile(r"[+-]?\d+,\d+"), re.compile(r"[+-]?\d+\.\d+")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+")
# What people and programs write for a missing value.
MISSING = ["", "?", "-", "NA", "na", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None"]


class FirstRows(NamedTuple):
    """The first rows of a file, and what separates their cells."""

    rows: list[list[str]]
    delimiter: str
    #: A name may have a line end inside quotes.
    header_lines: int


def first_rows(content: bytes, delimiter: str) -> FirstRows:
    """The first rows, and what separates their cells: the mark that parts most rows alike, into the most cells."""
    text = content[: 1 << 20].decode(errors="replace")
    best = FirstRows([], delimiter or ",", 1)
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
            best, score = FirstRows(rows, mark, header_lines), found
    return best


def has_decimal_commas(rows: list[list[str]]) -> bool:
    """Whether most numbers with a fraction have a comma before it."""
    cells = [cell.strip() for row in rows for cell in row]
    commas = sum(_DECIMAL_COMMA.fullmatch(cell) is not None for cell in cells)
    return commas > sum(_DECIMAL_POINT.fullmatch(cell) is not None for cell in cells)


def is_header(rows: list[list[str]]) -> bool:
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
