"""The linear system of IRR on the device: block conjugate gradients that ask the device rarely how far they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from homophily.device.gpu.matrix import DeviceMatrix, column_dots
from homophily.graph.laplacian import MAX_ITER, Floats, choose_method, power_diagonal
from homophily.solve import irr
from homophily.solve.irr import IRRSolution

#: Iterations between two looks at the residual, at each of which the host waits for the device.
CHECK_EVERY = 10


class DeviceSystem:
    """A = H + λ1 L^p on the device, applied by p products with L."""

    def __init__(
        self,
        matrix: DeviceMatrix,
        laplacian: csr_array,
        power: int,
        confidence: Floats,
        lambda1: float,
    ) -> None:
        self.backend, self.power, self.lambda1 = matrix.backend, power, lambda1
        self.laplacian, backend = matrix, matrix.backend
        self.confidence = backend.to_device(confidence)
        diagonal = confidence + lambda1 * power_diagonal(laplacian, power)
        # A row of zeros (an isolated point without label) asks for nothing and stays where it is.
        scale = np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > 0)
        self.scale = backend.to_device(scale[:, None])

    def product(self, x: Any) -> Any:
        """A x."""
        smooth = self.laplacian.power(self.power - 1, x)
        return self.laplacian.product_plus(smooth, self.lambda1, self.confidence, x)

    def residual(self, x: Any, b: Any) -> tuple[Any, float]:
        """The residual b − Ax, and its size as :class:`~homophily.solve.irr.IRRSolution` states it."""
        r = b - self.product(x)
        return r, self._relative(self.scale * r, x)

    def solve(
        self,
        b: Any,
        x: Any,
        tolerance: float,
        max_iter: int = MAX_ITER,
        callback: Callable[[int, float], object] | None = None,
    ) -> tuple[Any, int, float]:
        """X with A x = b, from a first x; the iterations, and the residual."""
        iterations = 0
        r, residual = self.residual(x, b)
        # The updated residual drifts from the true one; starting again from the true one removes the drift.
        while residual > tolerance and iterations < max_iter:
            before = residual
            x, iterations = self._iterate(x, r, tolerance, iterations, max_iter, callback)
            r, residual = self.residual(x, b)
            if residual > before / 2:
                break
        return x, iterations, residual

    def _iterate(
        self,
        x: Any,
        r: Any,
        tolerance: float,
        iteration: int,
        max_iter: int,
        callback: Callable[[int, float], object] | None,
    ) -> tuple[Any, int]:
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
        return float(np.max(np.divide(size, scale, out=np.where(size > 0, np.inf, 0.0), where=scale > 0), initial=0.0))


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
    callback: Callable[[int, float], object] | None = None,
) -> IRRSolution:
    """What :func:`homophily.solve.irr.solve_irr` computes, by conjugate gradients on the device, where ``matrix`` is L.

    A graph so deep that they would take too many steps, and whose factors are sparse, is factorised on the host.
    """
    if choose_method(laplacian, power, targets.shape[1]) == "direct":
        return irr.solve_irr(
            laplacian,
            confidence,
            targets,
            lambda1,
            power=power,
            method="direct",
            tolerance=tolerance,
            callback=callback,
        )
    backend = matrix.backend
    system = DeviceSystem(matrix, laplacian, power, confidence, lambda1)
    b = system.confidence[:, None] * backend.to_device(targets)
    start = backend.xp.zeros_like(b) if initial is None else backend.to_device(initial)
    x, iterations, residual = system.solve(b, start, tolerance, MAX_ITER, callback)
    if residual > tolerance:
        warnings.warn(
            f"The IRR solution stopped at a residual of {residual:.1e} after {iterations} iterations, tolerance "
            f"{tolerance:.1e}: raise max_iter, the tolerance or lambda1.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return IRRSolution(backend.to_host(x), iterations, residual, "cg")
