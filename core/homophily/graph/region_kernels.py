"""The compiled loops of the search over regions; what they are for is in ``region_search``.

Lists of near points are heaps of fixed length: the farthest entry comes first, and is the one a nearer point replaces.
An empty entry has the value inf and the index −1.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Rows of a region that are compared with another region at once: a tile of products stays in the second-level cache.
ROWS = 256
# Values whose smallest decides whether any of them is looked at.
STRIDE = 16


@njit(cache=True, nogil=True, inline="always")
def _replace_farthest(values, indices, value, index):  # type: ignore[no-untyped-def]
    size, i = values.size, 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and values[child + 1] > values[child]:
            child += 1
        if values[child] <= value:
            break
        values[i], indices[i] = values[child], indices[child]
        i = child
    values[i], indices[i] = value, index


@njit(cache=True, nogil=True)
def keep_smallest(first, last, tile, offset, values, indices):  # type: ignore[no-untyped-def]
    """Add the rows of a tile, whose columns are the points from ``offset``, to the lists."""
    for i in range(first, last):
        heap, names, row = values[i], indices[i], tile[i]
        for start in range(0, row.size, STRIDE):
            stop = min(start + STRIDE, row.size)
            smallest = row[start]
            for x in range(start + 1, stop):
                smallest = min(smallest, row[x])
            if smallest < heap[0]:
                for x in range(start, stop):
                    if row[x] < heap[0]:
                        _replace_farthest(heap, names, row[x], offset + x)


@njit(cache=True, nogil=True)
def sort_lists(first, last, values, indices):  # type: ignore[no-untyped-def]
    """Turn heaps into lists with the nearest first; read backwards, such a list is a heap again."""
    for i in range(first, last):
        heap, names = values[i], indices[i]
        for size in range(heap.size - 1, 0, -1):
            value, name = heap[size], names[size]
            heap[size], names[size] = heap[0], names[0]
            _replace_farthest(heap[:size], names[:size], value, name)


@njit(cache=True, nogil=True, fastmath={"contract"})
def count_nearer(tile, ours, theirs, bounds, counts):  # type: ignore[no-untyped-def]
    """Add to ``counts[i, t]`` the numbers tile[i, x] − ours[i] · theirs[x] up to ``bounds[i, t]``, which ascend."""
    for i in range(len(tile)):
        farthest, mine, row = bounds[i, -1], ours[i], tile[i]
        for start in range(0, row.size, STRIDE):
            stop = min(start + STRIDE, row.size)
            smallest = row[start] - mine * theirs[start]
            for x in range(start + 1, stop):
                smallest = min(smallest, row[x] - mine * theirs[x])
            if smallest <= farthest:
                for x in range(start, stop):
                    value = row[x] - mine * theirs[x]
                    for t in range(bounds.shape[1]):
                        counts[i, t] += value <= bounds[i, t]


# Distances of candidates may be off by rounding: they only decide which points are compared exactly.
@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz", "nnan"})
def scan_regions(  # type: ignore[no-untyped-def]
    first, last, groups, group_regions, rows, probes, skip_own, starts, points, halves, centres, values, indices
):
    """Compare the rows of some groups with all points of the regions that each row probes.

    The rows of group g are ``groups[g]`` … ``groups[g + 1]``, seen from the centre of region ``group_regions[g]``;
    the points of region c are ``starts[c]`` … ``starts[c + 1]``, seen from the centre of c. ``halves`` is half the
    square of each point's length. ``probes`` and the lists have a line for each row from ``groups[0]`` on.
    """
    regions, columns = centres.shape
    base = groups[0]
    longest = 1
    for c in range(regions):
        longest = max(longest, starts[c + 1] - starts[c])
    moved = np.empty((ROWS, columns), np.float32)
    products = np.empty(ROWS * longest, np.float32)
    begins = np.empty(regions + 1, np.int64)
    place = np.empty(regions + 1, np.int64)
    askers = np.empty(ROWS * probes.shape[1], np.int64)
    shift = np.empty(columns, np.float32)
    for g in range(first, last):
        own_region = group_regions[g]
        for low in range(groups[g], groups[g + 1], ROWS):
            high = min(low + ROWS, groups[g + 1])
            # Rows by the region they ask for.
            begins[:] = 0
            for i in range(low, high):
                for p in range(probes.shape[1]):
                    begins[probes[i - base, p] + 1] += 1
            for c in range(regions):
                begins[c + 1] += begins[c]
            place[:] = begins
            for i in range(low, high):
                for p in range(probes.shape[1]):
                    c = probes[i - base, p]
                    askers[place[c]] = i
                    place[c] += 1
            # Its own region first: then most points of the others are seen to be too far.
            for turn in range(-1, regions):
                c = own_region if turn < 0 else turn
                count, size = begins[c + 1] - begins[c], starts[c + 1] - starts[c]
                if count == 0 or size == 0 or turn == own_region:
                    continue
                for d in range(columns):
                    shift[d] = centres[own_region, d] - centres[c, d]
                for a in range(count):
                    row = rows[askers[begins[c] + a]]
                    for d in range(columns):
                        moved[a, d] = row[d] + shift[d]
                tile = products[: count * size].reshape(count, size)
                np.dot(moved[:count], points[starts[c] : starts[c + 1]].T, tile)
                half = halves[starts[c] : starts[c + 1]]
                for a in range(count):
                    i = askers[begins[c] + a]
                    heap, names, product = values[i - base], indices[i - base], tile[a]
                    length = np.float32(0.0)
                    for d in range(columns):
                        length += moved[a, d] * moved[a, d]
                    for start in range(0, size, STRIDE):
                        stop = min(start + STRIDE, size)
                        smallest = half[start] - product[start]
                        for x in range(start + 1, stop):
                            smallest = min(smallest, half[x] - product[x])
                        if np.float32(2.0) * smallest + length < heap[0]:
                            for x in range(start, stop):
                                value = np.float32(2.0) * (half[x] - product[x]) + length
                                if value < heap[0] and not (skip_own and starts[c] + x == i):
                                    _replace_farthest(heap, names, value, starts[c] + x)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def visit_neighbors(first, last, lists, points, regions, centres, seen_by, values, indices):  # type: ignore[no-untyped-def]
    """Compare points with the neighbours of their neighbours.

    ``lists`` holds the nearest of each point, as they were before; ``seen_by`` has an entry of −1 for each point.
    """
    columns = centres.shape[1]
    place = np.empty(columns, np.float32)
    for i in range(first, last):
        heap, names = values[i], indices[i]
        seen_by[i] = i
        for name in names:
            if name >= 0:
                seen_by[name] = i
        for d in range(columns):
            place[d] = points[i, d] + centres[regions[i], d]
        for near in lists[i]:
            if near < 0:
                continue
            for x in lists[near]:
                if x < 0 or seen_by[x] == i:
                    continue
                seen_by[x] = i
                centre, point = centres[regions[x]], points[x]
                value = np.float32(0.0)
                for d in range(columns):
                    gap = (place[d] - centre[d]) - point[d]
                    value += gap * gap
                if value < heap[0]:
                    _replace_farthest(heap, names, value, x)
