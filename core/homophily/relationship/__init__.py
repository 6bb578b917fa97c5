"""K and its regulariser tr(KᵀGK), K_ij = exp(−‖f_i − f_j‖²/σ_f²): the engines and the choice between them.

Every engine is built once for a graph matrix G and called with F: ``engine(F) -> (energy, gradient)``.

==========  ==========  =======================================================================================
name        dimensions  what it does
==========  ==========  =======================================================================================
dense       any         K as a matrix: the oracle, for small u
tiles       any         K a tile at a time: exact, O(u²) time, bounded memory
chebyshev   1           Gauss sums by piecewise polynomials: linear time, error near 1e-13
nufft       1 to 3      Gauss sums by non-uniform Fourier transforms: linear time, to a tolerance
nystrom     any         K of low rank: linear time, its error is estimated, a large one warned of
==========  ==========  =======================================================================================

The masked form of sparse ERR is in :mod:`homophily.relationship.sparse`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, diags_array
from sklearn.utils._param_validation import Interval, StrOptions, validate_params

from homophily.errors import ApproximationWarning
from homophily.relationship.chebyshev import ChebyshevEngine
from homophily.relationship.dense import DenseEngine
from homophily.relationship.nufft import NufftEngine
from homophily.relationship.nystrom import NystromEngine, choose_landmarks
from homophily.relationship.tiles import TileEngine

EngineName = Literal["auto", "dense", "tiles", "chebyshev", "nufft", "nystrom"]
ENGINE_NAMES: tuple[EngineName, ...] = ("auto", "dense", "tiles", "chebyshev", "nufft", "nystrom")

# Points up to which exact tiles are faster, by dimensions for "nufft" (benchmarks: engines).
TILES_BEAT_NUFFT = {2: 1_000, 3: 5_000}
TILES_BEAT_NYSTROM = 5_000
# Relative error of the low-rank energy that is worth a warning.
LOW_RANK_ERROR = 0.02


class Engine(Protocol):
    """Energy and gradient of one graph's relationships."""

    def __call__(self, F: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """tr(KᵀGK) at F (u, n), and its gradient (u, n); an infinite energy where F spreads too far for the engine."""


def choose_engine(F: NDArray[np.float64], sigma_f: float, tolerance: float = 1e-9) -> EngineName:
    """The engine expected to be fastest for F's dimensions, size and range/σ_f; "nystrom" is a proposal to be checked.

    All but "nystrom" keep to the tolerance; they cost O(u²) where the others do not apply.
    """
    points, dimensions = F.shape
    spread = np.ptp(F, axis=0)
    if dimensions == 1 and ChebyshevEngine.copes_with(float(spread[0]), sigma_f):
        return "chebyshev"
    if points > TILES_BEAT_NUFFT.get(dimensions, points) and NufftEngine.copes_with(spread, sigma_f, tolerance):
        return "nufft"
    if dimensions > 3 and points > TILES_BEAT_NYSTROM:
        return "nystrom"
    return "tiles"


def make_engine(
    laplacian: csr_array,
    F: NDArray[np.float64],
    sigma_f: float,
    *,
    engine: EngineName = "auto",
    power: int = 1,
    diagonal: NDArray[np.float64] | None = None,
    powered: Callable[[], csr_array] | None = None,
    targets: NDArray[np.float64] | None = None,
    tolerance: float = 1e-9,
    n_jobs: int | None = None,
) -> tuple[EngineName, Engine]:
    """The engine of that name for G = laplacian^power + diag(diagonal), and its name where "auto" chose it.

    F is where the solve starts, ``targets`` (classes, n) where labels pull it. ``powered()`` gives the power itself
    to the engines that need its entries; the others multiply p times by the sparser Laplacian. "auto" takes "nystrom"
    only if its error at F is small.
    """
    name = choose_engine(F, sigma_f, tolerance) if engine == "auto" else engine
    if name == "nystrom":
        landmarks = choose_landmarks(F, sigma_f, targets=targets)
        low_rank = NystromEngine(laplacian, sigma_f, landmarks=landmarks, power=power, diagonal=diagonal, n_jobs=n_jobs)
        if engine == "nystrom" or low_rank.error(F) <= LOW_RANK_ERROR:
            return name, low_rank
        name = "tiles"
    if name == "tiles":
        return name, TileEngine(laplacian, sigma_f, power=power, diagonal=diagonal, n_jobs=n_jobs)
    G = laplacian if powered is None else powered()
    if diagonal is not None:
        G = csr_array(G + diags_array(diagonal))
    if name == "chebyshev":
        _check_dimensions(name, F, 1)
        return name, ChebyshevEngine(G, sigma_f, n_jobs=n_jobs)
    if name == "nufft":
        _check_dimensions(name, F, 3)
        return name, NufftEngine(G, sigma_f, n_jobs=n_jobs, tolerance=tolerance)
    return name, DenseEngine(G, sigma_f)


def warn_of_error(error: float | None, stacklevel: int) -> None:
    """Say so when a low-rank energy is far off; None is the error of an engine that has a tolerance."""
    if error is not None and error > LOW_RANK_ERROR:
        warnings.warn(
            f"The 'nystrom' engine is off by {100 * error:.2g} % in the relationship energy: the values are too spread "
            "out in units of sigma_f for its landmarks. Use engine='tiles', or a larger sigma_f.",
            ApproximationWarning,
            stacklevel=stacklevel,
        )


def _check_dimensions(name: EngineName, F: NDArray[np.float64], most: int) -> None:
    if F.shape[1] > most:
        raise ValueError(
            f"The {name!r} engine works on F of at most {most} column{'s' * (most > 1)}. Got {F.shape[1]} instead."
        )


@validate_params(
    {
        "sigma_f": [Interval(Real, 0, None, closed="neither")],
        "engine": [StrOptions(set(ENGINE_NAMES))],
        "tolerance": [Interval(Real, 0, None, closed="neither")],
        "n_jobs": [Integral, None],
    },
    prefer_skip_nested_validation=True,
)
def relationship_energy(
    F: ArrayLike,
    G: Any,
    *,
    sigma_f: float,
    engine: EngineName = "auto",
    tolerance: float = 1e-9,
    n_jobs: int | None = None,
) -> tuple[float, NDArray[np.float64]]:
    """tr(KᵀGK) over all u² relationships K_ij = exp(−‖f_i − f_j‖²/σ_f²), and its gradient with F's shape.

    Parameters
    ----------
    F : (u,) or (u, n) values.
    G : (u, u) symmetric matrix, sparse or dense: a Laplacian or a power of it.
    sigma_f : σ_f > 0, not squared.
    engine : which of the engines above; "auto" picks by u, n and range/σ_f.
    tolerance : relative error asked of the "nufft" engine.

    >>> import numpy as np
    >>> from homophily import KNNGraph, relationship_energy
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> energy, gradient = relationship_energy(np.sin(6 * X), KNNGraph(2).fit(X).laplacian(), sigma_f=0.5)
    >>> round(energy, 6), gradient.shape
    (11.69641, (20, 1))
    """
    values = np.asarray(F)
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2) or not values.size or not np.isfinite(values).all():
        raise ValueError(
            "The 'F' parameter of relationship_energy must be a finite array of numbers of shape (u,) or (u, n). "
            f"Got {values.dtype} of shape {values.shape} instead."
        )
    columns = np.array(values.reshape(len(values), -1), dtype=np.float64, order="C")
    matrix: csr_array = csr_array(G).astype(np.float64)
    _check_matrix(matrix, len(columns))
    name, evaluate = make_engine(matrix, columns, sigma_f, engine=engine, tolerance=tolerance, n_jobs=n_jobs)
    energy, gradient = evaluate(columns)
    warn_of_error(evaluate.error(columns) if isinstance(evaluate, NystromEngine) else None, stacklevel=4)
    if not np.isfinite(energy):
        raise ValueError(
            f"The values of F spread over {np.ptp(columns, axis=0).max() / sigma_f:.3g} sigma_f, too far for the "
            f"{name!r} engine. Use engine='tiles'."
        )
    return energy, gradient.reshape(values.shape)


def _check_matrix(G: csr_array, points: int) -> None:
    if G.shape != (points, points):
        problem = f"a square matrix with a row for each of F's {points} points. Got shape {G.shape} instead"
    elif not np.isfinite(G.data).all():
        problem = "finite. Got NaN or infinity instead"
    elif abs(G - G.T).max() > 1e-10 * max(abs(G).max(), 1e-300):
        problem = "symmetric. Got a matrix that differs from its transpose instead"
    else:
        return
    raise ValueError(f"The 'G' parameter of relationship_energy must be {problem}.")
