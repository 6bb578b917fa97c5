"""The edges of a symmetric graph matrix, each once: what the Gauss-sum engines loop over."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, triu

from homophily.arrays import Floats


class UpperEdges(NamedTuple):
    """Strict upper triangle of G in row order, with the diagonal apart."""

    rows: NDArray[np.int32]
    cols: NDArray[np.int32]
    doubled: Floats
    """2 G_jk: one entry stands for (j, k) and (k, j)."""
    diagonal: Floats

    @classmethod
    def of(cls, G: csr_array) -> UpperEdges:
        """Take the edges out of a symmetric matrix (symmetry is the caller's word)."""
        upper = csr_array(triu(G, 1))
        upper.sort_indices()
        rows = np.repeat(np.arange(upper.shape[0], dtype=np.int32), np.diff(upper.indptr))
        return cls(rows, upper.indices.astype(np.int32), 2.0 * upper.data, np.ascontiguousarray(G.diagonal()))

    def part(self, first: int, last: int) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
        """Rows, columns and doubled weights of some of the edges."""
        return self.rows[first:last], self.cols[first:last], self.doubled[first:last]
