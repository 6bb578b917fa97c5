"""What a fit asks of the device it runs on. The object is chosen once per fit, by ``Backend.operations``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.relationship.choose import EngineName, make_engine
from homophily.solve.irr import IRRSolution, solve_irr
from homophily.solve.label_energy import LabelEnergy, PolynomialPreconditioner
from homophily.solve.lbfgs import LBFGS
from homophily.solve.map_energy import MapEnergy
from homophily.solve.nonlinear_cg import NonlinearCG, State


class Operations(ABC):
    """Solvers and engines on one Laplacian L."""

    label_optimizer: ClassVar[Callable[..., Any]]
    map_energy: ClassVar[Callable[..., Any]]
    map_optimizer: ClassVar[Callable[..., Any]]

    @abstractmethod
    def solve_irr(self, confidence: Floats, targets: Floats, lambda1: float, **how: Any) -> IRRSolution:
        """The minimiser without relationships, as :func:`homophily.solve.irr.solve_irr`."""

    @abstractmethod
    def engine(self, F: Floats, sigma_f: float, **how: Any) -> tuple[EngineName, Any]:
        """The name and the engine, as :func:`homophily.relationship.choose.make_engine`."""

    def evaluate(self, F: Floats, sigma_f: float, **how: Any) -> tuple[str, float, Floats, float | None]:
        """The relationship energy at F, once: the engine's name, energy, gradient, and the error of a low rank."""
        name, engine = self.engine(F, sigma_f, **how)
        return name, *self._on_host(engine, F), engine.error(F) if name == "nystrom" else None

    @abstractmethod
    def _on_host(self, engine: Any, F: Floats) -> tuple[float, Floats]:
        """Energy and gradient at F, all three on the host."""

    @abstractmethod
    def label_energy(self, power: int, confidence: Floats, *terms: Any) -> Any:
        """The energy of classifiers, as :class:`homophily.solve.label_energy.LabelEnergy`."""

    @abstractmethod
    def preconditioner(self, power: int, confidence: Floats, curvature: float) -> Any:
        """As :class:`homophily.solve.label_energy.PolynomialPreconditioner`."""

    def descend_labels(
        self,
        power: int,
        confidence: Floats,
        *terms: Any,
        start: Floats,
        curvature: float | None,
        warm: bool,
        max_iter: int,
        tolerance: float,
        callback: Callable[..., object] | None,
    ) -> State:
        """Minimise the label energy of these ``terms``; ``curvature`` is the preconditioner's c, None goes without."""
        energy = self.label_energy(power, confidence, *terms)
        preconditioner = None if curvature is None else self.preconditioner(power, confidence, curvature)
        # At the IRR minimiser the gradient is that of the relationships alone: a warm start is measured by it too.
        scale = energy.relationship_slope(start) if warm else None
        state: State = (
            type(self).label_optimizer(energy, max_iter, tolerance, preconditioner, scale).run(start, callback)
        )
        return state

    def descend_map(
        self,
        energy: tuple[Any, ...],
        F: Floats,
        max_iter: int,
        tolerance: float,
        callback: Callable[[State], object] | None,
        **how: Any,
    ) -> State:
        """The descent of maps, with the arguments of :class:`homophily.solve.map_energy.MapEnergy` in ``energy``."""
        kind = type(self)
        state: State = kind.map_optimizer(kind.map_energy(*energy, **how), max_iter, tolerance).run(F, callback)
        return state


class CpuOperations(Operations):
    """With NumPy, SciPy and numba, by ``n_jobs`` threads."""

    label_optimizer, map_energy, map_optimizer = NonlinearCG, MapEnergy, LBFGS

    def __init__(self, laplacian: csr_array, n_jobs: int | None) -> None:
        self.laplacian, self.n_jobs = laplacian, n_jobs

    def solve_irr(self, confidence: Floats, targets: Floats, lambda1: float, **how: Any) -> IRRSolution:
        """See Operations."""
        return solve_irr(self.laplacian, confidence, targets, lambda1, **how, n_jobs=self.n_jobs)

    def engine(self, F: Floats, sigma_f: float, **how: Any) -> tuple[EngineName, Any]:
        """See Operations."""
        return make_engine(self.laplacian, F, sigma_f, **how, n_jobs=self.n_jobs)

    def _on_host(self, engine: Any, F: Floats) -> tuple[float, Floats]:
        energy, gradient = engine(F)
        return energy, gradient

    def label_energy(self, power: int, confidence: Floats, *terms: Any) -> LabelEnergy:
        """See Operations."""
        return LabelEnergy(self.laplacian, power, confidence, *terms, n_jobs=self.n_jobs)

    def preconditioner(self, power: int, confidence: Floats, curvature: float) -> PolynomialPreconditioner:
        """See Operations."""
        return PolynomialPreconditioner(self.laplacian, power, confidence, curvature, self.n_jobs)
