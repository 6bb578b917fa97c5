"""Converts labels as users write them to messages, and classes in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import model_pb2 as pb


@dataclass(frozen=True)
class LabelColumn:
    """Labels in a dataset that has a row for each point: as many as there are, where a message would be too large.

    Such a dataset is made by ``upload(table, table={"label_column": …})``.

    Parameters
    ----------
    dataset : Dataset or str, optional
        The dataset; that of the points if not given.
    column : str, optional
        The column of labels; the only one if not given.
    weight_column : str, optional
        The column of numbers that holds the confidence in each label.
    """

    dataset: Any = ""
    column: str = ""
    weight_column: str = ""


class GivenLabels(NamedTuple):
    """The message, and the number of points if every point has an entry (None if only a few are named)."""

    message: pb.Labels
    length: int | None


def to_labels(y: Any, name: str = "y", weights: Any = None) -> GivenLabels:
    """Read labels: an entry for each point, or a few points with their classes.

    An array, list or Series has an entry for each point; −1, None, NaN and "" mean unlabelled. A dictionary
    ``{point: class}`` or a pair ``(points, classes)`` names a few points, and every class counts, even −1. Classes are
    integers (also as floats; True is 1) or strings, not both.

    Soft labels have a share of each class: a dictionary ``{point: {class: share}}``, an array with a row for each point
    and a column for each class 0, 1, …, or a frame whose columns are named by the classes. A row of zeros or NaN means
    unlabelled. A :class:`LabelColumn` refers to labels that are stored with a dataset.

    >>> to_labels([-1, 3, -1, 5]).message.points, to_labels([-1, 3, -1, 5]).length
    ([1, 3], 4)
    >>> to_labels({7: {"cat": 0.8, "dog": 0.2}}).message.shares
    [0.8, 0.2]
    >>> to_labels({7: "cat", 2: "dog"}).message.classes.strings.values
    ['cat', 'dog']
    """
    if weights is not None:
        given = to_labels(y, name)
        if given.message.HasField("column"):
            raise ValueError("weights must be in a column of the labels' dataset: name it in LabelColumn.")
        try:
            given.message.weights.extend(float(weights[point]) for point in given.message.points)
        except (IndexError, KeyError) as error:
            raise ValueError(f"weights must have an entry for each labelled point. Got none for {error}.") from None
        return given
    if y is None:
        return GivenLabels(pb.Labels(), None)
    if isinstance(y, LabelColumn):
        dataset = y.dataset if isinstance(y.dataset, str) else y.dataset.name
        column = pb.LabelColumn(dataset=dataset, column=y.column, weight_column=y.weight_column)
        return GivenLabels(pb.Labels(column=column), None)
    if isinstance(y, Mapping):
        if any(isinstance(value, Mapping) for value in y.values()):
            return _soft_few(y, name)
        return _few(list(y.keys()), list(y.values()), name)
    if not isinstance(y, tuple) and np.ndim(y) == 2 and np.shape(y)[1] > 1:
        return _soft_rows(y, name)
    if (
        isinstance(y, tuple)
        and len(y) == 2
        and all(hasattr(part, "__len__") and not isinstance(part, str) for part in y)
    ):
        return _few(_entries(y[0], name).tolist(), _entries(y[1], name).tolist(), name)
    entries = _entries(y, name)
    labelled = np.flatnonzero(_is_label(entries))
    message = pb.Labels(points=labelled.tolist(), classes=_classes(entries[labelled].tolist(), name))
    return GivenLabels(message, len(entries))


def labels_by_point(y: Any, points: int, name: str = "labels") -> dict[int, Any]:
    """Return the class of each labelled point; labels as :func:`to_labels` reads them.

    >>> labels_by_point(["a", "", "b"], 3)
    {0: 'a', 2: 'b'}
    """
    given = to_labels(y, name)
    check_lengths({name: given}, points)
    message = given.message
    if message.shares or message.HasField("column"):
        raise ValueError(f"{name} must have one class for each labelled point. Got soft labels or a column instead.")
    if any(not 0 <= point < points for point in message.points):
        raise ValueError(f"{name} must be of points from 0 to {points - 1}. Got a label of another point instead.")
    return dict(zip(message.points, class_array(message.classes).tolist(), strict=True))


def check_lengths(given: Mapping[str, GivenLabels], points: int) -> None:
    """Refuse labels with one entry per point if there is another number of points."""
    for name, labels in given.items():
        if labels.length is not None and labels.length != points:
            raise ValueError(f"{name} must have an entry for each of {points} points. Got {labels.length} instead.")


def class_array(message: pb.ClassValues) -> NDArray[Any]:
    """The classes in a message, as an array."""
    if message.WhichOneof("kind") == "integers":
        return np.array(message.integers.values, dtype=np.int64)
    return np.array(message.strings.values, dtype=np.str_)


def row_numbers(values: Any, name: str) -> list[int]:
    """Check row numbers, and return them as a list."""
    numbers = np.asarray(values)
    if numbers.size and (numbers.ndim != 1 or numbers.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be row numbers of points. Got {_shown(values)} instead.")
    return [int(number) for number in numbers.tolist()]


def _few(points: list[Any], classes: list[Any], name: str) -> GivenLabels:
    if len(points) != len(classes):
        raise ValueError(f"{name} must have one class for each of {len(points)} points. Got {len(classes)} instead.")
    return GivenLabels(pb.Labels(points=row_numbers(points, name), classes=_classes(classes, name)), None)


def _soft_few(y: Mapping[Any, Any], name: str) -> GivenLabels:
    points, classes, shares = [], [], []
    for point, given in y.items():
        for one, share in (given if isinstance(given, Mapping) else {given: 1.0}).items():
            if share:
                points.append(point)
                classes.append(one)
                shares.append(float(share))
    return GivenLabels(
        pb.Labels(points=row_numbers(points, name), classes=_classes(classes, name), shares=shares), None
    )


def _soft_rows(y: Any, name: str) -> GivenLabels:
    """Labels from shares in columns: of a frame, the classes are their names."""
    columns = list(y.columns) if hasattr(y, "columns") else list(range(np.shape(y)[1]))
    values = np.asarray(y, dtype=np.float64)
    values = np.where(np.isnan(values), 0.0, values)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"{name} must hold shares of classes, 0 or more, in its columns.")
    points, places = np.nonzero(values)
    classes = _classes([columns[place] for place in places.tolist()], name)
    message = pb.Labels(points=points.tolist(), classes=classes, shares=values[points, places].tolist())
    return GivenLabels(message, len(values))


def _entries(y: Any, name: str) -> NDArray[Any]:
    if hasattr(y, "to_numpy"):
        entries = y.to_numpy()
    else:
        entries = np.asarray(y)
        if entries.dtype.kind in "US" and not isinstance(y, np.ndarray):
            # A list of strings with −1 or NaN among them would turn those into strings.
            entries = np.asarray(y, dtype=object)
    if entries.ndim == 2 and entries.shape[1] == 1:
        entries = entries[:, 0]
    if entries.ndim != 1:
        raise ValueError(f"{name} must have one dimension, the points. Got {entries.ndim} instead.")
    return np.asarray(entries)


def _is_label(entries: NDArray[Any]) -> NDArray[np.bool_]:
    if entries.dtype.kind == "b":
        return np.ones(len(entries), dtype=bool)
    if entries.dtype.kind in "iu":
        return np.asarray(entries != -1)
    if entries.dtype.kind == "f":
        return np.asarray((entries != -1) & ~np.isnan(entries))
    if entries.dtype.kind == "U":
        return np.asarray(entries != "")
    return np.array([not is_missing(entry) for entry in entries], dtype=bool)


def is_missing(entry: Any) -> bool:
    """Whether an entry means unlabelled."""
    if entry is None or (isinstance(entry, str) and not entry):
        return True
    try:
        # Only NaN differs from itself.
        return bool(entry != entry) or (isinstance(entry, Real) and entry == -1)
    except TypeError:
        # pandas.NA is neither true nor false.
        return True


def _classes(values: list[Any], name: str) -> pb.ClassValues:
    if values and all(isinstance(value, str) for value in values):
        return pb.ClassValues(strings=pb.StringValues(values=values))
    for value in values:
        if not _is_integer(value):
            raise ValueError(
                f"The classes in {name} must be strings or integers, not both. Got {_shown(value)} instead."
            )
    return pb.ClassValues(integers=pb.IntegerValues(values=[int(value) for value in values]))


def _is_integer(value: Any) -> bool:
    if isinstance(value, Integral | np.bool_):
        return True
    return isinstance(value, Real) and math.isfinite(value) and float(value).is_integer()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
