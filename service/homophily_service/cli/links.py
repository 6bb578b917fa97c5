"""Reads links from files, and pairs from options.

A .csv has the columns i, j and kind, in any order with a header, else in this one; a .json has the same in a list of
objects ``{"i": 3, "j": 17, "kind": "must"}``, or pairs by kind, ``{"must": [[3, 17]], "cannot": []}``. Points are row
numbers, from 0; kinds are must and cannot.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from homophily_service.cli import files
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import numbers
from homophily_service.cli.tables import csv_rows

SUFFIXES = (".csv", ".json")
COLUMNS = ("i", "j", "kind")

_KIND = re.compile(r"(must|cannot)([-_ ]link)?", re.IGNORECASE)
_POINT = re.compile(r"[0-9]{1,18}", re.ASCII)

Pair = tuple[int, int]


class Links(NamedTuple):
    """Pairs of points by kind of link."""

    must: list[Pair]
    cannot: list[Pair]

    def add(self, first: Any, second: Any, kind: Any, place: str) -> None:
        """Add a link; ``place`` says where it was read."""
        found = _KIND.fullmatch(str(kind))
        if found is None:
            raise WrongInput(f"{place}: a link's kind must be must or cannot. Got {kind!r} instead.")
        pairs = self.must if found[1].lower() == "must" else self.cannot
        pairs.append((_point(first, place), _point(second, place)))


def _point(value: Any, place: str) -> int:
    if isinstance(value, bool) or _POINT.fullmatch(str(value)) is None:
        raise WrongInput(f"{place}: a point must be a row number of the data, from 0. Got {value!r} instead.")
    return int(value)


def read_links(path: Path | None) -> Links:
    """The links in a file; none without a file."""
    links = Links([], [])
    if path is None:
        return links
    if path.suffix.lower() not in SUFFIXES:
        raise WrongInput(f"{path}: links must be in a file that ends in one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise WrongInput(f"{path}: there is no such file")
    try:
        if path.suffix.lower() == ".csv":
            _from_csv(path, links)
        else:
            _from_json(path, links)
    except WrongInput:
        raise
    except (*files.DAMAGED, RecursionError) as error:
        raise WrongInput(f"{path}: cannot be read: {error}") from error
    return links


def _from_csv(path: Path, links: Links) -> None:
    rows = list(filter(None, csv_rows(path)))
    if not rows:
        return
    header = [cell.lower() for cell in rows[0]]
    has_header = set(COLUMNS) <= set(header)
    if not has_header and len(header) != len(COLUMNS):
        raise WrongInput(f"{path}: must have the columns {', '.join(COLUMNS)}. Got {', '.join(rows[0])} instead.")
    places = [header.index(column) if has_header else place for place, column in enumerate(COLUMNS)]
    for number, row in enumerate(rows[has_header:], 1):
        if len(row) <= max(places):
            raise WrongInput(f"{path}: row {number} must have {len(header)} columns. Got {len(row)} instead.")
        first, second, kind = (row[place] for place in places)
        links.add(first, second, kind, f"{path}: row {number}")


def _from_json(path: Path, links: Links) -> None:
    with path.open(encoding="utf-8") as file:
        found = json.load(file)
    if isinstance(found, dict):
        for kind, pairs in found.items():
            for number, pair in enumerate(pairs, 1):
                if not isinstance(pair, list) or len(pair) != 2:
                    raise WrongInput(f"{path}: {kind} link {number} must be two points. Got {pair!r} instead.")
                links.add(pair[0], pair[1], kind, f"{path}: {kind} link {number}")
        return
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise WrongInput(f'{path}: must be a list of {{"i": …, "j": …, "kind": …}}, or {{"must": […], "cannot": […]}}')
    for number, one in enumerate(found, 1):
        if not set(COLUMNS) <= one.keys():
            raise WrongInput(f"{path}: link {number} must have {', '.join(COLUMNS)}. Got {', '.join(one)} instead.")
        links.add(one["i"], one["j"], one["kind"], f"{path}: link {number}")


def read_pairs(texts: list[str] | None, option: str) -> list[Pair]:
    """The pairs that an option was given with, each as I,J."""
    pairs = []
    for text in texts or ():
        found = numbers(text, int, option)
        if len(found) != 2:
            raise WrongInput(f"{option} must be two points separated by a comma. Got {text!r} instead.")
        pairs.append((found[0], found[1]))
    return pairs
