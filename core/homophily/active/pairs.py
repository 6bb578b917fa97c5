"""Which pairs to ask about: the same, or different?

An answer for one point is nearly one for all points around it. So points are grouped: into regions of near neighbours,
and these into larger groups, by Ward's method on the map, or on where random walks from each region go; the more
questions, the smaller the groups. The pair worth asking about is the one whose answer would move most: many points on
both sides, and a probability of being together near one half. What links already say, or what follows from them, is not
asked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.hierarchy import fcluster, linkage
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
#: Steps between regions that make up where a walk goes.
WALK = 8
#: Groups that are not neighbours are together with this probability, before anybody was asked.
APART = 1.0 / 3.0
#: How much a group counts after a question about it.
ASKED = 0.8


@dataclass(frozen=True)
class PairSuggestion:
    """A pair worth asking about, and why."""

    first: int
    """The position of a point in the middle of a region."""
    second: int
    """The same of another region."""
    score: float
    """How much the answer would move; only good for comparison within one call."""
    together: float
    """How probably they belong together, by what is known."""
    first_size: int
    """The points around the first that the answer concerns."""
    second_size: int
    """The points around the second that the answer concerns."""

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
    between = _between(graph, regions)
    tree = linkage(_features(placed, between, regions), "ward") if len(regions.sizes) > 1 else np.empty((0, 4))
    count = min(len(regions.sizes), 2 + int(np.sqrt(2 * n)))
    while True:
        groups = _merged(regions, tree, count)
        sides = np.column_stack(np.triu_indices(len(groups.sizes), k=1))
        sides = sides[_Known(groups, links, exclude).open(sides)]
        # Smaller groups have more to ask about.
        if len(sides) >= n or count >= len(regions.sizes):
            return _best(regions, groups, sides, _together(placed, groups, _between(graph, groups), sides), n)
        count = min(len(regions.sizes), count + 1 + count // 4)


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


def _between(graph: KNNGraph, regions: Regions) -> csr_array:
    """The weights between regions, and within each."""
    rows = regions.of[np.repeat(np.arange(graph.n_points), np.diff(graph.W.indptr))]
    count = len(regions.sizes)
    return csr_array((graph.W.data, (rows, regions.of[graph.W.indices])), shape=(count, count))


def _features(placed: Placed | None, between: csr_array, regions: Regions) -> Floats:
    """What makes regions alike: their places on the map, or where walks from them go."""
    if placed is not None:
        return placed.coordinates[regions.middles]
    volumes = np.asarray(between.sum(axis=1))
    step = between.toarray() / np.where(volumes > 0, volumes, 1.0)[:, None]
    step[volumes == 0, volumes == 0] = 1.0
    walked = np.linalg.matrix_power(step, WALK)
    return np.asarray(walked / np.sqrt(np.where(volumes > 0, volumes, 1.0)))


def _merged(regions: Regions, tree: Floats, count: int) -> Regions:
    """The regions in ``count`` groups; the middle of a group is that of its largest region."""
    if count >= len(regions.sizes):
        return regions
    group = fcluster(tree, count, "maxclust").astype(np.intp) - 1
    sizes = np.bincount(group, weights=regions.sizes).astype(np.intp)
    largest = np.lexsort((np.arange(len(group)), -regions.sizes, group))
    first = np.searchsorted(group[largest], np.arange(len(sizes)))
    return Regions(group[regions.of], sizes, regions.middles[largest[first]])


def _together(placed: Placed | None, groups: Regions, between: csr_array, sides: NDArray[np.intp]) -> Floats:
    """How probably the two groups of each pair (m, 2) belong together, from 1/3 upwards."""
    if placed is not None:
        ends = placed.coordinates[groups.middles[sides]]
        squares = np.sum((ends[:, 0] - ends[:, 1]) ** 2, axis=1) / placed.sigma_f**2
        related = np.asarray(placed.relationship.value(np, squares))
    else:
        volumes = np.asarray(between.sum(axis=1))
        smaller = np.minimum(volumes[sides[:, 0]], volumes[sides[:, 1]])
        weights = np.asarray(between.toarray()[sides[:, 0], sides[:, 1]])
        # Two groups of which one has half of its weight to the other are one group.
        related = np.minimum(1.0, 2.0 * weights / np.where(smaller > 0, smaller, 1.0))
    return np.asarray(APART + (1.0 - APART) * related)


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


def _best(regions: Regions, groups: Regions, sides: NDArray[np.intp], together: Floats, n: int) -> list[PairSuggestion]:
    """The pairs that would tell most; what was asked about a group makes further questions about it less urgent."""
    middles = _all_middles(regions, groups)
    weight, asked = groups.sizes.astype(np.float64), np.zeros(len(groups.sizes), dtype=np.intp)
    doubt = 4.0 * together * (1.0 - together)
    is_open = np.ones(len(sides), dtype=bool)
    found: list[PairSuggestion] = []
    while len(found) < n and is_open.any():
        worth = np.where(is_open, doubt * np.minimum(weight[sides[:, 0]], weight[sides[:, 1]]), -np.inf)
        best = int(worth.argmax())
        pair = sides[best]
        # Another point of the group each time: every one of them pulls its own surroundings.
        first, second = (int(middles[side][asked[side] % len(middles[side])]) for side in pair)
        sizes = (int(groups.sizes[side]) for side in pair)
        found.append(PairSuggestion(first, second, float(worth[best]), float(together[best]), *sizes))
        weight[pair] *= ASKED
        asked[pair] += 1
        is_open[best] = False
    return found


def _all_middles(regions: Regions, groups: Regions) -> list[NDArray[np.intp]]:
    """The middles of each group's regions, the largest region first."""
    group = groups.of[regions.middles]
    order = np.lexsort((np.arange(len(group)), -regions.sizes, group))
    return np.split(regions.middles[order], np.cumsum(np.bincount(group, minlength=len(groups.sizes)))[:-1])
