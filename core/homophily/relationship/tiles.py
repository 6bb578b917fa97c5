"""The full regulariser over tiles of K computed on the fly: exact, for any n and any symmetric sparse G = L^p.

A tile is K[:, block] for a block of ``WIDTH`` columns, u × WIDTH numbers per thread, so memory grows with u while time
grows with u². Points are put into blocks of near neighbours, and rows too far from a block to count are left out.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats, restored, side_by_side
from homophily.relationship.functions import GAUSSIAN, Relationship, relate, slope
from homophily.threads import sum_chunks, thread_count

WIDTH = 32  # columns per tile: a row is four cache lines


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _fill_tile(F, sources, width, inverse, function, farthest, tile, near):  # type: ignore[no-untyped-def]
    """K[:, block] row by row; ``near[j]`` says whether row j has any entry that counts."""
    u, n = F.shape
    low = np.empty(n)
    high = np.empty(n)
    for d in range(n):
        low[d] = sources[d, :width].min()
        high[d] = sources[d, :width].max()
    x = np.empty(WIDTH)
    for j in range(u):
        gap = 0.0
        for d in range(n):
            outside = max(low[d] - F[j, d], F[j, d] - high[d], 0.0)
            gap += outside * outside
        near[j] = gap * inverse < farthest
        if near[j]:
            x[:] = 0.0
            for d in range(n):
                f = F[j, d]
                for c in range(WIDTH):
                    x[c] += (f - sources[d, c]) * (f - sources[d, c])
            for c in range(WIDTH):
                tile[j, c] = x[c] * inverse
            relate(tile[j], function, WIDTH)
            for c in range(width, WIDTH):
                tile[j, c] = 0.0


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _row_times_tile(indices, data, start, stop, tile, near, product):  # type: ignore[no-untyped-def]
    """A row of G times the tile. Eight columns at a time fill two vector registers: the sums never touch memory."""
    for c in range(0, WIDTH, 8):
        p0 = p1 = p2 = p3 = p4 = p5 = p6 = p7 = 0.0
        for e in range(start, stop):
            k = np.uint64(indices[e])  # unsigned: no test for a negative index
            if near[k]:
                g = data[e]
                p0 += g * tile[k, c]
                p1 += g * tile[k, c + 1]
                p2 += g * tile[k, c + 2]
                p3 += g * tile[k, c + 3]
                p4 += g * tile[k, c + 4]
                p5 += g * tile[k, c + 5]
                p6 += g * tile[k, c + 6]
                p7 += g * tile[k, c + 7]
        product[c], product[c + 1], product[c + 2], product[c + 3] = p0, p1, p2, p3
        product[c + 4], product[c + 5], product[c + 6], product[c + 7] = p4, p5, p6, p7


@njit(cache=True, nogil=True)
def _times_tile(indptr, indices, data, tile, near, product, reached):  # type: ignore[no-untyped-def]
    """L times the tile; ``reached[j]`` says whether row j of the product has any entry that counts."""
    for j in range(near.size):
        reached[j] = False
        for e in range(indptr[j], indptr[j + 1]):
            reached[j] |= near[np.uint64(indices[e])]
        if reached[j]:
            _row_times_tile(indices, data, indptr[j], indptr[j + 1], tile, near, product[j])


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _tile_sums(  # type: ignore[no-untyped-def]
    F, order, indptr, indices, data, power, diagonal, inverse, function, farthest, chunk, chunks, gradient
):
    """Energy of the chunk's blocks of columns; their part of the gradient is added to ``gradient``."""
    u, n = F.shape
    tile = np.empty((u, WIDTH))
    near = np.empty(u, np.bool_)
    # L^(p−1) K[:, block], by turns in the one and in the other.
    factors = np.empty((min(power - 1, 2), u, WIDTH))
    reached = np.empty((min(power - 1, 2), u), np.bool_)
    sources = np.empty((n, WIDTH))
    pulls = np.empty((n, WIDTH))
    product = np.empty(WIDTH)
    energy = 0.0
    for start in range(chunk * WIDTH, u, chunks * WIDTH):
        block = order[start : start + WIDTH]
        width = block.size
        for c in range(WIDTH):
            for d in range(n):
                sources[d, c] = F[block[min(c, width - 1)], d]
        _fill_tile(F, sources, width, inverse, function, farthest, tile, near)
        factor, counted = tile, near
        for step in range(power - 1):
            _times_tile(indptr, indices, data, factor, counted, factors[step % 2], reached[step % 2])
            factor, counted = factors[step % 2], reached[step % 2]
        pulls[:] = 0.0
        for j in range(u):
            if not near[j]:
                continue
            _row_times_tile(indices, data, indptr[j], indptr[j + 1], factor, counted, product)
            part = 0.0
            for c in range(WIDTH):
                product[c] += diagonal[j] * tile[j, c]
                part += product[c] * tile[j, c]
                # dE/dr² at (j, c), times the 2 of dr²/df = 2(f_j − f_c).
                product[c] *= 4.0 * inverse * slope(tile[j, c], function)
            energy += part
            for d in range(n):
                f = F[j, d]
                pull = 0.0
                for c in range(WIDTH):
                    one = product[c] * (f - sources[d, c])
                    pull += one
                    pulls[d, c] += one
                gradient[j, d] += pull
        for c in range(width):
            for d in range(n):
                gradient[block[c], d] -= pulls[d, c]
    return energy


class TileEngine:
    """Energy ``tr(KᵀGK)`` of G = L^p + diag(``diagonal``), with its gradient: exact, in O(u²) time and O(u) memory."""

    def __init__(
        self,
        L: csr_array,
        sigma_f: float,
        *,
        power: int = 1,
        diagonal: Floats | None = None,
        relationship: Relationship = GAUSSIAN,
        n_jobs: int | None = None,
    ) -> None:
        self.order, self.L = side_by_side(L)
        self.power = power
        self.diagonal = np.zeros(L.shape[0]) if diagonal is None else diagonal[self.order]
        self.sigma_f = sigma_f
        self.relationship = relationship
        self.n_jobs = n_jobs

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy at ``F`` (u×n) and its gradient (u×n)."""
        chunks = min(thread_count(self.n_jobs), -(-len(F) // WIDTH))
        F = F[self.order]
        columns = near_blocks(F, self.sigma_f * self.relationship.farthest**0.5)
        matrix = self.L.indptr, self.L.indices, self.L.data, self.power, self.diagonal
        function = self.sigma_f**-2, self.relationship.id, self.relationship.farthest

        def kernel(chunk: int, gradient: Floats) -> float:
            return float(_tile_sums(F, columns, *matrix, *function, chunk, chunks, gradient))

        energy, ordered = sum_chunks(kernel, chunks, F.shape)
        return energy, restored(ordered, self.order)


def near_blocks(F: Floats, reach: float) -> NDArray[np.intp]:
    """An order of the points in which each run of ``WIDTH`` is compact: halves along the widest axis, repeatedly.

    Where the whole set is within ``reach`` no row could be left out and the given order stays.
    """

    def split(points: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        spread = np.ptp(F[points], axis=0)
        if len(points) <= WIDTH or np.linalg.norm(spread) <= reach / 4:
            return [points]
        half = -(-len(points) // (2 * WIDTH)) * WIDTH
        ranked = points[np.argpartition(F[points, spread.argmax()], half - 1)]
        return split(ranked[:half]) + split(ranked[half:])

    points = np.arange(len(F))
    if np.linalg.norm(np.ptp(F, axis=0)) <= reach:
        return points
    return np.concatenate(split(points))
