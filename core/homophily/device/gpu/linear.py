"""Linear algebra with the Laplacian on the device: the system of IRR, and the walk of sharp relationships.

The system is solved by block conjugate gradients that ask the device rarely how far they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.device.gpu.matrix import DeviceMatrix, column_dots
from homophily.graph.laplacian import MAX_ITER, choose_method
from homophily.solve import irr
from homophily.solve.irr import IRRSolution, Report
from homophily.solve.sharpen import Held, Shares, walk_factors

#: Iterations between two looks at the residual, at each of which the host waits for the device.
CHECK_EVERY = 10


class DeviceSystem:
    """A = H + λ1 L^p on the device, applied by p products with L."""

    def __init__(
        self, matrix: DeviceMatrix, laplacian: csr_array, power: int, confidence: Floats, lambda1: float
    ) -> None:
        self.backend, self.power, self.lambda1 = matrix.backend, power, lambda1
        self.laplacian, backend = matrix, matrix.backend
        self.confidence = backend.to_device(confidence)
        self.scale = backend.to_device(irr.inverse_diagonal(laplacian, power, confidence, lambda1)[:, None])

    def product(self, x: Any) -> Any:
        """A x."""
        smooth = self.laplacian.power(self.power - 1, x)
        return self.laplacian.product_plus(smooth, self.lambda1, self.confidence, x)

    def residual(self, x: Any, b: Any) -> tuple[Any, float]:
        """The residual b − Ax, and its size as :class:`~homophily.solve.irr.IRRSolution` states it."""
        r = b - self.product(x)
        return r, self._relative(self.scale * r, x)

    def iterate(
        self, x: Any, r: Any, tolerance: float, iteration: int, max_iter: int, callback: Report | None
    ) -> tuple[Any, int]:
        """Improve x from its residual r."""
        p = self.scale * r
        rz = column_dots(self.backend, r, p)
        while iteration < max_iter:
            iteration += 1
            q = self.product(p)
            # A column that has reached 0 has pᵀAp = 0 and stands still.
            alpha = self._quotient(rz, column_dots(self.backend, p, q))
            x = x + alpha * p
            r = r - alpha * q
            z = self.scale * r
            rz_new = column_dots(self.backend, r, z)
            if iteration % CHECK_EVERY == 0 or iteration == max_iter:
                residual = self._relative(z, x)
                if callback is not None:
                    callback(iteration, residual)
                if residual <= tolerance:
                    break
            p = z + self._quotient(rz_new, rz) * p
            rz = rz_new
        return x, iteration

    def _quotient(self, above: Any, below: Any) -> Any:
        """Above / below, 0 where below is not positive."""
        positive = below > 0
        return self.backend.xp.where(positive, above / self.backend.xp.where(positive, below, 1.0), 0.0)

    def _relative(self, error: Any, of: Any) -> float:
        """The largest column norm of ``error`` relative to that of ``of``: the one wait for the device here."""
        backend = self.backend
        squares = backend.xp.concatenate([column_dots(backend, error, error), column_dots(backend, of, of)])
        size, scale = np.split(np.sqrt(backend.to_host(squares)), 2)
        return irr.relative_size(size, scale)


def solve_irr(
    matrix: DeviceMatrix,
    laplacian: csr_array,
    confidence: Floats,
    targets: Floats,
    lambda1: float,
    *,
    power: int = 1,
    tolerance: float = 1e-12,
    initial: Floats | None = None,
    callback: Report | None = None,
) -> IRRSolution:
    """What :func:`homophily.solve.irr.solve_irr` computes, by conjugate gradients on the device, where ``matrix`` is L.

    A graph so deep that they would take too many steps, and whose factors are sparse, is factorised on the host.
    """
    if choose_method(laplacian, power, targets.shape[1], tolerance) == "direct":
        how: dict[str, Any] = {"power": power, "tolerance": tolerance, "callback": callback}
        return irr.solve_irr(laplacian, confidence, targets, lambda1, method="direct", **how)
    backend = matrix.backend
    system = DeviceSystem(matrix, laplacian, power, confidence, lambda1)
    b = system.confidence[:, None] * backend.to_device(targets)
    start = backend.xp.zeros_like(b) if initial is None else backend.to_device(initial)
    x, iterations, residual = irr.iterate(system, start, b, tolerance, MAX_ITER, callback)
    if residual > tolerance:
        irr.warn_not_converged(residual, iterations, tolerance, stacklevel=3)
    return IRRSolution(backend.to_host(x), iterations, residual, "cg")


class DeviceWalk:
    """:class:`homophily.solve.sharpen.LazyWalk` on the device; shares come from the host and go back to it."""

    def __init__(self, matrix: DeviceMatrix, degrees: Floats, normalized: bool) -> None:
        self.matrix, self.before = matrix, walk_factors(degrees, normalized)[0]
        self.after = matrix.backend.to_device(walk_factors(degrees, normalized)[1][:, None])

    def __call__(self, shares: Shares, steps: int, held: Held | None = None) -> Shares:
        """See :class:`homophily.solve.sharpen.Walk`."""
        backend, before = self.matrix.backend, self.before[:, None]
        V = backend.to_device(np.ascontiguousarray(shares * before))
        if held is not None:
            kept, fixed = np.ones((len(shares), 1)), np.zeros(shares.shape)
            kept[held.points, 0] -= held.strengths
            fixed[held.points] = held.strengths[:, None] * held.targets * before[held.points]
            kept, fixed = backend.to_device(kept), backend.to_device(fixed)
        for _ in range(steps):
            V = V - self.after * self.matrix.product(V)
            if held is not None:
                V = kept * V + fixed
        return np.asarray(backend.to_host(V) / before)
