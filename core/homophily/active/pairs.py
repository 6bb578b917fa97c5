"""Which pairs to ask about: the same, or different?

Points are grouped into regions of near neighbours, as an answer for one point of a region is nearly one for all. Of two
neighbouring regions the graph (or the map, which knows the links as well) says how probably they belong together. The
pair worth asking about is the one whose answer would move most: many points, and a probability near one half. What
links already say, or what follows from them, is not asked again, and every pair that is suggested counts as answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from sklearn.utils.validation import check_is_fitted

from homophily.arrays import Floats
from homophily.estimators.embedding import ERREmbedding
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.laplacian import sparse_product
from homophily.parameters import AT_LEAST_ONE, check_parameters, wrong_parameter
from homophily.relationship.functions import RELATIONSHIPS, Relationship
from homophily.solve.link_pairs import Links
from homophily.supervision.links import check_links, read_pairs

#: Points of a region on average, and the most regions there may be.
REGION_POINTS, MOST_REGIONS = 25, 1000
#: Rounds in which points join the region that most of their neighbours are in.
ROUNDS = 12


@dataclass(frozen=True)
class PairSuggestion:
    """A pair worth asking about, and why."""

    first: int
    second: int
    """Positions of the points: the middle of one region, and of another."""
    score: float
    """How much the answer would move; only good for comparison within one call."""
    together: float
    """How probably they belong together, by what is known."""
    first_size: int
    second_size: int
    """The points that the answer concerns on either side."""

    def __str__(self) -> str:
        sizes = f"{self.first_size} points around one and {self.second_size} around the other"
        return f"would decide about {sizes}, which are together with a probability of {self.together:.0%}"


def suggest_pairs(
    fitted: ERREmbedding | KNNGraph,
    n: int,
    *,
    must_link: ArrayLike | None = None,
    cannot_link: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
) -> list[PairSuggestion]:
    """Pairs whose answer, the same or different, would change the map or the clusters most, the best first.

    Parameters
    ----------
    fitted : ERREmbedding or KNNGraph
        A fitted map, whose links are known to it, or a graph.
    n : int
        How many; fewer are returned if there is not as much to ask.
    must_link, cannot_link : array-like of shape (m, 2), default=None
        Pairs (i, j) that were answered, beside the links of a map.
    exclude : array-like of shape (m, 2), default=None
        Pairs not to suggest, such as those that a person could not tell.

    Returns
    -------
    list of PairSuggestion
        With positions, scores and sizes; ``str()`` gives the reason in words.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from homophily import KNNGraph
    >>> from homophily.active import suggest_pairs
    >>> pairs = suggest_pairs(KNNGraph().fit(load_digits().data), 3)
    >>> len(pairs), pairs[0].first != pairs[0].second
    (3, True)
    """
    check_is_fitted(fitted)
    check_parameters({"n": n}, {"n": [AT_LEAST_ONE]}, "suggest_pairs")
    if not isinstance(fitted, ERREmbedding | KNNGraph):
        raise wrong_parameter("fitted", "suggest_pairs", "an ERREmbedding or a KNNGraph", repr(fitted))
    graph, placed, more = (fitted, None, None) if isinstance(fitted, KNNGraph) else _placed(fitted)
    links = check_links(must_link, cannot_link, graph.n_points, more=more, owner="suggest_pairs", stacklevel=3)
    return choose_pairs(graph, n, placed, links, read_pairs("exclude", exclude, graph.n_points, "suggest_pairs"))


class Placed(NamedTuple):
    """A map, as far as it says which points are related."""

    coordinates: Floats
    sigma_f: float
    relationship: Relationship


def _placed(embedding: ERREmbedding) -> tuple[KNNGraph, Placed, Links]:
    placed = Placed(embedding.embedding_, embedding.sigma_f_, RELATIONSHIPS[embedding.relationship])
    return embedding.graph_, placed, embedding.links_


def choose_pairs(
    graph: KNNGraph, n: int, placed: Placed | None, links: Links, exclude: NDArray[np.int64]
) -> list[PairSuggestion]:
    """What :func:`suggest_pairs` does, with arguments that were checked."""
    regions = _regions(graph)
    sides, together = _neighbouring(placed, graph, regions)
    return _best(regions, sides, together, _Known(regions, links, exclude), n)


class Regions(NamedTuple):
    """A region (u,) of each point, their sizes, and the point in the middle of each."""

    of: NDArray[np.intp]
    sizes: NDArray[np.intp]
    middles: NDArray[np.intp]


def _regions(graph: KNNGraph) -> Regions:
    """Regions of near points: they grow from points with strong edges that are not next to each other."""
    u, W = graph.n_points, graph.W
    count = max(2, min(MOST_REGIONS, u // REGION_POINTS))
    of = np.full(u, -1, dtype=np.intp)
    is_free, seeds = np.ones(u, dtype=bool), []
    for point in np.argsort(-graph.degrees, kind="stable"):
        if is_free[point]:
            seeds.append(int(point))
            is_free[W.indices[W.indptr[point] : W.indptr[point + 1]]] = False
            if len(seeds) == count:
                break
    of[seeds] = np.arange(len(seeds))
    for _ in range(ROUNDS):
        members = csr_array((np.ones(u)[of >= 0], (np.flatnonzero(of >= 0), of[of >= 0])), shape=(u, len(seeds)))
        votes = csr_array(W @ members)
        joined = _largest_in_row(votes)
        changed = np.where(joined >= 0, joined, of)
        changed[seeds] = np.arange(len(seeds))
        if np.array_equal(changed, of):
            break
        of = changed
    # What no seed reaches is one region per component.
    rest = of < 0
    if rest.any():
        of[rest] = len(seeds) + np.unique(graph.component_labels[rest], return_inverse=True)[1]
    sizes = np.bincount(of)
    return Regions(of, sizes, _middles(W, of, len(sizes)))


def _largest_in_row(votes: csr_array) -> NDArray[np.intp]:
    """The column of each row's largest entry, the first of several; −1 for an empty row."""
    found = np.full(votes.shape[0], -1, dtype=np.intp)
    rows = np.repeat(np.arange(votes.shape[0]), np.diff(votes.indptr))
    order = np.lexsort((votes.indices, -votes.data, rows))
    there = np.flatnonzero(np.diff(votes.indptr))
    found[there] = votes.indices[order[votes.indptr[there]]]
    return found


