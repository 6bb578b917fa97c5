"""Implicit relationship regularisation (IRR): the sparse linear system behind the first answer.

It is ``(H + λ1 L^p) F = H T``. Products with L are in :mod:`homophily.graph.laplacian`.

Two methods, because their weaknesses do not meet. Conjugate gradients need about (diameter of the graph)^p iterations:
few on graphs of high-dimensional data, where a factorisation fills up; many on chains and surfaces, where the
factorisation stays sparse. :func:`~homophily.graph.laplacian.choose_method` reads both costs off one breadth-first
search; what it cannot see, the spread of the weights, shows while they iterate.

Sums over points are taken in blocks of fixed size, so the thread count changes no bit of any result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from sklearn.exceptions import ConvergenceWarning

from homophily.arrays import Floats, factorise
from homophily.exceptions import ParameterError
from homophily.graph.laplacian import (
    LEAST_COLUMNS,
    MAX_ITER,
    Blocks,
    Method,
    apply_power,
    expected_iterations,
    power_diagonal,
    sparse_power,
)
from homophily.solve.block_cg import iterate_block

Report = Callable[[int, float], object]
"""Called with the iteration and the residual; may raise to cancel."""


@dataclass(frozen=True)
class IRRSolution:
    """F with the way it was found; ``residual`` is the largest column's ‖diag(A)⁻¹(HT − AF)‖ / ‖F‖."""

    solution: Floats
    iterations: int
    residual: float
    method: Method


@njit(cache=True, nogil=True)
def _close_product(h: Any, lambda1: float, p: Any, q: Any, sums: Any, bounds: Any, begin: int, end: int) -> None:
    """Set q ← h p + λ1 q, and pᵀq of each block of rows."""
    for block in range(begin, end):
        sums[block] = 0.0
        for i in range(bounds[block], bounds[block + 1]):
            for c in range(p.shape[1]):
                q[i, c] = h[i] * p[i, c] + lambda1 * q[i, c]
                sums[block, c] += p[i, c] * q[i, c]


@njit(cache=True, nogil=True)
def _advance(alpha, scale, p, q, x, r, sums, bounds, begin, end):  # type: ignore[no-untyped-def]
    """Set x ← x + αp, r ← r − αq, and rᵀz, zᵀz, xᵀx of each block of rows, with z = scale · r."""
    for block in range(begin, end):
        sums[block] = 0.0
        for i in range(bounds[block], bounds[block + 1]):
            for c in range(p.shape[1]):
                x[i, c] += alpha[c] * p[i, c]
                r[i, c] -= alpha[c] * q[i, c]
                z = scale[i] * r[i, c]
                sums[block, 0, c] += r[i, c] * z
                sums[block, 1, c] += z * z
                sums[block, 2, c] += x[i, c] * x[i, c]


@njit(cache=True, nogil=True)
def _turn(beta: Any, scale: Any, r: Any, p: Any, bounds: Any, begin: int, end: int) -> None:
    """Set p ← scale · r + βp."""
    for i in range(bounds[begin], bounds[end]):
        for c in range(p.shape[1]):
            p[i, c] = scale[i] * r[i, c] + beta[c] * p[i, c]


