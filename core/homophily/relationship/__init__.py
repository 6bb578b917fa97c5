"""K and its regulariser tr(KᵀGK), K_ij = exp(−‖f_i − f_j‖²/σ_f²): the engines and the choice between them.

Every engine is built once for a graph matrix G and called with F: ``engine(F) -> (energy, gradient)``. Those of
:func:`make_parts` give the diagonal of G apart from the rest, ``engine(F) -> (energy, gradient), (energy, gradient)``.

==========  ==========  =======================================================================================
name        dimensions  what it does
==========  ==========  =======================================================================================
dense       any         K as a matrix: the oracle, for small u
tiles       any         K a tile at a time: exact, O(u²) time, bounded memory
chebyshev   1           Gauss sums by piecewise polynomials: linear time, error near 1e-13
cells       1 to 3      Gauss sums over a grid, Fourier modes or near pairs, whichever F asks for: to a tolerance
nufft       1 to 3      Gauss sums by non-uniform Fourier transforms: to a tolerance, for F of bounded range
nystrom     any         K of low rank: linear time, its error is estimated, a large one warned of
==========  ==========  =======================================================================================

The masked form of sparse ERR is in :mod:`homophily.relationship.sparse`. With ``relationship="cauchy"`` K is
1/(1 + ‖f_i − f_j‖²/σ_f²), whose tail still pulls far points: for "dense", "tiles" and the masked form.
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

from homophily.device.backend import BACKEND_CONSTRAINT, BackendName, CupyBackend, get_backend
from homophily.exceptions import ApproximationWarning
from homophily.relationship.cells import CellEngine
from homophily.relationship.chebyshev import ChebyshevEngine
from homophily.relationship.dense import DenseEngine
from homophily.relationship.nufft import NufftEngine
from homophily.relationship.nystrom import NystromEngine, choose_landmarks
from homophily.relationship.tiles import RELATIONSHIPS, Relationship, TileEngine

EngineName = Literal["auto", "dense", "tiles", "chebyshev", "cells", "nufft", "nystrom"]
ENGINE_NAMES: tuple[EngineName, ...] = ("auto", "dense", "tiles", "chebyshev", "cells", "nufft", "nystrom")

# Points up to which exact tiles are faster, by dimensions for "cells" (benchmarks: engines).
TILES_BEAT_CELLS = {2: 600, 3: 5_000}
TILES_BEAT_NYSTROM = 4_000
# Relative error of the low-rank energy that is worth a warning.
LOW_RANK_ERROR = 0.02


class Engine(Protocol):
    """Energy and gradient of one graph's relationships."""

    def __call__(self, F: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """tr(KᵀGK) at F (u, n), and its gradient (u, n); an infinite energy where F spreads too far for the engine."""


class PartsEngine(Protocol):
    """Energy and gradient of one graph's relationships, G's diagonal apart: repulsion Z and attraction −A of R = Z − A.

    Any function of the two follows by the chain rule, such as w_Z Z − w_A A or (Z − A)/Z^β.
    """

    def __call__(
        self, F: NDArray[np.float64]
    ) -> tuple[tuple[float, NDArray[np.float64]], tuple[float, NDArray[np.float64]]]:
        """Energy and gradient of G's off-diagonal entries (−A), then those of its diagonal (Z)."""


def choose_engine(F: NDArray[np.float64], sigma_f: float, relationship: Relationship = "gaussian") -> EngineName:
    """The engine expected to be fastest for F's dimensions and size; "nystrom" is a proposal to be checked.

    All but "nystrom" are exact or keep to the tolerance, wherever F moves.
    """
    points, dimensions = F.shape
    if relationship != "gaussian":
        return "tiles"
    if dimensions == 1:
        return "chebyshev" if ChebyshevEngine.copes_with(float(np.ptp(F)), sigma_f) else "cells"
    if points > TILES_BEAT_CELLS.get(dimensions, points):
        return "cells"
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
    relationship: Relationship = "gaussian",
    tolerance: float = 1e-9,
    n_jobs: int | None = None,
) -> tuple[EngineName, Engine]:
    """The engine of that name for G = laplacian^power + diag(diagonal), and its name where "auto" chose it.

    F is where the solve starts, ``targets`` (classes, n) where labels pull it. ``powered()`` gives the power itself
    to the engines that need its entries; the others multiply p times by the sparser Laplacian. "auto" takes "nystrom"
    only if its error at F is small. See :func:`make_parts` for the diagonal apart.
    """
    name = choose_engine(F, sigma_f, relationship) if engine == "auto" else engine
    if relationship != "gaussian" and name not in ("dense", "tiles"):
        raise ValueError(
            f"The {name!r} engine works on Gaussian relationships only. Use engine='tiles' with "
            f"relationship={relationship!r}."
        )
    if name == "nystrom":
        landmarks = choose_landmarks(F, sigma_f, targets=targets)
        low_rank = NystromEngine(laplacian, sigma_f, landmarks=landmarks, power=power, diagonal=diagonal, n_jobs=n_jobs)
        if engine == "nystrom" or low_rank.error(F) <= LOW_RANK_ERROR:
            return name, low_rank
        name = "tiles"
    if name == "tiles":
        return name, TileEngine(
            laplacian, sigma_f, power=power, diagonal=diagonal, relationship=relationship, n_jobs=n_jobs
        )
    G = laplacian if powered is None else powered()
    if diagonal is not None:
        G = csr_array(G + diags_array(diagonal))
    if name == "chebyshev":
        _check_dimensions(name, F, 1)
        return name, ChebyshevEngine(G, sigma_f, n_jobs=n_jobs)
    if name in ("cells", "nufft"):
        _check_dimensions(name, F, 3)
        kind = CellEngine if name == "cells" else NufftEngine
        return name, kind(G, sigma_f, n_jobs=n_jobs, tolerance=tolerance)
    return name, DenseEngine(G, sigma_f, relationship=relationship)


