"""Labels and classes: from messages to arrays, with every field checked, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import model_pb2 as pb
from homophily_service.contract.errors import InvalidRequest, LimitExceeded

# Python strings: in NumPy's strings of fixed width, one long class makes thousands of short ones as long, and sorting
# a StringDType array crashes the process for some orders.
TEXT = np.dtype(object)


class PointLabels(NamedTuple):
    """The labelled points, the class of each and the confidence in it."""

    points: NDArray[np.int64]
    classes: NDArray[Any]
    weights: NDArray[np.float64]


def read_labels(message: pb.Labels, n_points: int | None, field: str, *, max_classes: int) -> PointLabels:
    """Read the labels of a request; ``n_points`` is None where only the job knows it."""
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
    order = np.argsort(points, kind="stable")
    twice = np.flatnonzero(points[order][1:] == points[order][:-1])
    if twice.size:
        place = int(order[twice[0] + 1])
        raise InvalidRequest(f"{field}.points[{place}]", f"point {points[place]} is labelled twice")
    found = len(np.unique(classes))
    if found > max_classes:
        raise LimitExceeded(f"{field}.classes: {found} classes, the limit is {max_classes}")
    return PointLabels(points, classes, _weights(message, len(points), field))


def _weights(message: pb.Labels, count: int, field: str) -> NDArray[np.float64]:
    if not message.weights:
        return np.ones(count)
    weights = np.array(message.weights, dtype=np.float64)
    if len(weights) != count:
        raise InvalidRequest(f"{field}.weights", f"must be none or one for each of {count} points; got {len(weights)}")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
    if wrong.size:
        raise InvalidRequest(f"{field}.weights[{wrong[0]}]", f"must be positive and finite; got {weights[wrong[0]]}")
    return weights


def check_two_classes(classes: NDArray[Any], field: str) -> None:
    """Refuse labels of fewer than two classes."""
    found = np.unique(classes)
    if len(found) < 2:
        raise InvalidRequest(field, f"must be of at least two classes; got {len(found)}")


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
