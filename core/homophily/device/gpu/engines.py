"""The relationship energy tr(KᵀGK) and its gradient on the device: engines for any n, and the choice.

``engine(F) -> (energy, gradient)`` with F and both results on the device, the energy as an array of one number, so that
nothing waits. A NaN energy says that F has left the values that the engine is set up for: ``adapt(F)`` then sets it up
anew (and waits for the device to say where F is). The engines for up to three dimensions are in
:mod:`homophily.device.gpu.gauss`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.device.backend import CupyBackend
from homophily.device.gpu.gauss import DeviceEdges, LineEngine, SpaceEngine
from homophily.device.gpu.matrix import DeviceMatrix, dot
from homophily.device.gpu.powers import power_of
from homophily.relationship.choose import LOW_RANK_ERROR, EngineName, check_dimensions, check_gauss_sums
from homophily.relationship.functions import GAUSSIAN, Relationship
from homophily.relationship.nystrom import choose_landmarks, landmark_whitening, relative_error

#: Columns of K at once: few enough that a tile of a million points fits a small GPU, many enough to keep it busy.
MOST_COLUMNS = 1024
FEWEST_COLUMNS = 32
#: Rows of the low-rank gradient at once.
MOST_ROWS = 65_536
FEWEST_ROWS = 256
#: Points up to which exact tiles are taken without a look at the low-rank form.
TILES_BEAT_NYSTROM = 20_000


class DeviceEngine(Protocol):
    """Energy and gradient of one graph's relationships, on the device."""

    backend: CupyBackend

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """tr(KᵀGK) at F (u, n) as an array (1,), and its gradient (u, n)."""

    def adapt(self, F: Any) -> bool:
        """Set the engine up for F; False if there is nothing to set up, or F is beyond it."""


def make_device_engine(
    matrix: DeviceMatrix,
    F: Floats,
    sigma_f: float,
    *,
    engine: EngineName = "auto",
    power: int = 1,
    diagonal: Floats | None = None,
    powered: Callable[[], csr_array] | None = None,  # noqa: ARG001  # its power is formed on the device
    targets: Floats | None = None,
    relationship: Relationship = GAUSSIAN,
    tolerance: float = 1e-9,
) -> tuple[EngineName, DeviceEngine]:
    """What :func:`homophily.relationship.choose.make_engine` does; ``matrix`` is the Laplacian, on the device already.

    On a GPU, "chebyshev", "cells" and "nufft" are one engine, called "cells": Fourier modes or near pairs.
    """
    u, n = F.shape
    name = engine
    if engine == "auto":
        small = n > 3 and u <= TILES_BEAT_NYSTROM
        name = "tiles" if small or not relationship.has_gauss_sums else "cells" if n <= 3 else "nystrom"
    if name == "dense":
        raise ValueError("The 'dense' engine is there to check others, on the CPU. Use engine='tiles' on a GPU.")
    if name != "tiles":
        check_gauss_sums(name, relationship)
    if name == "nystrom":
        landmarks = choose_landmarks(F, sigma_f, targets=targets)
        # Tiles are exact and fit any memory: they do where there is no room for the low-rank form.
        if NystromEngine.bytes_for(u, len(landmarks)) <= matrix.backend.planned_memory():
            low_rank = NystromEngine(matrix, sigma_f, landmarks=landmarks, power=power, diagonal=diagonal)
            if engine == "nystrom" or low_rank.error(F) <= LOW_RANK_ERROR:
                return name, low_rank
        name = "tiles"
    if name == "tiles":
        return name, TileEngine(matrix, sigma_f, power=power, diagonal=diagonal, relationship=relationship)
    check_dimensions(name, F, 1 if name == "chebyshev" else 3)
    G = power_of(matrix, power)
    if n == 1:
        line = LineEngine(G.plus_diagonal(diagonal), F, sigma_f)
        if engine == "auto" and not line.is_set_up:
            return "tiles", TileEngine(matrix, sigma_f, power=power, diagonal=diagonal)
        return "cells", line
    edges = G.keep("edges", lambda: DeviceEdges.of(G))
    return "cells", SpaceEngine(edges.plus_diagonal(diagonal), F, sigma_f, tolerance=tolerance)


def relate(backend: CupyBackend, F: Any, Z: Any, sigma_f: float, relationship: Relationship = GAUSSIAN) -> Any:
    """K(F, Z) (u, m) for F (u, n) and Z (m, n)."""
    rows, n = F.shape
    width = Z.shape[0]
    tile = backend.xp.empty((rows, width))
    values, positions = (backend.as_quick(part) for part in (F, backend.xp.ascontiguousarray(Z.T)))
    arguments = rows, width, n, relationship.id, sigma_f**-2, values, positions, tile
    backend.kernels.launch("relate_tile", rows * width, *arguments)
    return tile


def _on_device(matrix: DeviceMatrix, diagonal: Floats | None) -> Any:
    if diagonal is None:
        return matrix.backend.xp.zeros(matrix.shape[0])
    return matrix.backend.once(diagonal, lambda: matrix.backend.to_device(diagonal))


