"""Paths on a graph, by the fewest edges."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike
from scipy.sparse.csgraph import breadth_first_order

from homophily.active.points import check_positions


def paths_from(graph: Any, start: int, ends: ArrayLike) -> list[list[int]]:
    """The points from ``start`` to each of ``ends``, both included; empty where they are not connected."""
    positions = check_positions(ends, graph.shape[0], "labels", "paths")
    if start < 0:
        return [[] for _ in positions]
    _, before = breadth_first_order(graph, start, directed=False)
    found: list[list[int]] = []
    for end in positions:
        path = [int(end)]
        while path[-1] != start and before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
        found.append(path[::-1] if path[-1] == start else [])
    return found