def _middles(W: csr_array, of: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """The point of each region with most weight to the others in it, two steps far."""
    rows = np.repeat(np.arange(len(of)), np.diff(W.indptr))
    same = of[rows] == of[W.indices]
    inner = csr_array((W.data[same], (rows[same], W.indices[same])), shape=W.shape)
    strength = sparse_product(inner, sparse_product(inner, np.ones(len(of))))
    order = np.lexsort((np.arange(len(of)), -strength, of))
    starts = np.searchsorted(of[order], np.arange(count))
    return np.asarray(order[starts], dtype=np.intp)


def _neighbouring(placed: Placed | None, graph: KNNGraph, regions: Regions) -> tuple[NDArray[np.intp], Floats]:
    """Pairs (m, 2) of regions with an edge between them, and how probably each belongs together."""
    count = len(regions.sizes)
    rows = regions.of[np.repeat(np.arange(graph.n_points), np.diff(graph.W.indptr))]
    columns = regions.of[graph.W.indices]
    between = csr_array((graph.W.data, (rows, columns)), shape=(count, count))
    volumes = np.asarray(between.sum(axis=1))
    upper = between.tocoo()
    is_pair = upper.coords[0] < upper.coords[1]
    sides = np.column_stack([axis[is_pair] for axis in upper.coords]).astype(np.intp)
    if placed is not None:
        place = placed.coordinates[regions.middles]
        squares = np.sum((place[sides[:, 0]] - place[sides[:, 1]]) ** 2, axis=1) / placed.sigma_f**2
        return sides, np.asarray(placed.relationship.value(np, squares))
    # An edge in three that leads out of the smaller region, into the other, makes them one half likely to be one.
    leaving = upper.data[is_pair] / np.maximum(np.minimum(volumes[sides[:, 0]], volumes[sides[:, 1]]), 1e-300)
    return sides, np.minimum(1.0, leaving / (leaving + 1.0 / 3.0))


class _Known:
    """What is known of pairs of regions: which are together, which are apart, and which are not to be asked about."""

    def __init__(self, regions: Regions, links: Links, skipped: NDArray[np.int64]) -> None:
        count = len(regions.sizes)
        must, self._cannot, self._skipped = (regions.of[pairs] for pairs in (links.must, links.cannot, skipped))
        merged = csr_array((np.ones(len(must)), tuple(must.T)), shape=(count, count))
        self._group = connected_components(merged, directed=False)[1]
        self._count = count

    def open(self, sides: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which pairs of regions are worth a question: nothing follows from the links about them."""
        ends, apart = self._keys(self._group[sides]), self._keys(self._group[self._cannot])
        is_skipped = np.isin(self._keys(sides), self._keys(self._skipped))
        is_together = self._group[sides[:, 0]] == self._group[sides[:, 1]]
        return np.asarray(~is_together & ~np.isin(ends, apart) & ~is_skipped)

    def _keys(self, pairs: NDArray[Any]) -> NDArray[np.int64]:
        """One number per pair, whichever end comes first."""
        return np.asarray(pairs.min(axis=1).astype(np.int64) * self._count + pairs.max(axis=1))


def _best(regions: Regions, sides: NDArray[np.intp], together: Floats, known: _Known, n: int) -> list[PairSuggestion]:
    """The pairs that would tell most; what was asked about a region makes further questions about it less urgent."""
    is_open = known.open(sides)
    weight = regions.sizes.astype(np.float64)
    doubt = 4.0 * together * (1.0 - together)
    found: list[PairSuggestion] = []
    while len(found) < n and is_open.any():
        worth = np.where(is_open, doubt * np.minimum(weight[sides[:, 0]], weight[sides[:, 1]]), -np.inf)
        best = int(worth.argmax())
        a, b = sides[best]
        first, second = (int(regions.middles[side]) for side in (a, b))
        sizes = int(regions.sizes[a]), int(regions.sizes[b])
        found.append(PairSuggestion(first, second, float(worth[best]), float(together[best]), *sizes))
        weight[[a, b]] /= 2.0
        is_open[best] = False
    return found