class _System:
    """A = H + λ1 L^p, applied by p products with L and never formed."""

    def __init__(
        self, laplacian: csr_array, power: int, confidence: Floats, lambda1: float, columns: int, n_jobs: int | None
    ) -> None:
        self.laplacian, self.power, self.confidence, self.lambda1 = laplacian, power, confidence, lambda1
        self.blocks = Blocks(laplacian, columns, n_jobs)
        self.scale = inverse_diagonal(laplacian, power, confidence, lambda1)
        self._spare = [np.empty((laplacian.shape[0], columns)) for _ in range(min(power - 1, 2))]
        self._sums = np.empty((self.blocks.count, columns))

    def product(self, x: Floats, out: Floats) -> Floats:
        """``out ← A x``, and the columns' xᵀAx."""
        source = x
        for step in range(self.power):
            target = out if step == self.power - 1 else self._spare[step % 2]
            self.blocks.multiply(self.laplacian, source, target)
            source = target
        self.blocks.run(_close_product, self.confidence, self.lambda1, x, out, self._sums)
        return np.asarray(self._sums.sum(axis=0))

    def residual(self, x: Floats, b: Floats) -> tuple[Floats, float]:
        """The residual b − Ax, and its size as :class:`IRRSolution` states it."""
        r = np.empty_like(x)
        self.product(x, r)
        np.subtract(b, r, out=r)
        return r, relative_size(np.linalg.norm(self.scale[:, None] * r, axis=0), np.linalg.norm(x, axis=0))

    def iterate(
        self, x: Floats, r: Floats, tolerance: float, iteration: int, max_iter: int, callback: Report | None
    ) -> tuple[Floats, int]:
        """Improve ``x`` in place from its residual ``r``, which is used up.

        Preconditioned by the diagonal: it takes λ1 out of the condition number, as labelled rows are near the identity
        and the others all carry the factor λ1. Many columns share their directions; of a few, each has its own.
        """
        if self.shares_directions:
            how = tolerance, iteration, max_iter, callback
            return iterate_block(self.product, self.blocks, self.scale, x, r, *how)
        blocks, scale = self.blocks, self.scale
        p, q, sums = scale[:, None] * r, np.empty_like(r), np.empty((blocks.count, 3, r.shape[1]))
        rz = np.einsum("ij,ij->j", r, p)
        while iteration < max_iter:
            iteration += 1
            pq = self.product(p, q)
            # A column that has reached 0 has pᵀAp = 0 and stands still.
            alpha = np.divide(rz, pq, out=np.zeros_like(rz), where=pq > 0)
            blocks.run(_advance, alpha, scale, p, q, x, r, sums)
            rz_new, zz, xx = sums.sum(axis=0)
            residual = relative_size(np.sqrt(zz), np.sqrt(xx))
            if callback is not None:
                callback(iteration, residual)
            if residual <= tolerance:
                break
            blocks.run(_turn, np.divide(rz_new, rz, out=np.zeros_like(rz), where=rz > 0), scale, r, p)
            rz = rz_new
        return x, iteration

    @property
    def shares_directions(self) -> bool:
        """Whether the columns are solved for together."""
        columns = self._sums.shape[1]
        return LEAST_COLUMNS <= columns <= self.laplacian.shape[0] // 8 and bool(self.scale.all())

    def matrix(self) -> csr_array:
        """A as a sparse matrix."""
        return csr_array(diags_array(self.confidence) + self.lambda1 * sparse_power(self.laplacian, self.power))


def inverse_diagonal(laplacian: csr_array, power: int, confidence: Floats, lambda1: float) -> Floats:
    """diag(H + λ1 L^p)⁻¹; a row of zeros (an isolated point without label) asks for nothing and stays where it is."""
    diagonal = confidence + lambda1 * power_diagonal(laplacian, power)
    return np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > 0)


def relative_size(size: Floats, of: Floats) -> float:
    """The largest column norm relative to that of another array."""
    return float(np.max(np.divide(size, of, out=np.where(size > 0, np.inf, 0.0), where=of > 0), initial=0.0))


def _solve_directly(system: _System, b: Floats, tolerance: float) -> tuple[Floats, float]:
    """Factorise A, scaled to a unit diagonal, and refine the solution once if need be; its residual."""
    root = np.sqrt(system.scale)
    scaled = diags_array(root) @ system.matrix() @ diags_array(root)
    try:
        factors = factorise(scaled)
    except RuntimeError as error:
        raise ParameterError(
            "The 'lambda1' parameter of the linear solve must leave room for the labels beside the graph in float64. "
            f"Got {system.lambda1} instead, for which the system is singular.",
            "lambda1",
        ) from error
    # SuperLU returns columns; products with L want rows.
    x = np.ascontiguousarray(root[:, None] * factors.solve(root[:, None] * b))
    r, residual = system.residual(x, b)
    if residual > tolerance:
        x += root[:, None] * factors.solve(root[:, None] * r)
        _, residual = system.residual(x, b)
    return x, residual


def solve_irr(
    laplacian: csr_array, confidence: Floats, targets: Floats, lambda1: float, *, power: int = 1, **how: Any
) -> IRRSolution:
    """The minimiser F of ``Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F)``, that is of ``(H + λ1 L^p) F = H T``.

    ``laplacian`` is any sparse symmetric positive semi-definite matrix; give L and ``power`` rather than L^p, as
    products with L are cheaper. ``confidence`` is h ≥ 0 with shape (u,), ``targets`` T with shape (u, n).
    In a component without any confidence the energy does not tell values apart, and F is 0 there. ``how`` is that of
    :func:`solve_linear`.
    """
    h, T = _checked(laplacian, confidence, targets, lambda1, power)
    return solve_linear(laplacian, h, h[:, None] * T, lambda1, power=power, **how)


