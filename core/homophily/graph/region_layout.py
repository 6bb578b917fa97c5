"""How the points of a search over regions are arranged: leading directions, regions, and the sample that judges them.

The search itself is in ``region_search``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily.graph.index_base import Report
from homophily.graph.region_kernels import count_nearer
from homophily.threads import run_chunks, single_threaded_blas, thread_count

Rows = NDArray[np.float32]
Seen = Callable[[Any], Rows]
"""From a slice or an array of positions to those points, centred and scaled."""

#: Numbers of directions to choose from.
DIRECTIONS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
# Rows that the directions are learned from, and how often they are multiplied by the covariances.
_SAMPLE, _ROUNDS = 8192, 2
# More directions than this share of the columns bring less than turning the points takes.
_WORTHWHILE = 0.75
# Left out by fewer directions than the sample is worth judging with.
_MOST_LEFT_OUT = 0.3
# Of the true neighbours, as many have to be among the candidates that directions alone would choose.
_RECALL_OF_DIRECTIONS = 0.9995
_JUDGES = 256
# A length that is left out below this share of the point's own is rounding.
_ROUNDING = 1e-3

_REGION_SAMPLE, _REGION_ROUNDS = 40, 4
# Regions larger than this many times the average are divided.
_LARGE_REGION = 4
BLOCK_ROWS = 4096


class Truth(NamedTuple):
    """A sample of the points, with the true neighbours that a search is judged by."""

    sample: NDArray[np.int64]
    neighbors: NDArray[np.int32]
    """(s, k), nearest first."""
    distances: NDArray[np.float64]
    """(s, k), those to the neighbours."""

    def recall(self, found: NDArray[np.float64]) -> float:
        """Share of the true neighbours among found ones, whose distances (s, k or more) ascend."""
        k = min(found.shape[1], self.distances.shape[1])
        return float(np.mean(found[:, :k] <= self.distances[:, k - 1 : k]))


class Layout(NamedTuple):
    """The coordinates and regions of a set of points."""

    directions: Rows
    """(d, r), orthonormal columns; (d, 0) where the coordinates are the columns themselves."""
    centres: Rows
    """(regions, r + 1), or (regions, d)."""
    regions: NDArray[np.int32]
    """(u,), the region of each point."""

    def coordinates(self, rows: Rows) -> Rows:
        """Rows in the coordinates of the search."""
        return turned(rows, self.directions)


def turned(rows: Rows, directions: Rows) -> Rows:
    """Rows along the directions, and the length of what these leave out."""
    r = directions.shape[1]
    if r == 0:
        return rows
    places = np.empty((len(rows), r + 1), dtype=np.float32)
    np.matmul(rows, directions, out=places[:, :r])
    squares = row_squares(rows)
    left = squares - row_squares(places[:, :r])
    left[left < _ROUNDING**2 * squares] = 0.0
    np.sqrt(left, out=places[:, r])
    return places


def learn_layout(
    seen: Seen,
    truth: Truth,
    count: int,
    size: int,
    columns: int,
    n_jobs: int | None = None,
    report: Report | None = None,
) -> Layout:
    """Choose directions by the sample and ``count`` candidates, then divide the points into regions."""
    report = report or silent
    with single_threaded_blas():
        directions = _choose_directions(seen, truth, count, size, columns, n_jobs, lambda share: report(0.6 * share))
        sample = _drawn(size, _REGION_SAMPLE * _region_count(size))
        centres = _means(turned(seen(sample), directions), _region_count(size), n_jobs)
        regions = np.empty(size, dtype=np.int32)

        def assign(rows: slice, _: int) -> None:
            places = turned(seen(rows), directions)
            regions[rows] = nearest_centres(places, centres)

        in_blocks(assign, size, n_jobs, lambda share: report(0.6 + 0.4 * share))
        centres, regions = _divide_large(seen, directions, centres, regions)
    return Layout(directions, centres, regions)


def _choose_directions(
    seen: Seen, truth: Truth, count: int, size: int, columns: int, n_jobs: int | None, report: Report
) -> Rows:
    """The fewest principal directions among whose nearest ``count`` points the true neighbours are."""
    none = np.empty((columns, 0), dtype=np.float32)
    offered = [r for r in DIRECTIONS if r <= _WORTHWHILE * columns]
    if not offered:
        return none
    rows = seen(_drawn(size, _SAMPLE))
    variances, directions = _principal(rows, offered[-1])
    left_out = 1.0 - np.cumsum(variances) / (np.square(rows, dtype=np.float64).sum() / len(rows))
    offered = [r for r in offered if left_out[r - 1] <= _MOST_LEFT_OUT]
    if not offered:
        return none
    recalls = _recall_of_directions(seen, truth, count, size, directions, offered, n_jobs, report)
    enough = [r for r, recall in zip(offered, recalls, strict=True) if recall >= _RECALL_OF_DIRECTIONS]
    return np.ascontiguousarray(directions[:, : enough[0]]) if enough else none


def _principal(rows: Rows, count: int) -> tuple[NDArray[np.float64], Rows]:
    """About the leading principal directions of centred rows and the variances along them, by subspace iteration."""
    directions = np.random.default_rng(0).standard_normal((rows.shape[1], count)).astype(np.float32)
    for _ in range(_ROUNDS + 1):
        directions, _ = np.linalg.qr(rows.T @ (rows @ np.linalg.qr(directions)[0]))
    places = rows @ directions
    variances, turn = np.linalg.eigh((places.T @ places).astype(np.float64) / len(rows))
    return variances[::-1], np.ascontiguousarray((directions @ turn.astype(np.float32))[:, ::-1])


def _recall_of_directions(
    seen: Seen,
    truth: Truth,
    count: int,
    size: int,
    directions: Rows,
    offered: list[int],
    n_jobs: int | None,
    report: Report,
) -> list[float]:
    """Share of the true neighbours of some of the sample that are among the nearest ``count`` along the directions."""
    judges, threads = seen(truth.sample[:_JUDGES]), thread_count(n_jobs)
    true = truth.neighbors[:_JUDGES]
    places, squares = judges @ directions, row_squares(judges)
    steps = list(zip([0, *offered[:-1]], offered, strict=True))

    def left_out(squares: Rows, places: Rows) -> list[Rows]:
        kept = np.cumsum([row_squares(places[:, a:b]) for a, b in steps], axis=0)
        return [np.sqrt(np.maximum(squares - part, 0.0)) for part in kept]

    ours = left_out(squares, places)

    def nearness(points: Rows) -> Iterator[tuple[Rows, Rows, Rows]]:
        """For each number of directions, half the squared distance without the judge's part: tile − ours · theirs."""
        squares, along = row_squares(points), points @ directions
        tile = np.repeat(0.5 * squares[None], len(places), axis=0)
        for (a, b), mine, rest in zip(steps, ours, left_out(squares, along), strict=True):
            tile -= places[:, a:b] @ along[:, a:b].T
            yield tile, mine, rest

    own = np.arange(true.size).reshape(true.shape)
    each = np.arange(len(true))[:, None]
    bounds = [
        np.sort(tile[each, own] - mine[:, None] * rest[own], axis=1)
        for tile, mine, rest in nearness(seen(true.ravel()))
    ]
    counts = np.zeros((threads, len(offered), *true.shape), dtype=np.int64)

    def compare(block: slice, thread: int) -> None:
        for measured, bound, counted in zip(nearness(seen(block)), bounds, counts[thread], strict=True):
            count_nearer(*measured, bound, counted)

    in_blocks(compare, size, n_jobs, report)
    # A point is nearest to itself.
    return [float(np.mean(nearer <= count)) for nearer in counts.sum(axis=0)]


