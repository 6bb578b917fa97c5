"""Which links hold a point in its place on a map.

A map's energy is not linear in its links: a link that is obeyed exerts hardly any force, and taking it away still moves
its surroundings. So a share is not a derivative. It says whose surroundings a point is in: a random walk from it on the
graph ends where it first meets a linked point, or gives up on the way; the links at that point share what ends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, diags_array
from sklearn.utils.validation import check_is_fitted

from homophily.active.paths import paths_from
from homophily.active.points import check_positions
from homophily.active.situation import GIVES_UP
from homophily.arrays import Floats
from homophily.estimators.embedding import ERREmbedding
from homophily.graph.knn_graph import KNNGraph
from homophily.parameters import wrong_parameter
from homophily.solve.irr import solve_linear
from homophily.solve.link_pairs import Links

#: Relative accuracy of the linear solve.
TOLERANCE = 1e-10


@dataclass(frozen=True)
class HoldingLink:
    """A link that holds a point in its place."""

    first: int
    """One of its points."""
    second: int
    """The other."""
    together: bool
    """Whether it is a must-link."""
    share: float
    """The probability that a walk from the point ends at it."""
    end: int
    """The end of the link that more of these walks meet."""


@dataclass(frozen=True)
class HeldPlace:
    """What holds a point in its place."""

    point: int
    """The point that is held."""
    links: tuple[HoldingLink, ...]
    """All links that the walk may meet, those it meets most often first."""
    free: float
    """The probability of meeting none. The shares of all links and this one add up to 1."""
    graph: Any
    """The sparse weights of the graph, for paths."""

    def paths(self, points: ArrayLike) -> list[list[int]]:
        """The points from this one to each of ``points``, by the fewest edges; empty if they are not connected."""
        return paths_from(self.graph, self.point, points)


def explain_place(embedding: ERREmbedding, points: ArrayLike) -> list[HeldPlace]:
    """Which links hold some points in their places on a map.

    Parameters
    ----------
    embedding : ERREmbedding
        A fitted map.
    points : array-like of int
        Positions of points of ``fit``.

    Returns
    -------
    list of HeldPlace
        One for each point.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from homophily import ERREmbedding
    >>> from homophily.active import explain_place
    >>> embedding = ERREmbedding().fit(load_digits().data, must_link=[(0, 10)], cannot_link=[(0, 1)])
    >>> held = explain_place(embedding, [30])[0]
    >>> round(sum(link.share for link in held.links) + held.free, 6)
    1.0
    """
    check_is_fitted(embedding)
    if not isinstance(embedding, ERREmbedding):
        raise wrong_parameter("embedding", "explain_place", "an ERREmbedding", repr(embedding))
    positions = check_positions(points, embedding.graph_.n_points, "points", "explain_place")
    return held_places(embedding.graph_, embedding.links_, positions)


def held_places(graph: KNNGraph, links: Links, points: NDArray[np.intp]) -> list[HeldPlace]:
    """What :func:`explain_place` does, with arguments that were checked."""
    pairs = np.asarray(links.pairs, dtype=np.intp).reshape(-1, 2)
    is_must = np.asarray(links.targets) > 0
    ends, links_at = np.unique(pairs, return_counts=True)
    met = _met(graph.W, ends, points)
    # A point with several links gives each of them as much.
    each = met / np.maximum(links_at, 1)
    places = np.searchsorted(ends, pairs)
    found = []
    for point, row in zip(points, each, strict=True):
        parts = row[places]
        shares = parts.sum(axis=1)
        nearer = pairs[np.arange(len(pairs)), parts.argmax(axis=1)] if len(pairs) else pairs[:, 0]
        holding = tuple(
            HoldingLink(int(pairs[k, 0]), int(pairs[k, 1]), bool(is_must[k]), float(shares[k]), int(nearer[k]))
            for k in np.argsort(-shares, kind="stable")
            if shares[k] > 0
        )
        found.append(HeldPlace(int(point), holding, max(0.0, 1.0 - float(shares.sum())), graph.W))
    return found


def _met(W: csr_array, ends: NDArray[np.intp], points: NDArray[np.intp]) -> Floats:
    """The probability (m, e) that a walk from each point first meets each end, one solve for all of them.

    With ε the probability of giving up at a step, the expected visits of free points, divided by their degrees, are
    (D − (1 − ε) W)⁻¹ e_i, where D − (1 − ε) W = (1 − ε) L + (the rest of the diagonal).
    """
    is_end = np.zeros(W.shape[0], dtype=bool)
    is_end[ends] = True
    free = np.flatnonzero(~is_end)
    met = np.zeros((len(points), len(ends)))
    starts_free = ~is_end[points]
    met[~starts_free, np.searchsorted(ends, points[~starts_free])] = 1.0
    if not starts_free.any() or not len(ends):
        return met
    going_on = 1.0 - GIVES_UP
    rows = W[free]
    within, to_ends = csr_array(rows[:, free]), csr_array(rows[:, ends])
    inner = np.asarray(within.sum(axis=1))
    degrees = np.asarray(W.sum(axis=1))[free]
    laplacian = csr_array(diags_array(inner) - within)
    laplacian.sort_indices()
    start = np.zeros((len(free), int(starts_free.sum())))
    start[np.searchsorted(free, points[starts_free]), np.arange(start.shape[1])] = 1.0
    # A point without neighbours goes nowhere.
    rest = np.where(degrees > 0, degrees - going_on * inner, 1.0)
    visits = solve_linear(laplacian, rest, start, going_on, tolerance=TOLERANCE).solution
    met[starts_free] = np.clip(going_on * (to_ends.T @ visits).T, 0.0, 1.0)
    return met
