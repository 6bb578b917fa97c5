"""New points on a finished map: the energy in f(x) alone, everything else fixed.

With a_j the normalised weights of a point's edges to stored points and t = Σ_j a_j t_j its place on the spectral map,

    E(f) = α‖f − t‖² + λ2 [ (1 − r) g(f) − 2 Σ_j a_j φ(f, f_j) g((f + f_j)/2) + ĝ(f) ]

with the Gauss sums g over stored points and ĝ over stored edges, and r = (1 − ρ)(1 − Σ_j a_j). A map has many places
that are local minima, one in each cluster; the search starts at the neighbour that most other neighbours are near to,
and stays within a few σ_f of it, so that only what lies there is summed.

Those sums are Gaussian. Cauchy relationships k reach farther, and their products have no such form: the bracket is then
(1 − r)‖k‖² − 2 kᵀΣ_j a_j k_j + kᵀGk, over the relationships of f and of its neighbours with all stored points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from homophily.relationship.edges import UpperEdges
from homophily.relationship.functions import GAUSSIAN, Relationship, relate, slope

Floats = NDArray[np.float64]

MAX_STEPS = 50
# exp(−2·3²) ≈ 1e-8: what is farther than this many σ_f from a place adds nothing to the sums there.
REACH = 3.0
NO_INDICES, NO_NUMBERS = np.empty(0, np.int32), np.empty(0)


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

    def near(self, place: Floats) -> tuple[Floats, Floats, Floats]:
        """The points, the middles, and the weights of these that count around a place."""
        if self.matrix is not None:
            return self.F, self.F[:0], self.weights
        # Steps of 2σ_f in all, and middles between f and a neighbour that is as far again.
        points = self.points.query_ball_point(place, (REACH + 4.0) * self.sigma_f, return_sorted=True)
        middles = self.middles.query_ball_point(place, (REACH + 2.0) * self.sigma_f, return_sorted=True)
        return self.F[points], self.middles.data[middles], self.weights[middles]


def place_points(
    surroundings: Surroundings,
    spectral: Floats,
    shares: Floats,
    indices: NDArray[np.int32],
    own_weight: Floats,
    data_weight: float,
    lambda2: float,
) -> Floats:
    """Places (m, n) of points whose edges to stored points have the ``shares`` a_j (m, k); t in ``spectral`` (m, n)."""
    F, sigma_f, G = surroundings.F, surroundings.sigma_f, surroundings.matrix
    matrix: tuple[Any, ...] = (NO_INDICES, NO_INDICES, NO_NUMBERS) if G is None else (G.indptr, G.indices, G.data)
    values = spectral.copy()
    for x in range(len(values)):
        ends = indices[x][shares[x] > 0.0]
        if ends.size == 0:
            continue
        weights = shares[x][shares[x] > 0.0]
        if G is None:
            related = NO_NUMBERS
            votes = weights @ np.exp(-_squares(F[ends], F[ends]) / sigma_f**2)
        else:
            related = weights @ surroundings.relationship.value(np, _squares(F[ends], F) / sigma_f**2)
            votes = related[ends]
        start = F[ends[votes.argmax()]].copy()
        around: tuple[Any, ...] = (*surroundings.near(start), F[ends], weights, *matrix, related)
        _descend(start, spectral[x], data_weight, lambda2, sigma_f**-2, own_weight[x], *around)
        values[x] = start
    return values


def _squares(A: Floats, B: Floats) -> Floats:
    return np.asarray(np.sum((A[:, None] - B) ** 2, axis=2))


@njit(cache=True)
def _gauss_sum(x, sources, weights, inverse, scale, gradient):  # type: ignore[no-untyped-def]
    """Return scale · Σ_z w_z exp(−2‖x − z‖²/σ²) and add its gradient; no weights are ones."""
    total = 0.0
    n = x.size
    slope = np.zeros(n)
    for z in range(len(sources)):
        square = 0.0
        for d in range(n):
            square += (x[d] - sources[z, d]) ** 2
        part = np.exp(-2.0 * inverse * square)
        if weights.size:
            part *= weights[z]
        total += part
        for d in range(n):
            slope[d] -= 4.0 * inverse * part * (x[d] - sources[z, d])
    for d in range(n):
        gradient[d] += scale * slope[d]
    return scale * total


@njit(cache=True)
def _all_sums(f, points, indptr, indices, data, related, own, inverse, scale, gradient):  # type: ignore[no-untyped-def]
    """Return scale · (own ‖k‖² − 2 kᵀrelated + kᵀGk) for the Cauchy k of f with all points, and add its gradient."""
    u, n = points.shape
    k = np.zeros(u)
    for i in range(u):
        for d in range(n):
            k[i] += inverse * (f[d] - points[i, d]) ** 2
    relate(k, True, u)
    total = 0.0
    for i in range(u):
        product = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            product += data[e] * k[indices[e]]
        total += k[i] * (own * k[i] - 2.0 * related[i] + product)
        pull = 4.0 * scale * inverse * slope(k[i], True) * (own * k[i] - related[i] + product)
        for d in range(n):
            gradient[d] += pull * (f[d] - points[i, d])
    return scale * total


@njit(cache=True)
def _energy(  # type: ignore[no-untyped-def]
    f,
    target,
    data_weight,
    lambda2,
    inverse,
    own,
    points,
    middles,
    weights,
    ends,
    shares,
    indptr,
    indices,
    data,
    related,
    gradient,
):
    n = f.size
    none = np.empty(0)
    energy = 0.0
    for d in range(n):
        energy += data_weight * (f[d] - target[d]) ** 2
        gradient[d] = 2.0 * data_weight * (f[d] - target[d])
    if related.size:
        return energy + _all_sums(f, points, indptr, indices, data, related, own, inverse, lambda2, gradient)
    energy += _gauss_sum(f, points, none, inverse, lambda2 * own, gradient)
    energy += _gauss_sum(f, middles, weights, inverse, lambda2, gradient)
    for e in range(len(ends)):
        square = 0.0
        for d in range(n):
            square += (f[d] - ends[e, d]) ** 2
        strength = -2.0 * lambda2 * shares[e] * np.exp(-0.5 * inverse * square)
        if square * inverse > 16.0:
            continue
        pull = np.zeros(n)
        part = _gauss_sum((f + ends[e]) / 2.0, points, none, inverse, strength, pull)
        energy += part
        for d in range(n):
            gradient[d] += 0.5 * pull[d] - part * inverse * (f[d] - ends[e, d])
    return energy


@njit(cache=True)
def _descend(  # type: ignore[no-untyped-def]
    f,
    target,
    data_weight,
    lambda2,
    inverse,
    own,
    points,
    middles,
    weights,
    ends,
    shares,
    indptr,
    indices,
    data,
    related,
):
    """Gradient steps of Barzilai and Borwein's length that never raise the energy, within 2σ_f of the start."""
    terms = (points, middles, weights, ends, shares, indptr, indices, data, related)
    rest = (target, data_weight, lambda2, inverse, own, *terms)
    start, gradient, following = f.copy(), np.empty_like(f), np.empty_like(f)
    energy = _energy(f, *rest, gradient)
    norm = np.sqrt(np.sum(gradient**2))
    if norm == 0.0:
        return
    step = 0.1 / (np.sqrt(inverse) * norm)
    for _ in range(MAX_STEPS):
        lower = False
        for _ in range(20):
            trial = f - step * gradient
            if np.sum((trial - start) ** 2) * inverse <= 4.0:
                trial_energy = _energy(trial, *rest, following)
                if trial_energy < energy:
                    lower = True
                    break
            step *= 0.25
        if not lower:
            break
        change, turned = trial - f, following - gradient
        f[:], gradient[:], energy = trial, following, trial_energy
        moved, curved = np.sum(change**2), np.sum(change * turned)
        if moved * inverse < 1e-12:
            break
        step = moved / curved if curved > 0.0 else 2.0 * step
