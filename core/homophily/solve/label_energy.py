"""The energy that ERR classification minimises, and the preconditioner that makes its minimisation short.

    E(F) = Σ_i h_i‖f_i − t_i‖² + λ1 tr(FᵀGF) + λ2/r · R(F),      G = L^p

with R the relationship energy and r the relationships a point has (u, or |N_K|): dividing by r keeps
λ2 comparable with λ1 whatever the number of points. The paper's λ2 is λ2/r here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.graph.laplacian import apply_power, power_diagonal
from homophily.relationship.choose import Engine


@dataclass(eq=False)
class LabelEnergy:
    """E(F) and its gradient; a call is one evaluation."""

    laplacian: Any
    power: int
    confidence: Any
    targets: Any
    lambda1: float
    relationships: Engine
    relationship_weight: float
    n_jobs: int | None = None

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy and gradient at F (u, n)."""
        energy, gradient = self.relationships(F)
        misfit = F - self.targets
        pull = self.confidence[:, None] * misfit
        smooth = self._smooth(F)
        energy = self.relationship_weight * energy
        energy += self._dot(pull, misfit) + self.lambda1 * self._dot(F, smooth)
        gradient *= self.relationship_weight
        gradient += 2.0 * pull
        gradient += (2.0 * self.lambda1) * smooth
        return energy, gradient

    def relationship_slope(self, F: Any) -> Any:
        """The gradient norm of the relationships alone, at F."""
        gradient = self.relationships(F)[1]
        return self.relationship_weight * self._dot(gradient, gradient) ** 0.5

    def _smooth(self, F: Any) -> Any:
        return apply_power(self.laplacian, self.power, F, self.n_jobs)

    def _dot(self, a: Any, b: Any) -> Any:
        return float(np.vdot(a, b))


class PolynomialPreconditioner:
    """Approximate inverse of M = H + c (G + εI): a fixed number of Chebyshev steps, hence linear and positive definite.

    Near two clusters of values, R's curvature is about G/σ_f² times half the relationships of a point, so
    c = λ1 + λ2/(2σ_f²) makes M close to the energy's Hessian. ε keeps the smoothest directions, in which R is not like
    G at all, from running away; with ε = 0.1 the condition number is below 50, and a few steps are enough.
    """

    SHIFT = 0.1
    STEPS = 8

    def __init__(
        self, laplacian: csr_array, power: int, confidence: Floats, scale: float, n_jobs: int | None = None
    ) -> None:
        self.laplacian, self.power, self.n_jobs = laplacian, power, n_jobs
        self.scale = scale
        own = power_diagonal(laplacian, power)
        shift = self.SHIFT * float(own.mean() or 1.0)
        self.shifted = (confidence + scale * shift)[:, None]
        diagonal = self.shifted[:, 0] + scale * own
        self.root = (diagonal**-0.5)[:, None]
        # Gershgorin bounds the largest eigenvalue of the Jacobi-scaled M (|L|^p 1 ≥ |L^p| 1), the shift the smallest.
        rows = self.shifted[:, 0] + scale * apply_power(abs(laplacian), power, np.ones((len(own), 1)), n_jobs)[:, 0]
        largest, smallest = float(np.max(rows / diagonal)), float(np.min(self.shifted[:, 0] / diagonal))
        self.centre, self.radius = (largest + smallest) / 2, (largest - smallest) / 2

    def __call__(self, gradient: Floats) -> Floats:
        """M⁻¹ gradient, nearly."""
        residual = self.root * gradient
        step = residual / self.centre
        solution = step.copy()
        for keep, gain in self._weights():
            scaled = self.root * step
            product = self.scale * self._smooth(scaled)
            residual -= self.root * (self.shifted * scaled + product)
            step *= keep
            step += gain * residual
            solution += step
        return self.root * solution

    def _weights(self) -> Iterator[tuple[float, float]]:
        """Of each Chebyshev step: the weights of the last step and of the residual in it."""
        if self.radius == 0.0:
            return
        ratio = self.centre / self.radius
        rho = 1.0 / ratio
        for _ in range(self.STEPS - 1):
            following = 1.0 / (2.0 * ratio - rho)
            yield following * rho, 2.0 * following / self.radius
            rho = following

    def _smooth(self, F: Floats) -> Floats:
        return apply_power(self.laplacian, self.power, F, self.n_jobs)
