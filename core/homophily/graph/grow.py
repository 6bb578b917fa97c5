"""More points for an index whose points know their neighbours: what changes is found without a search among all.

A new point's neighbours are asked of the old index and of one of the new points. An old point's neighbours change only
if a new point is nearer than the last of them. How far old and new points are from each other is bounded from below
first, in the coordinates of the search and by matrix products, and measured only where the bound allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from homophily.arrays import Floats
from homophily.graph.dense_index import DenseIndex, choose_method
from homophily.graph.index_base import Distances, Indices, NeighborIndex, Report, part_of
from homophily.graph.region_layout import row_squares
from homophily.graph.sparse_index import SparseIndex
from homophily.threads import run_chunks, single_threaded_blas, thread_count


class Grown(NamedTuple):
    """An index with more points, and the neighbours of all points."""

    searched: NeighborIndex
    distances: Distances
    indices: Indices


class Pairs(NamedTuple):
    """Points, a neighbour of each, and how far they are from each other."""

    points: NDArray[np.intp]
    neighbors: NDArray[np.intp]
    distances: Floats


def can_grow(index: NeighborIndex, added: int) -> bool:
    """Whether an index with the added points would search as this one does."""
    if isinstance(index, SparseIndex):
        return True
    assert isinstance(index, DenseIndex)
    return index.method == choose_method(index.size + added, index.points.shape[1])


def grow(
    index: NeighborIndex, X: Any, distances: Distances, indices: Indices, k: int, report: Report | None = None
) -> Grown:
    """Add the rows of X to an index, and to the lists (u, ≤ k) of its points' neighbours, which become (u + m, k).

    Lists that are shorter than k hold all other points. A ``report`` that raises ends it.
    """
    u, m = index.size, X.shape[0]
    rows, fresh = index._prepare(X), np.arange(u, u + m)
    added = _same_kind(index, X)
    lists = np.full((u + m, k), np.inf), np.zeros((u + m, k), dtype=np.int32)
    lists[0][:u, : distances.shape[1]], lists[1][:u, : indices.shape[1]] = distances, indices
    for nearer in _nearer(index, added, rows, lists[0][:u].max(axis=1), k, part_of(report, 0.0, 0.8)):
        changed = np.unique(nearer.points)
        listed = _listed(changed, lists[0][changed], lists[1][changed])
        _merge(changed, [listed, nearer._replace(neighbors=nearer.neighbors + u)], *lists)
    found = [_listed(fresh, *index.query(X, min(k, u)))]
    if m > 1:
        found.append(_listed(fresh, *added.self_query(min(k, m - 1), part_of(report, 0.8, 1.0)), shift=u))
    _merge(fresh, found, *lists)
    return Grown(index.grown(rows), *lists)


def _same_kind(index: NeighborIndex, X: Any) -> NeighborIndex:
    """An index of other points, in the same metric."""
    kind = SparseIndex if isinstance(index, SparseIndex) else DenseIndex
    return kind(X, index.metric, n_jobs=index.n_jobs)


def _listed(points: NDArray[np.intp], distances: Distances, indices: Indices, shift: int = 0) -> Pairs:
    """Lists of the points' neighbours as pairs."""
    is_there = np.isfinite(distances)
    return Pairs(
        np.repeat(points, is_there.sum(axis=1)), indices[is_there].astype(np.intp) + shift, distances[is_there]
    )


def _merge(known: NDArray[np.intp], found: list[Pairs], distances: Distances, indices: Indices) -> None:
    """Write the nearest neighbours of known points into their lists; of equally near ones, the lowest index first."""
    pairs = Pairs(*map(np.concatenate, zip(*found, strict=True)))
    order = np.lexsort((pairs.neighbors, pairs.distances, pairs.points))
    points, neighbors, measured = (column[order] for column in pairs)
    starts = np.searchsorted(points, known)
    rank = np.arange(len(points)) - np.repeat(starts, np.diff(np.append(starts, len(points))))
    is_kept = rank < distances.shape[1]
    distances[known], indices[known] = np.inf, 0
    distances[points[is_kept], rank[is_kept]] = measured[is_kept]
    indices[points[is_kept], rank[is_kept]] = neighbors[is_kept]


