"""The full regulariser with K of low rank, for n > 3 and many points.

With landmark positions Z (m×n), ``C = K(F, Z)`` and ``A = K(Z, Z)^{-1}``, ``K ≈ C A Cᵀ`` and, with G = L^p,
``tr(KᵀGK) ≈ tr(A (CᵀGC) A (CᵀC))`` in O(p nnz(L) m + u m²). The gradient is the exact one of this approximate energy;
:meth:`NystromEngine.error` tells how far the approximation is from the truth at a given F.

Landmarks are right for values near those they were placed at. A solve moves the values, and then
:meth:`NystromEngine.placed_at` places them anew, as many as the wanted error needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from homophily.arrays import Floats, side_by_side
from homophily.relationship.functions import exp_negative
from homophily.relationship.tiles import TileEngine
from homophily.threads import balanced_rows, run_chunks, run_ranges, single_threaded_blas, thread_count

CANDIDATES = 4096  # points among which landmarks are chosen, in their number times m² multiply-adds
# Landmarks may coincide: added to the diagonal of K_ZZ, it keeps the factor finite, and its inverse so moderate that
# the order of sums does not count.
SHIFT = 1e-10
# Rows of the gradient worked on at once: temporaries of BLOCK × m instead of u × m.
BLOCK = 1024
#: Relative errors of the energy and of its gradient that are allowed while values move.
WANTED_ERROR, WANTED_GRADIENT_ERROR = 1e-3, 1e-2
#: What landmarks are placed for, so that values can move before the error is too large.
PLACED_ERROR, PLACED_GRADIENT_ERROR = 5e-4, 5e-3
#: Numbers of landmarks to place; they are chosen up to the last of a group at once.
LANDMARKS = ((128, 192, 256), (384, 512, 768, 1024))

#: Rows of K that the low-rank form is compared with the exact one on.
SAMPLE = 64
#: Gradients of a few rows cancel less than those of all, so their relative error may be too small: on digits it was 0.5
#: to 1.7 times that of the whole gradient.
GRADIENT_SAFETY = 2.0

Placed = TypeVar("Placed", bound="Approximate")


class Approximate(Protocol):
    """An engine that knows its errors."""

    def errors(self, F: Floats) -> Errors:
        """Relative errors of energy and gradient at F."""


class Errors(NamedTuple):
    """Relative errors of a low-rank energy and of its gradient."""

    energy: float
    gradient: float

    @property
    def are_allowed(self) -> bool:
        """Whether a solve may go on."""
        return self.energy <= WANTED_ERROR and self.gradient <= WANTED_GRADIENT_ERROR

    @property
    def are_small(self) -> bool:
        """Whether these landmarks are enough to begin with."""
        return self.energy <= PLACED_ERROR and self.gradient <= PLACED_GRADIENT_ERROR


class _Sample(NamedTuple):
    """Rows of K, exact and of low rank: their products with G, and what these are made of."""

    rows: NDArray[np.intp]
    exact: Floats
    graph_exact: Floats
    C: Floats
    factors: Floats
    graph_low: Floats
    energy: float


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _kernel_rows(first, last, F, positions, inverse, C):  # type: ignore[no-untyped-def]
    """Rows first … last of K(F, Z); ``positions`` is Zᵀ."""
    n, m = positions.shape
    for i in range(first, last):
        row = C[i]
        row[:] = 0.0
        for d in range(n):
            f = F[i, d]
            for z in range(m):
                row[z] += (f - positions[d, z]) * (f - positions[d, z])
        for z in range(m):
            row[z] = exp_negative(row[z] * inverse)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _product_rows(first, last, indptr, indices, data, C, product):  # type: ignore[no-untyped-def]
    """Rows first … last of G C."""
    for j in range(first, last):
        row = product[j]
        row[:] = 0.0
        for e in range(indptr[j], indptr[j + 1]):
            g = data[e]
            other = C[np.uint64(indices[e])]
            for z in range(row.size):
                row[z] += g * other[z]


class NystromEngine:
    """Energy ``tr(KᵀGK)`` with K of rank m, and the exact gradient of that approximate energy."""

    def __init__(
        self,
        L: csr_array,
        sigma_f: float,
        *,
        landmarks: Floats,
        power: int = 1,
        diagonal: Floats | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.order, self.L = side_by_side(L)
        self.power = power
        self.diagonal = None if diagonal is None else diagonal[self.order, None]
        self.sigma_f = sigma_f
        self.landmarks = landmarks
        self._how: dict[str, Any] = {"power": power, "diagonal": diagonal, "n_jobs": n_jobs}
        self._laplacian = L
        self.chunks = thread_count(n_jobs)
        self.bounds = balanced_rows(self.L.indptr, self.chunks)
        self.whitening = landmark_whitening(landmarks, sigma_f)

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy at ``F`` (u×n) and its gradient (u×n)."""
        F = F[self.order]
        R, m = self.whitening, len(self.landmarks)
        C = self._kernel(F, self.landmarks)
        GC = self._times_graph(C)
        parts = np.empty((2, self.chunks, m, m))
        gradient = np.empty_like(F)

        def reduce_rows(chunk: int) -> None:
            rows = slice(*self.bounds[chunk : chunk + 2])
            np.matmul(C[rows].T, GC[rows], out=parts[0, chunk])
            np.matmul(C[rows].T, C[rows], out=parts[1, chunk])

        def expand_rows(chunk: int) -> None:
            first, last = self.bounds[chunk : chunk + 2]
            for start in range(first, last, BLOCK):
                rows = slice(start, min(start + BLOCK, last))
                M = (GC[rows] @ Y_back + C[rows] @ X_back) * C[rows]
                pull = M.sum(axis=1)[:, None] * F[rows] - M @ self.landmarks
                gradient[self.order[rows]] = -2 / self.sigma_f**2 * pull

        # One BLAS call per thread of ours: BLAS's own threads wait for each other in busy loops.
        with single_threaded_blas():
            run_chunks(reduce_rows, self.chunks)
            # With X = ΦᵀGΦ and Y = ΦᵀΦ: E = tr(XY), ∂E/∂Φ = 2(GΦY + ΦX).
            X, Y = (R @ part @ R.T for part in parts.sum(axis=1))
            X_back, Y_back = 2 * R.T @ X @ R, 2 * R.T @ Y @ R
            run_chunks(expand_rows, self.chunks)
        return float(np.sum(X * Y)), gradient

    def error(self, F: Floats, *, sample: int = SAMPLE, seed: int = 0) -> float:
        """Relative error of the energy Σ_i k_iᵀGk_i at ``F``, both forms summed over the same seeded sample of rows."""
        return self._compare(F, sample, seed).energy

    def errors(self, F: Floats, *, sample: int = SAMPLE, seed: int = 0) -> Errors:
        """Relative errors at ``F`` of the energy and of its gradient, from the same sample of rows."""
        found = self._compare(F, sample, seed)
        return Errors(found.energy, self._gradient_error(F[self.order], found))

    def _compare(self, F: Floats, sample: int, seed: int) -> _Sample:
        F = F[self.order]
        rows = np.sort(np.random.default_rng(seed).choice(len(F), min(sample, len(F)), replace=False))
        exact = self._kernel(F, F[rows])
        C = self._kernel(F, self.landmarks)
        with single_threaded_blas():
            factors = self.whitening.T @ (self.whitening @ C[rows].T)
            low_rank = C @ factors
        graph_exact, graph_low = self._times_graph(exact), self._times_graph(low_rank)
        energy = relative_error(float(np.sum(low_rank * graph_low)), float(np.sum(exact * graph_exact)))
        return _Sample(rows, exact, graph_exact, C, factors, graph_low, energy)

    def _gradient_error(self, F: Floats, found: _Sample) -> float:
        """‖g̃ − g‖ / ‖g‖, both without their common factor −4/σ²; F is in this engine's order.

        Of a row's energy kᵀGk, each point feels (Gk)_j k_j (f_j − f_i), and the row's own point i the opposite of all.
        Of low rank, k = Cb with b = Ac for the row's own c: each point feels the landmarks through C, and i through c.
        """
        rows, Z = found.rows, self.landmarks
        with single_threaded_blas():
            M = found.graph_exact * found.exact
            exact = M.sum(axis=1)[:, None] * F - M @ F[rows]
            exact[rows] += M.sum(axis=0)[:, None] * F[rows] - M.T @ F
            low_rank = np.empty_like(F)
            for start in range(0, len(F), BLOCK):
                part = slice(start, start + BLOCK)
                P = (found.graph_low[part] @ found.factors.T) * found.C[part]
                low_rank[part] = P.sum(axis=1)[:, None] * F[part] - P @ Z
            P = (self.whitening.T @ (self.whitening @ (found.C.T @ found.graph_low))).T * found.C[rows]
            low_rank[rows] += P.sum(axis=1)[:, None] * F[rows] - P @ Z
        return float(GRADIENT_SAFETY * np.linalg.norm(low_rank - exact) / (np.linalg.norm(exact) or 1.0))

    def placed_at(self, F: Floats) -> NystromEngine:
        """The engine of the same graph with landmarks for values near F."""
        return place_landmarks(
            F, self.sigma_f, lambda Z: NystromEngine(self._laplacian, self.sigma_f, landmarks=Z, **self._how)
        )

    def exact(self) -> TileEngine:
        """The exact engine of the same graph, whose time is quadratic."""
        return TileEngine(self._laplacian, self.sigma_f, **self._how)

    def _kernel(self, F: Floats, Z: Floats) -> Floats:
        C = np.empty((len(F), len(Z)))
        run_ranges(_kernel_rows, self.bounds, F, np.ascontiguousarray(Z.T), self.sigma_f**-2, C)
        return C

    def _times_graph(self, C: Floats) -> Floats:
        """GC, by p products with the sparser L."""
        product = C
        for _ in range(self.power):
            factor, product = product, np.empty_like(C)
            run_ranges(_product_rows, self.bounds, self.L.indptr, self.L.indices, self.L.data, factor, product)
        if self.diagonal is not None:
            product += self.diagonal * C
        return product


