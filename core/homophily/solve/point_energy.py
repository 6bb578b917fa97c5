"""The energy of a point that was not there in ``fit``, in its value f alone, and its descent: for labels and for maps.

With a_j the normalised weights of the point's edges to stored points, everything else fixed, and Gauss sums over
sources z, g(x) = Σ_z b_z exp(−2‖x − z‖²/σ_f²),

    E(f) = α(‖f‖² − 2fᵀt) + w [ g_own(f) − 2 Σ_j a_j φ(f, f_j) g((f + f_j)/2) ],    φ(f, f_j) = exp(−‖f − f_j‖²/2σ_f²).

Relationships k without Gauss sums have the bracket own·‖k‖² − 2 kᵀr + kᵀGk instead, over the relationships of f with
all stored points, where r = Σ_j a_j k_j are those of its neighbours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from homophily.arrays import Floats
from homophily.graph.knn_graph import KNNGraph
from homophily.relationship.functions import exp_negative, relate, slope

MAX_STEPS = 50


class Attached(NamedTuple):
    """The edges of new points to stored ones."""

    indices: NDArray[np.int32]
    """(m, k), the stored points."""
    shares: Floats
    """(m, k), the weights a_j as the Laplacian normalises them."""
    degrees: Floats
    """(m,), the sums of the weights; 0 without a neighbour that counts."""
    copies: NDArray[np.intp]
    """The points at distance 0 from a stored one."""
    twins: NDArray[Any]
    """The stored points that those are copies of; of several the lowest index."""


def attach(X: Any, graph: KNNGraph, *, normalized: bool, known: NDArray[np.bool_] | None = None) -> Attached:
    """Attach validated new points to their nearest stored points, of which only the ``known`` ones count."""
    indices, distances, weights = graph.attach_validated(X)
    if known is not None:
        weights = np.where(known[indices], weights, 0.0)
    degrees = weights.sum(axis=1)
    own = np.where(degrees > 0.0, degrees, 1.0)[:, None]
    if normalized:
        stored = graph.degrees[indices]
        # Root by root: the product of two tiny degrees would underflow.
        shares = weights / np.sqrt(own) / np.sqrt(np.where(stored > 0.0, stored, 1.0))
    else:
        shares = weights / own
    # Weights alone may list no neighbour at all.
    copies = np.flatnonzero(distances[:, 0] == 0.0) if distances.shape[1] else np.empty(0, dtype=np.intp)
    return Attached(indices, shares, degrees, copies, indices[copies, 0] if copies.size else copies)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _add_gauss_sum(x, scale, positions, coefficients, inverse, buffer, gradient):  # type: ignore[no-untyped-def]
    """Return scale · Σ_z c_z exp(−2‖x − z‖²/σ²) and add its gradient."""
    n, m = positions.shape
    for z in range(m):
        buffer[z] = 0.0
    for d in range(n):
        for z in range(m):
            buffer[z] += (x[d] - positions[d, z]) * (x[d] - positions[d, z])
    total = 0.0
    for z in range(m):
        buffer[z] = coefficients[z] * exp_negative(2.0 * inverse * buffer[z])
    for z in range(m):
        total += buffer[z]
    for d in range(n):
        steepness = 0.0
        for z in range(m):
            steepness += buffer[z] * (positions[d, z] - x[d])
        gradient[d] += scale * 4.0 * inverse * steepness
    return scale * total


@njit(cache=True, nogil=True)
def _add_relationships(f, scale, positions, matrix, inverse, gradient):  # type: ignore[no-untyped-def]
    """Return scale · (own ‖k‖² − 2 kᵀrelated + kᵀGk) for the k of f with all points, and add its gradient."""
    indptr, indices, data, related, own, function = matrix
    n, u = positions.shape
    k = np.zeros(u)
    for d in range(n):
        for i in range(u):
            k[i] += inverse * (f[d] - positions[d, i]) ** 2
    relate(k, function, u)
    total = 0.0
    for i in range(u):
        product = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            product += data[e] * k[indices[e]]
        total += k[i] * (own * k[i] - 2.0 * related[i] + product)
        pull = 4.0 * scale * inverse * slope(k[i], function) * (own * k[i] - related[i] + product)
        for d in range(n):
            gradient[d] += pull * (f[d] - positions[d, i])
    return scale * total


# Inlined: numba counts references of arrays in tuples that it passes on, which took an eighth of the time of a descent
# in one column.
@njit(cache=True, nogil=True, inline="always")
def _energy(f, target, weights, gauss, edges, matrix, buffers, gradient):  # type: ignore[no-untyped-def]
    """E(f) and its gradient; edges longer than √``farthest`` σ_f are left out."""
    pull, scale, inverse = weights
    energy = 0.0
    for d in range(f.size):
        energy += pull * f[d] * (f[d] - 2.0 * target[d])
        gradient[d] = 2.0 * pull * (f[d] - target[d])
    own_positions, own, positions, stored = gauss
    if matrix is not None:
        return energy + _add_relationships(f, scale, positions, matrix, inverse, gradient)
    ends, shares, farthest = edges
    buffer, middle, slope_there = buffers
    energy += _add_gauss_sum(f, scale, own_positions, own, inverse, buffer, gradient)
    for e in range(shares.size):
        if shares[e] == 0.0:
            continue
        square = 0.0
        for d in range(f.size):
            middle[d] = 0.5 * (f[d] + ends[e, d])
            slope_there[d] = 0.0
            square += (f[d] - ends[e, d]) ** 2
        if square * inverse > farthest:
            continue
        strength = -2.0 * scale * shares[e] * np.exp(-0.5 * inverse * square)
        part = _add_gauss_sum(middle, strength, positions, stored, inverse, buffer, slope_there)
        energy += part
        for d in range(f.size):
            gradient[d] += 0.5 * slope_there[d] - part * inverse * (f[d] - ends[e, d])
    return energy


@njit(cache=True, nogil=True)
def descend(f, target, weights, gauss, edges, matrix, search, vectors, buffer):  # type: ignore[no-untyped-def]
    """Move f by gradient steps of Barzilai and Borwein's length that never raise the energy.

    ``weights`` is (α, w, σ_f⁻²); ``gauss`` holds positions (n, m) and coefficients of g_own, then of g; ``edges`` is
    (f_j, a_j, farthest); ``matrix`` is (CSR of G, r, own, id of the relationship), None where there are Gauss sums.
    ``search`` is (longest first step, longest first move, reach, precision), where f stays
    within the reach of its start and stops when it moves by less than the precision; all three lengths in σ_f.
    ``vectors`` (6, n) and ``buffer`` (m,), of the size of g_own, are room to work in.
    """
    inverse = weights[2]
    first_step, first_move, reach, precision = search
    start, trial, gradient, following = vectors[0], vectors[1], vectors[2], vectors[3]
    buffers = buffer, vectors[4], vectors[5]
    start[:] = f
    energy = _energy(f, target, weights, gauss, edges, matrix, buffers, gradient)
    norm = 0.0
    for d in range(f.size):
        norm += gradient[d] * gradient[d]
    norm = np.sqrt(norm)
    if norm == 0.0:
        return
    step = min(first_step, first_move / (np.sqrt(inverse) * norm))
    for _ in range(MAX_STEPS):
        lower = False
        for _ in range(20):
            away = 0.0
            for d in range(f.size):
                trial[d] = f[d] - step * gradient[d]
                away += (trial[d] - start[d]) ** 2
            if away * inverse <= reach * reach:
                trial_energy = _energy(trial, target, weights, gauss, edges, matrix, buffers, following)
                # Close to the minimum the energy no longer tells points apart, but the gradient does.
                level = trial_energy <= energy + 1e-14 * abs(energy)
                if trial_energy < energy or (level and np.sum(following**2) < np.sum(gradient**2)):
                    lower = True
                    break
            step *= 0.25
        if not lower:
            break
        moved, turned = 0.0, 0.0
        for d in range(f.size):
            change = trial[d] - f[d]
            moved += change * change
            turned += change * (following[d] - gradient[d])
            f[d] = trial[d]
            gradient[d] = following[d]
        energy = trial_energy
        if moved * inverse < precision * precision:
            break
        step = moved / turned if turned > 0.0 else 2.0 * step
