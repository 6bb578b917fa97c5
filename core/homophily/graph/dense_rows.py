"""What an index of dense rows computes row by row: exact distances, directions, and rows as a search sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from homophily.arrays import Floats, read_only
from homophily.threads import even_rows, run_ranges


def unit_rows(X: NDArray[Any]) -> Floats:
    """Rows of length one; the column added is 1 for rows of zeros, which thus point where no other row does."""
    largest = abs(X).max(axis=1, initial=0.0)
    unit = np.zeros((X.shape[0], X.shape[1] + 1))
    np.divide(X, largest[:, None], out=unit[:, :-1], where=largest[:, None] > 0)
    unit[:, -1] = largest == 0
    unit /= np.sqrt(np.einsum("ij,ij->i", unit, unit))[:, None]
    return unit


def inverse_lengths(rows: NDArray[Any]) -> Floats:
    """What rows are multiplied by to have length one; 0 for rows of zeros."""
    inverse = np.zeros(len(rows))
    run_ranges(_invert_lengths, even_rows(len(rows), 1), read_only(rows), inverse)
    return inverse


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _invert_lengths(start, stop, rows, inverse):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        largest = 0.0
        for d in range(rows.shape[1]):
            largest = max(largest, abs(np.float64(rows[i, d])))
        # Of numbers below, the inverse is infinite.
        if largest > 1e-307:
            total, scale = 0.0, 1.0 / largest
            for d in range(rows.shape[1]):
                part = np.float64(rows[i, d]) * scale
                total += part * part
            inverse[i] = scale / np.sqrt(total)


# Sums may be reordered for speed (a relative error near 1e-16·columns); whatever the order, (a − b)² = (b − a)², and
# equal points are at distance 0.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def dense_distances(start, stop, rows, points, candidates, scale, out):  # type: ignore[no-untyped-def]
    """Euclidean distances from some rows to their candidates; inf to those below 0."""
    inverse = 1.0 / scale
    for i in range(start, stop):
        for c in range(candidates.shape[1]):
            j = candidates[i, c]
            if j < 0:
                out[i, c] = np.inf
                continue
            total = 0.0
            for d in range(rows.shape[1]):
                difference = (np.float64(rows[i, d]) - np.float64(points[j, d])) * inverse
                total += difference * difference
            out[i, c] = scale * np.sqrt(total)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def cosine_distances(start, stop, rows, points, candidates, ours, theirs, out):  # type: ignore[no-untyped-def]
    """Cosine distances from some rows to their candidates, by the inverse lengths of both; inf to those below 0."""
    for i in range(start, stop):
        for c in range(candidates.shape[1]):
            j = candidates[i, c]
            if j < 0:
                out[i, c] = np.inf
                continue
            total = 0.0
            for d in range(rows.shape[1]):
                total += (np.float64(rows[i, d]) * ours[i]) * (np.float64(points[j, d]) * theirs[j])
            # Lengths are off by about 1e-16; rounded off, equal directions and right angles tie exactly.
            out[i, c] = np.rint(max(1.0 - total, 0.0) * 1e14) * 1e-14
            if ours[i] == 0.0 and theirs[j] == 0.0:
                out[i, c] = 0.0


@njit(cache=True, nogil=True, fastmath={"contract"})
def centre_rows(rows, centre, scale, seen):  # type: ignore[no-untyped-def]
    """Centred and scaled rows, in the type of ``seen``."""
    for i in range(rows.shape[0]):
        for d in range(rows.shape[1]):
            # New points may lie so far out that their square would not fit.
            seen[i, d] = min(max((rows[i, d] - centre[d]) * scale, -1e15), 1e15)
