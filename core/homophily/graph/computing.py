"""Where a graph is computed: what it asks of a device, and how a device is found by its name.

The devices themselves are in :mod:`homophily.device`, which graphs know nothing of.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.utils._param_validation import StrOptions

from homophily.arrays import Floats

BackendName = Literal["numpy", "cupy", "cupy-mixed", "auto"]
BACKEND_CONSTRAINT = [StrOptions(set(get_args(BackendName)))]

Eigenpairs = tuple[Floats, Floats, float]


class EigenProblem(NamedTuple):
    """The smallest eigenvalues of a symmetric matrix, to be iterated from a block of columns."""

    matrix: csr_array
    start: Floats
    """(u, columns), a few columns more than asked for."""
    n: int
    known: csr_array | None
    """(u, c), orthonormal columns that span an eigenspace, which is left out."""
    tolerance: float
    bound: float
    """No eigenvalue is larger."""


class NeighborSearch(Protocol):
    """A search among all pairs of points that are on a device; ``all_pairs`` says what scores are."""

    def lowest_scores(self, rows: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], Floats]:
        """Positions (m, count) of the points with the lowest scores for some rows, and the highest of these scores."""

    def nearest_below(
        self, limits: Floats, rows: NDArray[np.float32], exact_rows: Floats, count: int
    ) -> NDArray[np.int64]:
        """Positions (m, count) of the nearest points among those with scores up to a limit for each row."""


class Device(Protocol):
    """What graphs ask of where they are computed. None means that the CPU's own way is taken."""

    on_device: bool

    def job(self) -> AbstractContextManager[Any]:
        """The device in use for one fit."""

    def neighbor_search(self, points: NDArray[np.float32], exact: Callable[[slice], Floats]) -> NeighborSearch | None:
        """A search among all pairs of these points, which ``exact`` gives in float64."""

    def eigenpairs(self, problem: EigenProblem) -> Eigenpairs | None:
        """The smallest eigenvalues, their eigenvectors and the residual."""


_find: Callable[[BackendName], Device] | None = None


def register_devices(find: Callable[[BackendName], Device]) -> None:
    """Have :func:`find_device` answer by ``find``."""
    global _find
    _find = find


def find_device(name: BackendName) -> Device:
    """The device of that name; :func:`homophily.device.backend.get_backend` says what is raised."""
    assert _find is not None, "homophily.device is imported with the package"
    return _find(name)
