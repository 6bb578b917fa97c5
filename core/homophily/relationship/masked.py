"""The sparse form of the regulariser: relationships only between points of one neighbourhood.

A mask g (g_ij = 1 where x_j is in the neighbourhood of x_i) keeps only some entries of K:

    E_S = ½ Σ_i Σ_jk W_jk (K_ij/√d_j − K_ik/√d_k)² g_ij g_ik.

With ``K_S = K∘g``, ``Ŵ = D^{-1/2}WD^{-1/2}`` and the masked degree ``δ_ij = Σ_k g_ik W_jk / d_j`` this is
``Σ_ij (K_S)_ij² δ_ij − Σ_i k_iᵀŴk_i``, one row of the mask at a time; the triples (i, j, k) are never stored, nor is K.
Without degrees (the unnormalised Laplacian) every d is 1. It equals the full form with p = 1 when the mask is full; a
power p > 1 has no such form. A ``repulsion`` ρ < 1 leaves out 1 − ρ of the push
``Σ_ij (K_S)_ij² (δ_ij − Σ_k g_ik Ŵ_jk)``, as it does of the full form's: with ρ = 0 only
differences along edges are left.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats, restored, side_by_side
from homophily.relationship.functions import GAUSSIAN, Relationship, relate, slope
from homophily.threads import balanced_rows, run_ranges, sum_chunks, thread_count


@njit(cache=True, nogil=True)
def _masked_degrees(  # type: ignore[no-untyped-def]
    first, last, mask_indptr, mask_indices, indptr, indices, data, shares, degrees, repulsion, delta
):
    """δ, or what is left of it: ρ δ_ij + (1 − ρ) Σ_k g_ik Ŵ_jk, with W in ``data`` and Ŵ in ``shares``."""
    inside = np.zeros(indptr.size - 1)
    for i in range(first, last):
        row = mask_indices[mask_indptr[i] : mask_indptr[i + 1]]
        inside[row] = 1.0
        for a in range(row.size):
            j = row[a]
            degree = share = 0.0
            for e in range(indptr[j], indptr[j + 1]):
                degree += data[e] * inside[indices[e]]
                share += shares[e] * inside[indices[e]]
            # An isolated point has no edges, hence no share in the energy.
            degree = degree / degrees[j] if degrees[j] > 0 else 0.0
            delta[mask_indptr[i] + a] = repulsion * degree + (1.0 - repulsion) * share
        inside[row] = 0.0


# No "reassoc": it turns the short sums over a row of Ŵ into vector gathers, which are slower (by a quarter).
@njit(cache=True, nogil=True, fastmath={"contract"})
def _masked_sums(first, last, F, inverse, function, mask_indptr, mask_indices, indptr, indices, data, delta, gradient):  # type: ignore[no-untyped-def]
    """Energy of the rows first … last of the mask; their part of the gradient is added to ``gradient``."""
    n = F.shape[1]
    k = np.zeros(F.shape[0])
    values = np.empty(np.max(np.diff(mask_indptr)) if last > first else 0)
    energy = 0.0
    for i in range(first, last):
        start = mask_indptr[i]
        size = mask_indptr[i + 1] - start
        for a in range(size):
            j = np.uint64(mask_indices[start + a])  # unsigned: no test for a negative index
            squared = 0.0
            for d in range(n):
                squared += (F[i, d] - F[j, d]) * (F[i, d] - F[j, d])
            values[a] = squared * inverse
        relate(values, function, size)
        for a in range(size):
            k[np.uint64(mask_indices[start + a])] = values[a]
        for a in range(size):
            j = np.uint64(mask_indices[start + a])
            product = 0.0
            for e in range(indptr[j], indptr[j + 1]):
                product += data[e] * k[np.uint64(indices[e])]
            # Half of ∂E/∂K_ij = 2(K_ij δ_ij − (K_S Ŵ)_ij); then dK_ij/df_i = 2/σ² k'(x) (f_i − f_j) = −dK_ij/df_j.
            half = values[a] * delta[start + a] - product
            energy += values[a] * half
            pull = 4.0 * inverse * half * slope(values[a], function)
            for d in range(n):
                gradient[i, d] += pull * (F[i, d] - F[j, d])
                gradient[j, d] -= pull * (F[i, d] - F[j, d])
        for a in range(size):
            k[np.uint64(mask_indices[start + a])] = 0.0
    return energy


class SparseEngine:
    """Energy ``E_S`` and its gradient.

    Row i of ``mask`` is the neighbourhood of point i, itself included, each entry once; its values are not read.
    """

    def __init__(
        self,
        W: csr_array,
        degrees: Floats | None,
        mask: csr_array,
        sigma_f: float,
        *,
        relationship: Relationship = GAUSSIAN,
        repulsion: float = 1.0,
        n_jobs: int | None = None,
    ) -> None:
        self.sigma_f = sigma_f
        self.relationship = relationship
        self.order, W = side_by_side(W)
        self.mask_indptr, self.mask_indices = _permuted_pattern(mask, self.order)
        d = np.ones(len(self.order)) if degrees is None else degrees[self.order]
        root = np.where(d > 0, d, 1.0) ** -0.5
        ends = np.repeat(np.arange(len(d)), np.diff(W.indptr))
        self.indptr, self.indices = W.indptr, W.indices
        self.data = W.data * root[ends] * root[W.indices]
        self.chunks = min(thread_count(n_jobs), len(d))
        self.bounds = balanced_rows(self.mask_indptr, self.chunks)
        self.delta = np.empty(self.mask_indices.size)
        matrix = W.indptr, W.indices, W.data, self.data
        rows = self.mask_indptr, self.mask_indices
        run_ranges(_masked_degrees, self.bounds, *rows, *matrix, d, repulsion, self.delta)

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy at ``F`` (u×n) and its gradient (u×n)."""
        F = F[self.order]
        function = self.sigma_f**-2, self.relationship.id
        matrix = self.mask_indptr, self.mask_indices, self.indptr, self.indices, self.data, self.delta

        def kernel(chunk: int, gradient: Floats) -> float:
            first, last = self.bounds[chunk : chunk + 2]
            return float(_masked_sums(first, last, F, *function, *matrix, gradient))

        energy, ordered = sum_chunks(kernel, self.chunks, F.shape)
        return energy, restored(ordered, self.order)


def _permuted_pattern(mask: csr_array, order: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """``mask[order][:, order]`` as row pointers and sorted 32-bit column indices, the values left behind."""
    pattern = csr_array((np.ones(mask.nnz, dtype=np.bool_), mask.indices, mask.indptr), shape=mask.shape)
    pattern = csr_array(pattern[order])
    pattern.indices = restored(np.arange(len(order), dtype=np.int32), order)[pattern.indices]
    pattern.has_sorted_indices = False
    pattern.sort_indices()
    return pattern.indptr.astype(np.int64), pattern.indices
