"""The Laplacian as an operator: threaded products with it and its powers, and what a linear solve with it costs.

How the Laplacian is made is in ``knn_graph``; systems with it are solved in :mod:`homophily.solve.irr`.

Products are taken in blocks of rows of fixed size, so the thread count changes no bit of any result.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from homophily.arrays import Floats
from homophily.graph.vector_rows import product_rows
from homophily.threads import run_chunks, thread_count

Method = Literal["cg", "direct"]
#: Rows whose products are summed together; the unit in which work is handed to threads.
BLOCK = 2048
#: Multiply-adds below which a second thread costs more than it brings.
THREAD_WORK = 100_000
#: Fewer columns share too little for conjugate gradients to be worth the orthogonalisation.
LEAST_COLUMNS = 4
#: Iterations after which conjugate gradients stop.
MAX_ITER = 20_000


# Unsigned indices spare the compiler Python's negative indexing, which halves the speed of this loop.
@njit(cache=True, nogil=True)
def _product_vector(indptr: Any, indices: Any, data: Any, x: Any, out: Any, first: int, last: int) -> None:
    for i in range(np.uint64(first), np.uint64(last)):
        total = 0.0
        for e in range(indptr[i], indptr[i + np.uint64(1)]):
            total += data[e] * x[indices[e]]
        out[i] = total


class Blocks:
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

    def multiply(self, matrix: csr_array, x: Any, out: Any, y: Any = None, z: Any = None, *factors: float) -> None:
        """``out ← matrix @ x``, in the precision of the arrays, whose rows are contiguous.

        With two columns or more, α y + β z is added, for ``factors`` α and β.
        """
        indptr, indices = (a.view(f"u{a.itemsize}") for a in (matrix.indptr, matrix.indices))
        kernel: Any = _product_vector
        arrays: tuple[Any, ...] = x.reshape(-1), out.reshape(-1)
        if x.size > len(x):
            kernel, arrays = product_rows(x.shape[1]), (x, out, y, z, factors or (0.0, 0.0))
        rows = self.bounds[self.cuts]
        run_chunks(lambda c: kernel(indptr, indices, matrix.data, *arrays, rows[c], rows[c + 1]), self.chunks)


def sparse_product(matrix: csr_array, x: Floats, *, n_jobs: int | None = None) -> Floats:
    """``matrix @ x`` for a vector or a block of columns, each row summed by one thread in the order it is stored."""
    x = np.ascontiguousarray(x, dtype=np.float64)
    out = np.empty((matrix.shape[0], *x.shape[1:]))
    if out.size:
        Blocks(matrix, x.size // max(1, len(x)), n_jobs).multiply(matrix, x, out)
    return out


def apply_power(laplacian: csr_array, power: int, F: Floats, n_jobs: int | None = None) -> Floats:
    """L^p F by p products: L has far fewer entries than L^p."""
    for _ in range(power):
        F = sparse_product(laplacian, F, n_jobs=n_jobs)
    return F


def row_sums(laplacian: csr_array, power: int, n_jobs: int | None = None) -> Floats:
    """L^p 1: 0 for the Laplacian that is not normalised."""
    return apply_power(laplacian, power, np.ones((laplacian.shape[0], 1)), n_jobs)[:, 0]


def sparse_power(matrix: csr_array, power: int) -> csr_array:
    """L^p as a sparse matrix."""
    result = matrix
    for _ in range(power - 1):
        result = csr_array(result @ matrix)
    return result


def power_diagonal(matrix: csr_array, power: int) -> Floats:
    """diag(L^p) as Σ_j (L^a)_ij (L^b)_ij with a + b = p, so that only the half power is formed."""
    if power == 1:
        return matrix.diagonal()
    half = sparse_power(matrix, power // 2)
    other = half if power % 2 == 0 else csr_array(half @ matrix)
    return np.asarray(half.multiply(other).sum(axis=1)).ravel()


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


def expected_iterations(laplacian: csr_array, power: int, columns: int, tolerance: float = 0.0) -> tuple[float, float]:
    """The iterations that conjugate gradients may need, and those that take as long as a factorisation.

    By rules fitted to timings on graphs of 2, 3 and 784 dimensions: iterations grow as the graph's depth d (8d for
    p = 1, 3d² for p = 2; 4pd where columns share directions, and from ten columns on less, as the root of their
    number); a rough solution takes a third. The factors' rows grow as its width w (w/6 for p = 1, 3.5 times that for
    p = 2). Factors of more than 10⁸ numbers are never asked for.
    """
    rows, levels = laplacian.shape[0], _levels(laplacian)
    needed = 8.0 * (len(levels) / 2.5) ** (power - 1) * len(levels)
    if columns >= LEAST_COLUMNS:
        needed = min(needed, 4.0 * power * len(levels) / max(1.0, columns / 10) ** 0.5)
    needed = min(needed / 3 if tolerance > 1e-3 else needed, MAX_ITER)
    fill = min(levels.max() * power**1.8 / 6 + laplacian.nnz / rows, rows / 2)
    one = power * (laplacian.nnz * columns + 5_000) + 10 * rows * columns
    factorise = rows * (fill**2 + 4 * fill * (columns + 10))
    return needed, factorise / one if rows * fill < 1e8 else np.inf


def choose_method(laplacian: csr_array, power: int, columns: int, tolerance: float = 0.0) -> Method:
    """The method that is expected to be faster."""
    needed, break_even = expected_iterations(laplacian, power, columns, tolerance)
    return "direct" if break_even < needed else "cg"
