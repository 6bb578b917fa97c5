"""Full relationship energy for one output dimension, in time linear in points and edges.

With one dimension the Gauss sums ``g(m) = Σ_i exp(−2(m − f_i)²/σ²)`` and their adjoint are smooth functions on a line.
The line is cut into panels of width σ/2, and the Gaussian between two panels is interpolated at Chebyshev nodes, to
rounding. Each panel is cut again into sub-panels on which the interpolant is re-expanded as a polynomial of low degree,
so that an edge costs a few multiply-adds. Everything the energy needs is then a vector product:

    E = νᵀ A μ,    μ = Σ_i b(f_i),    ν = Σ_(j,k) G_jk φ_jk b(m_jk),

where b(x) holds the powers of x's distance from the middle of its sub-panel and A is the (symmetric) Gaussian between
sub-panels. The gradient is the exact derivative of this E, so line searches see a consistent pair.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.polynomial import chebyshev
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.relationship.edges import UpperEdges
from homophily.relationship.functions import exp_negative
from homophily.threads import even_rows, run_chunks, thread_count

NODES = 16  # Chebyshev nodes per panel: interpolation error below 1e-16 at a width of σ/2
SUBPANELS = 16  # sub-panels per panel
TERMS = 7  # polynomial terms per sub-panel: re-expansion error below 1e-13
REACH = 9  # panels at a distance beyond which exp(−2x²/σ²) is below 1e-17
MAX_PANELS = 200_000  # 180 MB for each of the few arrays of coefficients, and one more per thread
BLOCK = 128  # edges per block: small enough that the block's arrays stay in the first-level cache
EDGES_WORTH_A_THREAD = 20_000  # about 0.15 ms of work, several times what handing it to a thread takes


def _interpolation_tables() -> tuple[Floats, Floats]:
    """Constants of the scheme, the same for every σ because panels have a width of σ/2.

    Returns the re-expansion ``refine`` (SUBPANELS·TERMS × NODES), from node values to polynomial coefficients, and the
    Gaussian ``kernel`` (2·REACH+1 × NODES × NODES) from the node weights of the panels around a panel to its values.
    """
    nodes = chebyshev.chebpts1(NODES)
    to_series = np.linalg.inv(chebyshev.chebvander(nodes, NODES - 1))
    inner = (chebyshev.chebpts1(TERMS) + 1) / 2
    to_powers = np.linalg.inv(np.vander(inner - 0.5, increasing=True))
    positions = (np.arange(SUBPANELS)[:, None] + inner) * (2 / SUBPANELS) - 1
    refine = np.einsum("ab,sbn->san", to_powers, chebyshev.chebvander(positions, NODES - 1) @ to_series)

    # Node q of a panel lies at (nodes[q] + 1)/2 panel widths, a panel is σ/2: exp(−2(x σ/2)²/σ²) = exp(−x²/2).
    places = (nodes + 1) / 2
    offsets = np.arange(-REACH, REACH + 1)[:, None, None] + places[None, :, None] - places[None, None, :]
    return refine.reshape(-1, NODES), np.exp(-(offsets**2) / 2)


REFINE, KERNEL = _interpolation_tables()
EXPAND = np.ascontiguousarray(REFINE.T)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _smooth_panels(moments: Floats, refine: Floats, kernel: Floats, expand: Floats, coefficients: Floats) -> None:
    panels = moments.shape[0]
    weights = np.zeros((panels, NODES))
    filled = np.zeros(panels, np.bool_)
    for panel in range(panels):
        for term in range(refine.shape[0]):
            moment = moments[panel, term]
            if moment != 0.0:
                filled[panel] = True
                for node in range(NODES):
                    weights[panel, node] += moment * refine[term, node]
    values = np.empty(NODES)
    for panel in range(panels):
        values[:] = 0.0
        for other in range(max(0, panel - REACH), min(panels, panel + REACH + 1)):
            if filled[other]:
                for source in range(NODES):
                    for node in range(NODES):
                        values[node] += weights[other, source] * kernel[other - panel + REACH, source, node]
        for node in range(NODES):
            for term in range(expand.shape[1]):
                coefficients[panel, term] += values[node] * expand[node, term]


def _smooth(moments: Floats) -> Floats:
    """A·moments, from sub-panel moments to the polynomials of their Gauss sum, both (sub-panels × TERMS)."""
    coefficients = np.zeros_like(moments)
    panels = (-1, SUBPANELS * TERMS)
    _smooth_panels(moments.reshape(panels), REFINE, KERNEL, EXPAND, coefficients.reshape(panels))
    return coefficients


@njit(cache=True, nogil=True, inline="always")
def add_powers(moments, place, weight):  # type: ignore[no-untyped-def]
    """Add weight · b(place) to the moments."""
    panel = int(place)
    t = place - panel - 0.5
    cell = moments[panel]
    for term in range(TERMS):
        cell[term] += weight
        weight *= t


@njit(cache=True, nogil=True, inline="always")
def value_and_slope(coefficients, place):  # type: ignore[no-untyped-def]
    """The piecewise polynomial and its derivative (per sub-panel width) at ``place``, by Horner's rule."""
    panel = int(place)
    t = place - panel - 0.5
    cell = coefficients[panel]
    value = cell[TERMS - 1]
    slope = 0.0
    for term in range(TERMS - 2, -1, -1):
        slope = slope * t + value
        value = value * t + cell[term]
    return value, slope


