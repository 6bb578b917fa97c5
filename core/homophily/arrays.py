"""Array types, and small things that several modules do with arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import SuperLU, splu

Floats = NDArray[np.float64]


def submatrix(matrix: csr_array, rows: NDArray[np.integer]) -> csr_array:
    """Rows and the same columns of a matrix, in the order given, with sorted indices."""
    part = csr_array(matrix[rows][:, rows])
    part.sort_indices()
    return part


def side_by_side(matrix: csr_array) -> tuple[NDArray[np.int32], csr_array]:
    """An order that puts neighbours side by side, where the cache has what a row asks for, and the matrix in it."""
    order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    return order, csr_array(matrix[order][:, order])


def restored(rows: NDArray[Any], order: NDArray[np.integer]) -> NDArray[Any]:
    """Rows that are in an order, back in their own."""
    own = np.empty_like(rows)
    own[order] = rows
    return own


def factorise(matrix: Any) -> SuperLU:
    """The factors of a symmetric positive definite sparse matrix."""
    options = {"SymmetricMode": True}
    return splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to: numba compiles anew for those (memory maps), so kernels get no others."""
    view = array.view()
    view.flags.writeable = False
    return view
