"""The files that a map is written into: which there are, and the table among them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from homophily_service.cli.failures import WrongInput

if TYPE_CHECKING:
    from homophily_service.client import Map

TABLES, PICTURES, PAGES = (".csv", ".parquet"), (".png",), (".html", ".htm")


def check_matplotlib(path: Path) -> None:
    """Refuse to write pictures where there is nothing to draw them with."""
    from homophily_service.pictures.canvas import need_matplotlib

    try:
        need_matplotlib()
    except ImportError as error:
        raise WrongInput(f"{path}: {error}") from None


def columns_of(found: Map, labels: dict[int, Any] | None) -> dict[str, Any]:
    """The table: a row for each point."""
    assert found.coordinates is not None
    count, dimensions = found.coordinates.shape
    columns: dict[str, Any] = {"point": range(count)}
    columns |= {f"x{number + 1}": found.coordinates[:, number] for number in range(dimensions)}
    if found.clusters is not None:
        columns["cluster"] = found.clusters
    if labels is not None:
        columns["label"] = [labels.get(point) for point in range(count)]
    return columns
