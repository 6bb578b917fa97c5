"""The energies of labels and of maps on the device, and the preconditioner; the formulas are those of the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.device.gpu.engines import DeviceEngine
from homophily.device.gpu.matrix import DeviceMatrix, dot
from homophily.solve.label_energy import PolynomialPreconditioner
from homophily.supervision.links import Links

Floats = NDArray[np.float64]


class DeviceLabelEnergy:
    """E(F) of :class:`homophily.solve.label_energy.LabelEnergy`; a call is one evaluation."""

    def __init__(
        self,
        matrix: DeviceMatrix,
        power: int,
        confidence: Floats,
        targets: Floats,
        lambda1: float,
        relationships: DeviceEngine,
        relationship_weight: float,
    ) -> None:
        self.backend, self.matrix, self.power = matrix.backend, matrix, power
        self.confidence, self.targets = self.backend.to_device(confidence[:, None]), self.backend.to_device(targets)
        self.lambda1 = lambda1
        self.relationships, self.relationship_weight = relationships, relationship_weight

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy (1,) and gradient at F."""
        energy, gradient = self.relationships(F)
        misfit = F - self.targets
        pull = self.confidence * misfit
        smooth = self.matrix.power(self.power, F)
        energy = self.relationship_weight * energy + dot(self.backend, pull, misfit)
        energy += self.lambda1 * dot(self.backend, F, smooth)
        gradient *= self.relationship_weight
        gradient += 2.0 * pull
        gradient += (2.0 * self.lambda1) * smooth
        return energy, gradient

    def adapt(self, F: Any) -> bool:
        """As the relationships can."""
        return self.relationships.adapt(F)


class DevicePreconditioner(PolynomialPreconditioner):
    """The polynomial of the CPU's in p launches a step, which do nothing where the device tells them so."""

    def __init__(
        self, matrix: DeviceMatrix, laplacian: csr_array, power: int, confidence: Floats, scale: float
    ) -> None:
        super().__init__(laplacian, power, confidence, scale)
        self.matrix = matrix
        self.root, self.shifted = (matrix.backend.to_device(part) for part in (self.root, self.shifted))

    def __call__(self, gradient: Any, go: Any = None) -> Any:
        """M⁻¹ gradient, nearly; where ``go`` (1,) is 0, numbers without a meaning."""
        matrix, xp, launch = self.matrix, self.matrix.backend.xp, self.matrix.backend.kernels.launch
        go = xp.ones(1) if go is None else go
        size, shape = gradient.size, gradient.shape
        residual, step, scaled, out = (xp.empty(shape) for _ in range(4))
        launch("chebyshev_begin", size, *shape, go, self.centre, self.root, gradient, residual, step, scaled, out)
        for keep, gain in self._weights():
            smooth = scaled
            for _ in range(self.power - 1):
                smooth = matrix.product_if(go, smooth)
            following = xp.empty(shape)
            of_matrix = *shape, matrix.entries, go, matrix.indptr, matrix.indices, matrix.data
            numbers = self.scale, keep, gain, self.root, self.shifted
            launch("chebyshev_step", size, *of_matrix, *numbers, smooth, scaled, residual, step, following, out)
            scaled = following
        return out

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


class DeviceMapEnergy:
    """E(F) of :class:`homophily.solve.map_energy.MapEnergy`; a call is one evaluation."""

    def __init__(
        self,
        target: Floats,
        data_weight: float,
        relationships: DeviceEngine,
        lambda2: float,
        links: Links,
        lambda3: float,
        sigma_f: float,
        *,
        link_loss: str = "log",
        relationship: str = "gaussian",
    ) -> None:
        self.backend, self.relationships, self.lambda2 = relationships.backend, relationships, lambda2
        self.target = self.backend.once(target, lambda: self.backend.to_device(target))
        self.data_weight = data_weight
        self.weight, self.inverse = 2.0 * lambda3, sigma_f**-2
        self.squared, self.cauchy = link_loss == "squared", relationship == "cauchy"
        self.links = self.backend.once(links, lambda: self._incidences(links, len(target)))

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy (1,) and gradient at F."""
        energy, gradient = self.relationships(F)
        misfit = F - self.target
        energy = self.lambda2 * energy + self.data_weight * dot(self.backend, misfit, misfit)
        gradient *= self.lambda2
        gradient += (2.0 * self.data_weight) * misfit
        for differences, ends, must in self.links:
            gap = differences.product(F)
            cost, slope = self._link(self.inverse * (gap * gap).sum(axis=1), must)
            energy += self.weight * cost.sum()
            gradient += ends.product((2.0 * self.weight * self.inverse) * slope[:, None] * gap)
        return energy, gradient

    def adapt(self, F: Any) -> bool:
        """As the relationships can."""
        return self.relationships.adapt(F)

    def _link(self, x: Any, must: bool) -> tuple[Any, Any]:
        """The cost of links and its slope, for x = ‖f_i − f_j‖²/σ²."""
        xp = self.backend.xp
        k = 1.0 / (1.0 + x) if self.cauchy else xp.exp(-x)
        steepness = -k * k if self.cauchy else -k
        if not must:
            return k * k, 2.0 * k * steepness
        if self.squared:
            return (1.0 - k) * (1.0 - k), -2.0 * (1.0 - k) * steepness
        return (xp.log1p(x), k) if self.cauchy else (x, xp.ones(x.shape))

    def _incidences(self, links: Links, points: int) -> list[tuple[DeviceMatrix, DeviceMatrix, bool]]:
        return [
            (self._incidence(pairs, points), self._incidence(pairs, points, transposed=True), must)
            for pairs, must in ((links.must, True), (links.cannot, False))
            if len(pairs)
        ]

    def _incidence(self, pairs: Any, points: int, *, transposed: bool = False) -> DeviceMatrix:
        """From values to the differences f_i − f_j of links; transposed, from forces on links to those on points."""
        m = len(pairs)
        signs = np.tile([1.0, -1.0], m)
        matrix = csr_array((signs, np.asarray(pairs).ravel(), 2 * np.arange(m + 1)), shape=(m, points))
        return DeviceMatrix.of(self.backend, csr_array(matrix.T) if transposed else matrix)
