"""One search for the minimum of an energy, from values on the host to the optimiser's last state on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.device.gpu.energy import DeviceLabelEnergy, DevicePreconditioner
from homophily.device.gpu.engines import DeviceEngine
from homophily.device.gpu.matrix import DeviceMatrix, dot
from homophily.device.gpu.optimize import DeviceCG
from homophily.solve.nonlinear_cg import State

Floats = NDArray[np.float64]


def descend_labels(
    matrix: DeviceMatrix,
    laplacian: csr_array,
    power: int,
    confidence: Floats,
    targets: Floats,
    lambda1: float,
    relationships: DeviceEngine,
    weight: float,
    F: Floats,
    *,
    curvature: float | None,
    warm: bool,
    max_iter: int,
    tolerance: float,
    callback: Callable[..., object] | None,
) -> State:
    """Minimise the energy of labels from F; ``curvature`` is the preconditioner's, None goes without."""
    backend = matrix.backend
    energy = DeviceLabelEnergy(matrix, power, confidence, targets, lambda1, relationships, weight)
    preconditioner: Any = None
    if curvature is not None:
        preconditioner = DevicePreconditioner(matrix, laplacian, power, confidence, curvature)
    scale: Any = None
    if warm:
        # At the IRR minimiser the gradient is that of the relationships alone: a warm start is measured by it too.
        gradient = relationships(backend.to_device(F))[1]
        scale = weight * backend.xp.sqrt(dot(backend, gradient, gradient))
    return DeviceCG(energy, max_iter, tolerance, preconditioner, scale).run(F, callback)
