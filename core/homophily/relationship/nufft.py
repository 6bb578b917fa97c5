"""The full regulariser for n ≤ 3 by Gauss sums in Fourier space: O(u + nnz(G)) beside one small FFT.

With ``g(m) = Σ_i exp(−2‖m−f_i‖²/σ²)``, ``m_jk = (f_j+f_k)/2`` and ``φ_jk = exp(−‖f_j−f_k‖²/(2σ²))``,

    tr(KᵀGK) = Σ_jk G_jk φ_jk g(m_jk),

so the points are turned into Fourier modes (a type 1 transform), multiplied by the Gaussian's, and read at the middles
of the edges (type 2); the gradient sends ``G_jk φ_jk`` back the same way. Only G's upper triangle is visited.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf, log, pi, prod, sqrt

import finufft
import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.relationship.edges import UpperEdges
from homophily.threads import even_rows, run_chunks, thread_count

# With finufft's doubled grid half a gigabyte per thread in 3-D. Reached at range/σ ≈ 450 in 2-D and 32 in 3-D.
MOST_MODES = 2**22


@njit(cache=True, nogil=True)
def _midpoints(F, rows, columns, middles):  # type: ignore[no-untyped-def]
    for e in range(rows.size):
        for d in range(F.shape[1]):
            middles[d, e] = 0.5 * (F[rows[e], d] + F[columns[e], d])


@njit(cache=True, nogil=True)
def _edge_sums(F, rows, columns, weights, inverse, fields, strengths, gradient):  # type: ignore[no-untyped-def]
    """Σ w φ g over the edges; ``fields`` holds g and ∇g in pairs of real parts, ``strengths`` receives w φ."""
    n = F.shape[1]
    energy = 0.0
    for e in range(rows.size):
        j, k = rows[e], columns[e]
        squared = 0.0
        for d in range(n):
            squared += (F[j, d] - F[k, d]) ** 2
        strength = weights[e] * np.exp(-0.5 * squared * inverse)
        g = fields[0, e].real
        for d in range(n):
            field = fields[(d + 1) // 2, e]
            slope = field.imag if d % 2 == 0 else field.real
            stretch = strength * g * (F[j, d] - F[k, d]) * inverse
            gradient[j, d] += 0.5 * strength * slope - stretch
            gradient[k, d] += 0.5 * strength * slope + stretch
        strengths[e] = strength
        energy += strength * g
    return energy


class NufftEngine:
    """Energy ``tr(KᵀGK)`` and its gradient for n ≤ 3.

    ``tolerance`` bounds the error of each Gauss sum as a share of its largest value, with a factor 100 in hand for
    what cancels between the terms of ``G``; the energy is then good to about ``tolerance``, the gradient to about ten
    times that share of its largest entry.
    """

    def __init__(self, G: csr_array, sigma_f: float, *, n_jobs: int | None = None, tolerance: float = 1e-9) -> None:
        edges = UpperEdges.of(G)
        # The diagonal joins the edges: the same formulas hold with j = k.
        points = np.arange(edges.diagonal.size, dtype=np.int32)
        rows, columns = np.concatenate([edges.rows, points]), np.concatenate([edges.cols, points])
        weights = np.concatenate([edges.doubled, edges.diagonal])
        chunks = thread_count(n_jobs)
        self.edges = [
            (rows[start:stop], columns[start:stop], weights[start:stop])
            for start, stop in pairwise(even_rows(rows.size, chunks))
        ]
        self.sigma_f = sigma_f
        self.accuracy = _accuracy(tolerance)

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy at ``F`` (u×n) and its gradient (u×n)."""
        chunks = len(self.edges)
        low, high = F.min(axis=0), F.max(axis=0)
        if not np.isfinite(high - low).all():
            return inf, np.full_like(F, np.nan)
        periods, shape = _box(high - low, self.sigma_f, self.accuracy)
        if prod(shape) > MOST_MODES:
            return inf, np.full_like(F, np.nan)
        centre, scale = (low + high) / 2, 2 * pi / periods
        response, slopes = self._gaussian(periods, shape)
        points = np.ascontiguousarray(((F - centre) * scale).T)
        shares = [slice(start, stop) for start, stop in pairwise(even_rows(len(F), chunks))]
        modes = np.empty((chunks, *shape), dtype=np.complex128)
        energies = np.zeros(chunks)
        gradients = np.zeros((chunks, *F.shape))

        def gather_points(chunk: int) -> None:
            plan = self._plan(1, shape, points[:, shares[chunk]])
            modes[chunk] = plan.execute(np.ones(points[:, shares[chunk]].shape[1], dtype=np.complex128))

        def visit_edges(chunk: int) -> None:
            rows, columns, weights = self.edges[chunk]
            middles = np.empty((len(shape), rows.size))
            _midpoints(points.T, rows, columns, middles)
            fields = self._plan(2, shape, middles, len(spectra)).execute(spectra).reshape(len(spectra), -1)
            strengths = np.empty(rows.size, dtype=np.complex128)
            energies[chunk] = _edge_sums(
                F, rows, columns, weights, self.sigma_f**-2, fields, strengths, gradients[chunk]
            )
            modes[chunk] = self._plan(1, shape, middles).execute(strengths)

        def pull_points(chunk: int) -> None:
            plan = self._plan(2, shape, points[:, shares[chunk]], len(spectra))
            fields = plan.execute(spectra).reshape(len(spectra), -1)
            real = np.stack([fields.real, fields.imag], axis=1).reshape(2 * len(spectra), -1)
            gradients[0, shares[chunk]] += real[: len(shape)].T

        run_chunks(gather_points, chunks)
        spectra = _paired(np.stack([response, *slopes]) * modes.sum(axis=0))
        run_chunks(visit_edges, chunks)
        spectra = _paired(slopes * modes.sum(axis=0))
        run_chunks(pull_points, chunks)
        return float(energies.sum()), gradients.sum(axis=0)

    @classmethod
    def copes_with(cls, spread: Floats, sigma_f: float, tolerance: float = 1e-9) -> bool:
        """Whether the Fourier modes for F of this spread along each axis stay within bounded memory."""
        return prod(_box(spread, sigma_f, _accuracy(tolerance))[1]) <= MOST_MODES

    def _gaussian(
        self, periods: Floats, shape: tuple[int, ...]
    ) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """Fourier coefficients of exp(−2‖x‖²/σ²) on the box, and those of its n derivatives."""
        response = np.ones(shape, dtype=np.complex128)
        waves = []
        for axis, (period, size) in enumerate(zip(periods, shape, strict=True)):
            wave = 2 * pi / period * np.arange(-(size // 2), size // 2 + 1)
            along = sqrt(pi / 2) * self.sigma_f / period * np.exp(-(wave**2) * self.sigma_f**2 / 8)
            broadcast = [-1 if axis == other else 1 for other in range(len(shape))]
            response *= along.reshape(broadcast)
            waves.append(1j * wave.reshape(broadcast))
        return response, np.stack([wave * response for wave in waves])

    def _plan(self, kind: int, shape: tuple[int, ...], points: Floats, transforms: int = 1) -> finufft.Plan:
        # One thread per plan: with more, finufft adds up its parts in the order they finish, and the last bits vary.
        # The signs make type 1 then type 2 a convolution.
        plan = finufft.Plan(kind, shape, transforms, eps=self.accuracy, isign=-1 if kind == 1 else 1, nthreads=1)
        plan.setpts(*points)
        return plan


def _accuracy(tolerance: float) -> float:
    return max(tolerance / 100, 1e-14)


def _box(spread: Floats, sigma_f: float, accuracy: float) -> tuple[Floats, tuple[int, ...]]:
    """Periods of a box whose images of the data are out of the Gaussian's reach, and the modes along each axis."""
    digits = sqrt(log(1 / accuracy))
    periods = spread + sigma_f * digits / sqrt(2)
    return periods, tuple(2 * int(np.ceil(digits * sqrt(2) / pi * period / sigma_f)) + 1 for period in periods)


def _paired(spectra: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Spectra of real fields two at a time, ``a + ib``: one complex transform then gives both."""
    pairs = spectra[0::2].copy()
    pairs[: len(spectra) // 2] += 1j * spectra[1::2]
    return pairs
