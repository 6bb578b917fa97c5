"""Neighbours that are given: a matrix of distances or of weights in place of points."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from homophily.arrays import Floats
from homophily.graph.index_base import Distances, Indices
from homophily.graph.weights import canonical

_BLOCK_ENTRIES = 4_000_000


def listed_neighbors(X: Any, k: int, without_diagonal: bool = False) -> tuple[Distances, Indices]:
    """The ``k`` smallest entries of each row of a distance matrix, lowest index first among equals."""
    m, u = X.shape
    distances, indices = np.full((m, k), np.inf), np.zeros((m, k), dtype=np.int32)
    block_rows = max(1, _BLOCK_ENTRIES // u)
    for start in range(0, m if k else 0, block_rows):
        rows, columns, entries = _near_entries(X[start : start + block_rows], min(k + 1, u))
        rows += start
        if without_diagonal:
            others = rows != columns
            rows, columns, entries = rows[others], columns[others], entries[others]
        _fill_smallest(rows, columns, entries, distances, indices)
    return distances, indices


def _near_entries(X: Any, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Rows, columns and values of the stored entries; of a dense matrix, those up to the ``count``-th smallest."""
    if not isinstance(X, np.ndarray):
        listed = sparse.coo_array(X)
        return listed.row.astype(np.int64), listed.col.astype(np.int64), listed.data.astype(np.float64)
    bounds = np.partition(X, count - 1, axis=1)[:, count - 1 : count]
    rows, columns = np.nonzero(bounds >= X)
    return rows, columns, X[rows, columns].astype(np.float64)


def _fill_smallest(
    rows: NDArray[np.int64], columns: NDArray[np.int64], entries: Floats, values: Floats, indices: Indices
) -> None:
    """Put each row's smallest entries into ``values`` and their columns into ``indices``, in order."""
    order = np.lexsort((columns, entries, rows))
    rows, columns, entries = rows[order], columns[order], entries[order]
    rank = np.arange(rows.size) - np.searchsorted(rows, rows)
    kept = rank < values.shape[1]
    values[rows[kept], rank[kept]] = entries[kept]
    indices[rows[kept], rank[kept]] = columns[kept]


def listed_weights(X: Any) -> tuple[Indices, Distances, Floats]:
    """The positive entries of each row of a weight matrix, heaviest first."""
    edges = sparse.coo_array(canonical(sparse.csr_array(X, copy=True)))
    k = int(np.bincount(edges.row, minlength=1).max())
    lightness, indices = np.zeros((X.shape[0], k)), np.zeros((X.shape[0], k), dtype=np.int32)
    _fill_smallest(edges.row.astype(np.int64), edges.col.astype(np.int64), -edges.data, lightness, indices)
    return indices, np.full(lightness.shape, np.inf), -lightness
