"""Candidates for the nearest points, from all pairs on the device: a matrix product and a selection, block by block."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily.device.backend import CupyBackend
from homophily.device.kernels import THREADS

SMALLEST_BLOCK = 32
LARGEST_BLOCK = 16_384


class DeviceSearch:
    """Points (u, d) in float32 on the device that can be asked for the nearest of them."""

    def __init__(self, backend: CupyBackend, points: NDArray[np.float32]) -> None:
        self.backend = backend
        self.points = backend.to_device(points, np.float32)
        # ‖q − x‖² = ‖q‖² + (‖x‖² − 2 q·x), of which ‖q‖² does not change the order.
        self.squares = backend.to_device(np.sum(np.square(points, dtype=np.float64), axis=1), np.float32)
        self._block = LARGEST_BLOCK

    def nearest(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Columns (m, count) of about the nearest points, in ascending order of their numbers."""
        found = np.empty((len(queries), count), dtype=np.int64)
        start = 0
        # A block has a row of distances for each query, and as much again for the product they are made from.
        row_bytes = 2 * 4 * self.points.shape[0]
        block = max(SMALLEST_BLOCK, min(self._block, self.backend.planned_memory() // row_bytes))
        while start < len(queries):
            nearest = partial(self._block_nearest, queries[start:], count)
            part, fitted = self.backend.shrinking(block, SMALLEST_BLOCK, nearest)
            if fitted < block:
                block = self._block = fitted
            found[start : start + len(part)] = part
            start += len(part)
        return found

    def _block_nearest(self, queries: NDArray[np.float32], count: int, size: int) -> NDArray[Any]:
        xp, queries = self.backend.xp, queries[:size]
        asked = self.backend.to_device(queries, np.float32)
        rows, columns = len(queries), self.points.shape[0]
        distances = xp.matmul(asked, self.points.T)
        distances *= np.float32(-2.0)
        distances += self.squares
        found = xp.empty((rows, count), dtype=np.int32)
        self.backend.kernels.launch("smallest_columns", rows * THREADS, rows, columns, count, distances, found)
        return self.backend.to_host(found)
