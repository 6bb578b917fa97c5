"""Arrays that the service answers: for new points, for a model's own points, and those of a map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answers for new points."""

    #: The model's classes, sorted: the order of the columns.
    classes: NDArray[Any]
    #: The class of each point as a position in ``classes``.
    class_indices: NDArray[np.int32]
    #: One column for two classes (positive for the second), else one column per class.
    scores: NDArray[np.float64]
    #: One column per class, if asked for.
    probabilities: NDArray[np.float64] | None
    #: What people should know, such as categories that the model does not know.
    warnings: tuple[str, ...] = ()

    @property
    def labels(self) -> NDArray[Any]:
        """The class of each point."""
        return np.asarray(self.classes[self.class_indices])


@dataclass(frozen=True, eq=False)
class Solution:
    """The answers for a model's own points; None for what was not asked for."""

    #: The model's classes, sorted: the order of the columns.
    classes: NDArray[Any]
    #: The class of each point as a position in ``classes``.
    class_indices: NDArray[np.int32] | None = None
    #: One column for two classes (positive for the second), else one column per class.
    scores: NDArray[np.float64] | None = None
    #: The values F that minimise the energy.
    values: NDArray[np.float64] | None = None
    #: One column per class.
    probabilities: NDArray[np.float64] | None = None
    #: Whether the label of each point was given.
    given: NDArray[np.bool_] | None = None
    #: The ids of the points; None if their table had no id column.
    ids: NDArray[Any] | None = None

    @property
    def labels(self) -> NDArray[Any] | None:
        """The class of each point."""
        return None if self.class_indices is None else np.asarray(self.classes[self.class_indices])


@dataclass(frozen=True, eq=False)
class Map:
    """The arrays of an embedding; None for what was not asked for, or does not exist."""

    #: A row for each point, a column for each dimension.
    coordinates: NDArray[np.float64] | None = None
    #: The cluster of each point, counted from 0.
    clusters: NDArray[np.int32] | None = None
    #: Must-links, two points in each row, with those that stand for labels.
    must_link: NDArray[np.int64] | None = None
    #: Cannot-links in the same form.
    cannot_link: NDArray[np.int64] | None = None
    #: The must-links that the map does not obey.
    violated_must: NDArray[np.int64] | None = None
    #: The cannot-links that the map does not obey.
    violated_cannot: NDArray[np.int64] | None = None
    #: The ids of the points; None if their table had no id column.
    ids: NDArray[Any] | None = None