def place_landmarks(F: Floats, sigma_f: float, make: Callable[[Floats], Placed]) -> Placed:
    """The engine that ``make`` builds of landmarks, as many as its error at F asks for."""
    for group in LANDMARKS:
        landmarks = choose_landmarks(F, sigma_f, most=group[-1], tolerance=1e-7)
        for most in group:
            engine = make(landmarks[:most])
            if len(landmarks) < most or engine.errors(F).are_small:
                return engine
    return engine


def landmark_whitening(landmarks: Floats, sigma_f: float) -> Floats:
    """L^{-1} of K_ZZ = LLᵀ: CACᵀ = ΦΦᵀ for Φ = CL^{-T}."""
    K_ZZ = np.exp(-cdist(landmarks, landmarks, "sqeuclidean") / sigma_f**2) + SHIFT * np.eye(len(landmarks))
    return np.asarray(solve_triangular(np.linalg.cholesky(K_ZZ), np.eye(len(landmarks)), lower=True))


def relative_error(value: float, truth: float) -> float:
    """The error as a share of the truth; of a truth of 0, the error itself."""
    return abs(value - truth) / abs(truth) if truth != 0 else abs(value)


def choose_landmarks(
    F: Floats, sigma_f: float, *, targets: Floats | None = None, most: int = 512, tolerance: float = 1e-3, seed: int = 0
) -> Floats:
    """Landmarks for a solve that starts at ``F``, by pivoted Cholesky on a seeded sample of points.

    Each step takes the point whose row of K is explained worst, until at most ``tolerance`` of any is missing or
    ``most`` landmarks are taken. A solve moves the points towards their class's target; with ``targets`` (classes × n)
    given, places on those ways count as points too.
    """
    rng = np.random.default_rng(seed)
    candidates = F[np.sort(rng.choice(len(F), min(len(F), CANDIDATES), replace=False))]
    if targets is not None:
        nearest = targets[np.argmax(candidates @ targets.T - np.sum(targets**2, axis=1) / 2, axis=1)]
        ways = candidates + rng.uniform(size=(len(candidates), 1)) * (nearest - candidates)
        candidates = np.concatenate([targets, candidates, ways])
    factor = np.zeros((most, len(candidates)))
    residual = np.ones(len(candidates))
    pivots: list[int] = []
    while len(pivots) < most and residual.max() > tolerance:
        pivot, m = int(residual.argmax()), len(pivots)
        column = np.exp(-cdist(candidates, candidates[pivot : pivot + 1], "sqeuclidean")[:, 0] / sigma_f**2)
        column -= factor[:m, pivot] @ factor[:m]
        factor[m] = column / np.sqrt(residual[pivot])
        residual -= factor[m] ** 2
        pivots.append(pivot)
    return candidates[pivots]
