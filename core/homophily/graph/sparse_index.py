"""Index of the rows of a sparse matrix."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse
from sparse_dot_topn import sp_matmul_topn

from homophily.arrays import Floats, read_only
from homophily.graph.index_base import Distances, Metric, NeighborIndex, power_of_two
from homophily.state import State, StateReader, csr_arrays


class SparseIndex(NeighborIndex):
    """Index of the rows of a sparse matrix; exact.

    Top-k products rank by inner product, so both sides get a column more: (q, 1)·(x, −½‖x‖²) = ½(‖q‖² − ‖q − x‖²)
    ranks by Euclidean distance.
    """

    def __init__(self, X: Any, metric: Metric = "euclidean", n_jobs: int | None = None):
        self.metric, self.n_jobs = metric, n_jobs
        self.points = self._prepare(X)
        self.size = self.points.shape[0]
        self._scale = power_of_two(abs(self.points.data).max(initial=0.0))

    def to_arrays(self) -> State:
        """The index as arrays, without its search structure."""
        return State(csr_arrays("points", self.points), {"kind": "sparse", "scale": self._scale})

    def _read(self, stored: StateReader, columns: int) -> None:
        # The older matrix class, as in `_prepare`.
        self.points = sparse.csr_matrix(stored.csr("points", (self.size, columns)))

    def grown(self, rows: Any) -> Self:
        """An index of more points: ``rows`` in the form of ``points``."""
        index = copy(self)
        index.points, index._built = sparse.vstack([self.points, rows], format="csr"), None
        index.size = index.points.shape[0]
        return index

    def _prepare(self, X: Any) -> Any:
        # The older matrix class, because sp_matmul_topn refuses csr_array.
        rows = sparse.csr_matrix(X, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        return _unit_sparse_rows(rows) if self.metric == "cosine" else rows

    @property
    def _structure(self) -> Any:
        if self._built is None:
            scaled = self.points / self._scale
            self._built = _with_column(scaled, -0.5 * _row_norms(scaled) ** 2).T.tocsr()
        return self._built

    def _candidates(self, rows: Any, count: int) -> NDArray[np.int64]:
        queries = _with_column(rows / self._scale, np.ones(rows.shape[0]))
        # Without a threshold of -inf, products of zero and less would be dropped. With it each row has ``count``.
        threads = self._threads(rows.shape[0])
        best = sp_matmul_topn(queries, self._structure, count, threshold=-np.inf, n_threads=threads)
        return np.asarray(best.indices, dtype=np.int64).reshape(rows.shape[0], count)

    def _distances(self, rows: Any, candidates: NDArray[np.int64]) -> Distances:
        ours = (rows.indptr, rows.indices, rows.data)
        theirs = tuple(read_only(part) for part in (self.points.indptr, self.points.indices, self.points.data))
        distances = self._run_rows(_sparse_distances, ours, theirs, candidates, self._scale)
        # Scaling to length one leaves errors near 1e-16; rounded off, equal directions and right angles tie exactly.
        return np.round(0.5 * distances**2, 14) if self.metric == "cosine" else distances


def _unit_sparse_rows(rows: Any) -> Any:
    """Rows of length one; the column added is 1 for rows of zeros. Zeros stay unstored."""
    counts = np.diff(rows.indptr)
    largest = np.zeros(rows.shape[0])
    np.maximum.at(largest, np.repeat(np.arange(rows.shape[0]), counts), abs(rows.data))
    rows.data /= np.repeat(np.where(largest > 0, largest, 1.0), counts)
    norms = _row_norms(rows)
    rows.data /= np.repeat(np.where(norms > 0, norms, 1.0), counts)
    unit = _with_column(rows, (norms == 0).astype(np.float64))
    unit.eliminate_zeros()
    return unit


def _row_norms(rows: Any) -> Floats:
    return np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1), dtype=np.float64).ravel())


def _with_column(rows: Any, column: Floats) -> Any:
    """Append a column, every entry stored even where it is zero."""
    m = rows.shape[0]
    stored = sparse.csr_matrix((column, np.zeros(m, dtype=np.int32), np.arange(m + 1)), shape=(m, 1))
    return sparse.hstack([rows, stored], format="csr")


@njit(cache=True, nogil=True)
def _sparse_distances(start, stop, rows, points, candidates, scale, out):  # type: ignore[no-untyped-def]
    row_starts, row_columns, row_values = rows
    starts, columns, values = points
    for i in range(start, stop):
        for c in range(candidates.shape[1]):
            j = candidates[i, c]
            a, a_end = row_starts[i], row_starts[i + 1]
            b, b_end = starts[j], starts[j + 1]
            total = 0.0
            while a < a_end or b < b_end:
                difference = 0.0
                column = min(row_columns[a] if a < a_end else columns[b], columns[b] if b < b_end else row_columns[a])
                if a < a_end and row_columns[a] == column:
                    difference += row_values[a]
                    a += 1
                if b < b_end and columns[b] == column:
                    difference -= values[b]
                    b += 1
                difference /= scale
                total += difference * difference
            out[i, c] = scale * np.sqrt(total)
