"""Reads labels from files, in several formats.

One entry per point: a column of a table such as .csv or .parquet (``FILE:COLUMN``), a .csv of one column, a .npy
array, an array of .npz (``FILE:NAME``), the labels of .svmlight. There, an empty entry, ``?``, ``NaN`` and −1 (or the
value of ``--unlabelled``) mean unlabelled. A few points: a .csv of two columns, point (or the name of the id column)
and label, or .json ``{"point": label}``. There every label counts, even −1. Points are row numbers, from 0. Labels are
integers if all of them are, else words. ``datasets/ID:COLUMN`` refers to a column on the service instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from homophily_client.columns import entries_of
from homophily_client.labels import LabelColumn
from homophily_service.cli import files
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.screen import print_status
from homophily_service.cli.tables import READERS, csv_rows, read_table_file, table_suffix
from homophily_service.contract.csv_text import is_number

UNLABELLED = "-1"
#: Before the name of a dataset that holds labels.
STORED = "datasets/"
SUFFIXES = (".json", *READERS, *files.ARRAYS)

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.0*)?", re.ASCII)
_HEADERS = ("label", "labels", "class", "classes", "target", "y")

Label = int | str


class Ids(NamedTuple):
    """The ids of points, and the name of their column."""

    name: str
    values: Sequence[str]


class PointLabels(NamedTuple):
    """Labels by point; ``length`` is the number of entries where there was one for each point."""

    by_point: dict[int, Label]
    length: int | None
    #: Labels of a file that names points by their ids, and what it calls the column of ids.
    by_id: dict[str, Label] | None = None
    id_column: str = ""

    def checked(self, points: int, source: str, ids: Ids | None = None) -> PointLabels:
        """The same labels by point, if they are for this number of points, or for these ids."""
        if self.length is not None and self.length != points:
            raise WrongInput(f"{source}: must have an entry for each of {points} points. Got {self.length} instead.")
        if self.by_id is None:
            return self
        if ids is None or ids.name != self.id_column:
            known = "" if ids is None else f", or {ids.name!r} if it holds the ids"
            raise WrongInput(
                f"{source}: its first column is called {self.id_column!r}. Call it point if it holds row numbers of "
                f"the data, from 0{known}."
            )
        places = {one: place for place, one in enumerate(ids.values)}
        unknown = [one for one in self.by_id if one not in places]
        if unknown:
            raise WrongInput(f"{source}: no row of the data has the {ids.name} {unknown[0]!r}.")
        if len(places) < len(ids.values):
            raise WrongInput(
                f"{source}: several rows of the data have the same {ids.name}; name rows by point instead."
            )
        return PointLabels({places[one]: label for one, label in self.by_id.items()}, None)

    def of_two_classes(self, source: str) -> PointLabels:
        """The same labels, if they are of at least two classes."""
        found = set(self.by_point.values())
        if len(found) < 2:
            listed = ", ".join(map(repr, found)) or "none"
            hint = "" if self.length is None else " If -1 is a class and does not mean unlabelled: --unlabelled '?'"
            raise WrongInput(f"{source}: labels must be of at least two classes. Got {listed} instead.{hint}")
        return self

    def like(self, classes: Iterable[Label]) -> PointLabels:
        """The same labels, as words if the classes are words: this file may have only those that look like numbers."""
        if any(isinstance(one, str) for one in classes):
            return self._replace(by_point={point: str(label) for point, label in self.by_point.items()})
        return self


def stored_labels(source: str | None) -> LabelColumn | None:
    """Labels on the service, as ``datasets/ID`` or ``datasets/ID:COLUMN``; None if the source is a file."""
    if source is None or not source.startswith(STORED) or Path(source).exists():
        return None
    dataset, _, column = source.removeprefix(STORED).partition(":")
    return LabelColumn(dataset, column)


def read_labels(source: str, unlabelled: str = UNLABELLED) -> PointLabels:
    """The labels in ``FILE`` or ``FILE:COLUMN``."""
    path, column = _split(source)
    suffix = table_suffix(path)
    if suffix not in SUFFIXES:
        raise WrongInput(f"{path}: labels must be in a file that ends in one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise WrongInput(f"{path}: there is no such file")
    try:
        if suffix == ".json":
            return _from_json(path)
        if suffix in (".csv", ".tsv") and column is None:
            return _from_csv(path, unlabelled)
        return from_entries(_entries(path, suffix, column), unlabelled, str(path))
    except WrongInput:
        raise
    except files.DAMAGED as error:
        raise WrongInput(f"{path}: cannot be read: {error}") from error


def from_entries(entries: Sequence[Any], unlabelled: str, source: str) -> PointLabels:
    """Labels from one entry per point."""
    mark = float(unlabelled) if is_number(unlabelled) else None
    # Spaces around a label, and the type of True, are how a file was written.
    entries = [
        entry.strip() if isinstance(entry, str) else str(entry) if isinstance(entry, bool) else entry
        for entry in entries
    ]
    known = {point: entry for point, entry in enumerate(entries) if not _is_unlabelled(entry, unlabelled, mark)}
    _warn_of_near_equals(known.values(), source)
    return PointLabels(dict(zip(known, _same_kind(list(known.values()), source), strict=True)), len(entries))


def _warn_of_near_equals(labels: Iterable[Any], source: str) -> None:
    by_letters: dict[str, set[str]] = {}
    for label in labels:
        by_letters.setdefault(str(label).casefold(), set()).add(str(label))
    for alike in by_letters.values():
        if len(alike) > 1:
            listed = ", ".join(map(repr, sorted(alike)))
            print_status(f"Warning: {source}: {listed} count as different classes.", "yellow")


def _split(source: str) -> tuple[Path, str | None]:
    # A colon may be part of the file's name.
    if Path(source).is_file() or ":" not in source:
        return Path(source), None
    path, _, column = source.rpartition(":")
    return Path(path), column


def _entries(path: Path, suffix: str, column: str | None) -> list[Any]:
    """One entry per point."""
    if suffix in (".svmlight", ".libsvm"):
        return list(files.load_svmlight(path)[1].tolist())
    if suffix == ".npy":
        array = files.load_array(path)
        if column is not None:
            array = array.reshape(len(array), -1)
            array = array[:, files.find_column(column, None, array.shape[1], path)]
        if array.ndim != 1 and array.size != len(array):
            raise WrongInput(f"{path}: must have one dimension, the points. Got {array.ndim} instead.")
        return list(array.reshape(-1).tolist())
    if column is None:
        raise WrongInput(f"{path}: which column holds the labels? Say {path}:COLUMN")
    if suffix == ".npz":
        return list(files.one_of(files.load_arrays(path), column, path).tolist())
    names = read_table_file(path).table.column_names
    name = names[files.find_column(column, names, len(names), path)]
    return entries_of(read_table_file(path, [name]).table[name])


def _from_csv(path: Path, unlabelled: str) -> PointLabels:
    rows = list(csv_rows(path))
    width = max(map(len, rows), default=0)
    if width <= 1:
        entries = [row[0] if row else "" for row in rows]
        words = [entry for entry in entries[1:] if not is_number(entry) and entry not in ("", "?")]
        is_header = bool(entries) and (
            entries[0].lower() in _HEADERS or (not is_number(entries[0]) and entries[0] not in ("", "?") and not words)
        )
        return from_entries(entries[is_header:], unlabelled, str(path))
    rows = list(filter(None, rows))
    header = [cell.lower() for cell in rows[0]]
    if width > 2 and "label" in header and "point" not in header[1:]:
        rows = _answered(rows, header.index("label"))
        header, width = [cell.lower() for cell in rows[0]], 2
    if "point" in header and "label" in header:
        places = header.index("point"), header.index("label")
    elif width == 2:
        places = 0, 1
        if not _WHOLE.fullmatch(rows[0][0]) and header[0] != "point":
            return _by_id(rows, path)
    else:
        raise WrongInput(
            f"{path}: must have the columns point and label, or one column. Got {width} columns; "
            f"{path}:COLUMN takes one of them."
        )
    first = 0 if _WHOLE.fullmatch(rows[0][places[0]]) else 1
    found: dict[int, Any] = {}
    for number, row in enumerate(rows[first:], 1):
        if len(row) <= max(places) or not row[places[1]]:
            raise WrongInput(f"{path}: row {number} has no label")
        _add(found, row[places[0]], row[places[1]], f"{path}: row {number}")
    return _few(found, path)


def _answered(rows: list[list[str]], place: int) -> list[list[str]]:
    """The first column and the labels of a file with more columns, such as `homophily suggest` writes.

    Rows without a label are those that a person could not tell.
    """
    labelled = (row for row in rows[1:] if len(row) > place and row[place])
    return [[row[0], row[place]] for row in (rows[0], *labelled)]


def _by_id(rows: list[list[str]], path: Path) -> PointLabels:
    """Labels of a file with two columns, the first of which has the name of an id column."""
    found: dict[str, str] = {}
    for number, row in enumerate(rows[1:], 1):
        if len(row) < 2 or not row[1]:
            raise WrongInput(f"{path}: row {number} has no label")
        if found.setdefault(row[0], row[1]) != row[1]:
            raise WrongInput(f"{path}: row {number}: {row[0]} is labelled twice")
    labels = _same_kind(list(found.values()), str(path))
    return PointLabels({}, None, dict(zip(found, labels, strict=True)), rows[0][0])


def _from_json(path: Path) -> PointLabels:
    def pairs_of(pairs: list[tuple[str, Any]]) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for point, label in pairs:
            _add(found, point, label, str(path))
        return found

    with path.open(encoding="utf-8") as file:
        found = json.load(file, object_pairs_hook=pairs_of)
    if not isinstance(found, dict):
        raise WrongInput(f'{path}: must be {{"point": label, …}}')
    return _few(found, path)


def _add(found: dict[int, Any], point: str, label: Any, place: str) -> None:
    number = _whole(point) if _WHOLE.fullmatch(point) else -1
    if number < 0:
        raise WrongInput(f"{place}: a point must be a row number of the data, from 0. Got {point!r} instead.")
    if number in found:
        raise WrongInput(f"{place}: point {number} is labelled twice")
    found[number] = label


def _few(found: dict[int, Any], path: Path) -> PointLabels:
    return PointLabels(dict(zip(found, _same_kind(list(found.values()), str(path)), strict=True)), None)


def _is_unlabelled(entry: Any, unlabelled: str, mark: float | None) -> bool:
    if entry is None or entry == unlabelled:
        return True
    if isinstance(entry, str):
        entry = entry.strip()
        return entry in ("", "?") or entry.lower() == "nan" or (mark is not None and _number(entry) == mark)
    return bool(entry != entry) or (mark is not None and not isinstance(entry, bool) and entry == mark)


def _number(text: str) -> float | None:
    return float(text) if is_number(text) else None


def _same_kind(entries: list[Any], source: str) -> list[Label]:
    """Integers if all entries are, else words."""
    if all(_is_whole(entry) for entry in entries):
        return [_whole(entry) if isinstance(entry, str) else int(entry) for entry in entries]
    are_measured = all(isinstance(entry, str) and is_number(entry) and "." in entry for entry in entries)
    for entry in entries:
        if (are_measured or not isinstance(entry, str)) and not _is_whole(entry):
            raise WrongInput(
                f"{source}: labels must be integers or words. Got {entry!r} instead. Measurements are not labels: turn "
                "them into a few classes, such as low and high."
            )
    return [str(entry) for entry in entries]


def _whole(text: str) -> int:
    # Not via float, which cannot represent long numbers.
    return int(text.partition(".")[0])


def _is_whole(entry: Any) -> bool:
    if isinstance(entry, str):
        # 007 is a word, as its zeros matter.
        return _WHOLE.fullmatch(entry) is not None
    if isinstance(entry, float):
        return bool(np.isfinite(entry)) and entry == int(entry)
    return isinstance(entry, int | np.integer)
