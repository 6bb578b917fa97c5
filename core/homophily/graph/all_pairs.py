"""Nearest points among all pairs: what float32 products tell for certain, and float64 differences for the rest.

Products give the scores ‖x‖² − 2q·x = ‖q − x‖² − ‖q‖². Their rounding grows with the lengths of q and x, not with the
distance between them: where clusters are tight against the spread of the data, it exceeds the distances within a
cluster, and the order of the scores means nothing there. So the rounding is bounded, row by row:

- ``reach``: no point that was left out is nearer. Rows whose nearest candidates are nearer than that are done.
- ``score_limits``: no point within a distance has a higher score. For the other rows, the points up to this limit are
  compared by differences in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from homophily.arrays import Floats
from homophily.graph.index_base import Report
from homophily.graph.region_kernels import keep_smallest
from homophily.graph.region_layout import Rows, Seen, empty_lists, in_blocks, row_squares, silent
from homophily.threads import single_threaded_blas, thread_count

Exact = Callable[[slice], Floats]
"""From a slice to those points in float64, scaled; their differences are those of the points."""


def rounding(columns: int) -> float:
    """The most by which a score is off, relative to (‖q‖ + ‖x‖)².

    With unit roundoff 2⁻²⁴, sums of ``columns`` products are off by columns · 2⁻²⁴ of their lengths; a dozen more cover
    the few operations around them and the rounding of the points themselves to float32.
    """
    return (columns + 12) * 2.0**-24


def reach(lengths: Floats, scores: Floats, columns: int) -> Floats:
    """For rows of these lengths, distances that no point of at least these scores is below.

    The r where r² + c(2‖q‖ + r)² = score + ‖q‖², c being the rounding, as ‖x‖ ≤ ‖q‖ + r.
    """
    c, squares = rounding(columns), lengths**2
    root = np.sqrt(np.maximum(0.0, (1 + c) * (scores + squares) - 4 * c * squares))
    return np.asarray((root - 2 * c * lengths) / (1 + c))


def score_limits(lengths: Floats, distances: Floats, columns: int) -> Floats:
    """For rows of these lengths, scores that no point within these distances is above."""
    error = rounding(columns) * (2 * lengths + distances) ** 2
    return np.asarray(distances**2 - lengths**2 + error)


def lowest_scores(
    seen: Seen, rows: Rows, size: int, count: int, n_jobs: int | None = None, report: Report | None = None
) -> tuple[NDArray[np.int64], Floats]:
    """Positions (m, count) of the points with the lowest scores for some rows, and the highest of these scores."""
    lists = [empty_lists(len(rows), count) for _ in range(thread_count(n_jobs))]

    def compare(block: slice, thread: int) -> None:
        keep_smallest(0, len(rows), _scores(rows, seen(block)), block.start, *lists[thread])

    with single_threaded_blas():
        in_blocks(compare, size, n_jobs, report or silent)
    scores, positions = _merged(lists)
    return positions, scores[:, -1].astype(np.float64)


def nearest_below(
    limits: Floats, seen: Seen, rows: Rows, exact: Exact, exact_rows: Floats, size: int, count: int, n_jobs: int | None
) -> NDArray[np.int64]:
    """Positions (m, count) of the nearest points among those with scores up to a limit for each row.

    Equally near points come in the order of their positions, whatever the thread count.
    """
    lists = [empty_lists(len(rows), count, np.float64) for _ in range(thread_count(n_jobs))]

    def compare(block: slice, thread: int) -> None:
        scores = _scores(rows, seen(block))
        _keep_nearest(scores, limits, exact_rows, exact(block), block.start, *lists[thread])

    with single_threaded_blas():
        in_blocks(compare, size, n_jobs)
    return _merged(lists)[1]


def _scores(rows: Rows, points: Rows) -> Rows:
    scores = rows @ (np.float32(-2.0) * points).T
    scores += row_squares(points)
    return np.asarray(scores)


def _merged(lists: list[tuple[NDArray[Any], NDArray[np.int32]]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The lists of all threads as one of the same length, lowest values first."""
    count = lists[0][0].shape[1]
    values, positions = (np.hstack(part) for part in zip(*lists, strict=True))
    first = np.lexsort((positions, values))[:, :count]
    return np.take_along_axis(values, first, axis=1), np.take_along_axis(positions, first, axis=1).astype(np.int64)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _keep_nearest(scores, limits, rows, points, offset, distances, positions):  # type: ignore[no-untyped-def]
    """Add the points, which are those from ``offset``, to sorted lists of the nearest."""
    for i in range(rows.shape[0]):
        near, names = distances[i], positions[i]
        last = near.size - 1
        for x in range(points.shape[0]):
            if scores[i, x] > limits[i]:
                continue
            square = 0.0
            for d in range(rows.shape[1]):
                gap = rows[i, d] - points[x, d]
                square += gap * gap
            # Points come in the order of their positions, so that of equally near ones the earlier stays in front.
            if square < near[last]:
                place = last
                while place > 0 and square < near[place - 1]:
                    near[place], names[place] = near[place - 1], names[place - 1]
                    place -= 1
                near[place], names[place] = square, offset + x