def _region_count(size: int) -> int:
    return max(1, int(2.0 ** np.round(np.log2(2.0 * np.sqrt(size)))) if size > 16 else 1)


def _means(sample: Rows, count: int, n_jobs: int | None) -> Rows:
    """Centres of regions by k-means, from centres drawn at random."""
    centres = np.ascontiguousarray(sample[_drawn(len(sample), count, seed=1)])
    nearest = np.empty(len(sample), dtype=np.int64)

    def assign(rows: slice, _: int) -> None:
        nearest[rows] = nearest_centres(sample[rows], centres)

    for _ in range(_REGION_ROUNDS):
        in_blocks(assign, len(sample), n_jobs)
        centres = _updated(sample, nearest, centres)
    return centres


def _updated(places: Rows, nearest: NDArray[np.integer], centres: Rows) -> Rows:
    """The means of the regions' points; a region without any keeps its centre."""
    order = np.argsort(nearest, kind="stable")
    filled, starts, counts = np.unique(nearest[order], return_index=True, return_counts=True)
    moved = centres.copy()
    moved[filled] = np.add.reduceat(places[order], starts, axis=0) / counts[:, None]
    return moved


def _divide_large(
    seen: Seen, directions: Rows, centres: Rows, regions: NDArray[np.int32]
) -> tuple[Rows, NDArray[np.int32]]:
    """Divide regions that hold far more points than others; copies of one point by their order."""
    largest = _LARGE_REGION * -(-len(regions) // len(centres))
    for attempt in range(3):
        for c in np.flatnonzero(np.bincount(regions, minlength=len(centres)) > largest):
            members = np.flatnonzero(regions == c)
            parts = -(-2 * len(members) // largest)
            if attempt == 2:
                part = np.arange(len(members)) * parts // len(members)
                added = np.repeat(centres[c : c + 1], parts, axis=0)
            else:
                places = turned(seen(members), directions)
                added = places[_drawn(len(members), parts)]
                added = _updated(places, nearest_centres(places, added), added)
                part = nearest_centres(places, added)
            # The first part takes the place of the region.
            regions[members] = np.where(part == 0, c, len(centres) + part - 1)
            centres[c] = added[0]
            centres = np.concatenate([centres, added[1:]])
    return centres, regions


def nearest_centres(places: Rows, centres: Rows) -> NDArray[np.int64]:
    """The centre nearest to each row."""
    nearest = np.empty(len(places), dtype=np.int64)
    halves = 0.5 * row_squares(centres)
    for start in range(0, len(places), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        nearest[part] = np.argmin(halves - places[part] @ centres.T, axis=1)
    return nearest


def empty_lists(rows: int, count: int, dtype: Any = np.float32) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Values and indices of lists without an entry."""
    return np.full((rows, count), np.inf, dtype=dtype), np.full((rows, count), -1, dtype=np.int32)


def row_squares(rows: Rows) -> Rows:
    """The square of each row's length."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _drawn(size: int, count: int, seed: int = 0) -> NDArray[np.int64]:
    """Some positions at random, in ascending order."""
    return np.sort(np.random.default_rng(seed).permutation(size)[:count])


def silent(share: float) -> None:
    """Report nothing."""


def in_blocks(work: Callable[[slice, int], None], size: int, n_jobs: int | None, report: Report = silent) -> None:
    """Call ``work(block, thread)`` with every block of rows; a report that raises ends it on all threads."""
    starts, threads = range(0, size, BLOCK_ROWS), thread_count(n_jobs)
    ended: list[bool] = []

    def run(chunk: int) -> None:
        for start in starts[chunk::threads]:
            if ended:
                return
            work(slice(start, min(start + BLOCK_ROWS, size)), chunk)
            if chunk == 0:
                report(min(1.0, (start + threads * BLOCK_ROWS) / size))

    def run_or_end(chunk: int) -> None:
        try:
            run(chunk)
        except BaseException:
            ended.append(True)
            raise

    run_chunks(run_or_end, threads)
