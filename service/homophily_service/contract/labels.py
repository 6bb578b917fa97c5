"""Labels and classes: from messages to arrays, with every field checked, and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import model_pb2 as pb
from homophily_client._pb import points_pb2
from homophily_service.contract.errors import InvalidRequest, LimitExceeded
from homophily_service.contract.tables import STRINGS, Rows, number_width

# Python strings: in NumPy's strings of fixed width, one long class makes thousands of short ones as long, and sorting
# a StringDType array crashes the process for some orders.
TEXT = np.dtype(object)


#: As people write integers.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")


class PointLabels(NamedTuple):
    """The labelled points, the class of each and the confidence in it, and of soft labels the share of each class."""

    points: NDArray[np.int64]
    classes: NDArray[Any]
    weights: NDArray[np.float64]
    shares: NDArray[np.float64] | None = None


def read_labels(
    message: pb.Labels, n_points: int | None, field: str, *, max_classes: int, soft: bool = False
) -> PointLabels:
    """Read the labels that a request holds; ``n_points`` is None where only the job knows it.

    Only with ``soft`` may they be soft.
    """
    if message.shares and not soft:
        raise InvalidRequest(f"{field}.shares", "must be empty here: only labels of Fit and Transduce without a search")
    points = np.array(message.points, dtype=np.int64)
    kind = message.classes.WhichOneof("kind")
    if kind is None:
        if len(points):
            raise InvalidRequest(f"{field}.classes", "must contain strings or integers")
        return PointLabels(points, np.array([], dtype=np.int64), np.array([]))
    classes: NDArray[Any]
    if kind == "strings":
        values = list(message.classes.strings.values)
        classes = np.array(values, dtype=TEXT)
        for place, value in enumerate(values):
            if not value or len(value) > 256 or "\0" in value:
                raise InvalidRequest(f"{field}.classes.strings.values[{place}]", "must be 1 to 256 characters, no NUL")
    else:
        classes = np.array(message.classes.integers.values, dtype=np.int64)
    if len(classes) != len(points):
        raise InvalidRequest(f"{field}.classes", f"must be one for each of {len(points)} points; got {len(classes)}")
    wrong = np.flatnonzero((points < 0) | (points >= (n_points if n_points is not None else np.iinfo(np.int64).max)))
    if wrong.size:
        place = int(wrong[0])
        most = "" if n_points is None else f" and below {n_points}"
        raise InvalidRequest(f"{field}.points[{place}]", f"must be at least 0{most}; got {points[place]}")
    _check_count(classes, max_classes, f"{field}.classes")
    weights = _positive(message.weights, len(points), f"{field}.weights")
    if message.shares:
        return _soft(points, classes, weights, _positive(message.shares, len(points), f"{field}.shares"), field)
    order = np.argsort(points, kind="stable")
    twice = np.flatnonzero(points[order][1:] == points[order][:-1])
    if twice.size:
        place = int(order[twice[0] + 1])
        raise InvalidRequest(f"{field}.points[{place}]", f"point {points[place]} is labelled twice")
    return PointLabels(points, classes, weights)


def _soft(
    points: NDArray[np.int64],
    classes: NDArray[Any],
    weights: NDArray[np.float64],
    shares: NDArray[np.float64],
    field: str,
) -> PointLabels:
    """Labels with shares that add up to 1 at each point."""
    first: dict[int, int] = {}
    seen: set[tuple[int, Any]] = set()
    for place, one in enumerate(zip(points.tolist(), classes.tolist(), strict=True)):
        if one in seen:
            raise InvalidRequest(f"{field}.points[{place}]", f"point {one[0]} has two shares of class {one[1]!r}")
        seen.add(one)
        if weights[place] != weights[first.setdefault(one[0], place)]:
            raise InvalidRequest(f"{field}.weights[{place}]", f"must be the same wherever point {one[0]} is named")
    known, row = np.unique(points, return_inverse=True)
    totals = np.bincount(row, weights=shares)
    if len(known) == len(points):
        return PointLabels(points, classes, weights)
    return PointLabels(points, classes, weights, shares / totals[row])


def _check_count(classes: NDArray[Any], max_classes: int, field: str) -> None:
    found = len(set(classes.tolist()))
    if found > max_classes:
        raise LimitExceeded(f"{field}: {found} classes, the limit is {max_classes}")


def _positive(given: Sequence[float], count: int, field: str) -> NDArray[np.float64]:
    """Positive numbers, one for each point; 1 if none are given."""
    if not given:
        return np.ones(count)
    values = np.array(given, dtype=np.float64)
    if len(values) != count:
        raise InvalidRequest(field, f"must be none or one for each of {count} points; got {len(values)}")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if wrong.size:
        raise InvalidRequest(f"{field}[{wrong[0]}]", f"must be positive and finite; got {values[wrong[0]]}")
    return values


def check_label_column(shape: points_pb2.PointsShape, message: pb.Labels, n_points: int, field: str) -> None:
    """Refuse a reference to labels that a dataset of this shape cannot satisfy."""
    for name in ("points", "classes", "weights", "shares"):
        if message.HasField("classes") if name == "classes" else getattr(message, name):
            raise InvalidRequest(f"{field}.{name}", f"must not be given beside {field}.column")
    _label_column(shape.schema, message.column, f"{field}.column")
    if shape.dense.rows != n_points:
        raise InvalidRequest(
            f"{field}.column.dataset", f"must have a row for each of {n_points} points; got {shape.dense.rows} rows"
        )


def _label_column(schema: points_pb2.TableSchema, column: pb.LabelColumn, field: str) -> str:
    """The name of the column of labels."""
    kinds = {one.name: one.kind for one in schema.columns}
    labels = [name for name, kind in kinds.items() if kind == points_pb2.COLUMN_KIND_LABEL]
    if not labels:
        raise InvalidRequest(
            f"{field}.dataset", "must be a table that was uploaded with a column of labels; this one has none"
        )
    if column.column not in ("", *labels) or (not column.column and len(labels) > 1):
        known = ", ".join(map(repr, labels[:20]))
        raise InvalidRequest(f"{field}.column", f"must be one of the columns of labels, {known}; got {column.column!r}")
    if column.weight_column and kinds.get(column.weight_column) != points_pb2.COLUMN_KIND_NUMBER:
        raise InvalidRequest(f"{field}.weight_column", f"must be a column of numbers; got {column.weight_column!r}")
    return column.column or labels[0]


def labels_in(
    rows: Rows, column: pb.LabelColumn, field: str, *, max_classes: int, like: NDArray[Any] | None = None
) -> PointLabels:
    """The labels in a column of a table: integers if all of them are, unless they are to be ``like`` strings."""
    schema = rows.schema
    name = _label_column(schema, column, f"{field}.column")
    strings = [one.name for one in schema.columns if one.kind in STRINGS]
    entries = rows.strings[strings.index(name)].decode()
    points = np.flatnonzero(entries != "").astype(np.int64)
    classes = entries[points]
    _check_count(classes, max_classes, f"{field}.column")
    is_text = like is not None and like.size and like.dtype.kind not in "iu"
    if not is_text and all(_WHOLE.fullmatch(one) for one in set(classes.tolist())):
        classes = classes.astype(np.int64)
    weights = np.ones(len(points))
    if column.weight_column:
        place = 0
        for one in schema.columns:
            if one.name == column.weight_column:
                break
            place += number_width(one)
        given = rows.numbers[points, place].astype(np.float64)
        weights = np.where(np.isnan(given), 1.0, given)
        wrong = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
        if wrong.size:
            raise InvalidRequest(
                f"{field}.column.weight_column",
                f"must hold positive numbers; got {weights[wrong[0]]} in row {points[wrong[0]]}",
            )
    return PointLabels(points, classes, weights)


def check_two_classes(classes: NDArray[Any], field: str) -> None:
    """Refuse labels of fewer than two classes."""
    found = np.unique(classes)
    if len(found) < 2:
        raise InvalidRequest(field, f"must be of at least two classes; got {len(found)}")


def check_same_kind(classes: NDArray[Any], others: NDArray[Any], field: str) -> None:
    """Refuse strings beside integers, which columns of labels may turn out to be."""
    kinds = [("strings" if one.dtype == TEXT else "integers") for one in (classes, others)]
    if classes.size and kinds[0] != kinds[1]:
        raise InvalidRequest(f"{field}.classes", f"must be {kinds[1]}, like those of labels; got {kinds[0]}")


def values_of(message: pb.ClassValues) -> list[Any]:
    """The classes that a message holds."""
    return list(message.integers.values if message.WhichOneof("kind") == "integers" else message.strings.values)


def classes_of(message: pb.ClassValues) -> NDArray[Any]:
    """The classes that a message holds, as an array."""
    return np.array(values_of(message), dtype=np.int64 if message.WhichOneof("kind") == "integers" else TEXT)


def class_values(classes: NDArray[Any]) -> pb.ClassValues:
    """Classes as a message."""
    if classes.dtype.kind in "iu":
        return pb.ClassValues(integers=pb.IntegerValues(values=classes.tolist()))
    return pb.ClassValues(strings=pb.StringValues(values=classes.tolist()))
