"""Gauss sums in the plane over a grid of half-Gaussians: linear in points and edges, however far the points spread.

A Gaussian is the convolution of two narrower ones, and a sum over a grid of nodes z takes the place of the integral:

    exp(−2‖m − f‖²/σ²) = c Σ_z A(m − z) A(z − f),    A(x) = exp(−4‖x‖²/σ²),

to an error that falls like exp(−π²σ²/8h²) with the distance h of the nodes. So points are spread on the nodes near
them, ``S(z) = Σ_i A(z − f_i)``, edges likewise, ``N(z) = Σ_jk G_jk φ_jk A(z − m_jk)``, and

    tr(KᵀGK) = c Σ_z S(z) N(z),

whose gradient reads S at the edges and N at the points. Nodes are kept in blocks, and only where points are.

Within a panel of STEP×STEP nodes ``A(x − z) = Σ_a T[a, z] x^a``, a polynomial, for the WIDTH nodes around the panel:
its points only work with powers of x, and each panel turns to its window of nodes and back once.
"""

from __future__ import annotations

from math import pi

import numpy as np
from numba import njit
from numpy.polynomial import chebyshev

from homophily.arrays import Floats
from homophily.relationship.functions import exp_negative

STEP = 2  # nodes per panel, along each axis
BLOCK = 32  # nodes per block, along each axis: no window touches more than two blocks
PANELS = BLOCK // STEP
WIDTH = 24  # nodes per window, along each axis
TERMS = 12  # powers per panel, along each axis
BATCH = 128  # points of a panel worked on at once: their arrays stay in the first-level cache


# Nodes lie in the middles of unit cells. With R nodes from a panel's border to the first one left out, nodes left out
# and nodes too far apart both cost exp(−πR/√2) when the distance of nodes h has 4(h/σ)²R² = π²σ²/8h².
_REACH = (WIDTH - STEP + 1) / 2
SPACING = (pi**2 / 32 / _REACH**2) ** 0.25
"""Distance of the nodes in σ_f."""
DECAY = 4 * SPACING**2
"""A(x) = exp(−DECAY x²), x in nodes."""
SCALE = 2 * DECAY / pi
"""c: Σ_z exp(−2 DECAY z²) = √(π / 2 DECAY) along each axis."""
MARGIN = (WIDTH - STEP) // 2
"""Nodes of a window before its panel."""
MIDDLE = MARGIN + STEP / 2
"""Middle of a panel, from the first node of its window."""
TOLERANCE = 1e-9
"""What energies keep, with a factor in hand for what cancels between the terms of G: Gauss sums are good to 1e-11."""


def _table() -> Floats:
    """T: from the powers of x, counted from the middle of a panel, to the nodes of its window, by interpolation."""
    places = chebyshev.chebpts1(TERMS) * (STEP / 2)
    nodes = np.arange(WIDTH) - (WIDTH - 1) / 2
    return np.linalg.solve(np.vander(places, increasing=True), np.exp(-DECAY * (places[:, None] - nodes) ** 2))


_TABLE = np.ascontiguousarray(_table())
_NODES = np.ascontiguousarray(_TABLE.T)


@njit(cache=True, nogil=True, inline="always")
def _corner(x):  # type: ignore[no-untyped-def]
    """First node of the window of x's panel, along one axis."""
    return int(x) // STEP * STEP - MARGIN


