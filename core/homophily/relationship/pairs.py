"""Gauss sums over the points within reach: for values scattered over many σ_f, where each has few others near it.

Points and the edges' middles are sorted into cells of half the reach, and a middle meets the points of the cells around
its own. Cells are numbered modulo a table of bounded size, so that any spread costs the same memory: two cells that
share a number only bring points together that are too far apart to count.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from homophily.relationship.functions import exp_negative

AROUND = 2  # cells on either side of a cell that its points reach
LARGEST = 2.0**50  # cells from the origin up to which a double still tells one from the next


@njit(cache=True, nogil=True)
def _cell_of(place, bits):  # type: ignore[no-untyped-def]
    number = np.int64(0)
    for d in range(place.size):
        number = (number << bits) + (np.int64(np.floor(place[d])) & ((1 << bits) - 1))
    return number


@njit(cache=True, nogil=True)
def counting_sort(numbers, count):  # type: ignore[no-untyped-def]
    """Where each number below ``count`` starts in the order of the numbers, and that order, without negative ones."""
    starts = np.zeros(count + 1, np.int32)
    for e in range(numbers.size):
        if numbers[e] >= 0:
            starts[numbers[e] + 1] += 1
    for number in range(count):
        starts[number + 1] += starts[number]
    order = np.empty(starts[count], np.int32)
    for e in range(numbers.size):
        if numbers[e] >= 0:
            order[starts[numbers[e]]] = e
            starts[numbers[e]] += 1
    # Filling in the order moved every start to the next number's.
    starts[1:] = starts[:-1].copy()
    starts[0] = 0
    return starts, order


@njit(cache=True, nogil=True)
def sort_points(places, bits):  # type: ignore[no-untyped-def]
    """Where each cell's points start in the order of cells, and that order. Places are in units of cells."""
    u, n = places.shape
    cells = np.empty(u, np.int64)
    for i in range(u):
        cells[i] = _cell_of(places[i], bits)
    return counting_sort(cells, 1 << (bits * n))


@njit(cache=True, nogil=True)
def _sort_edges(rows, columns, weights, places, decay, farthest, bits):  # type: ignore[no-untyped-def]
    """Edges of consequence in the order of their middles' cells: their indices, cells and strengths G_jk φ_jk."""
    n = places.shape[1]
    middle = np.empty(n)
    cells = np.full(rows.size, -1, np.int64)
    strengths = np.empty(rows.size)
    for e in range(rows.size):
        j, k = rows[e], columns[e]
        x = 0.0
        for d in range(n):
            x += (places[j, d] - places[k, d]) ** 2
            middle[d] = 0.5 * (places[j, d] + places[k, d])
        # φ_jk = exp(−x/2σ²), a quarter of the decay of exp(−2x/σ²).
        if 0.25 * decay * x < farthest:
            strengths[e] = weights[e] * np.exp(-0.25 * decay * x)
            cells[e] = _cell_of(middle, bits)
    return counting_sort(cells, 1 << (bits * n))[1], cells, strengths


@njit(cache=True, nogil=True)
def _gather_points(cell, starts, order, places, bits, near, sources):  # type: ignore[no-untyped-def]
    """Points of the cells around a cell; how many they are."""
    n = places.shape[1]
    side = 2 * AROUND + 1
    mask = (1 << bits) - 1
    found = 0
    for index in range(side**n):
        rest = index
        number = np.int64(0)
        for d in range(n):
            coordinate = ((cell >> (bits * d)) + rest % side - AROUND) & mask
            number += coordinate << (bits * d)
            rest //= side
        for s in range(starts[number], starts[number + 1]):
            near[found] = order[s]
            for d in range(n):
                sources[d, found] = places[order[s], d]
            found += 1
    return found


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def pair_sums(rows, columns, weights, places, starts, order, bits, decay, farthest, gradient):  # type: ignore[no-untyped-def]
    """Σ G φ g over the edges, and its gradient added to ``gradient``; the Gaussian is exp(−decay x²)."""
    n = places.shape[1]
    edges, cells, strengths = _sort_edges(rows, columns, weights, places, decay, farthest, bits)
    near = np.empty(places.shape[0], np.int32)
    sources = np.empty((n, places.shape[0]))
    pulls = np.empty((n, places.shape[0]))
    gauss = np.empty(places.shape[0])
    middle = np.empty(n)
    slope = np.empty(n)
    energy = 0.0
    start = 0
    while start < edges.size:
        cell = cells[edges[start]]
        found = _gather_points(cell, starts, order, places, bits, near, sources)
        pulls[:, :found] = 0.0
        while start < edges.size and cells[edges[start]] == cell:
            e = edges[start]
            start += 1
            j, k = rows[e], columns[e]
            strength = strengths[e]
            gauss[:found] = 0.0
            for d in range(n):
                middle[d] = m = 0.5 * (places[j, d] + places[k, d])
                source = sources[d]
                for s in range(found):
                    gauss[s] += (m - source[s]) * (m - source[s])
            value = 0.0
            for s in range(found):
                gauss[s] = exp_negative(decay * gauss[s])
                value += gauss[s]
            for d in range(n):
                m = middle[d]
                source = sources[d]
                pull = pulls[d]
                total = 0.0
                for s in range(found):
                    one = (m - source[s]) * gauss[s]
                    total += one
                    pull[s] += strength * one
                slope[d] = total
            energy += strength * value
            for d in range(n):
                together = -decay * strength * slope[d]
                apart = 0.5 * decay * strength * value * (places[j, d] - places[k, d])
                gradient[j, d] += together - apart
                gradient[k, d] += together + apart
        for s in range(found):
            for d in range(n):
                gradient[near[s], d] += 2.0 * decay * pulls[d, s]
    return energy
