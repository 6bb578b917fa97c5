"""Constrained 1-spectral clustering: the normalised cut itself, with a penalty for violated cannot-links."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from sklearn.utils import check_random_state

from homophily.arrays import Floats, submatrix
from homophily.baselines.base import LinkClustering
from homophily.baselines.ratio_dca import CutProblem, Division
from homophily.estimators.partition import in_order_of_appearance
from homophily.exceptions import ContradictingLinksError
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import smallest_eigenpairs, spectral_vectors
from homophily.parameters import NOT_NEGATIVE
from homophily.supervision.links import Links, find_groups, pair_matrix
from homophily.threads import single_threaded_blas

Members = NDArray[np.int64]

# γ in mean degrees. To obey all links: from "a violated link costs a tenth of a point's edges" on, threefold each time.
PENALTIES = np.array([0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0])
# While more divisions follow; 0.03 to 0.1 did alike on Iris and Wine, 0.3 cut through classes.
EARLY_PENALTY = 0.05
LAST_PENALTY = 1.0


class COSC(LinkClustering):
    """Constrained 1-spectral clustering (Rangapuram and Hein 2012), by RatioDCA.

    Must-links merge their points, so all are obeyed. Two clusters: the penalty γ of cannot-links grows, each time from
    the last division, until these are obeyed as well; those that still are not in the end are by moving one of their
    ends. More clusters: one cluster is divided at a time, that for which the sum over clusters of
    (cut + γ violated links inside) / volume falls the most. As the ends of a link may also be parted later, γ is small
    until the last division; that one is done as for two clusters if the links inside leave two classes possible.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters.
    gamma : float, default=None
        A fixed penalty γ in mean degrees, instead of the above.
    graph : KNNGraph, default=None
        Unfitted graph to build from points; None means ``KNNGraph()``.
    n_init : int, default=3
        Starts of each division: the smoothest eigenvector, the same with cannot-links as negative weights, then
        random ones.
    random_state, n_jobs : int, default=None
        As :class:`Original` has them.

    Attributes
    ----------
    labels_ : ndarray of shape (u,)
        Clusters, numbered by their first point.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily.baselines import COSC
    >>> X, y = make_moons(100, noise=0.05, random_state=0)
    >>> labels = COSC(random_state=0).fit_predict(X, must_link=[(0, 1)], cannot_link=[(0, 2)])
    >>> bool(labels[0] == labels[1]), bool(labels[0] == labels[2])
    (True, False)
    """

    _parameter_constraints = LinkClustering._parameter_constraints | {"gamma": [NOT_NEGATIVE, None]}

    def __init__(
        self,
        n_clusters: int = 2,
        gamma: float | None = None,
        graph: KNNGraph | None = None,
        n_init: int = 3,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        super().__init__(n_clusters, graph, n_init, random_state, n_jobs)
        self.gamma = gamma

    def _cluster(self, graph: KNNGraph, links: Links) -> NDArray[np.int32]:
        random = check_random_state(self.random_state)
        merged = _merge(graph, links)
        unit = float(merged.masses.mean()) or 1.0
        parts: list[Members] = [np.arange(len(merged.masses))]
        halves: dict[int, tuple[Members, Members] | None] = {}
        scores = {0: _part_score(merged, parts[0], unit)}
        with single_threaded_blas():
            while len(parts) < self.n_clusters:
                last = len(parts) == self.n_clusters - 1
                for number, part in enumerate(parts):
                    if last or number not in halves:
                        halves[number] = self._halve(merged, part, unit, last, random)
                gains = [
                    -np.inf if pair is None else scores[number] - sum(_part_score(merged, half, unit) for half in pair)
                    for number, pair in sorted(halves.items())
                ]
                chosen = int(np.argmax(gains))
                pair = halves[chosen]
                if pair is None:
                    # Merged points leave fewer clusters than asked for.
                    break
                parts[chosen] = pair[0]
                parts.append(pair[1])
                for number in (chosen, len(parts) - 1):
                    halves.pop(number, None)
                    scores[number] = _part_score(merged, parts[number], unit)
        labels = np.empty(len(merged.masses), dtype=np.int32)
        for number, part in enumerate(parts):
            labels[part] = number
        return in_order_of_appearance(labels[merged.groups])

    def _halve(
        self, merged: _Merged, part: Members, unit: float, last: bool, random: Any
    ) -> tuple[Members, Members] | None:
        """The best division of a part over all starts."""
        inside = merged.restrict(part)
        enforce = last and self.gamma is None and inside.cannot.nnz > 0
        if enforce:
            # Apart from the same is together: what is left are pairs of vertices.
            pairs = np.column_stack(inside.cannot.nonzero()).astype(np.int64)
            pairs = pairs[pairs[:, 0] < pairs[:, 1]]
            try:
                inside = inside.contract(find_groups(Links(pairs[:0], pairs), len(part), two_classes=True).groups)
            except ContradictingLinksError:
                enforce = False
        if len(inside.masses) < 2:
            return None
        problem = CutProblem(inside.weights, np.maximum(inside.masses, 1e-12 * unit), inside.cannot)
        soft = LAST_PENALTY if last else EARLY_PENALTY
        penalties: Floats = unit * (PENALTIES if enforce else np.array([soft if self.gamma is None else self.gamma]))
        starts = self._starts(inside.weights, inside.cannot, unit, random)
        divisions = [_sweep(problem, start, penalties, enforce) for start in starts]
        best = min(divisions, key=lambda division: problem.total(division, penalties[-1]))
        if not 0 < best.inside.sum() < len(inside.masses):
            return None
        side = best.inside[inside.groups]
        return part[side], part[~side]

    def _starts(self, weights: csr_array, cannot: csr_array, unit: float, random: Any) -> list[Floats]:
        degrees = np.asarray(weights.sum(axis=1))
        roots = np.sqrt(np.where(degrees > 0, degrees, 1.0))
        starts = [spectral_vectors(weights, 2, n_jobs=self.n_jobs)[1][:, 1] / roots]
        if cannot.nnz and self.n_init > 1:
            pull = np.asarray(cannot.sum(axis=1)) * unit
            signed = csr_array(diags_array(degrees + pull) - weights + unit * cannot)
            signed.sort_indices()
            starts.append(
                smallest_eigenpairs(signed, 1, semidefinite=False, tolerance=1e-3, n_jobs=self.n_jobs)[1][:, 0]
            )
        return starts + [random.normal(size=len(degrees)) for _ in range(self.n_init - len(starts))]


class _Merged(NamedTuple):
    """A graph of which some vertices stand for several points."""

    groups: NDArray[np.int64]
    """The vertex of each point."""
    weights: csr_array
    masses: Floats
    cannot: csr_array
    """How many cannot-links there are between two vertices."""

    def contract(self, groups: NDArray[np.int64]) -> _Merged:
        """The same with vertices merged; what joins two that become one is lost, as no division can change it."""
        n, count = len(groups), int(groups.max()) + 1
        member = csr_array((np.ones(n), (np.arange(n), groups)), shape=(n, count))
        weights, cannot = (csr_array(member.T @ matrix @ member) for matrix in (self.weights, self.cannot))
        for matrix in (weights, cannot):
            matrix.setdiag(0.0)
            matrix.eliminate_zeros()
            matrix.sort_indices()
        return _Merged(groups[self.groups], weights, np.asarray(member.T @ self.masses), cannot)

    def restrict(self, part: Members) -> _Merged:
        """Some of the vertices, each a point now."""
        return _Merged(
            np.arange(len(part)), submatrix(self.weights, part), self.masses[part], submatrix(self.cannot, part)
        )


def _merge(graph: KNNGraph, links: Links) -> _Merged:
    u = graph.n_points
    ties = coo_array((np.ones(len(links.must)), tuple(links.must.T)), shape=(u, u))
    _, groups = connected_components(ties, directed=False)
    cannot = pair_matrix(links.cannot, np.ones(len(links.cannot)), u)
    return _Merged(np.arange(u), graph.W, graph.degrees, cannot).contract(groups.astype(np.int64))


def _part_score(merged: _Merged, part: Members, unit: float) -> float:
    """(Weight that leaves the part + violated links inside it) / volume."""
    leaving = float(merged.weights[part].sum() - submatrix(merged.weights, part).sum())
    violated = float(submatrix(merged.cannot, part).sum()) / 2
    volume = float(merged.masses[part].sum())
    return (leaving + unit * violated) / volume if volume > 0 else 0.0


def _sweep(problem: CutProblem, start: Floats, penalties: Floats, enforce: bool) -> Division:
    """Divide with each penalty in turn, from where the last one led, until nothing is violated."""
    if problem.n_links == 0:
        return problem.divide(start, 0.0)[1]
    f, division = start, problem.best_level(start, 0.0)
    for gamma in penalties:
        f, found = problem.divide(f, float(gamma))
        if problem.total(found, float(gamma)) <= problem.total(division, float(gamma)):
            division = found
        if division.violations == 0:
            return division
    if enforce:
        # A large penalty makes the descent stiff: the last violated links are obeyed by force, then it goes on.
        division = problem.divide(problem.obey(division).astype(np.float64), float(penalties[-1]))[1]
    return division
