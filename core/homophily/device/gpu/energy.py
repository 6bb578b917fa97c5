"""The energies of labels and of maps on the device, and the preconditioner; the formulas are those of the CPU's."""

from __future__ import annotations

from typing import Any

from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.device.backend import CupyBackend
from homophily.device.gpu.engines import DeviceEngine
from homophily.device.gpu.matrix import DeviceMatrix, dot
from homophily.solve.label_energy import LabelEnergy, PolynomialPreconditioner
from homophily.solve.link_pairs import Links
from homophily.solve.map_energy import MapEnergy


class _OnDevice:
    """Energies are arrays (1,) here, and what is NaN may be got ready by ``adapt``."""

    backend: CupyBackend
    relationships: Any

    def adapt(self, F: Any) -> bool:
        """As the relationships can."""
        adapted: bool = self.relationships.adapt(F)
        return adapted

    def _dot(self, a: Any, b: Any) -> Any:
        return dot(self.backend, a, b)


class DeviceLabelEnergy(_OnDevice, LabelEnergy):
    """E(F) of :class:`homophily.solve.label_energy.LabelEnergy`, whose Laplacian is on the device already."""

    def __init__(self, matrix: DeviceMatrix, power: int, confidence: Floats, targets: Floats, *rest: Any) -> None:
        self.backend = matrix.backend
        on_device = (self.backend.to_device(part) for part in (confidence, targets))
        super().__init__(matrix, power, *on_device, *rest)

    def relationship_slope(self, F: Any) -> Any:
        """The gradient norm (1,) of the relationships alone, at F on the host."""
        return super().relationship_slope(self.backend.to_device(F))

    def _smooth(self, F: Any) -> Any:
        return self.laplacian.power(self.power, F)


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
        lanes = matrix.lanes(shape[1])
        for keep, gain in self._weights():
            smooth = scaled
            for _ in range(self.power - 1):
                smooth = matrix.product_if(go, smooth)
            following = xp.empty(shape)
            of_matrix = *shape, lanes, matrix.entries, go, matrix.indptr, matrix.indices, matrix.data
            numbers = self.scale, keep, gain, self.root, self.shifted
            launch("chebyshev_step", size * lanes, *of_matrix, *numbers, smooth, scaled, residual, step, following, out)
            scaled = following
        return out


class DeviceMapEnergy(_OnDevice, MapEnergy):
    """E(F) of :class:`homophily.solve.map_energy.MapEnergy`; what it is given is sent to the device once per job."""

    def __init__(
        self, target: Floats, data_weight: float, relationships: DeviceEngine, *rest: Any, **form: Any
    ) -> None:
        self.backend, self.xp = relationships.backend, relationships.backend.xp
        sent = self.backend.once(target, lambda: self.backend.to_device(target))
        super().__init__(sent, data_weight, relationships, *rest, **form)

    def _incidences(self, links: Links, points: int) -> list[tuple[Any, Any, bool]]:
        on_host = super()._incidences
        made: list[tuple[Any, Any, bool]] = self.backend.once(
            links,
            lambda: [
                (DeviceMatrix.of(self.backend, differences), DeviceMatrix.of(self.backend, ends), must)
                for differences, ends, must in on_host(links, points)
            ],
        )
        return made

    def _product(self, matrix: Any, values: Any) -> Any:
        return matrix.product(values)
