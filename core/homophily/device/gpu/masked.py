"""The sparse form of the regulariser on the device; :mod:`homophily.relationship.masked` has the formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from homophily.arrays import Floats, restored
from homophily.device.backend import CupyBackend
from homophily.device.gpu.matrix import DeviceMatrix, dot
from homophily.relationship.masked import SparseEngine


class DeviceSparseEngine:
    """``engine(F) -> (energy, gradient)`` of relationships within a mask, which the CPU's engine has prepared."""

    def __init__(
        self, backend: CupyBackend, W: csr_array, degrees: Floats | None, mask: csr_array, sigma_f: float, **how: Any
    ) -> None:
        self.backend, xp = backend, backend.xp
        host = SparseEngine(W, degrees, mask, sigma_f, **how)
        self.sigma_f, self.function = sigma_f, host.relationship.id
        points = len(host.order)
        rows = np.repeat(np.arange(points, dtype=np.int32), np.diff(host.mask_indptr))
        graph = csr_array((host.data, host.indices, host.indptr), shape=(points, points))
        pairs = csr_array((host.delta, host.mask_indices, host.mask_indptr), shape=(points, points))
        self.graph, self.mask = DeviceMatrix.of(backend, graph), DeviceMatrix.of(backend, pairs)
        self.rows = backend.to_device(rows, np.int32)
        # The pairs by their second point.
        self.turn = backend.to_device(np.argsort(host.mask_indices, kind="stable"), np.int64)
        counts = np.bincount(host.mask_indices, minlength=points)
        self.turned = backend.to_device(np.concatenate([[0], np.cumsum(counts)]), np.int32)
        self.turned_rows = xp.take(self.rows, self.turn)
        self.order = backend.to_device(host.order, np.int64)
        own = restored(np.arange(points), host.order)
        self.own = backend.to_device(own, np.int64)

    def adapt(self, F: Any) -> bool:  # noqa: ARG002
        """Nothing is set up for particular values."""
        return False

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy at F and its gradient."""
        backend, xp, (points, n), pairs = self.backend, self.backend.xp, F.shape, self.mask.entries
        inverse = self.sigma_f**-2
        F = xp.take(F, self.order, axis=0)
        # The gradient is a difference of sums over f_i and f_j, which a common offset would only make larger.
        F = F - F.sum(axis=0) / points
        values, energies, pulls = xp.empty(pairs), xp.empty(pairs), xp.empty(pairs)
        launch, ends = backend.kernels.launch, (self.rows, self.mask.indices)
        launch("masked_values", pairs, pairs, points, n, self.function, inverse, *ends, F, values)
        sizes = pairs, points, self.graph.entries, self.function, 4.0 * inverse
        graph = self.graph.indptr, self.graph.indices, self.graph.data
        launch("masked_pulls", pairs, *sizes, self.mask.indptr, *ends, *graph, self.mask.data, values, energies, pulls)
        gradient = xp.zeros((points, n))
        turned = xp.take(pulls, self.turn)
        for indptr, columns, data in (
            (self.mask.indptr, self.mask.indices, pulls),
            (self.turned, self.turned_rows, turned),
        ):
            part = DeviceMatrix(backend, (points, points), indptr, columns, data)
            gradient = gradient + part.product(xp.ones((points, 1))) * F - part.product(F)
        return dot(backend, energies, xp.ones(pairs)), xp.take(gradient, self.own, axis=0)