def solve_linear(
    laplacian: csr_array,
    confidence: Floats,
    right: Floats,
    lambda1: float,
    *,
    power: int = 1,
    method: Method | None = None,
    tolerance: float = 1e-12,
    max_iter: int = MAX_ITER,
    initial: Floats | None = None,
    n_jobs: int | None = None,
    callback: Report | None = None,
) -> IRRSolution:
    """F with ``(H + λ1 L^p) F = right`` where a label reaches, 0 elsewhere.

    ``method=None`` takes what ``choose_method`` expects to be faster, and factorises when conjugate gradients have
    taken as long as that would: narrow weights need far more of them than a graph's shape tells. They start from
    ``initial``; ``callback(iteration, residual)`` may raise to cancel them (a factorisation calls it once, at its end).
    They stop when a Jacobi step would change F by less than ``tolerance``, relative to F; the error itself is larger by
    the graph's condition (10 to 1,000 times). A ``ConvergenceWarning`` tells that ``max_iter`` came first.
    """
    F = np.zeros_like(right)
    _, component = connected_components(laplacian, directed=False)
    labelled = np.bincount(component, weights=confidence) > 0
    rows = np.flatnonzero(labelled[component])
    if rows.size == 0 or right.shape[1] == 0:
        return IRRSolution(F, 0, 0.0, "cg")
    L = laplacian if rows.size == len(right) else csr_array(laplacian[rows][:, rows])
    system = _System(L, power, confidence[rows], float(lambda1), right.shape[1], n_jobs)
    b = right[rows]
    patience: float = max_iter
    if method is None:
        needed, patience = expected_iterations(L, power, right.shape[1], tolerance)
        method = "direct" if patience < needed else "cg"
    iterations = 0
    if method == "cg":
        x = np.zeros_like(b) if initial is None else np.array(np.reshape(initial, F.shape)[rows], dtype=np.float64)
        x, iterations, residual = iterate(system, x, b, tolerance, int(min(patience, max_iter)), callback)
        if residual > tolerance and patience < max_iter:
            method = "direct"
        elif residual > tolerance:
            warn_not_converged(residual, iterations, tolerance, stacklevel=3)
    if method == "direct":
        x, residual = _solve_directly(system, b, tolerance)
        if callback is not None:
            callback(iterations, residual)
    F[rows] = x
    return IRRSolution(F, iterations, residual, method)


def iterate(
    system: Any, x: Any, b: Any, tolerance: float, max_iter: int, callback: Report | None
) -> tuple[Any, int, float]:
    """X with A x = b by conjugate gradients, from a first x; the iterations, and the residual."""
    iterations = 0
    r, residual = system.residual(x, b)
    # The updated residual drifts from the true one; starting again from the true one removes the drift.
    while residual > tolerance and iterations < max_iter:
        before = residual
        x, iterations = system.iterate(x, r, tolerance, iterations, max_iter, callback)
        r, residual = system.residual(x, b)
        if residual > before / 2:
            break
    return x, iterations, residual


def warn_not_converged(residual: float, iterations: int, tolerance: float, stacklevel: int) -> None:
    """Tell that the iterations ended before the tolerance was reached."""
    warnings.warn(
        f"The IRR solution stopped at a residual of {residual:.1e} after {iterations} iterations, tolerance "
        f"{tolerance:.1e}: raise max_iter, the tolerance or lambda1.",
        ConvergenceWarning,
        stacklevel=stacklevel + 1,
    )


def _checked(L: csr_array, confidence: Floats, targets: Floats, lambda1: float, power: int) -> tuple[Floats, Floats]:
    h = np.ascontiguousarray(confidence, dtype=np.float64)
    T = np.ascontiguousarray(targets, dtype=np.float64)
    sentence = "The '{}' parameter of solve_irr must be {}. Got {} instead."
    if not (np.isfinite(lambda1) and lambda1 > 0):
        raise ValueError(sentence.format("lambda1", "a float in the range (0, inf)", repr(lambda1)))
    if power < 1:
        raise ValueError(sentence.format("power", "an int in the range [1, inf)", repr(power)))
    u = L.shape[0]
    if h.shape != (u,) or not np.all(np.isfinite(h) & (h >= 0)):
        raise ValueError(sentence.format("confidence", f"{u} finite numbers ≥ 0", f"an array of shape {h.shape}"))
    if T.ndim != 2 or len(T) != u or not np.isfinite(T).all():
        raise ValueError(sentence.format("targets", f"a finite array of {u} rows", f"an array of shape {T.shape}"))
    return h, T


def irr_energy(
    F: Floats, L: csr_array, h: Floats, T: Floats, lambda1: float, *, power: int = 1, n_jobs: int | None = None
) -> float:
    """``Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F)``."""
    smooth = apply_power(L, power, F, n_jobs)
    return float(np.sum(h[:, None] * (F - T) ** 2) + lambda1 * np.sum(F * smooth))
