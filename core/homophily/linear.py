"""Implicit relationship regularisation (IRR): the sparse linear system behind the first answer, and its products.

Here live the threaded product of a sparse matrix with a block of columns and the solution of
``(H + λ1 L^p) F = H T``. How the Laplacian is made, and what is done with F, live elsewhere.

Two methods, because their weaknesses do not meet. Conjugate gradients need about (diameter of the graph)^p iterations:
few on graphs of high-dimensional data, where a factorisation fills up; many on chains and surfaces, where the
factorisation stays sparse. :func:`choose_method` reads both costs off one breadth-first search; what it cannot see, the
spread of the weights, shows while they iterate.

Sums over points are taken in blocks of fixed size, so the thread count changes no bit of any result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.sparse.linalg import splu
from sklearn.exceptions import ConvergenceWarning

from homophily.threads import run_chunks, thread_count

Method = Literal["cg", "direct"]
Floats = NDArray[np.float64]

#: Rows whose products are summed together; the unit in which work is handed to threads.
BLOCK = 2048
#: Multiply-adds below which a second thread costs more than it brings.
THREAD_WORK = 100_000
MAX_ITER = 20_000


@dataclass(frozen=True)
class IRRSolution:
    """F with the way it was found; ``residual`` is the largest column's ‖diag(A)⁻¹(HT − AF)‖ / ‖F‖."""

    solution: Floats
    iterations: int
    residual: float
    method: Method


# Unsigned indices spare the compiler Python's negative indexing, which halves the speed of these loops.


@njit(cache=True, nogil=True)
def _product_vector(indptr: Any, indices: Any, data: Any, x: Any, out: Any, first: int, last: int) -> None:
    for i in range(np.uint64(first), np.uint64(last)):
        total = 0.0
        for e in range(indptr[i], indptr[i + np.uint64(1)]):
            total += data[e] * x[indices[e]]
        out[i] = total


@njit(cache=True, nogil=True)
def _product_block(indptr: Any, indices: Any, data: Any, x: Any, out: Any, first: int, last: int) -> None:
    # Four columns at a time stay in registers while a row is read.
    columns = np.uint64(x.shape[1])
    one, two, three, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    for i in range(np.uint64(first), np.uint64(last)):
        begin, end = indptr[i], indptr[i + one]
        c = np.uint64(0)
        while c + four <= columns:
            a0, a1, a2, a3 = 0.0, 0.0, 0.0, 0.0
            for e in range(begin, end):
                w, j = data[e], indices[e]
                a0 += w * x[j, c]
                a1 += w * x[j, c + one]
                a2 += w * x[j, c + two]
                a3 += w * x[j, c + three]
            out[i, c], out[i, c + one], out[i, c + two], out[i, c + three] = a0, a1, a2, a3
            c += four
        if c + two <= columns:
            a0, a1 = 0.0, 0.0
            for e in range(begin, end):
                w, j = data[e], indices[e]
                a0 += w * x[j, c]
                a1 += w * x[j, c + one]
            out[i, c], out[i, c + one] = a0, a1
            c += two
        if c < columns:
            a0 = 0.0
            for e in range(begin, end):
                a0 += data[e] * x[indices[e], c]
            out[i, c] = a0


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
def _advance(
    alpha: Any, scale: Any, p: Any, q: Any, x: Any, r: Any, sums: Any, bounds: Any, begin: int, end: int
) -> None:
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


class _Blocks:
    """The rows of a matrix in blocks of fixed size, shared out to threads by their work."""

    def __init__(self, matrix: csr_array, columns: int, n_jobs: int | None) -> None:
        rows = matrix.shape[0]
        self.bounds = np.append(np.arange(0, rows, BLOCK), rows)
        self.count = len(self.bounds) - 1
        work = matrix.indptr[self.bounds].astype(np.int64) + self.bounds
        useful = 1 + int(work[-1]) * columns // THREAD_WORK
        self.chunks = max(1, min(thread_count(n_jobs), useful, self.count))
        self.cuts = np.searchsorted(work, np.linspace(0, work[-1], self.chunks + 1))
        self.cuts[-1] = self.count

    def run(self, kernel: Any, *arrays: Any) -> None:
        """Call ``kernel(*arrays, bounds, first block, last block)`` on every thread."""
        run_chunks(lambda c: kernel(*arrays, self.bounds, self.cuts[c], self.cuts[c + 1]), self.chunks)

    def multiply(self, matrix: csr_array, x: Floats, out: Floats) -> None:
        """``out ← matrix @ x``"""
        kernel: Any = _product_block
        if x.ndim == 1 or x.shape[1] == 1:
            kernel, x, out = _product_vector, x.reshape(-1), out.reshape(-1)
        indptr, indices = (a.view(f"u{a.itemsize}") for a in (matrix.indptr, matrix.indices))
        rows = self.bounds[self.cuts]
        run_chunks(lambda c: kernel(indptr, indices, matrix.data, x, out, rows[c], rows[c + 1]), self.chunks)


