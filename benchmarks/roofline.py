"""Nanoseconds an edge of the energy-and-gradient pass, where they go, and what the machine would allow."""

from __future__ import annotations

from functools import partial

import numpy as np
from numba import njit
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from benchmarks.data import Floats, draw_labels, mnist
from benchmarks.measure import typical_seconds
from benchmarks.report import Cell, Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.relationship.chebyshev import BLOCK, TERMS, ChebyshevEngine, add_powers, value_and_slope
from homophily.relationship.functions import exp_negative

PARTS = ("edge list and values", "exponential", "polynomial", "moments", "gradient scatter")
PROTOTYPE = 30.0  # ns an edge and core
# Two 4-byte indices and an 8-byte weight come from memory once an edge; values, gradients and polynomials are reused.
STREAMED_BYTES = 16
# Values of two points, their gradients read and written, a cell of coefficients, and one of moments read and written.
CACHED_BYTES = 2 * 8 + 2 * 16 + TERMS * 8 + TERMS * 16
# Distance and middle 3, exponential 30, value and slope 4 a term, moments 3 a term, gradient 9.
OPERATIONS = 3 + 30 + 4 * (TERMS - 1) + 3 * TERMS + 9


def run(options: Options, report: Report) -> None:
    data = mnist(options.data, 3_000 if options.quick else 60_000)
    report.progress("graph")
    graph = KNNGraph().fit(data.X)
    F = IRRClassifier(power=2).fit(graph, draw_labels(data.y, 300, seed=0)).solution_
    sigma_f = 2.0 * ERRClassifier.SIGMA_F
    bandwidth, arithmetic = stream_bandwidth(), multiply_add_rate()
    rows: list[Row] = []
    for power in (1, 2):
        G = graph.laplacian(power)
        for cores in (1, 2):
            report.progress(f"L^{power}, {cores} cores")
            rows.append(time_pass(G, F, sigma_f, power, cores))
    report.table(f"{data.name}: energy and gradient over {len(F):,} points", rows)
    parts = [breakdown(graph.laplacian(power), F, sigma_f, power) for power in (1, 2)]
    report.table("Nanoseconds an edge on one core, part by part", parts)
    explain(float(rows[0]["ns an edge and core"]), bandwidth, arithmetic, report)  # type: ignore[arg-type]


def time_pass(G: csr_array, F: Floats, sigma_f: float, power: int, cores: int) -> Row:
    engine = ChebyshevEngine(G, sigma_f, n_jobs=cores)
    seconds = typical_seconds(lambda: engine(F))
    edges = engine.edges.rows.size
    each = 1e9 * seconds * engine.chunks / edges
    return {
        "G": f"L^{power}",
        "edges": edges,
        "cores": engine.chunks,
        "ms": 1e3 * seconds,
        "ns an edge": 1e9 * seconds / edges,
        "ns an edge and core": each,
        "times as fast as the prototype": PROTOTYPE / each,
    }


def breakdown(G: csr_array, F: Floats, sigma_f: float, power: int) -> Row:
    """Each run does what the one before does and a part more; the differences are the parts."""
    engine = ChebyshevEngine(G, sigma_f, n_jobs=1)
    edges = engine.edges
    places = (F[:, 0] - F.min()) * engine.scale
    cells = int(places.max()) + 2
    coefficients, moments = np.ones((cells, TERMS)), np.zeros((cells, TERMS))
    gradient = np.zeros(len(F))
    arrays = edges.rows, edges.cols, edges.doubled, places, engine.decay, coefficients, moments, gradient
    row: dict[str, Cell] = {"G": f"L^{power}"}
    before = 0.0
    for parts, name in enumerate(PARTS, start=1):
        seconds = typical_seconds(partial(_first_parts, parts, *arrays), budget=0.5)
        total = 1e9 * seconds / edges.rows.size
        row[name], before = total - before, total
    row["sum"] = before
    row["whole engine"] = 1e9 * typical_seconds(lambda: engine(F)) / edges.rows.size
    return row


def explain(measured: float, bandwidth: float, arithmetic: float, report: Report) -> None:
    memory, compute = STREAMED_BYTES / bandwidth, OPERATIONS / arithmetic
    report.note(
        f"An edge streams {STREAMED_BYTES} bytes and moves {CACHED_BYTES} within the caches, for about {OPERATIONS} "
        f"operations: {OPERATIONS / STREAMED_BYTES:.1f} a streamed byte."
    )
    report.note(
        f"One core streams {bandwidth:.1f} bytes/ns (triad) and does {arithmetic:.1f} operations/ns (matrix product): "
        f"the bounds are {memory:.1f} ns by memory and {compute:.1f} ns by arithmetic; measured {measured:.1f} ns."
    )
    bound = "memory bandwidth" if memory > compute else "arithmetic"
    if measured > 2 * max(memory, compute):
        bound = "neither of these bounds; most likely by the latency of the cells and points that each edge picks"
    report.note(f"Bound by {bound}.")
    report.note(
        "The parts are timed in a kernel of their own, with another exponential: a guide, they need not add up."
    )


def stream_bandwidth() -> float:
    """Bytes a nanosecond of a ← b + s·c on one core, on arrays beyond the caches."""
    a, b, c = (np.ones(8_000_000) for _ in range(3))
    return 3 * a.nbytes / (1e9 * typical_seconds(lambda: _triad(a, b, c)))


def multiply_add_rate() -> float:
    """Operations a nanosecond of BLAS's matrix product on one core: what well-fed vector units reach."""
    a = np.ones((600, 600))
    with threadpool_limits(1):
        return 2 * len(a) ** 3 / (1e9 * typical_seconds(lambda: a @ a, budget=0.5))


@njit(nogil=True)
def _triad(a, b, c):  # type: ignore[no-untyped-def]
    for i in range(a.size):
        a[i] = b[i] + 3.0 * c[i]


@njit(nogil=True, fastmath={"contract"})
def _first_parts(parts, rows, cols, doubled, places, decay, coefficients, moments, gradient):  # type: ignore[no-untyped-def]
    """The engine's pass over the edges with each of PARTS in a loop of its own, up to the one asked for."""
    gap, middle, weight = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    value, slope = np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, rows.size, BLOCK):
        size = min(BLOCK, rows.size - start)
        for e in range(size):
            j, k = places[rows[start + e]], places[cols[start + e]]
            gap[e], middle[e] = j - k, 0.5 * (j + k)
        if parts > 1:
            for e in range(size):
                weight[e] = doubled[start + e] * exp_negative(decay * gap[e] * gap[e])
        if parts > 2:
            for e in range(size):
                value[e], slope[e] = value_and_slope(coefficients, middle[e])
        if parts > 3:
            for e in range(size):
                add_powers(moments, middle[e], weight[e])
        if parts > 4:
            for e in range(size):
                apart = -2 * decay * gap[e] * weight[e] * value[e]
                together = 0.5 * weight[e] * slope[e]
                gradient[rows[start + e]] += together + apart
                gradient[cols[start + e]] += together - apart