@njit(cache=True, nogil=True)
def spread_sources(places: Floats, moments: Floats) -> None:
    """Add b(x) of every point to the moments."""
    for i in range(places.size):
        add_powers(moments, places[i], 1.0)


@njit(cache=True, nogil=True, fastmath={"contract"})
def edge_pass(rows, cols, doubled, places, decay, coefficients, moments, gradient):  # type: ignore[no-untyped-def]
    """Add the edges' w·b(m) to ``moments`` and their part of the gradient, w = 2 G_jk exp(−decay (x_j − x_k)²).

    Blocks keep the loops simple enough for the compiler to vectorise the exponential.
    """
    gap, middle, weight = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, rows.size, BLOCK):
        size = min(BLOCK, rows.size - start)
        for e in range(size):
            j = places[rows[start + e]]
            k = places[cols[start + e]]
            gap[e] = j - k
            middle[e] = 0.5 * (j + k)
        for e in range(size):
            # exp(−138) is nothing beside rounding; products of much less are subnormal, which processors take long for.
            weight[e] = exp_negative(min(decay * gap[e] * gap[e], 138.0))
        for e in range(size):
            w = weight[e] * doubled[start + e]
            value, slope = value_and_slope(coefficients, middle[e])
            add_powers(moments, middle[e], w)
            apart = -2 * decay * gap[e] * w * value
            together = 0.5 * w * slope
            gradient[rows[start + e]] += together + apart
            gradient[cols[start + e]] += together - apart


@njit(cache=True, nogil=True)
def diagonal_pass(first, last, diagonal, places, coefficients, moments, gradient):  # type: ignore[no-untyped-def]
    """Add G_jj·b(f_j) and its part of the gradient, for the points from ``first`` to ``last``."""
    for j in range(first, last):
        add_powers(moments, places[j], diagonal[j])
        gradient[j] += diagonal[j] * value_and_slope(coefficients, places[j])[1]


@njit(cache=True, nogil=True)
def gather_adjoint(places: Floats, coefficients: Floats, partial: Floats, scale: float, gradient: Floats) -> None:
    """Set gradient ← scale · (Σ chunks' partial gradients + ∇ĝ)."""
    for i in range(places.size):
        total = value_and_slope(coefficients, places[i])[1]
        for chunk in range(partial.shape[0]):
            total += partial[chunk, i]
        gradient[i, 0] = scale * total


class ChebyshevEngine:
    """``engine(F) -> (tr(KᵀGK), gradient)`` for F of shape (u, 1); relative error about 1e-13 of Σ|G_jk| φ g."""

    def __init__(self, G: csr_array, sigma_f: float, *, n_jobs: int | None = None) -> None:
        self.edges = UpperEdges.of(G)
        self.scale = 2 * SUBPANELS / sigma_f  # sub-panels per unit of f
        self.decay = 1 / (2 * sigma_f**2 * self.scale**2)
        self.chunks = min(thread_count(n_jobs), 1 + self.edges.rows.size // EDGES_WORTH_A_THREAD)

    @staticmethod
    def copes_with(values_range: float, sigma_f: float) -> bool:
        """Whether the panels for F of this range stay within bounded memory."""
        return 2 * values_range / sigma_f < MAX_PANELS

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy and gradient at F."""
        values = F[:, 0]
        low, high = float(values.min()), float(values.max())
        if not math.isfinite(high - low) or not self.copes_with(high - low, SUBPANELS * 2 / self.scale):
            # A step far outside any sensible range: the line search backs off from an infinite energy.
            return math.inf, np.full_like(F, np.nan)
        # Panels start at a multiple of their width, so that the approximation does not shift with every F.
        places = values * self.scale
        places -= math.floor(low * self.scale / SUBPANELS) * SUBPANELS
        subpanels = (int(places.max()) // SUBPANELS + 1) * SUBPANELS

        sources = np.zeros((subpanels, TERMS))
        spread_sources(places, sources)
        sums = _smooth(sources)

        edges, points = self.edges, values.size
        moments = np.zeros((self.chunks, subpanels, TERMS))
        partial = np.zeros((self.chunks, points))
        edge_cuts, row_cuts = even_rows(edges.rows.size, self.chunks), even_rows(points, self.chunks)

        def run(chunk: int) -> None:
            part = edges.part(*edge_cuts[chunk : chunk + 2])
            edge_pass(*part, places, self.decay, sums, moments[chunk], partial[chunk])
            first, last = row_cuts[chunk : chunk + 2]
            diagonal_pass(first, last, edges.diagonal, places, sums, moments[chunk], partial[chunk])

        run_chunks(run, self.chunks)
        total, gradient = moments.sum(axis=0), np.empty_like(F)
        gather_adjoint(places, _smooth(total), partial, self.scale, gradient)
        return float(np.vdot(total, sums)), gradient