def sparse_product(matrix: csr_array, x: Floats, out: Floats | None = None, *, n_jobs: int | None = None) -> Floats:
    """``matrix @ x`` for a vector or a block of columns, each row summed by one thread in the order it is stored."""
    x = np.ascontiguousarray(x, dtype=np.float64)
    if out is None:
        out = np.empty((matrix.shape[0], *x.shape[1:]))
    if out.size:
        _Blocks(matrix, x.size // max(1, len(x)), n_jobs).multiply(matrix, x, out)
    return out


def apply_power(laplacian: csr_array, power: int, F: Floats, n_jobs: int | None = None) -> Floats:
    """L^p F by p products: L has far fewer entries than L^p."""
    for _ in range(power):
        F = sparse_product(laplacian, F, n_jobs=n_jobs)
    return F


class _System:
    """A = H + λ1 L^p, applied by p products with L and never formed."""

    def __init__(
        self, laplacian: csr_array, power: int, confidence: Floats, lambda1: float, columns: int, n_jobs: int | None
    ) -> None:
        self.laplacian, self.power, self.confidence, self.lambda1 = laplacian, power, confidence, lambda1
        self.blocks = _Blocks(laplacian, columns, n_jobs)
        diagonal = confidence + lambda1 * power_diagonal(laplacian, power)
        # A row of zeros (an isolated point without label) asks for nothing and stays where it is.
        self.scale = np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > 0)
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
        total: Floats = self._sums.sum(axis=0)
        return total

    def residual(self, x: Floats, b: Floats) -> tuple[Floats, float]:
        """The residual b − Ax, and its size as :class:`IRRSolution` states it."""
        r = np.empty_like(x)
        self.product(x, r)
        np.subtract(b, r, out=r)
        return r, _relative(np.linalg.norm(self.scale[:, None] * r, axis=0), np.linalg.norm(x, axis=0))

    def matrix(self) -> csr_array:
        """A as a sparse matrix."""
        return csr_array(diags_array(self.confidence) + self.lambda1 * _sparse_power(self.laplacian, self.power))


def _relative(size: Floats, of: Floats) -> float:
    return float(np.max(np.divide(size, of, out=np.where(size > 0, np.inf, 0.0), where=of > 0), initial=0.0))


def _sparse_power(matrix: csr_array, power: int) -> csr_array:
    result = matrix
    for _ in range(power - 1):
        result = csr_array(result @ matrix)
    return result


