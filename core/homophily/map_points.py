"""New points on a finished map: the energy in f(x) alone, everything else fixed.

With a_j the normalised weights of a point's edges to stored points and t = Σ_j a_j t_j its place on the spectral map,

    E(f) = α‖f − t‖² + λ2 [ (1 − r) g(f) − 2 Σ_j a_j φ(f, f_j) g((f + f_j)/2) + ĝ(f) ]

with the Gauss sums g over stored points and ĝ over stored edges, and r = (1 − ρ)(1 − Σ_j a_j). A map has many places
that are local minima, one in each cluster; the search starts at the neighbour that most other neighbours are near to,
and stays within a few σ_f of it, so that only what lies there is summed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from homophily.relationship.edges import UpperEdges

Floats = NDArray[np.float64]

MAX_STEPS = 50
# exp(−2·3²) ≈ 1e-8: what is farther than this many σ_f from a place adds nothing to the sums there.
REACH = 3.0


class Surroundings(NamedTuple):
    """A map's points and the middles of its edges, to be looked up by place."""

    F: Floats
    points: cKDTree
    middles: cKDTree
    weights: Floats
    """G_jk φ_jk of each middle, both directions counted."""
    sigma_f: float

    @classmethod
    def of(cls, F: Floats, G: csr_array, sigma_f: float) -> Surroundings:
        """Read the edges of G, which are sources of ĝ."""
        edges = UpperEdges.of(G)
        ends, others = F[edges.rows], F[edges.cols]
        related = np.exp(-np.sum((ends - others) ** 2, axis=1) / (2 * sigma_f**2))
        middles = np.vstack([F, (ends + others) / 2])
        return cls(F, cKDTree(F), cKDTree(middles), np.append(edges.diagonal, edges.doubled * related), sigma_f)


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
    F, sigma_f = surroundings.F, surroundings.sigma_f
    values = spectral.copy()
    for x in range(len(values)):
        ends = indices[x][shares[x] > 0.0]
        if ends.size == 0:
            continue
        weights = shares[x][shares[x] > 0.0]
        votes = np.exp(-_squares(F[ends], F[ends]) / sigma_f**2) @ weights
        start = F[ends[votes.argmax()]].copy()
        # Steps of 2σ_f in all, and middles between f and a neighbour that is as far again.
        near = surroundings.points.query_ball_point(start, (REACH + 4.0) * sigma_f, return_sorted=True)
        middles = surroundings.middles.query_ball_point(start, (REACH + 2.0) * sigma_f, return_sorted=True)
        _descend(
            start,
            spectral[x],
            data_weight,
            lambda2,
            sigma_f**-2,
            own_weight[x],
            F[near],
            surroundings.middles.data[middles],
            surroundings.weights[middles],
            F[ends],
            weights,
        )
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
def _energy(  # type: ignore[no-untyped-def]
    f, target, data_weight, lambda2, inverse, own, points, middles, weights, ends, shares, gradient
):
    n = f.size
    none = np.empty(0)
    energy = 0.0
    for d in range(n):
        energy += data_weight * (f[d] - target[d]) ** 2
        gradient[d] = 2.0 * data_weight * (f[d] - target[d])
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
    f, target, data_weight, lambda2, inverse, own, points, middles, weights, ends, shares
):
    """Gradient steps of Barzilai and Borwein's length that never raise the energy, within 2σ_f of the start."""
    rest = (target, data_weight, lambda2, inverse, own, points, middles, weights, ends, shares)
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
