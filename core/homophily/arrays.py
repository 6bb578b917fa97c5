"""Array types, and small things that several modules do with arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import SuperLU, splu

Floats = NDArray[np.float64]


def submatrix(matrix: csr_array, rows: NDArray[np.integer]) -> csr_array:
    """Rows and the same columns of a matrix, in the order given, with sorted indices."""
    part = csr_array(matrix[rows][:, rows])
    part.sort_indices()
    return part


def factorise(matrix: Any) -> SuperLU:
    """The factors of a symmetric positive definite sparse matrix."""
    options = {"SymmetricMode": True}
    return splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view for compiled kernels that only read: numba compiles anew for arrays that cannot be written to, such as
    memory maps, so that all are passed as such.
    """
    view = array.view()
    view.flags.writeable = False
    return view
