"""Conjugate gradients for several right-hand sides that share one Krylov space.

Each column alone has to find the few smallest eigenvalues of a graph, which belong to its clusters, before it
converges; a block of columns finds them together. With ten classes it takes about a third of the iterations.
The residuals are kept as Q ρ with orthonormal Q (Dubrulle's variant), which stays stable when columns become dependent.

Sums over points are taken in blocks of fixed size, so the thread count changes no bit of any result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular

from homophily.arrays import Floats
from homophily.graph.laplacian import Blocks
from homophily.threads import run_chunks, single_threaded_blas

# Iterations between two looks at the true size of the residual.
_INTERVAL = 4
# Above this condition a Cholesky factor is too inexact to orthogonalise with.
_WORST_CONDITION = 1e5


def iterate_block(
    product: Callable[[Floats, Floats], object],
    blocks: Blocks,
    scale: Floats,
    x: Floats,
    r: Floats,
    tolerance: float,
    iteration: int,
    max_iter: int,
    callback: Callable[[int, float], object] | None,
) -> tuple[Floats, int]:
    """Improve ``x`` in place from its residual ``r`` = b − Ax; the iteration that was reached.

    ``product(z, out)`` sets out ← A z; ``scale`` is diag(A)⁻¹. Stops when a Jacobi step would change every column by
    less than ``tolerance``, relative to it.
    """
    block = _Block(blocks, np.sqrt(scale)[:, None], x)
    with single_threaded_blas():
        Q, rho = np.linalg.qr(block.root * r)
        Q = np.ascontiguousarray(Q)
        S, q = Q.copy(), np.empty_like(r)
        z = block.root * S
        residual = np.inf
        while iteration < max_iter:
            iteration += 1
            product(z, q)
            curvature = block.curvature(S, q)
            try:
                step = cho_solve(cho_factor(curvature), np.eye(len(curvature)))
            except LinAlgError:
                # Nothing is left to be found in these directions.
                break
            gram = block.advance(z, q, Q, step, step @ rho)
            turn = block.orthonormalise(Q, S, z, gram)
            rho = turn @ rho
            if iteration % _INTERVAL == 0 or iteration == max_iter:
                residual = block.residual(Q, rho)
            if callback is not None:
                callback(iteration, residual)
            if residual <= tolerance:
                break
    return x, iteration


class _Block:
    """Products of tall arrays, in blocks of rows."""

    def __init__(self, blocks: Blocks, root: Floats, x: Floats) -> None:
        self.blocks, self.root, self.x = blocks, root, x

    def _sums(self, part: Callable[[slice], Any], shape: tuple[int, ...]) -> Floats:
        """The parts of all blocks of rows, summed in their order."""
        parts, bounds, cuts = np.zeros((self.blocks.count, *shape)), self.blocks.bounds, self.blocks.cuts

        def run(chunk: int) -> None:
            for b in range(cuts[chunk], cuts[chunk + 1]):
                parts[b] = part(slice(bounds[b], bounds[b + 1]))

        run_chunks(run, self.blocks.chunks)
        return np.asarray(parts.sum(axis=0))

    def curvature(self, S: Floats, q: Floats) -> Floats:
        """Sᵀ A S in the scaled coordinates; q ← A S."""

        def part(rows: slice) -> Floats:
            ours = q[rows]
            ours *= self.root[rows]
            return S[rows].T @ ours

        found = self._sums(part, (S.shape[1], S.shape[1]))
        return (found + found.T) / 2

    def advance(self, z: Floats, q: Floats, Q: Floats, step: Floats, of_x: Floats) -> Floats:
        """Move x along the directions and take the step from Q; the products of Q's columns with each other."""

        def part(rows: slice) -> Floats:
            left = Q[rows]
            self.x[rows] += z[rows] @ of_x
            left -= q[rows] @ step
            return left.T @ left

        return self._sums(part, (z.shape[1], z.shape[1]))

    def orthonormalise(self, Q: Floats, S: Floats, z: Floats, gram: Floats) -> Floats:
        """Make Q orthonormal, turn S to the next directions, z ← scaled S; the factor that was taken from Q."""
        turn = _factor(gram)
        if turn is None:
            orthonormal, turn = np.linalg.qr(Q)
            Q[:] = orthonormal
            inverse = np.eye(len(turn))
        else:
            inverse = solve_triangular(turn, np.eye(len(turn)))

        def part(rows: slice) -> float:
            ahead = S[rows] @ turn.T
            Q[rows] = Q[rows] @ inverse
            np.add(Q[rows], ahead, out=S[rows])
            np.multiply(self.root[rows], S[rows], out=z[rows])
            return 0.0

        self._sums(part, ())
        return turn

    def residual(self, Q: Floats, rho: Floats) -> float:
        """The largest column's ‖diag(A)⁻¹ r‖ / ‖x‖."""

        def part(rows: slice) -> Floats:
            step, place = self.root[rows] * (Q[rows] @ rho), self.x[rows]
            return np.stack([np.einsum("ij,ij->j", step, step), np.einsum("ij,ij->j", place, place)])

        size, of = np.sqrt(self._sums(part, (2, self.x.shape[1])))
        return float(np.max(np.divide(size, of, out=np.where(size > 0, np.inf, 0.0), where=of > 0), initial=0.0))


def _factor(gram: Floats) -> Floats | None:
    """The upper Cholesky factor, or None where it would be too inexact."""
    try:
        factor = cholesky(gram)
    except LinAlgError:
        return None
    diagonal = np.diag(factor)
    return np.asarray(factor) if diagonal.max() < _WORST_CONDITION * diagonal.min() else None