class TileEngine:
    """Exact energy of G = L^p + diag(``diagonal``) over tiles of K, in O(u²) time; their width fits the free memory."""

    def __init__(
        self,
        matrix: DeviceMatrix,
        sigma_f: float,
        *,
        power: int = 1,
        diagonal: Floats | None = None,
        relationship: Relationship = GAUSSIAN,
    ) -> None:
        self.backend, self.matrix, self.power, self.sigma_f = matrix.backend, matrix, power, sigma_f
        self.diagonal, self.relationship = _on_device(matrix, diagonal), relationship
        # A tile, its product and the product before that.
        fitting = self.backend.planned_memory() // (3 * 8 * matrix.shape[0])
        self.width = int(min(MOST_COLUMNS, max(FEWEST_COLUMNS, fitting // FEWEST_COLUMNS * FEWEST_COLUMNS)))

    def adapt(self, F: Any) -> bool:  # noqa: ARG002
        """Nothing is set up for particular values."""
        return False

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy at F and its gradient; where memory is short, with narrower tiles from now on."""
        found, self.width = self.backend.shrinking(self.width, FEWEST_COLUMNS, lambda width: self._evaluate(F, width))
        return found

    def _evaluate(self, F: Any, width: int) -> tuple[Any, Any]:
        xp, rows = self.backend.xp, F.shape[0]
        # The gradient is a difference of sums over f_j and f_c, which a common offset would only make larger.
        F = F - F.sum(axis=0) / rows
        energy, gradient = xp.zeros(1), xp.zeros(F.shape)
        for start in range(0, rows, width):
            block = slice(start, min(start + width, rows))
            Z = F[block]
            tile = relate(self.backend, F, Z, self.sigma_f, self.relationship)
            product = self.matrix.power(self.power - 1, tile)
            product = self.matrix.product_plus(product, 1.0, self.diagonal, tile)
            energy = energy + dot(self.backend, product, tile)
            # dE/dr² at (j, c), times the 2 of dr²/df = 2(f_j − f_c) and the 2 of both places of K.
            shape = rows, Z.shape[0], self.relationship.id, 4.0 * self.sigma_f**-2
            self.backend.kernels.launch("tile_slopes", rows * Z.shape[0], *shape, tile, product)
            gradient += product.sum(axis=1)[:, None] * F - xp.matmul(product, Z)
            gradient[block] += product.sum(axis=0)[:, None] * Z - xp.matmul(product.T, F)
        return energy, gradient


class NystromEngine:
    """Energy with K of rank m, and the exact gradient of that approximate energy; see the CPU's for the formulas."""

    def __init__(
        self, matrix: DeviceMatrix, sigma_f: float, *, landmarks: Floats, power: int = 1, diagonal: Floats | None = None
    ) -> None:
        self.backend, self.matrix, self.power, self.sigma_f = matrix.backend, matrix, power, sigma_f
        self.diagonal = _on_device(matrix, diagonal)
        self.landmarks, self.whitening = (
            self.backend.to_device(part) for part in (landmarks, landmark_whitening(landmarks, sigma_f))
        )
        fitting = self.backend.planned_memory() // (4 * 8 * len(landmarks))
        self.rows = int(min(MOST_ROWS, max(FEWEST_ROWS, fitting)))

    @staticmethod
    def bytes_for(points: int, landmarks: int) -> int:
        """What an evaluation holds at least: the relationships with the landmarks, and their graph products."""
        return 8 * 3 * points * landmarks

    def adapt(self, F: Any) -> bool:  # noqa: ARG002
        """Landmarks stay during a solve."""
        return False

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy at F and its gradient; where memory is short, of fewer rows at once from now on."""
        try:
            found, self.rows = self.backend.shrinking(self.rows, FEWEST_ROWS, lambda rows: self._evaluate(F, rows))
        except MemoryError as error:
            if not self.backend.is_out_of_memory(error):
                raise
            raise MemoryError(
                f"The GPU has too little free memory for the 'nystrom' engine with {self.landmarks.shape[0]} landmarks "
                f"({error}). Use engine='tiles', or backend='numpy'."
            ) from error
        return found

    def _evaluate(self, F: Any, block: int) -> tuple[Any, Any]:
        xp, R = self.backend.xp, self.whitening
        C = relate(self.backend, F, self.landmarks, self.sigma_f)
        GC = self._times_graph(C)
        X = xp.matmul(R, xp.matmul(xp.matmul(C.T, GC), R.T))
        Y = xp.matmul(R, xp.matmul(xp.matmul(C.T, C), R.T))
        energy = dot(self.backend, xp.ascontiguousarray(X), xp.ascontiguousarray(Y))
        X_back, Y_back = (2.0 * xp.matmul(R.T, xp.matmul(part, R)) for part in (X, Y))
        gradient = xp.empty(F.shape)
        for start in range(0, F.shape[0], block):
            rows = slice(start, min(start + block, F.shape[0]))
            M = (xp.matmul(GC[rows], Y_back) + xp.matmul(C[rows], X_back)) * C[rows]
            pull = M.sum(axis=1)[:, None] * F[rows] - xp.matmul(M, self.landmarks)
            gradient[rows] = (-2.0 * self.sigma_f**-2) * pull
        return energy, gradient

    def error(self, F: Floats, *, sample: int = 64, seed: int = 0) -> float:
        """Relative error of the energy at F (on the host), over a seeded sample of the rows of K evaluated exactly."""
        backend, xp, R = self.backend, self.backend.xp, self.whitening
        chosen = np.sort(np.random.default_rng(seed).choice(len(F), min(sample, len(F)), replace=False))
        values, rows = backend.to_device(F), backend.to_device(F[chosen])
        exact = relate(backend, values, rows, self.sigma_f)
        C, C_rows = (relate(backend, part, self.landmarks, self.sigma_f) for part in (values, rows))
        low_rank = xp.ascontiguousarray(xp.matmul(C, xp.matmul(R.T, xp.matmul(R, C_rows.T))))
        sums = [dot(backend, part, self._times_graph(part)) for part in (exact, low_rank)]
        truth, value = (float(each) for each in backend.to_host(xp.concatenate(sums)))
        return relative_error(value, truth)

    def _times_graph(self, C: Any) -> Any:
        return self.matrix.product_plus(self.matrix.power(self.power - 1, C), 1.0, self.diagonal, C)