def power_diagonal(matrix: csr_array, power: int) -> Floats:
    """diag(L^p) as Σ_j (L^a)_ij (L^b)_ij with a + b = p, so that only the half power is formed."""
    if power == 1:
        return matrix.diagonal()
    half = _sparse_power(matrix, power // 2)
    other = half if power % 2 == 0 else csr_array(half @ matrix)
    return np.asarray(half.multiply(other).sum(axis=1)).ravel()


def _conjugate_gradients(
    system: _System, x: Floats, r: Floats, tolerance: float, max_iter: int, callback: Callable[[int, float], object]
) -> int:
    """Improve ``x`` in place from its residual ``r``, which is used up; columns walk together, each by its own steps.

    Preconditioned by the diagonal: it takes λ1 out of the condition number, as labelled rows are near the identity
    and the others all carry the factor λ1.
    """
    blocks, scale = system.blocks, system.scale
    p, q, sums = scale[:, None] * r, np.empty_like(r), np.empty((blocks.count, 3, r.shape[1]))
    rz = np.einsum("ij,ij->j", r, p)
    for iteration in range(1, max_iter + 1):
        pq = system.product(p, q)
        # A column that has reached 0 has pᵀAp = 0 and stands still.
        alpha = np.divide(rz, pq, out=np.zeros_like(rz), where=pq > 0)
        blocks.run(_advance, alpha, scale, p, q, x, r, sums)
        rz_new, zz, xx = sums.sum(axis=0)
        residual = _relative(np.sqrt(zz), np.sqrt(xx))
        callback(iteration, residual)
        if residual <= tolerance:
            return iteration
        blocks.run(_turn, np.divide(rz_new, rz, out=np.zeros_like(rz), where=rz > 0), scale, r, p)
        rz = rz_new
    return max_iter


def _solve_directly(system: _System, b: Floats) -> Floats:
    """Factorise A, scaled to a unit diagonal, and refine the solution once."""
    root = np.sqrt(system.scale)
    scaled = diags_array(root) @ system.matrix() @ diags_array(root)
    try:
        factors = splu(
            scaled.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
    except RuntimeError as error:
        raise ValueError(
            "The 'lambda1' parameter of the linear solve must leave room for the labels beside the graph in float64. "
            f"Got {system.lambda1} instead, for which the system is singular."
        ) from error
    x = root[:, None] * factors.solve(root[:, None] * b)
    r, _ = system.residual(x, b)
    x += root[:, None] * factors.solve(root[:, None] * r)
    return np.ascontiguousarray(x)


def _levels(laplacian: csr_array) -> NDArray[np.intp]:
    """Points at each distance from a point on the rim of the largest component."""
    _, component = connected_components(laplacian, directed=False)
    inside = int(np.argmax(component == np.bincount(component).argmax()))
    order, parent = breadth_first_order(laplacian, inside, directed=False)
    order, parent = breadth_first_order(laplacian, order[-1], directed=False)
    level = np.zeros(laplacian.shape[0], dtype=np.int64)
    _descend(order, parent, level)
    return np.bincount(level[order])


@njit(cache=True)
def _descend(order: Any, parent: Any, level: Any) -> None:
    for i in order[1:]:
        level[i] = level[parent[i]] + 1


def _expectations(laplacian: csr_array, power: int, columns: int) -> tuple[float, float]:
    """The iterations that conjugate gradients may need, and those that take as long as a factorisation.

    By rules fitted to timings on graphs of 2, 3 and 784 dimensions: iterations grow as the graph's depth d (8d for
    p = 1, 3d² for p = 2); the factors' rows as its width w (w/6 for p = 1, 3.5 times that for p = 2). Factors of more
    than 10⁸ numbers are never asked for.
    """
    rows, levels = laplacian.shape[0], _levels(laplacian)
    needed = min(8.0 * (len(levels) / 2.5) ** (power - 1) * len(levels), MAX_ITER)
    fill = min(levels.max() * power**1.8 / 6 + laplacian.nnz / rows, rows / 2)
    one = power * (laplacian.nnz * columns + 5_000) + 10 * rows * columns
    factorise = rows * (fill**2 + 4 * fill * (columns + 10))
    return needed, factorise / one if rows * fill < 1e8 else np.inf


def choose_method(laplacian: csr_array, power: int, columns: int) -> Method:
    """The method that is expected to be faster."""
    needed, break_even = _expectations(laplacian, power, columns)
    return "direct" if break_even < needed else "cg"


def solve_irr(
    laplacian: csr_array,
    confidence: Floats,
    targets: Floats,
    lambda1: float,
    *,
    power: int = 1,
    method: Method | None = None,
    tolerance: float = 1e-12,
    max_iter: int = MAX_ITER,
    initial: Floats | None = None,
    n_jobs: int | None = None,
    callback: Callable[[int, float], object] | None = None,
) -> IRRSolution:
    """The minimiser F of ``Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F)``, that is of ``(H + λ1 L^p) F = H T``.

    ``laplacian`` is any sparse symmetric positive semi-definite matrix; give L and ``power`` rather than L^p, as
    products with L are cheaper. ``confidence`` is h ≥ 0 with shape (u,), ``targets`` T with shape (u, n).
    In a component without any confidence the energy does not tell values apart, and F is 0 there.

    ``method=None`` takes what :func:`choose_method` expects to be faster, and factorises when conjugate gradients have
    taken as long as that would: narrow weights need far more of them than a graph's shape tells. They start from
    ``initial``; ``callback(iteration, residual)`` may raise to cancel them (a factorisation calls it once, at its end).
    They stop when a Jacobi step would change F by less than ``tolerance``, relative to F; the error itself is larger by
    the graph's condition (10 to 1,000 times). A ``ConvergenceWarning`` tells that ``max_iter`` came first.
    """
    h, T = _checked(laplacian, confidence, targets, lambda1, power)
    F = np.zeros_like(T)
    _, component = connected_components(laplacian, directed=False)
    labelled = np.bincount(component, weights=h) > 0
    rows = np.flatnonzero(labelled[component])
    if rows.size == 0 or T.shape[1] == 0:
        return IRRSolution(F, 0, 0.0, "cg")
    L = laplacian if rows.size == len(h) else csr_array(laplacian[rows][:, rows])
    system = _System(L, power, h[rows], float(lambda1), T.shape[1], n_jobs)
    b = system.confidence[:, None] * T[rows]
    patience: float = max_iter
    if method is None:
        needed, patience = _expectations(L, power, T.shape[1])
        method = "direct" if patience < needed else "cg"
    iterations = 0
    if method == "cg":
        x = np.zeros_like(b) if initial is None else np.array(np.reshape(initial, T.shape)[rows], dtype=np.float64)
        iterations, residual = _iterate(system, x, b, tolerance, int(min(patience, max_iter)), callback)
        if residual > tolerance and patience < max_iter:
            method = "direct"
        elif residual > tolerance:
            warnings.warn(
                f"The IRR solution stopped at a residual of {residual:.1e} after {iterations} iterations, tolerance "
                f"{tolerance:.1e}: raise max_iter, the tolerance or lambda1.",
                ConvergenceWarning,
                stacklevel=2,
            )
    if method == "direct":
        x = _solve_directly(system, b)
        _, residual = system.residual(x, b)
        if callback is not None:
            callback(iterations, residual)
    F[rows] = x
    return IRRSolution(F, iterations, residual, method)


def _iterate(
    system: _System,
    x: Floats,
    b: Floats,
    tolerance: float,
    max_iter: int,
    callback: Callable[[int, float], object] | None,
) -> tuple[int, float]:
    iterations = 0

    def report(step: int, residual: float) -> None:
        if callback is not None:
            callback(iterations + step, residual)

    r, residual = system.residual(x, b)
    # The updated residual drifts from the true one; starting again from the true one removes the drift.
    while residual > tolerance and iterations < max_iter:
        before = residual
        iterations += _conjugate_gradients(system, x, r, tolerance, max_iter - iterations, report)
        r, residual = system.residual(x, b)
        if residual > before / 2:
            break
    return iterations, residual


def _checked(
    laplacian: csr_array, confidence: Floats, targets: Floats, lambda1: float, power: int
) -> tuple[Floats, Floats]:
    h = np.ascontiguousarray(confidence, dtype=np.float64)
    T = np.ascontiguousarray(targets, dtype=np.float64)
    sentence = "The '{}' parameter of solve_irr must be {}. Got {} instead."
    if not (np.isfinite(lambda1) and lambda1 > 0):
        raise ValueError(sentence.format("lambda1", "a float in the range (0, inf)", repr(lambda1)))
    if power < 1:
        raise ValueError(sentence.format("power", "an int in the range [1, inf)", repr(power)))
    u = laplacian.shape[0]
    if h.shape != (u,) or not np.all(np.isfinite(h) & (h >= 0)):
        raise ValueError(sentence.format("confidence", f"{u} finite numbers ≥ 0", f"an array of shape {h.shape}"))
    if T.ndim != 2 or len(T) != u or not np.isfinite(T).all():
        raise ValueError(sentence.format("targets", f"a finite array of {u} rows", f"an array of shape {T.shape}"))
    return h, T


def irr_energy(
    F: Floats,
    laplacian: csr_array,
    confidence: Floats,
    targets: Floats,
    lambda1: float,
    *,
    power: int = 1,
    n_jobs: int | None = None,
) -> float:
    """``Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F)``."""
    smooth = apply_power(laplacian, power, F, n_jobs)
    return float(np.sum(confidence[:, None] * (F - targets) ** 2) + lambda1 * np.sum(F * smooth))