def make_parts(
    G: csr_array,
    F: NDArray[np.float64],
    sigma_f: float,
    *,
    engine: EngineName = "auto",
    relationship: Relationship = "gaussian",
    tolerance: float = 1e-9,
    n_jobs: int | None = None,
) -> tuple[EngineName, PartsEngine]:
    """An engine that tells the energy of G's off-diagonal entries and that of its diagonal apart, and its name.

    "cells" does so at hardly more cost than their sum, the others evaluate twice. The diagonal alone, Z = tr(KᵀDK), is
    ``make_engine(D, …)`` with D a diagonal matrix.
    """
    name, whole = make_engine(
        G, F, sigma_f, engine=engine, relationship=relationship, tolerance=tolerance, n_jobs=n_jobs
    )
    if isinstance(whole, CellEngine):
        return name, whole.parts
    diagonal = csr_array(diags_array(G.diagonal()))
    pair = [
        make_engine(part, F, sigma_f, engine=name, relationship=relationship, tolerance=tolerance, n_jobs=n_jobs)[1]
        for part in (csr_array(G - diagonal), diagonal)
    ]
    return name, lambda F: (pair[0](F), pair[1](F))


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
        "relationship": [StrOptions(set(RELATIONSHIPS))],
        "tolerance": [Interval(Real, 0, None, closed="neither")],
        "backend": BACKEND_CONSTRAINT,
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
    relationship: Relationship = "gaussian",
    tolerance: float = 1e-9,
    backend: BackendName = "numpy",
    n_jobs: int | None = None,
) -> tuple[float, NDArray[np.float64]]:
    """tr(KᵀGK) over all u² relationships K_ij = exp(−‖f_i − f_j‖²/σ_f²), and its gradient with F's shape.

    Parameters
    ----------
    F : (u,) or (u, n) values.
    G : (u, u) symmetric matrix, sparse or dense: a Laplacian or a power of it.
    sigma_f : σ_f > 0, not squared.
    engine : which of the engines above; "auto" picks by u and n.
    relationship : "gaussian", or "cauchy" for K_ij = 1/(1 + ‖f_i − f_j‖²/σ_f²) by the "dense" and "tiles" engines.
    tolerance : relative error asked of the "cells" and "nufft" engines.
    backend : "numpy", or "cupy" for a GPU; "auto": if there is one.

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
    how: dict[str, Any] = {"engine": engine, "relationship": relationship, "tolerance": tolerance}
    with get_backend(backend).job() as where:
        if isinstance(where, CupyBackend):
            # Imported here because the engines of the device choose landmarks and edges as those here do.
            from homophily.device.gpu.engines import evaluate_once

            name, energy, gradient, error = evaluate_once(where, matrix, columns, sigma_f, **how)
        else:
            name, evaluate = make_engine(matrix, columns, sigma_f, **how, n_jobs=n_jobs)
            energy, gradient = evaluate(columns)
            error = evaluate.error(columns) if isinstance(evaluate, NystromEngine) else None
    warn_of_error(error, stacklevel=4)
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
