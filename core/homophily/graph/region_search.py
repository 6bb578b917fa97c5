"""Neighbours among very many dense points: regions of near points in leading coordinates.

Only a few coordinates of high-dimensional points tell which are near. So points are turned to their principal
directions, of which as many are kept as the wanted recall needs, judged on a sample whose true neighbours are known;
the length of what is left out is one coordinate more, so that no distance comes out larger than it is. Where the
variances are flat, all columns are kept as they are.

In these coordinates k-means divides the points into about 2√u regions. A point is compared with all points of the
``probes`` regions whose centres are nearest to it: matrix products, which take far less time per pair than a walk from
point to point along a graph of links. Then it is compared with the neighbours of its neighbours. The candidates' exact
distances are the caller's part.

Products are taken in blocks of fixed size by one thread each, so the thread count changes no bit of any result.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from homophily.graph.index_base import Report
from homophily.graph.region_kernels import keep_smallest, scan_regions, sort_lists, visit_neighbors
from homophily.graph.region_layout import (
    BLOCK_ROWS,
    Layout,
    Rows,
    Seen,
    empty_lists,
    in_blocks,
    nearest_centres,
    row_squares,
    silent,
)
from homophily.threads import even_rows, run_chunks, run_ranges, single_threaded_blas, thread_count

#: Neighbours whose neighbours are visited.
_VISITED = 12
#: Numbers of regions to probe; the next is tried while the recall is too low.
PROBES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Points that a row is compared with for each candidate, at least.
_COMPARED_PER_CANDIDATE = 8
# Points that a row may be compared with: at least this number, or this share of all.
_MOST_COMPARED, _SHARE_COMPARED = 65_536, 1 / 16


class RegionSearch:
    """Points in the coordinates and order of a layout, to be asked for candidates."""

    def __init__(self, layout: Layout, seen: Seen, n_jobs: int | None) -> None:
        self.layout = layout
        self.order = np.argsort(layout.regions, kind="stable")
        self.size, count = len(self.order), len(layout.centres)
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(layout.regions, minlength=count))])
        self.regions = layout.regions[self.order]
        self.points = np.empty((self.size, layout.centres.shape[1]), dtype=np.float32)
        self.halves = np.empty(self.size, dtype=np.float32)

        def place(rows: slice, _: int) -> None:
            places = layout.coordinates(seen(self.order[rows]))
            np.subtract(places, layout.centres[self.regions[rows]], out=self.points[rows])
            self.halves[rows] = 0.5 * row_squares(self.points[rows])

        with single_threaded_blas():
            in_blocks(place, self.size, n_jobs)

    @property
    def coordinates(self) -> Rows:
        """The points in the coordinates of the layout, in their own order."""
        places = np.empty_like(self.points)
        places[self.order] = self.points + self.layout.centres[self.regions]
        return places

    @property
    def most_probes(self) -> int:
        """Regions that a row may probe, if the recall asks for it."""
        compared = max(_MOST_COMPARED, _SHARE_COMPARED * self.size)
        return int(min(len(self.layout.centres), max(1, compared * len(self.layout.centres) // self.size)))

    def probe_steps(self, count: int) -> list[int]:
        """Numbers of probes to try for ``count`` candidates."""
        least = self.least_probes(count)
        return [*(probes for probes in PROBES if least < probes < self.most_probes), max(least, self.most_probes)]

    def least_probes(self, count: int) -> int:
        """Probes that see several times ``count`` points."""
        regions = len(self.layout.centres)
        return min(regions, 1 + _COMPARED_PER_CANDIDATE * count * regions // self.size)

    def positions(self, lists: NDArray[np.int32]) -> NDArray[np.int64]:
        """Positions of points in ``order`` as positions of the points themselves; −1 stays."""
        return np.where(lists < 0, -1, self.order[lists])

    def candidates(self, rows: Rows, count: int, probes: int, threads: int) -> NDArray[np.int64]:
        """Positions of about the ``count`` nearest points of each row, in any order."""
        with single_threaded_blas():
            return self.positions(self._near(self.layout.coordinates(rows), count, probes, threads))

    def _near(self, places: Rows, count: int, probes: int, threads: int) -> NDArray[np.int32]:
        centres = self.layout.centres
        nearest = nearest_centres(places, centres)
        order = np.argsort(nearest, kind="stable")
        places = places[order] - centres[nearest[order]]
        found = np.empty((len(places), count), dtype=np.int32)
        while True:
            cuts = np.flatnonzero(np.diff(nearest[order], prepend=-1))
            groups = np.append(cuts, len(order)).astype(np.int64)
            values, indices = empty_lists(len(order), count)
            probes = min(probes, len(centres))
            self._scan(groups, nearest[order[cuts]], places, probes, False, values, indices, threads)
            found[order] = indices
            # In regions with few points there may be fewer than asked for.
            short = np.flatnonzero((indices < 0).any(axis=1))
            if short.size == 0 or probes == len(centres):
                return found
            order, places, probes = order[short], places[short], 4 * probes

    def self_candidates(
        self,
        count: int,
        probes: int,
        rounds: int,
        n_jobs: int | None,
        report: Report | None,
    ) -> NDArray[np.int32]:
        """About the ``count`` nearest others of each point, both in the positions of ``order``."""
        values, indices = empty_lists(self.size, count)
        threads, report = thread_count(n_jobs), report or silent
        groups = np.arange(len(self.layout.centres), dtype=np.int64)
        cuts = np.searchsorted(self.starts, np.arange(0, self.size, BLOCK_ROWS * threads))
        cuts = np.unique(np.append(cuts, len(groups)))
        with single_threaded_blas():
            for first, last in pairwise(cuts):
                low, high = self.starts[first], self.starts[last]
                lists = values[low:high], indices[low:high]
                bounds = self.starts[first : last + 1]
                self._scan(bounds, groups[first:last], self.points, probes, True, *lists, threads)
                report(0.9 * high / self.size)
            for _ in range(rounds):
                self._visit(values, indices, threads)
                report(0.9)
            short = np.flatnonzero((indices < 0).any(axis=1))
            if short.size:
                places = self.points[short] + self.layout.centres[self.regions[short]]
                indices[short] = self._near(places, count + 1, probes, threads)[:, :count]
        report(1.0)
        return indices

    def _visit(self, values: Rows, indices: NDArray[np.int32], threads: int) -> None:
        run_ranges(sort_lists, even_rows(self.size, threads), values, indices)
        lists = np.ascontiguousarray(indices[:, :_VISITED])
        # Backwards, sorted lists are heaps.
        values[:], indices[:] = values[:, ::-1].copy(), indices[:, ::-1].copy()
        bounds = even_rows(self.size, threads)

        def visit(chunk: int) -> None:
            seen_by = np.full(self.size, -1, dtype=np.int32)
            layout = self.points, self.regions, self.layout.centres
            visit_neighbors(bounds[chunk], bounds[chunk + 1], lists, *layout, seen_by, values, indices)

        run_chunks(visit, threads)

    def _scan(
        self,
        groups: NDArray[np.int64],
        group_regions: NDArray[np.int64],
        rows: Rows,
        probes: int,
        skip_own: bool,
        values: Rows,
        indices: NDArray[np.int32],
        threads: int,
    ) -> None:
        """Fill the lists of the rows from ``groups[0]`` to ``groups[-1]``."""
        centres = self.layout.centres
        asked = np.empty((groups[-1] - groups[0], probes), dtype=np.int32)
        # Groups by their rows.
        bounds = np.searchsorted(groups, np.linspace(groups[0], groups[-1], threads + 1)).astype(np.int64)
        bounds[0], bounds[-1] = 0, len(groups) - 1
        halves = 0.5 * row_squares(centres)

        def scan(chunk: int) -> None:
            first, last = bounds[chunk], bounds[chunk + 1]
            for g in range(first, last):
                part = slice(groups[g], groups[g + 1])
                places = rows[part] + centres[group_regions[g]]
                nearest, names = empty_lists(len(places), probes)
                keep_smallest(0, len(places), halves - places @ centres.T, 0, nearest, names)
                asked[groups[g] - groups[0] : groups[g + 1] - groups[0]] = names
            points = self.starts, self.points, self.halves, centres
            scan_regions(first, last, groups, group_regions, rows, asked, skip_own, *points, values, indices)

        run_chunks(scan, threads)
