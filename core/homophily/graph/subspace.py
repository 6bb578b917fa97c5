"""Subspace iteration for the smallest eigenvalues of a symmetric matrix, which is known by its products alone.

``xp`` is NumPy or CuPy, whose arrays ``to_host`` makes NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily.arrays import Floats
from homophily.graph.computing import EigenProblem

Block = Any
Filter = Callable[[Block, Floats], Block]

DEGREE = 30  # of the filter: a higher one takes fewer rounds of more products
MAX_ROUNDS = 300  # then a ConvergenceWarning, or the other filter


def iterate(
    xp: Any,
    to_host: Callable[[Block], NDArray[Any]],
    product: Callable[[Block], Block],
    apply: Filter,
    problem: EigenProblem,
    without_known: Callable[[Block], Block],
) -> tuple[Floats, Block, float]:
    """Filter, orthonormalise and rotate the problem's block until its first ``n`` columns are eigenvectors."""
    X: Block = problem.start
    n, bound = problem.n, problem.bound
    values = np.array([0.0, bound / 2])
    for _ in range(MAX_ROUNDS):
        Q, _ = xp.linalg.qr(without_known(apply(X, values)))
        # The columns of a filtered block are nearly dependent: what rounding left of the known ones was scaled up.
        Q, _ = xp.linalg.qr(without_known(Q))
        multiplied = product(Q)
        eigenvalues, rotation = xp.linalg.eigh(Q.T @ multiplied)
        X = Q @ rotation
        errors = multiplied @ rotation[:, :n] - X[:, :n] * eigenvalues[:n]
        values, error = to_host(eigenvalues), float(xp.max(xp.sum(errors * errors, axis=0))) ** 0.5
        residual = error / max(values[-1] - values[0], 1e-6 * bound)
        # An eigenvalue that is not a number has no use for more rounds.
        if residual <= problem.tolerance or not np.isfinite(residual):
            break
    return values, X, float(residual)


def chebyshev_filter(product: Callable[[Block], Block], bound: float) -> Filter:
    """Degree ``DEGREE`` in the matrix: below 1 between the block's largest eigenvalue and ``bound``, large below."""

    def apply(X: Block, values: Floats) -> Block:
        lowest, cut = float(values[0]), min(float(values[-1]), 0.99 * bound)
        centre, radius = (cut + bound) / 2, (bound - cut) / 2
        # The three-term recurrence, scaled to be 1 at the lowest eigenvalue so that nothing overflows.
        scale = first = radius / (lowest - centre)
        previous, current = X, product(X)
        current -= centre * X
        current *= scale / radius
        for _ in range(DEGREE - 1):
            following = 1.0 / (2.0 / first - scale)
            multiplied = product(current)
            multiplied -= centre * current
            multiplied *= 2.0 * following / radius
            multiplied -= (scale * following) * previous
            previous, current, scale = current, multiplied, following
        return current

    return apply
