"""The operations of a fit on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.device.gpu.energy import DeviceLabelEnergy, DeviceMapEnergy, DevicePreconditioner
from homophily.device.gpu.engines import make_device_engine
from homophily.device.gpu.linear import DeviceWalk, solve_irr
from homophily.device.gpu.masked import DeviceSparseEngine
from homophily.device.gpu.matrix import DeviceMatrix
from homophily.device.gpu.optimize import DeviceCG, DeviceLBFGS
from homophily.device.operations import Operations


class GpuOperations(Operations):
    """With CuPy, on a Laplacian that is on the device already."""

    label_optimizer, map_energy, map_optimizer = DeviceCG, DeviceMapEnergy, DeviceLBFGS

    def __init__(self, matrix: DeviceMatrix, laplacian: csr_array) -> None:
        self.backend, self.laplacian = matrix.backend, laplacian
        self.solve_irr = partial(solve_irr, matrix, laplacian)
        self.engine = partial(make_device_engine, matrix)
        self.sparse_engine = partial(DeviceSparseEngine, matrix.backend)
        self.label_energy = partial(DeviceLabelEnergy, matrix)
        self.preconditioner = partial(DevicePreconditioner, matrix, laplacian)
        self.walk = partial(DeviceWalk, matrix)

    def _on_host(self, engine: Any, F: Floats) -> tuple[float, Floats]:
        energy, gradient = (self.backend.to_host(part) for part in engine(self.backend.to_device(F)))
        return float(energy[0]), gradient
