"""The operations of a fit on a GPU."""

from __future__ import annotations

from typing import Any

from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.device.gpu.energy import DeviceLabelEnergy, DeviceMapEnergy, DevicePreconditioner
from homophily.device.gpu.engines import make_device_engine
from homophily.device.gpu.linear import solve_irr
from homophily.device.gpu.matrix import DeviceMatrix
from homophily.device.gpu.optimize import DeviceCG, DeviceLBFGS
from homophily.device.operations import Operations
from homophily.relationship.choose import EngineName
from homophily.solve.irr import IRRSolution


class GpuOperations(Operations):
    """With CuPy, on a Laplacian that is on the device already."""

    label_optimizer, map_energy, map_optimizer = DeviceCG, DeviceMapEnergy, DeviceLBFGS

    def __init__(self, matrix: DeviceMatrix, laplacian: csr_array) -> None:
        self.matrix, self.laplacian = matrix, laplacian

    def solve_irr(self, confidence: Floats, targets: Floats, lambda1: float, **how: Any) -> IRRSolution:
        """See Operations."""
        return solve_irr(self.matrix, self.laplacian, confidence, targets, lambda1, **how)

    def engine(self, F: Floats, sigma_f: float, **how: Any) -> tuple[EngineName, Any]:
        """See Operations."""
        return make_device_engine(self.matrix, self.laplacian, F, sigma_f, **how)

    def _on_host(self, engine: Any, F: Floats) -> tuple[float, Floats]:
        backend = self.matrix.backend
        energy, gradient = (backend.to_host(part) for part in engine(backend.to_device(F)))
        return float(energy[0]), gradient

    def label_energy(self, power: int, confidence: Floats, *terms: Any) -> DeviceLabelEnergy:
        """See Operations."""
        return DeviceLabelEnergy(self.matrix, power, confidence, *terms)

    def preconditioner(self, power: int, confidence: Floats, curvature: float) -> DevicePreconditioner:
        """See Operations."""
        return DevicePreconditioner(self.matrix, self.laplacian, power, confidence, curvature)