@njit(cache=True, nogil=True)
def mark_blocks(places, blocks):  # type: ignore[no-untyped-def]
    """Mark the blocks that the points' windows touch."""
    for i in range(places.shape[0]):
        x = _corner(places[i, 0])
        y = _corner(places[i, 1])
        for block_y in range(y // BLOCK, (y + WIDTH - 1) // BLOCK + 1):
            for block_x in range(x // BLOCK, (x + WIDTH - 1) // BLOCK + 1):
                blocks[block_y, block_x] = 0


@njit(cache=True, nogil=True)
def _panel_of(x, y, blocks):  # type: ignore[no-untyped-def]
    """Number of the panel, in order of blocks; negative where no block is kept."""
    column = int(x)
    row = int(y)
    block = blocks[row // BLOCK, column // BLOCK]
    return (block * PANELS + row % BLOCK // STEP) * PANELS + column % BLOCK // STEP if block >= 0 else -1


@njit(cache=True, nogil=True)
def point_panels(places, blocks, panels):  # type: ignore[no-untyped-def]
    """Panel of each point."""
    for i in range(places.shape[0]):
        panels[i] = _panel_of(places[i, 0], places[i, 1], blocks)


@njit(cache=True, nogil=True, fastmath={"contract"})
def edge_panels(rows, columns, weights, places, farthest, blocks, panels, strengths):  # type: ignore[no-untyped-def]
    """Panel and strength G_jk φ_jk of each edge; edges of no consequence get a negative panel."""
    for e in range(rows.size):
        across = places[rows[e], 0] - places[columns[e], 0]
        along = places[rows[e], 1] - places[columns[e], 1]
        strengths[e] = 0.125 * DECAY * (across * across + along * along)
    for e in range(rows.size):
        panels[e] = -1
        if strengths[e] < farthest:
            j, k = rows[e], columns[e]
            panels[e] = _panel_of(0.5 * (places[j, 0] + places[k, 0]), 0.5 * (places[j, 1] + places[k, 1]), blocks)
    for e in range(rows.size):
        strengths[e] = weights[e] * exp_negative(strengths[e])


@njit(cache=True, nogil=True)
def _read_window(grid, blocks, x, y, window):  # type: ignore[no-untyped-def]
    width = window.shape[0]
    split = min(BLOCK - x % BLOCK, width)
    for row in range(width):
        line = (y + row) % BLOCK
        left = blocks[(y + row) // BLOCK, x // BLOCK]
        start = x % BLOCK
        if left >= 0:
            for k in range(split):
                window[row, k] = grid[left, line, start + k]
        else:
            window[row, :split] = 0.0
        if split < width:
            right = blocks[(y + row) // BLOCK, x // BLOCK + 1]
            if right >= 0:
                for k in range(split, width):
                    window[row, k] = grid[right, line, k - split]
            else:
                window[row, split:] = 0.0


@njit(cache=True, nogil=True)
def _add_window(grid, blocks, x, y, window):  # type: ignore[no-untyped-def]
    width = window.shape[0]
    split = min(BLOCK - x % BLOCK, width)
    for row in range(width):
        line = (y + row) % BLOCK
        left = blocks[(y + row) // BLOCK, x // BLOCK]
        start = x % BLOCK
        if left >= 0:
            for k in range(split):
                grid[left, line, start + k] += window[row, k]
        if split < width:
            right = blocks[(y + row) // BLOCK, x // BLOCK + 1]
            if right >= 0:
                for k in range(split, width):
                    grid[right, line, k - split] += window[row, k]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_product(left, right, first, product):  # type: ignore[no-untyped-def]
    """Add left[:, first : first + 12] right[first : first + 12] to the product; 12 factors stay in registers."""
    for row in range(left.shape[0]):
        f = left[row, first : first + 12]
        f0, f1, f2, f3, f4, f5 = f[0], f[1], f[2], f[3], f[4], f[5]
        f6, f7, f8, f9, f10, f11 = f[6], f[7], f[8], f[9], f[10], f[11]
        r = right[first : first + 12]
        for c in range(product.shape[1]):
            product[row, c] += (
                (f0 * r[0, c] + f1 * r[1, c] + f2 * r[2, c] + f3 * r[3, c])
                + (f4 * r[4, c] + f5 * r[5, c] + f6 * r[6, c] + f7 * r[7, c])
                + (f8 * r[8, c] + f9 * r[9, c] + f10 * r[10, c] + f11 * r[11, c])
            )


@njit(cache=True, nogil=True)
def _times(left, right, product):  # type: ignore[no-untyped-def]
    product[:] = 0.0
    for first in range(0, right.shape[0], 12):
        _add_product(left, right, first, product)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _read(coefficients, size, x, y, value, slope_x, slope_y):  # type: ignore[no-untyped-def]
    """The panel's polynomial at ``size`` places (x, y) and its two derivatives, by Horner's rule in both."""
    value[:size] = 0.0
    slope_x[:size] = 0.0
    slope_y[:size] = 0.0
    for a in range(TERMS - 1, -1, -1):
        c = coefficients[a]
        c0, c1, c2, c3, c4, c5 = c[0], c[1], c[2], c[3], c[4], c[5]
        c6, c7, c8, c9, c10, c11 = c[6], c[7], c[8], c[9], c[10], c[11]
        for i in range(size):
            t = x[i]
            v = c11 * t + c10
            s = c11 * t + v
            v = v * t + c9
            s = s * t + v
            v = v * t + c8
            s = s * t + v
            v = v * t + c7
            s = s * t + v
            v = v * t + c6
            s = s * t + v
            v = v * t + c5
            s = s * t + v
            v = v * t + c4
            s = s * t + v
            v = v * t + c3
            s = s * t + v
            v = v * t + c2
            s = s * t + v
            v = v * t + c1
            s = s * t + v
            v = v * t + c0
            slope_y[i] = slope_y[i] * y[i] + value[i]
            value[i] = value[i] * y[i] + v
            slope_x[i] = slope_x[i] * y[i] + s


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _add(moments, size, x, y, weight):  # type: ignore[no-untyped-def]
    """Add Σ weight · y^a x^b to the panel's moments. Changes ``weight``."""
    for i in range(size, (size + 3) // 4 * 4):
        x[i] = y[i] = weight[i] = 0.0
    size = (size + 3) // 4 * 4
    for a in range(TERMS):
        m0 = m1 = m2 = m3 = m4 = m5 = m6 = m7 = m8 = m9 = m10 = m11 = 0.0
        for i in range(size):
            t = x[i]
            w = weight[i]
            weight[i] = w * y[i]
            m0 += w
            w *= t
            m1 += w
            w *= t
            m2 += w
            w *= t
            m3 += w
            w *= t
            m4 += w
            w *= t
            m5 += w
            w *= t
            m6 += w
            w *= t
            m7 += w
            w *= t
            m8 += w
            w *= t
            m9 += w
            w *= t
            m10 += w
            w *= t
            m11 += w
        m = moments[a]
        m[0] += m0
        m[1] += m1
        m[2] += m2
        m[3] += m3
        m[4] += m4
        m[5] += m5
        m[6] += m6
        m[7] += m7
        m[8] += m8
        m[9] += m9
        m[10] += m10
        m[11] += m11


@njit(cache=True, nogil=True)
def _panel_end(panels, order, start):  # type: ignore[no-untyped-def]
    stop = start + 1
    while stop < order.size and panels[order[stop]] == panels[order[start]]:
        stop += 1
    return stop


@njit(cache=True, nogil=True, inline="always")
def _middle_of(e, rows, columns, places):  # type: ignore[no-untyped-def]
    j, k = np.uint64(rows[e]), np.uint64(columns[e])  # unsigned: no test for a negative index
    return 0.5 * (places[j, 0] + places[k, 0]), 0.5 * (places[j, 1] + places[k, 1])


@njit(cache=True, nogil=True, inline="always")
def _offsets(order, first, size, rows, columns, places, left, low, x, y):  # type: ignore[no-untyped-def]
    """Places of the edges' middles, counted from the middle of their panel."""
    for s in range(size):
        across, along = _middle_of(order[first + s], rows, columns, places)
        x[s] = across - (left + MIDDLE)
        y[s] = along - (low + MIDDLE)


@njit(cache=True, nogil=True, inline="always")
def _add_moments(moments, grid, blocks, left, low, half, window):  # type: ignore[no-untyped-def]
    """Add a panel's moments to its window of the grid."""
    _times(moments, _TABLE, half)
    _times(_NODES, half, window)
    _add_window(grid, blocks, left, low, window)


@njit(cache=True, nogil=True, inline="always")
def _read_coefficients(grid, blocks, left, low, half, window, coefficients):  # type: ignore[no-untyped-def]
    """The polynomial of a panel from its window of the grid."""
    _read_window(grid, blocks, left, low, window)
    _times(_TABLE, window, half)
    _times(half, _NODES, coefficients)


@njit(cache=True, nogil=True)
def spread_points(places, points, panels, order, blocks, grid):  # type: ignore[no-untyped-def]
    """Add Σ_i A(z − f_i) to the grid."""
    window, half, moments = np.empty((WIDTH, WIDTH)), np.empty((TERMS, WIDTH)), np.empty((TERMS, TERMS))
    x, y, w = np.empty(BATCH), np.empty(BATCH), np.empty(BATCH)
    start = 0
    while start < order.size:
        stop = _panel_end(panels, order, start)
        left, low = _corner(places[order[start], 0]), _corner(places[order[start], 1])
        moments[:] = 0.0
        for first in range(start, stop, BATCH):
            size = min(BATCH, stop - first)
            _offsets(order, first, size, points, points, places, left, low, x, y)
            w[:size] = 1.0
            _add(moments, size, x, y, w)
        _add_moments(moments, grid, blocks, left, low, half, window)
        start = stop


@njit(cache=True, nogil=True)
def read_points(places, points, panels, order, blocks, grid, gradient):  # type: ignore[no-untyped-def]
    """Add the slopes of the grid's sum at the points to ``gradient``."""
    window, half, coefficients = np.empty((WIDTH, WIDTH)), np.empty((TERMS, WIDTH)), np.empty((TERMS, TERMS))
    x, y = np.empty(BATCH), np.empty(BATCH)
    value, slope_x, slope_y = np.empty(BATCH), np.empty(BATCH), np.empty(BATCH)
    start = 0
    while start < order.size:
        stop = _panel_end(panels, order, start)
        left, low = _corner(places[order[start], 0]), _corner(places[order[start], 1])
        _read_coefficients(grid, blocks, left, low, half, window, coefficients)
        for first in range(start, stop, BATCH):
            size = min(BATCH, stop - first)
            _offsets(order, first, size, points, points, places, left, low, x, y)
            _read(coefficients, size, x, y, value, slope_x, slope_y)
            for s in range(size):
                gradient[order[first + s], 0] += slope_x[s]
                gradient[order[first + s], 1] += slope_y[s]
        start = stop


@njit(cache=True, nogil=True)
def edge_sums(  # type: ignore[no-untyped-def]
    rows, columns, places, panels, strengths, order, blocks, points_grid, grid, gradient
):
    """Σ G φ g over the edges, up to c: S read at their middles. Adds N to ``grid``.

    The gradient through the middles and φ, in units of nodes, is added to ``gradient``.
    """
    window, half = np.empty((WIDTH, WIDTH)), np.empty((TERMS, WIDTH))
    coefficients, moments = np.empty((TERMS, TERMS)), np.empty((TERMS, TERMS))
    x, y, w = np.empty(BATCH), np.empty(BATCH), np.empty(BATCH)
    value, slope_x, slope_y = np.empty(BATCH), np.empty(BATCH), np.empty(BATCH)
    energy = 0.0
    start = 0
    while start < order.size:
        stop = _panel_end(panels, order, start)
        across, along = _middle_of(order[start], rows, columns, places)
        left, low = _corner(across), _corner(along)
        _read_coefficients(points_grid, blocks, left, low, half, window, coefficients)
        moments[:] = 0.0
        for first in range(start, stop, BATCH):
            size = min(BATCH, stop - first)
            _offsets(order, first, size, rows, columns, places, left, low, x, y)
            _read(coefficients, size, x, y, value, slope_x, slope_y)
            for s in range(size):
                e = order[first + s]
                j, k = np.uint64(rows[e]), np.uint64(columns[e])
                w[s] = strengths[e]
                energy += w[s] * value[s]
                # φ = exp(−DECAY/8 ‖f_j − f_k‖²).
                stretch = 0.25 * DECAY * w[s] * value[s]
                apart_x = stretch * (places[j, 0] - places[k, 0])
                apart_y = stretch * (places[j, 1] - places[k, 1])
                gradient[j, 0] += 0.5 * w[s] * slope_x[s] - apart_x
                gradient[j, 1] += 0.5 * w[s] * slope_y[s] - apart_y
                gradient[k, 0] += 0.5 * w[s] * slope_x[s] + apart_x
                gradient[k, 1] += 0.5 * w[s] * slope_y[s] + apart_y
            _add(moments, size, x, y, w)
        _add_moments(moments, grid, blocks, left, low, half, window)
        start = stop
    return energy
