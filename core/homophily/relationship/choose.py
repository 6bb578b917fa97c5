"""The choice between the engines, and how they are made; the package's docstring lists them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from scipy.sparse import csr_array, diags_array

from homophily.arrays import Floats
from homophily.exceptions import ApproximationWarning
from homophily.relationship.cells import CellEngine
from homophily.relationship.chebyshev import ChebyshevEngine
from homophily.relationship.dense import DenseEngine
from homophily.relationship.functions import GAUSSIAN, Relationship
from homophily.relationship.nufft import NufftEngine
from homophily.relationship.nystrom import WANTED_ERROR, NystromEngine, choose_landmarks, place_landmarks
from homophily.relationship.tiles import TileEngine

EngineName = Literal["auto", "dense", "tiles", "chebyshev", "cells", "nufft", "nystrom"]
ENGINE_NAMES: tuple[EngineName, ...] = ("auto", "dense", "tiles", "chebyshev", "cells", "nufft", "nystrom")

# Points up to which exact tiles are faster, by dimensions for "cells" (benchmarks: engines).
TILES_BEAT_CELLS = {2: 600, 3: 5_000}
TILES_BEAT_NYSTROM = 4_000
# Landmarks that cost little.
FEW_LANDMARKS = 128
# Points whose tiles take seconds.
AFFORDABLE_TILES = 20_000
# Relative error of the low-rank energy that is worth a warning.
LOW_RANK_ERROR = 0.02


def allowed_error(points: int) -> float:
    """The error above which exact tiles take the place of a low rank; their time is affordable for fewer points."""
    return WANTED_ERROR if points <= AFFORDABLE_TILES else LOW_RANK_ERROR


class Engine(Protocol):
    """Energy and gradient of one graph's relationships."""

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """tr(KᵀGK) at F (u, n), and its gradient (u, n); an infinite energy where F spreads too far for the engine."""


def choose_engine(F: Floats, sigma_f: float, relationship: Relationship = GAUSSIAN) -> EngineName:
    """The engine expected to be fastest for F's dimensions and size; "nystrom" is a proposal to be checked."""
    points, dimensions = F.shape
    if not relationship.has_gauss_sums:
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
    F: Floats,
    sigma_f: float,
    *,
    engine: EngineName = "auto",
    power: int = 1,
    diagonal: Floats | None = None,
    powered: Callable[[], csr_array] | None = None,
    targets: Floats | None = None,
    relationship: Relationship = GAUSSIAN,
    tolerance: float = 1e-9,
    n_jobs: int | None = None,
) -> tuple[EngineName, Engine]:
    """The engine of that name for G = laplacian^power + diag(diagonal), and its name where "auto" chose it.

    F is where the solve starts, ``targets`` (classes, n) where labels pull it. ``powered()`` gives the power itself to
    the engines that need its entries; the others multiply p times by the sparser Laplacian. "auto" takes "nystrom" only
    if its error at F is small.
    """
    name = choose_engine(F, sigma_f, relationship) if engine == "auto" else engine
    if name not in ("dense", "tiles"):
        check_gauss_sums(name, relationship)
    how: dict[str, Any] = {"power": power, "diagonal": diagonal, "n_jobs": n_jobs}
    if name == "nystrom":

        def make(landmarks: Floats) -> NystromEngine:
            return NystromEngine(laplacian, sigma_f, landmarks=landmarks, **how)

        landmarks = choose_landmarks(F, sigma_f, targets=targets, most=FEW_LANDMARKS)
        # Where few landmarks cover the whole way of the values, these need not be followed.
        low_rank = make(landmarks) if len(landmarks) < FEW_LANDMARKS else place_landmarks(F, sigma_f, make)
        if engine == "nystrom" or low_rank.error(F) <= allowed_error(len(F)):
            return name, low_rank
        name = "tiles"
    if name == "tiles":
        return name, TileEngine(laplacian, sigma_f, relationship=relationship, **how)
    G = laplacian if powered is None else powered()
    if diagonal is not None:
        G = csr_array(G + diags_array(diagonal))
    if name == "chebyshev":
        check_dimensions(name, F, 1)
        return name, ChebyshevEngine(G, sigma_f, n_jobs=n_jobs)
    if name in ("cells", "nufft"):
        check_dimensions(name, F, 3)
        kind = CellEngine if name == "cells" else NufftEngine
        return name, kind(G, sigma_f, n_jobs=n_jobs, tolerance=tolerance)
    return name, DenseEngine(G, sigma_f, relationship=relationship)


def warn_of_error(error: float | None, stacklevel: int) -> None:
    """Say so when a low-rank energy is far off; None is the error of an engine that has a tolerance."""
    if error is not None and error > LOW_RANK_ERROR:
        warnings.warn(
            f"The relationship energy was approximated by the 'nystrom' engine, which is off by {100 * error:.2g} % "
            "here, so the answers are not quite those of ERR. The parameter multiclass='one-vs-rest' is exact, and as "
            "fast.",
            ApproximationWarning,
            stacklevel=stacklevel,
        )


def check_gauss_sums(engine: EngineName, relationship: Relationship) -> None:
    """Refuse an engine of Gauss sums for a relationship function that has none."""
    if not relationship.has_gauss_sums:
        raise ValueError(
            f"The {engine!r} engine works on Gaussian relationships only. Use engine='tiles' with "
            f"relationship={relationship.name!r}."
        )


def check_dimensions(name: EngineName, F: Floats, most: int) -> None:
    """Refuse an engine for more columns of F than it can take."""
    if F.shape[1] > most:
        raise ValueError(
            f"The {name!r} engine works on F of at most {most} column{'s' * (most > 1)}. Got {F.shape[1]} instead."
        )