#: Pairs of points that are bounded at a time by a thread, about what a core's cache holds.
_BOUNDED = 1 << 18
#: Pairs that all threads bound before the next look at what was found, pairs that are kept until they are measured,
#: and pairs that are measured at a time.
_LOOKED_AT, _KEPT, _MEASURED = 1 << 21, 1 << 19, 1 << 14
#: Squares in float32 are off by this share of the larger one.
_ROUNDING = 1e-5


def _nearer(
    index: NeighborIndex, added: NeighborIndex, rows: Any, limits: Floats, k: int, report: Report | None
) -> Iterator[Pairs]:
    """Pairs of an old and a new point that are nearer than the old one's limit, for some old points after the other.

    Where the old points lie around the new ones, nearly all pairs are: all at once would not fit into memory.
    """
    if not isinstance(index, DenseIndex):
        # No point gets more than k neighbours.
        distances, names = added._in_blocks(index.points, np.arange(index.size), min(added.size, k), False, report)
        is_near = distances < limits[:, None]
        yield Pairs(np.nonzero(is_near)[0], names[is_near].astype(np.intp), distances[is_near])
        return
    for old, new in _possible(index, rows, limits, report):
        measured = np.empty(len(old))
        for start in range(0, len(old), _MEASURED):
            block = slice(start, start + _MEASURED)
            measured[block] = index._distances(rows[new[block]], old[block, None])[:, 0]
        is_near = measured < limits[old]
        yield Pairs(old[is_near], new[is_near], measured[is_near])


def _possible(
    index: DenseIndex, rows: Any, limits: Floats, report: Report | None = None
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Pairs of an old and a new point that may be nearer than the old one's limit."""
    ours, theirs = index.bounding(index.points), index.bounding(rows)
    halves = row_squares(ours) / 2, row_squares(theirs) / 2
    allowed = (index.squared(limits) / 2 * (1 + _ROUNDING) - (1 - _ROUNDING) * halves[0]).astype(np.float32)
    lowest = ((1 - _ROUNDING) * halves[1]).astype(np.float32)
    threads = thread_count(index.n_jobs)
    step, section = (max(1, most // len(theirs)) for most in (_BOUNDED, _LOOKED_AT))
    tiles = np.empty((threads, step, len(theirs)), dtype=np.float32)
    # A list for each thread.
    found: list[list[tuple[NDArray[np.intp], NDArray[np.intp]]]] = [[] for _ in range(threads)]
    for first in range(0, index.size, section):
        last = min(first + section, index.size)

        def compare(chunk: int, first: int = first, last: int = last) -> None:
            for start in range(first + chunk * step, last, threads * step):
                part = slice(start, min(start + step, last))
                products = np.matmul(ours[part], theirs.T, out=tiles[chunk, : part.stop - start])
                found[chunk].append(_collect(products, lowest, allowed[part], start))

        with single_threaded_blas():
            run_chunks(compare, threads)
        if report is not None:
            report(last / index.size)
        pairs = [pair for of_thread in found for pair in of_thread]
        if last == index.size or sum(len(old) for old, _ in pairs) >= _KEPT:
            old, new = (np.concatenate(part) for part in zip(*pairs, strict=True))
            yield old, new
            for of_thread in found:
                of_thread.clear()


@njit(cache=True, nogil=True)
def _collect(products, halves, allowed, start):  # type: ignore[no-untyped-def]
    """Places (i, j) where halves[j] − products[i, j] is allowed or out of range; i counts from ``start``."""
    count = 0
    for i in range(products.shape[0]):
        for j in range(products.shape[1]):
            count += not halves[j] - products[i, j] > allowed[i]
    old, new = np.empty(count, dtype=np.intp), np.empty(count, dtype=np.intp)
    place = 0
    for i in range(products.shape[0]):
        row, limit = products[i], allowed[i]
        some = 0
        for j in range(row.size):
            some += not halves[j] - row[j] > limit
        if some:
            for j in range(row.size):
                if not halves[j] - row[j] > limit:
                    old[place], new[place] = start + i, j
                    place += 1
    return old, new
