"""A map in files: a table, a picture, a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client import Map
from homophily_client.labels import labels_by_point
from homophily_service.plots.maps import map_page, map_picture, to_draw
from homophily_service.plots.tables import WRITERS, write_table

TABLES, PICTURES, PAGES = tuple(WRITERS), (".png",), (".html", ".htm")


def write_map(found: Map, path: Path | str, labels: Any = None, kept: Mapping[str, Any] | None = None) -> None:
    """Write a row for each point into a .csv, .parquet or other table: its coordinates, its cluster and its label.

    ``labels`` are given as y in ``Client.fit``; ``kept`` are further columns, by name. Parquet needs
    ``pip install 'homophily[tables]'``.
    """
    path, coordinates = _checked(path, TABLES), _coordinates(found)
    count, dimensions = coordinates.shape
    columns: dict[str, Any] = {"point": range(count)} if found.ids is None else {"id": found.ids}
    columns |= {name: values for name, values in (kept or {}).items() if name not in columns}
    columns |= {f"x{number + 1}": coordinates[:, number] for number in range(dimensions)}
    if found.clusters is not None:
        columns["cluster"] = found.clusters
    if labels is not None:
        known = labels_by_point(labels, count)
        columns["label"] = [known.get(point) for point in range(count)]
    write_table(columns, path)


def plot_map(found: Map, path: Path | str, labels: Any = None, *, title: str = "") -> None:
    """Draw a map into a .png file, or a .html page to zoom and point at, which needs no network.

    Points are coloured by ``labels``, given as y in ``Client.fit``, or else by cluster; violated links are red.
    Pictures need ``pip install 'homophily[plot]'``, pages nothing.
    """
    path = _checked(path, (*PICTURES, *PAGES))
    count = len(_coordinates(found))
    known = None if labels is None else labels_by_point(labels, count)
    drawing = to_draw(title, found, known)
    path.write_bytes((map_picture if path.suffix.lower() in PICTURES else map_page)(drawing))


def _coordinates(found: Map) -> NDArray[np.float64]:
    if found.coordinates is None:
        raise ValueError("the map must have been read with its coordinates")
    return found.coordinates


def _checked(path: Path | str, suffixes: tuple[str, ...]) -> Path:
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"path must end in one of {', '.join(suffixes)}. Got {str(path)!r} instead.")
    return path
