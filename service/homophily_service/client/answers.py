"""Arrays that the service answers: for new points, for a model's own, and those of a map, with the files it makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_service.client.labels import labels_by_point

# The files that a map is written into.
TABLES, PICTURES, PAGES = (".csv", ".parquet"), (".png",), (".html", ".htm")


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answers for new points."""

    #: The model's classes, sorted: the order of the columns.
    classes: NDArray[Any]
    #: The class of each point as a position in ``classes``.
    class_indices: NDArray[np.int32]
    #: One column for two classes (positive for the second), else one column a class.
    scores: NDArray[np.float64]
    #: One column a class, if asked for.
    probabilities: NDArray[np.float64] | None

    @property
    def labels(self) -> NDArray[Any]:
        """The class of each point."""
        return np.asarray(self.classes[self.class_indices])


@dataclass(frozen=True, eq=False)
class Solution:
    """The answers for a model's own points; what was not asked for is None."""

    #: The model's classes, sorted: the order of the columns.
    classes: NDArray[Any]
    #: The class of each point as a position in ``classes``.
    class_indices: NDArray[np.int32] | None = None
    #: One column for two classes (positive for the second), else one column a class.
    scores: NDArray[np.float64] | None = None
    #: The values F that minimise the energy.
    values: NDArray[np.float64] | None = None
    #: One column a class.
    probabilities: NDArray[np.float64] | None = None

    @property
    def labels(self) -> NDArray[Any] | None:
        """The class of each point."""
        return None if self.class_indices is None else np.asarray(self.classes[self.class_indices])


@dataclass(frozen=True, eq=False)
class Map:
    """The arrays of an embedding; what was not asked for, or is not there, is None."""

    #: A row for each point, a column for each dimension.
    coordinates: NDArray[np.float64] | None = None
    #: The cluster of each point, counted from 0.
    clusters: NDArray[np.int32] | None = None
    #: Links, two points in each row; those that stand for labels are among them.
    must_link: NDArray[np.int64] | None = None
    cannot_link: NDArray[np.int64] | None = None
    #: Those of them that the map does not obey.
    violated_must: NDArray[np.int64] | None = None
    violated_cannot: NDArray[np.int64] | None = None

    def write_table(self, path: Path | str, labels: Any = None) -> None:
        """Write a row for each point into a .csv or .parquet file: its coordinates, its cluster and its label.

        ``labels`` are given as y in ``fit``. Parquet needs ``pip install 'homophily[parquet]'``.
        """
        from homophily_service.tables import write_table

        path = _checked(path, TABLES)
        count, dimensions = self._places.shape
        columns: dict[str, Any] = {"point": range(count)}
        columns |= {f"x{number + 1}": self._places[:, number] for number in range(dimensions)}
        if self.clusters is not None:
            columns["cluster"] = self.clusters
        if labels is not None:
            known = labels_by_point(labels, count)
            columns["label"] = [known.get(point) for point in range(count)]
        write_table(columns, path)

    def plot(self, path: Path | str, labels: Any = None, *, title: str = "") -> None:
        """Draw the map into a .png file, or a .html page to zoom and point at, which needs no network.

        Points are coloured by ``labels``, given as y in ``fit``, or else by cluster; violated links are red.
        Pictures need ``pip install 'homophily[plot]'``, pages nothing.
        """
        from homophily_service.pictures.maps import map_page, map_picture, to_draw

        path = _checked(path, (*PICTURES, *PAGES))
        count = len(self._places)
        known = None if labels is None else labels_by_point(labels, count)
        drawing = to_draw(title, self, known)
        path.write_bytes((map_picture if path.suffix.lower() in PICTURES else map_page)(drawing))

    @property
    def _places(self) -> NDArray[np.float64]:
        if self.coordinates is None:
            raise ValueError("the map must have been read with its coordinates to be written")
        return self.coordinates


def _checked(path: Path | str, suffixes: tuple[str, ...]) -> Path:
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"path must end in one of {', '.join(suffixes)}. Got {str(path)!r} instead.")
    return path
