"""What a fit asks of the device it runs on. The object is chosen once per fit, by ``Backend.operations``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.relationship.choose import EngineName, make_engine
from homophily.relationship.masked import SparseEngine
from homophily.solve.irr import IRRSolution, solve_irr
from homophily.solve.label_energy import LabelEnergy, PolynomialPreconditioner
from homophily.solve.lbfgs import LBFGS
from homophily.solve.map_energy import MapEnergy
from homophily.solve.nonlinear_cg import NonlinearCG
from homophily.solve.sharpen import LazyWalk, Walk


class Operations:
    """Solvers, energies and engines on one Laplacian L, which they are called without."""

    solve_irr: Callable[..., IRRSolution]
    """As :func:`homophily.solve.irr.solve_irr`."""
    engine: Callable[..., tuple[EngineName, Any]]
    """As :func:`homophily.relationship.choose.make_engine`."""
    sparse_engine: Callable[..., Any]
    """As :class:`homophily.relationship.masked.SparseEngine`, but for ``n_jobs``."""
    label_energy: Callable[..., Any]
    """As :class:`homophily.solve.label_energy.LabelEnergy`."""
    preconditioner: Callable[..., Any]
    """As :class:`homophily.solve.label_energy.PolynomialPreconditioner`."""
    map_energy: Callable[..., Any]
    """As :class:`homophily.solve.map_energy.MapEnergy`."""
    walk: Callable[..., Walk]
    """As :class:`homophily.solve.sharpen.LazyWalk`."""
    label_optimizer: Callable[..., Any]
    map_optimizer: Callable[..., Any]

    def evaluate(self, F: Floats, sigma_f: float, **how: Any) -> tuple[str, float, Floats, float | None]:
        """The relationship energy at F, once: the engine's name, energy, gradient, and the error of a low rank."""
        name, engine = self.engine(F, sigma_f, **how)
        return name, *self._on_host(engine, F), engine.error(F) if name == "nystrom" else None

    def _on_host(self, engine: Any, F: Floats) -> tuple[float, Floats]:
        """Energy and gradient at F, all three on the host."""
        energy, gradient = engine(F)
        return energy, gradient


class CpuOperations(Operations):
    """With NumPy, SciPy and numba, by ``n_jobs`` threads."""

    label_optimizer, map_energy, map_optimizer = NonlinearCG, MapEnergy, LBFGS

    def __init__(self, laplacian: csr_array, n_jobs: int | None) -> None:
        self.solve_irr = partial(solve_irr, laplacian, n_jobs=n_jobs)
        self.engine = partial(make_engine, laplacian, n_jobs=n_jobs)
        self.sparse_engine = partial(SparseEngine, n_jobs=n_jobs)
        self.label_energy = partial(LabelEnergy, laplacian, n_jobs=n_jobs)
        self.preconditioner = partial(PolynomialPreconditioner, laplacian, n_jobs=n_jobs)
        self.walk = partial(LazyWalk, laplacian, n_jobs=n_jobs)
