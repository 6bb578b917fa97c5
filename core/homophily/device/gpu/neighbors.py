"""Candidates for the nearest points, from all pairs on the device: a matrix product and a selection, block by block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily.arrays import Floats
from homophily.device.backend import CupyBackend
from homophily.device.kernels import THREADS
from homophily.graph.region_layout import row_squares

SMALLEST_BLOCK = 32
LARGEST_BLOCK = 16_384
#: Bytes of float64 points on the device at once.
PART_BYTES = 2**28


class DeviceSearch:
    """Points (u, d) in float32 on the device that can be asked for the nearest of them.

    ``exact`` gives the same points in float64, part by part; they are sent where scores do not tell which are nearest.
    See :class:`homophily.graph.computing.NeighborSearch`.
    """

    def __init__(self, backend: CupyBackend, points: NDArray[np.float32], exact: Callable[[slice], Floats]) -> None:
        self.backend, self.exact = backend, exact
        self.points = backend.to_device(points, np.float32)
        self.squares = backend.to_device(row_squares(points), np.float32)
        self._block = LARGEST_BLOCK

    def lowest_scores(self, rows: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], Floats]:
        """Positions (m, count) of the points with the lowest scores for some rows, and the highest of these scores."""
        found, highest = np.empty((len(rows), count), dtype=np.int64), np.empty(len(rows))

        def search(start: int, size: int) -> None:
            part = slice(start, start + size)
            scores = self._scores(rows[part])
            lowest = self._lowest(scores, count)
            starts = self.backend.xp.arange(scores.shape[0], dtype=np.int64)[:, None] * scores.shape[1]
            best = self.backend.xp.take(scores.ravel(), starts + lowest).max(axis=1)
            found[part], highest[part] = self.backend.to_host(lowest), self.backend.to_host(best)

        self._in_blocks(len(rows), search)
        return found, highest

    def nearest_below(
        self, limits: Floats, rows: NDArray[np.float32], exact_rows: Floats, count: int
    ) -> NDArray[np.int64]:
        """Positions (m, count) of the nearest points among those with scores up to a limit for each row."""
        found = np.empty((len(rows), count), dtype=np.int64)

        def search(start: int, size: int) -> None:
            part = slice(start, start + size)
            scores = self._scores(rows[part])
            asked = [self.backend.to_device(array[part]) for array in (limits, exact_rows)]
            self._measure(scores, *asked)
            found[part] = self.backend.to_host(self._lowest(scores, count))

        self._in_blocks(len(rows), search)
        return found

    def _scores(self, rows: NDArray[np.float32]) -> Any:
        """Scores (rows, u): ‖x‖² − 2 q·x = ‖q − x‖² − ‖q‖², which rank as the distances do."""
        scores = self.backend.xp.matmul(self.backend.to_device(rows, np.float32), self.points.T)
        scores *= np.float32(-2.0)
        scores += self.squares
        return scores

    def _measure(self, scores: Any, limits: Any, exact_rows: Any) -> None:
        """Distances in the place of scores, and numbers larger than those in the place of scores above the limits."""
        (rows, columns), dimensions = scores.shape, exact_rows.shape[1]
        most = max(1, PART_BYTES // (8 * dimensions))
        for first in range(0, columns, most):
            points = self.backend.to_device(self.exact(slice(first, first + most)))
            sizes = rows, columns, first, points.shape[0], dimensions
            arrays = exact_rows, points, limits, scores
            self.backend.kernels.launch("distances_below", rows * points.shape[0], *sizes, *arrays)

    def _lowest(self, scores: Any, count: int) -> Any:
        """The columns (rows, count) of each row's lowest entries, in ascending order."""
        rows, columns = scores.shape
        found = self.backend.xp.empty((rows, count), dtype=np.int32)
        self.backend.kernels.launch("smallest_columns", rows * THREADS, rows, columns, count, scores, found)
        return found

    def _in_blocks(self, rows: int, search: Callable[[int, int], None]) -> None:
        """Search for all rows, as many at once as memory allows."""
        # A block has a row of scores for each query, and as much again for the product they are made from.
        row_bytes = 2 * 4 * self.points.shape[0]
        block = max(SMALLEST_BLOCK, min(self._block, self.backend.planned_memory() // row_bytes))
        start = 0
        while start < rows:
            _, fitted = self.backend.shrinking(block, SMALLEST_BLOCK, partial(search, start))
            if fitted < block:
                self._block = fitted
            start, block = start + fitted, fitted
