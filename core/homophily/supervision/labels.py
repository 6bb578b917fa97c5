"""From a user's labels to targets and confidences, and from scores back to classes.

Two classes have one score column (class 1 is +1), more have one column per class with one-hot targets. The offsets that
are added to scores before the decision are in ``class_shares``, probabilities in ``calibration``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d
from sklearn.utils._missing import is_pandas_na
from sklearn.utils.multiclass import check_classification_targets

from homophily.arrays import Floats
from homophily.exceptions import ParameterError
from homophily.state import FLOATS, State, StateReader

#: The types of classes that can be stored.
_CLASS_DTYPES = ("bool", "str", *FLOATS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


@dataclass(frozen=True)
class Labels:
    """Labels as the energies want them: u points, C classes, n = 1 column for two classes and C for more."""

    #: The C classes, sorted.
    classes: NDArray[Any]
    #: T with shape (u, n); rows without label are 0.
    targets: Floats
    #: h with shape (u,); 0 where there is no label.
    confidence: Floats
    #: The most likely class of each labelled point as a position in ``classes``, −1 for the others.
    class_index: NDArray[np.intp]
    #: Confidence given to each class, with shape (C,).
    counts: Floats

    def to_arrays(self) -> State:
        """The labels as arrays of the labelled points only, and the classes."""
        points = np.flatnonzero(self.confidence > 0)
        arrays = {
            "label_points": points,
            "label_targets": self.targets[points],
            "label_confidence": self.confidence[points],
            "label_classes": self.class_index[points].astype(np.int64),
            "label_counts": self.counts,
        }
        name = "str" if self.classes.dtype.kind == "U" else self.classes.dtype.name
        if name not in _CLASS_DTYPES:
            raise ValueError(f"The classes of a state must be bool, int, float or str. Got {name} instead.")
        return State(arrays, {"classes": {"dtype": name, "values": self.classes.tolist()}})

    @classmethod
    def from_arrays(cls, stored: StateReader, size: int) -> Self:
        """The labels among ``size`` points whose :meth:`to_arrays` is stored."""
        classes = _stored_classes(stored.section("classes"))
        n = 1 if len(classes) == 2 else len(classes)
        counts = stored.copy("label_counts", (len(classes),))
        points = stored.positions("label_points", (None,), size, ("int64",))
        if not (np.diff(points) > 0).all():
            raise ValueError("The array 'label_points' of a classifier's state must be in ascending order.")
        targets, confidence, index = np.zeros((size, n)), np.zeros(size), np.full(size, -1, dtype=np.intp)
        targets[points] = stored.array("label_targets", (*points.shape, n))
        confidence[points] = stored.array("label_confidence", points.shape)
        index[points] = stored.positions("label_classes", points.shape, len(classes), ("int64",))
        return cls(classes, targets, confidence, index, counts)


def _stored_classes(stored: StateReader) -> NDArray[Any]:
    values, dtype = stored.value("values", list), stored.choice("dtype", *_CLASS_DTYPES)
    try:
        classes = np.array(values, dtype=dtype)
        fits = classes.ndim == 1 and classes.size > 1 and classes.tolist() == values
        fits = fits and bool((classes[:-1] < classes[1:]).all())
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(
            f"The 'classes' of a classifier's state must be two or more {dtype} in order. Got {values} instead."
        )
    return classes


def encode_labels(y: ArrayLike, sample_weight: ArrayLike | None = None) -> Labels:
    """Read labels: one class per point, or a row of class shares per point.

    ``y`` with one dimension: −1, NaN, None and "" mean unlabelled; the string "-1" is a class. With two dimensions
    (u × C): each row is the point's distribution over classes 0 … C − 1, rows are normalised, and a row of zeros means
    unlabelled. ``sample_weight`` ≥ 0 is the confidence in each label; 0 is as good as no label.
    """
    values = class_array(y)
    if values.ndim == 2 and values.shape[1] > 1:
        classes, shares = _read_shares(values)
    else:
        classes, shares = _read_classes(column_or_1d(values, warn=True))
    confidence = shares.any(axis=1) * _read_weights(sample_weight, len(shares))
    labelled = confidence > 0
    if not labelled.any():
        raise ParameterError(
            "No labelled point: y must hold a label of each of two classes, with a sample_weight above zero.", "y"
        )
    counts = confidence @ shares
    seen = counts > 0
    if seen.sum() < 2:
        raise ParameterError(
            "The number of classes has to be greater than one; got 1 class among the labelled points.", "y"
        )
    if values.ndim == 1 or values.shape[1] == 1:
        classes, shares, counts = classes[seen], shares[:, seen], counts[seen]
    shares = np.where(labelled[:, None], shares, 0.0)
    targets = shares[:, 1:] - shares[:, :1] if len(classes) == 2 else shares
    index = np.where(labelled, shares.argmax(axis=1), -1)
    return Labels(classes, np.ascontiguousarray(targets), confidence, index, counts)


def class_shares_of(targets: Floats) -> Floats:
    """Targets as one column per class; for two classes they are one column from −1 to 1."""
    return np.hstack([1.0 - targets, 1.0 + targets]) / 2.0 if targets.shape[1] == 1 else targets


def known_classes(y: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Which points have a label, and the class of each point; that of a point without label means nothing."""
    classes, shares = _read_classes(column_or_1d(class_array(y), warn=True))
    labelled = np.asarray(shares.any(axis=1))
    if not labelled.any():
        return labelled, np.empty(len(labelled), classes.dtype)
    return labelled, np.asarray(classes[shares.argmax(axis=1)])


