"""New points on a finished map: the energy in f(x) alone, everything else fixed.

It is that of :mod:`homophily.solve.point_energy` with w = λ2, t = Σ_j a_j t_j the place on the spectral map, and
g_own = (1 − r) g + ĝ, the Gauss sums over stored points and edges with r = (1 − ρ)(1 − Σ_j a_j). A map has many places
that are local minima, one in each cluster; the search starts at the neighbour that most other neighbours are near to,
and stays within a few σ_f of it, so that only what lies there is summed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from homophily.arrays import Floats
from homophily.graph.knn_graph import KNNGraph
from homophily.relationship.edges import UpperEdges
from homophily.relationship.functions import GAUSSIAN, Relationship
from homophily.solve.point_energy import attach, descend

# In units of σ_f, as are the following. exp(−2·3²) ≈ 1e-8: what is farther from a place adds nothing to the sums there.
REACH = 3.0
# A point stays in the cluster of its start.
FARTHEST_MOVE = 2.0
# Neighbours farther away than this are left out: exp(−4²/2) ≈ 3e-4 of their pull is left.
LONGEST_EDGE = 4.0
FIRST_MOVE = 0.1
# Far finer than a map shows.
PRECISION = 1e-6


class Surroundings(NamedTuple):
    """A map's points and the middles of its edges, to be looked up by place."""

    F: Floats
    points: cKDTree
    middles: cKDTree
    weights: Floats
    """G_jk φ_jk of each middle, both directions counted."""
    sigma_f: float
    relationship: Relationship = GAUSSIAN
    matrix: csr_array | None = None
    """G, where relationships have no Gauss sums; there are no middles then."""

    @classmethod
    def of(cls, F: Floats, G: csr_array, sigma_f: float, relationship: Relationship = GAUSSIAN) -> Surroundings:
        """Read the edges of G, which are sources of ĝ."""
        if not relationship.has_gauss_sums:
            return cls(F, cKDTree(F), cKDTree(F[:0]), np.empty(0), sigma_f, relationship, G)
        edges = UpperEdges.of(G)
        ends, others = F[edges.rows], F[edges.cols]
        related = np.exp(-np.sum((ends - others) ** 2, axis=1) / (2 * sigma_f**2))
        middles = np.vstack([F, (ends + others) / 2])
        return cls(F, cKDTree(F), cKDTree(middles), np.append(edges.diagonal, edges.doubled * related), sigma_f)

    def near(self, place: Floats, own: float) -> tuple[Floats, Floats, Floats, Floats]:
        """Positions (n, m) and coefficients of own·g + ĝ, then of g, with the sources that count around a place."""
        points = self.F
        if self.matrix is None:
            # Middles between f and its farthest neighbour are half as far from f.
            reach = (REACH + FARTHEST_MOVE + LONGEST_EDGE / 2) * self.sigma_f
            points = self.F[self.points.query_ball_point(place, reach, return_sorted=True)]
        near = self.middles.query_ball_point(place, (REACH + FARTHEST_MOVE) * self.sigma_f, return_sorted=True)
        ones = np.ones(len(points))
        sources = np.ascontiguousarray(np.vstack([points, self.middles.data[near]]).T)
        coefficients = np.concatenate([own * ones, self.weights[near]])
        return sources, coefficients, np.ascontiguousarray(points.T), ones


def place_points(
    X: Any,
    graph: KNNGraph,
    surroundings: Surroundings,
    target: Floats,
    *,
    normalized: bool,
    repulsion: float,
    data_weight: float,
    lambda2: float,
) -> Floats:
    """Places (m, n) of validated new points; ``target`` is the spectral map of the stored ones."""
    F, sigma_f, G, function = surroundings.F, surroundings.sigma_f, surroundings.matrix, surroundings.relationship
    edges = attach(X, graph, normalized=normalized)
    values: Floats = np.einsum("mk,mkn->mn", edges.shares, target[edges.indices])
    # Without normalisation the point's row of D − W is its degree times that of the shares.
    scale = np.ones(len(values)) if normalized else edges.degrees
    own_weight = scale * (1.0 - (1.0 - repulsion) * (1.0 - edges.shares.sum(axis=1)))
    weights, search = (data_weight, lambda2, sigma_f**-2), (np.inf, FIRST_MOVE, FARTHEST_MOVE, PRECISION)
    for x in np.flatnonzero(edges.degrees > 0.0):
        counted = edges.shares[x] > 0.0
        ends, shares = F[edges.indices[x][counted]], scale[x] * edges.shares[x][counted]
        around = ends if G is None else F
        related = shares @ function.value(np, cdist(ends, around, "sqeuclidean") / sigma_f**2)
        # The neighbour that most other neighbours are near to.
        votes = related if G is None else related[edges.indices[x][counted]]
        start = ends[votes.argmax()].copy()
        gauss = surroundings.near(start, own_weight[x])
        matrix = None if G is None else (G.indptr, G.indices, G.data, related, own_weight[x], function.id)
        room = np.empty((6, F.shape[1])), np.empty(gauss[1].size)
        descend(start, values[x], weights, gauss, (ends, shares, LONGEST_EDGE**2), matrix, search, *room)
        values[x] = start
    values[edges.copies] = F[edges.twins]
    return values
