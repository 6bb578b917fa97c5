"""The smallest eigenvalues of a Laplacian on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from homophily.device.backend import CupyBackend
from homophily.device.gpu.matrix import DeviceMatrix
from homophily.graph.computing import Eigenpairs, EigenProblem
from homophily.graph.subspace import chebyshev_filter, iterate

#: Known eigenvectors up to which they are kept as a full matrix: one per component of the graph, mostly zeros.
FULL_COLUMNS = 64


def device_eigenpairs(backend: CupyBackend, problem: EigenProblem) -> Eigenpairs:
    """Eigenvalues, eigenvectors and residual, by subspace iteration with a Chebyshev filter."""
    xp, on_device = backend.xp, DeviceMatrix.of(backend, problem.matrix)

    def product(block: Any) -> Any:
        # cuSOLVER's factors come column by column, the kernels read row by row.
        return on_device.product(xp.ascontiguousarray(block))

    sent = problem._replace(start=backend.to_device(problem.start))
    without_known = _projection(backend, problem.known)
    apply = chebyshev_filter(product, problem.bound)
    values, vectors, residual = iterate(xp, backend.to_host, product, apply, sent, without_known)
    return values, np.ascontiguousarray(backend.to_host(vectors)), residual


def _projection(backend: CupyBackend, known: csr_array | None) -> Any:
    """What takes the known eigenvectors out of a block."""
    xp = backend.xp
    if known is None:
        return lambda block: block
    if known.shape[1] <= FULL_COLUMNS:
        full = backend.to_device(known.toarray())
        return lambda block: block - xp.matmul(full, xp.matmul(full.T, block))
    there, back = DeviceMatrix.of(backend, csr_array(known.T)), DeviceMatrix.of(backend, known)
    return lambda block: block - back.product(there.product(xp.ascontiguousarray(block)))