def class_array(y: ArrayLike) -> NDArray[Any]:
    """The entries of ``y`` in a type that can be sorted; −1, NaN and None beside strings stay what they are."""
    values = np.asarray(y)
    is_mixed = values.dtype.kind in "US" and not isinstance(y, np.ndarray)
    # Integers of pandas become floats where one is missing.
    is_nullable = values.dtype.kind == "f" and getattr(getattr(y, "dtype", None), "kind", "f") in "iu"
    # NumPy's sort of its StringDType (kind T) crashes the process for some orders.
    return np.asarray(y, dtype=object) if is_mixed or is_nullable or values.dtype.kind == "T" else values


def _read_classes(y: NDArray[Any]) -> tuple[NDArray[Any], Floats]:
    labelled = np.array([_is_label(value) for value in y], dtype=bool) if y.dtype.kind in "OUS" else _numeric(y)
    known = y[labelled]
    if known.size == 0:
        return np.empty(0, dtype=y.dtype), np.zeros((len(y), 0))
    if known.dtype.kind == "O":
        # None and −1 beside strings made this an object array; what is left has a type of its own.
        known = np.array(known.tolist())
    if known.dtype.kind == "f" and np.isinf(known).any():
        raise ParameterError("Input y contains infinity.", "y")
    try:
        check_classification_targets(known)
    except ValueError as error:
        raise ParameterError(str(error), "y") from None
    classes, index = np.unique(known, return_inverse=True)
    shares = np.zeros((len(y), len(classes)))
    shares[np.flatnonzero(labelled), index] = 1.0
    return classes, shares


def _numeric(y: NDArray[Any]) -> NDArray[np.bool_]:
    if y.dtype.kind == "b":
        return np.ones(len(y), dtype=bool)
    return np.asarray((y != -1) & ~np.isnan(y))


def _is_label(value: object) -> bool:
    missing = value is None or is_pandas_na(value) or (isinstance(value, float) and np.isnan(value))
    return not missing and not (isinstance(value, str | bytes) and len(value) == 0) and value != -1


def _read_shares(y: NDArray[Any]) -> tuple[NDArray[Any], Floats]:
    shares = y.astype(np.float64)
    if not np.all(np.isfinite(shares) & (shares >= 0)):
        raise ParameterError(
            "The 'y' parameter of fit must be finite and non-negative when it holds class shares.", "y"
        )
    mass = shares.sum(axis=1, keepdims=True)
    return np.arange(y.shape[1]), np.divide(shares, mass, out=np.zeros_like(shares), where=mass > 0)


def _read_weights(sample_weight: ArrayLike | None, points: int) -> Floats:
    if sample_weight is None:
        return np.ones(points)
    weight = np.asarray(sample_weight, dtype=np.float64)
    # The words that scikit-learn's checks expect.
    if weight.shape != (points,):
        raise ParameterError(f"sample_weight.shape == {weight.shape}, expected {(points,)}!", "sample_weight")
    if not np.isfinite(weight).all():
        raise ParameterError("Input sample_weight contains NaN or infinity.", "sample_weight")
    if (weight < 0).any():
        raise ParameterError("Negative values in data passed to `sample_weight`.", "sample_weight")
    return weight


def decide_index(corrected: Floats) -> NDArray[np.intp]:
    """Class positions for scores whose offsets are already added; ties go to the first class."""
    if corrected.shape[1] == 1:
        return np.asarray(corrected[:, 0] > 0, dtype=np.intp)
    return np.asarray(corrected.argmax(axis=1))
