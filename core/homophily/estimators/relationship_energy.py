"""The relationship energy of any values on any graph, as a function for users."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.utils._param_validation import StrOptions

from homophily.arrays import Floats
from homophily.device.backend import get_backend
from homophily.graph.computing import BACKEND_CONSTRAINT, BackendName
from homophily.parameters import POSITIVE, check_parameters, refuse_device_array, wrong_parameter
from homophily.relationship.choose import ENGINE_NAMES, EngineName, warn_of_error
from homophily.relationship.functions import RELATIONSHIPS

_CONSTRAINTS: dict[str, list[Any]] = {
    "sigma_f": [POSITIVE],
    "engine": [StrOptions(set(ENGINE_NAMES))],
    "relationship": [StrOptions(set(RELATIONSHIPS))],
    "tolerance": [POSITIVE],
    "backend": BACKEND_CONSTRAINT,
    "n_jobs": [Integral, None],
}


def relationship_energy(
    F: ArrayLike,
    G: Any,
    *,
    sigma_f: float,
    engine: EngineName = "auto",
    relationship: str = "gaussian",
    tolerance: float = 1e-9,
    backend: BackendName = "numpy",
    n_jobs: int | None = None,
) -> tuple[float, Floats]:
    """Relationship energy tr(KᵀGK) over all u² relationships K_ij = exp(−‖f_i − f_j‖²/σ_f²), and its gradient.

    Parameters
    ----------
    F : array-like of shape (u,) or (u, n)
        Values.
    G : array-like or sparse matrix of shape (u, u)
        Symmetric matrix: a Laplacian or a power of it.
    sigma_f : float
        Width σ_f > 0, not squared.
    engine : str, default="auto"
        One of the engines of :mod:`homophily.relationship`; "auto" picks by u and n.
    relationship : {"gaussian", "cauchy"}, default="gaussian"
        The relationship function; "cauchy" is K_ij = 1/(1 + ‖f_i − f_j‖²/σ_f²), for the "dense" and "tiles" engines.
    tolerance : float, default=1e-9
        Relative error that the "cells" and "nufft" engines aim for.
    backend : {"numpy", "cupy", "cupy-mixed", "auto"}, default="numpy"
        Where to compute: "cupy" uses a GPU, "cupy-mixed" one whose float64 is slow, "auto" one if it is there.
    n_jobs : int, default=None
        Number of threads; None means every core this process may use.

    Returns
    -------
    energy : float
        The energy.
    gradient : ndarray of the shape of F
        Its gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from homophily import KNNGraph, relationship_energy
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> energy, gradient = relationship_energy(np.sin(6 * X), KNNGraph(2).fit(X).laplacian(), sigma_f=0.5)
    >>> round(energy, 6), gradient.shape
    (11.69641, (20, 1))
    """
    how: dict[str, Any] = {"engine": engine, "relationship": relationship, "tolerance": tolerance}
    given = {"sigma_f": sigma_f, **how, "backend": backend, "n_jobs": n_jobs}
    check_parameters(given, _CONSTRAINTS, "relationship_energy")
    how["relationship"] = RELATIONSHIPS[relationship]
    refuse_device_array(F, "F")
    values = np.asarray(F)
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2) or not values.size or not np.isfinite(values).all():
        must, got = "a finite array of numbers of shape (u,) or (u, n)", f"{values.dtype} of shape {values.shape}"
        raise wrong_parameter("F", "relationship_energy", must, got)
    columns = np.array(values.reshape(len(values), -1), dtype=np.float64, order="C")
    matrix: csr_array = csr_array(G).astype(np.float64)
    _check_matrix(matrix, len(columns))
    with get_backend(backend).job() as where:
        name, energy, gradient, error = where.operations(matrix, n_jobs).evaluate(columns, sigma_f, **how)
    warn_of_error(error, stacklevel=3)
    if not np.isfinite(energy):
        raise ValueError(
            f"The values of F spread over {np.ptp(columns, axis=0).max() / sigma_f:.3g} sigma_f, too far for the "
            f"{name!r} engine. Use engine='tiles'."
        )
    return energy, gradient.reshape(values.shape)


def _check_matrix(G: csr_array, points: int) -> None:
    wrong = partial(wrong_parameter, "G", "relationship_energy")
    if G.shape != (points, points):
        raise wrong(f"a square matrix with a row for each of F's {points} points", f"shape {G.shape}")
    if not np.isfinite(G.data).all():
        raise wrong("finite", "NaN or infinity")
    if abs(G - G.T).max() > 1e-10 * max(abs(G).max(), 1e-300):
        raise wrong("symmetric", "a matrix that differs from its transpose")
