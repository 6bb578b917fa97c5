"""Full ERR over points that are divided between machines, simulated on one: the same solution by one all-reduce a step.

With E = νᵀAμ (see :mod:`homophily.relationship.chebyshev`) all that a machine must know of the points of others is the
sum of their node weights, of the points (μ) and of the edges (ν): 16 numbers a panel of σ_f/2 each, however many points
there are. An evaluation of the energy and its gradient is then, on every machine,

1. values of the points at the other end of edges that cross (its neighbours' boundary, nobody else's),
2. a pass over its own points and edges for its share of μ and ν,
3. **one all-reduce** of both,
4. a pass for the gradient at its own points.

The preconditioner adds boundary values, conjugate gradients a few scalar products. Energy, gradient and preconditioner
read nothing of another partition but through :class:`Network`, which counts; the optimiser is the core's own, on whole
vectors, so its scalar products are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from benchmarks.data import draw_labels, helices
from benchmarks.report import Options, Report
from homophily import IRRClassifier, KNNGraph
from homophily.relationship import chebyshev
from homophily.relationship.chebyshev import NODES, REACH, SUBPANELS, TERMS, ChebyshevEngine
from homophily.solve.label_energy import LabelEnergy, PolynomialPreconditioner
from homophily.solve.nonlinear_cg import NonlinearCG, State

SIZES = (20_000, 100_000)
QUICK_SIZES = (2_000,)
# One part is no partition: how far rounding alone brings it away from the engine of the core.
PARTS = (1, 2, 3, 4, 8)
LAMBDA1, LAMBDA2, SIGMA_F = 1e-2, 1e-2, 0.5
STEPS = 200
# ERRClassifier's default, and far beyond it, where conjugate gradients have multiplied the rounding of each step. The
# second number is how far values may then be from those of the whole.
TOLERANCES = {0.1: 1e-9, 1e-4: 1e-6}
SAME_GRADIENT = 1e-11

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def run(options: Options, report: Report) -> None:
    for points in QUICK_SIZES if options.quick else SIZES:
        report.progress(f"{points:,} points")
        compare(points, report)


def compare(points: int, report: Report) -> None:
    """Solve whole and in parts, and tell the differences."""
    X, y = helices(points)
    few = draw_labels(y, max(20, points // 100), seed=0)
    graph = KNNGraph().fit(X)
    G = csr_array(graph.laplacian())
    start = IRRClassifier(power=1, lambda1=LAMBDA1).fit(graph, few).solution_[:, :1]
    confidence = (few >= 0).astype(np.float64)
    targets = np.where(few >= 0, 2.0 * few - 1.0, 0.0)[:, None]
    curvature = LAMBDA1 + LAMBDA2 / (2.0 * SIGMA_F**2)
    weight = LAMBDA2 / points
    precondition = PolynomialPreconditioner(G, 1, confidence, curvature)
    whole = LabelEnergy(G, 1, confidence, targets, LAMBDA1, ChebyshevEngine(G, SIGMA_F), weight)
    slope = whole(start)[1]
    rows = []
    for tolerance, bar in TOLERANCES.items():
        expected = NonlinearCG(whole, STEPS, tolerance, precondition).run(start)
        for count in PARTS:
            parts = [Part.cut_out(G, owned, confidence, targets) for owned in divide(X, count)]
            energy = PartitionedEnergy(parts, SIGMA_F, LAMBDA1, weight, start)
            gradient = float(np.abs(energy(start)[1] - slope).max() / np.abs(slope).max())
            parted = PartitionedPreconditioner(energy, curvature)
            energy.network = Network()
            found = NonlinearCG(energy, STEPS, tolerance, parted).run(start)
            difference = float(np.abs(found.x - expected.x).max())
            rows.append(row(tolerance, energy, expected, found, gradient))
            if not (difference <= bar and gradient <= SAME_GRADIENT):
                report.fail(f"{count} parts, to {tolerance:g}: values differ by {difference:.1e}, more than {bar:g}")
    report.table(f"{points:,} points in parts against the whole, k = 10, p = 1, σ_f = {SIGMA_F:g}", rows)


def row(
    tolerance: float, energy: PartitionedEnergy, expected: State, found: State, gradient: float
) -> dict[str, float]:
    network = energy.network
    return {
        "tolerance": tolerance,
        "parts": len(energy.parts),
        "evaluations": found.n_evaluations,
        "Δ gradient": gradient,
        "Δ energy": abs(found.energy - expected.energy) / abs(expected.energy),
        "Δ values": float(np.abs(found.x - expected.x).max()),
        "other labels": int(np.sum((found.x > 0) != (expected.x > 0))),
        "all-reduces": network.reductions,
        "numbers each": network.reduced // network.reductions // 8,
        "bytes each": network.reduced // network.reductions,
        "at most": network.largest,
        "boundary %": 100 * sum(part.ghosts.size for part in energy.parts) / len(found.x),
        "its bytes a part": network.exchanged // max(1, found.n_evaluations) // len(energy.parts),
    }


def divide(X: Floats, count: int, rows: Indices | None = None) -> list[Indices]:
    """Points in ``count`` parts of equal size, by halving along the widest axis: few edges cross."""
    chosen = np.arange(len(X)) if rows is None else rows
    if count == 1:
        return [np.sort(chosen)]
    axis = int(np.ptp(X[chosen], axis=0).argmax())
    ordered = chosen[np.argsort(X[chosen, axis], kind="stable")]
    left = count // 2
    cut = len(ordered) * left // count
    return [*divide(X, left, ordered[:cut]), *divide(X, count - left, ordered[cut:])]


@dataclass
class Network:
    """What crosses between parts, counted."""

    reductions: int = 0
    reduced: int = 0
    largest: int = 0
    exchanged: int = 0

    def all_reduce(self, shares: list[Floats], together: np.ufunc = np.add) -> Floats:
        """The sum (or maximum) of all shares, which then every part has."""
        self.reductions += 1
        self.reduced += shares[0].nbytes
        self.largest = max(self.largest, shares[0].nbytes)
        total = shares[0].copy()
        for share in shares[1:]:
            together(total, share, out=total)
        return total

    def fetch(self, F: Floats, ghosts: Indices) -> Floats:
        """Values of points that other parts own."""
        self.exchanged += 8 * ghosts.size
        return F[ghosts]


@dataclass
class Part:
    """What one machine holds: its points, numbered anew, behind them the points of others that its edges reach."""

    owned: Indices
    ghosts: Indices
    smooth: csr_array
    """Its rows of G, columns numbered anew."""
    rows: NDArray[np.int32]
    cols: NDArray[np.int32]
    doubled: Floats
    """2 G_jk of each edge with an end in this part, once."""
    counted: Floats
    """The same, half of it for edges that cross: the other end's part counts the other half."""
    diagonal: Floats
    confidence: Floats
    targets: Floats
    values: Floats = field(init=False)
    """F at its points and at the ghosts."""

    @classmethod
    def cut_out(cls, G: csr_array, owned: Indices, confidence: Floats, targets: Floats) -> Part:
        """The part of a whole that a machine with these points would load."""
        rows = csr_array(G[owned])
        reached = np.unique(rows.indices)
        ghosts = np.setdiff1d(reached, owned)
        number = np.full(G.shape[0], -1, np.int32)
        number[owned] = np.arange(owned.size, dtype=np.int32)
        number[ghosts] = np.arange(owned.size, owned.size + ghosts.size, dtype=np.int32)
        shape = (owned.size, owned.size + ghosts.size)
        smooth = csr_array((rows.data, number[rows.indices], rows.indptr), shape=shape)
        entries = smooth.tocoo()
        ends, others = entries.row.astype(np.int32), entries.col.astype(np.int32)
        once = ends < others
        crosses = others[once] >= owned.size
        doubled = 2.0 * entries.data[once]
        return cls(
            owned,
            ghosts,
            smooth,
            ends[once],
            others[once],
            doubled,
            np.where(crosses, 0.5, 1.0) * doubled,
            np.ascontiguousarray(G.diagonal()[owned]),
            confidence[owned, None],
            targets[owned],
        )


class PartitionedEnergy:
    """The energy of :class:`homophily.solve.label_energy.LabelEnergy`, p = 1, two classes, from parts alone."""

    def __init__(self, parts: list[Part], sigma_f: float, lambda1: float, weight: float, start: Floats) -> None:
        self.parts, self.lambda1, self.weight = parts, lambda1, weight
        self.scale = 2 * SUBPANELS / sigma_f
        self.decay = 1 / (2 * sigma_f**2 * self.scale**2)
        self.network = Network()
        # Agreed on at the start. Who leaves it says so in the all-reduce, which is then done again with a wider one.
        self.window = self._panels(float(start.min()), float(start.max()))

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy and gradient. F and the gradient are the optimiser's, cut up here as if each part had its own."""
        for part in self.parts:
            part.values = np.concatenate([F[part.owned, 0], self.network.fetch(F[:, 0], part.ghosts)])
        while True:
            shares = [self._share(part) for part in self.parts]
            total = self.network.all_reduce(shares)
            if not total[-1]:
                break
            (first, last), more = self.window, 1 + (self.window[1] - self.window[0]) // 4
            self.window = first - more, last + more
        panels = self.window[1] - self.window[0]
        sources, edges = total[:-2].reshape(2, panels, NODES)
        # Where the points are now, with a panel to spare at each end: everybody can tell from the sum.
        filled = np.flatnonzero(np.abs(sources).sum(axis=1))
        at, self.window = self.window[0], (self.window[0] + filled[0] - 1, self.window[0] + filled[-1] + 2)
        sums, adjoint = smoothed(sources), smoothed(edges)
        energy = self.weight * float(np.vdot(edges, through_kernel(sources))) + float(total[-2])
        gradient = np.empty_like(F)
        for part in self.parts:
            gradient[part.owned] = self._gradient(part, at, sums, adjoint)
        return energy, gradient

    def _panels(self, low: float, high: float) -> tuple[int, int]:
        per_panel = self.scale / SUBPANELS
        return math.floor(low * per_panel), math.floor(high * per_panel) + 1

    def _places(self, part: Part, at: int) -> Floats:
        """Where values are, in sub-panels behind the window's first."""
        return part.values * self.scale - at * SUBPANELS

    def _share(self, part: Part) -> Floats:
        """Node weights of its points and edges, its own terms of the energy, and whether it is out of the window."""
        first, last = self._panels(float(part.values.min()), float(part.values.max()))
        panels = self.window[1] - self.window[0]
        if first < self.window[0] or last > self.window[1]:
            share = np.zeros(2 * panels * NODES + 2)
            share[-1] = 1.0
            return share
        places, own = self._places(part, self.window[0]), part.owned.size
        sources = np.zeros((panels * SUBPANELS, TERMS))
        edges, nothing, unused = np.zeros_like(sources), np.zeros_like(sources), np.zeros(places.size)
        chebyshev.spread_sources(places[:own], sources)
        # Without coefficients the pass is only a sum over edges.
        chebyshev.edge_pass(part.rows, part.cols, part.counted, places, self.decay, nothing, edges, unused)
        chebyshev.diagonal_pass(0, own, part.diagonal, places, nothing, edges, unused)
        misfit = part.values[:own, None] - part.targets
        smooth = part.smooth @ part.values
        local = float(np.vdot(part.confidence * misfit, misfit)) + self.lambda1 * float(
            np.vdot(part.values[:own], smooth)
        )
        return np.concatenate([node_weights(sources), node_weights(edges), [local, 0.0]])

    def _gradient(self, part: Part, at: int, sums: Floats, adjoint: Floats) -> Floats:
        places, own = self._places(part, at), part.owned.size
        unused, partial = np.zeros_like(sums), np.zeros((1, places.size))
        chebyshev.edge_pass(part.rows, part.cols, part.doubled, places, self.decay, sums, unused, partial[0])
        chebyshev.diagonal_pass(0, own, part.diagonal, places, sums, unused, partial[0])
        gradient = np.empty((own, 1))
        chebyshev.gather_adjoint(places[:own], adjoint, partial[:, :own], self.weight * self.scale, gradient)
        gradient += 2.0 * part.confidence * (part.values[:own, None] - part.targets)
        gradient[:, 0] += 2.0 * self.lambda1 * (part.smooth @ part.values)
        return gradient


class PartitionedPreconditioner(PolynomialPreconditioner):
    """The same Chebyshev steps from parts alone: three numbers agreed on at the start, then values at the boundary."""

    def __init__(self, energy: PartitionedEnergy, scale: float) -> None:
        self.energy, self.scale = energy, scale
        parts, network = energy.parts, energy.network
        total, points = network.all_reduce([np.array([part.diagonal.sum(), part.owned.size]) for part in parts])
        shift = self.SHIFT * (total / points or 1.0)
        self.shifted, self.root = np.empty((int(points), 1)), np.empty((int(points), 1))
        bounds = []
        for part in parts:
            shifted = part.confidence[:, 0] + scale * shift
            diagonal = shifted + scale * part.diagonal
            rows = shifted + scale * abs(part.smooth).sum(axis=1)
            bounds.append(np.array([np.max(rows / diagonal), np.max(-shifted / diagonal)]))
            self.shifted[part.owned, 0], self.root[part.owned, 0] = shifted, diagonal**-0.5
        largest, smallest = network.all_reduce(bounds, np.maximum) * [1.0, -1.0]
        self.centre, self.radius = (largest + smallest) / 2, (largest - smallest) / 2

    def _smooth(self, F: Floats) -> Floats:
        product = np.empty_like(F)
        for part in self.energy.parts:
            ghosts = self.energy.network.fetch(F[:, 0], part.ghosts)
            product[part.owned, 0] = part.smooth @ np.concatenate([F[part.owned, 0], ghosts])
        return product


def node_weights(moments: Floats) -> Floats:
    """112 moments of a panel's sub-panels as 16 weights of its Chebyshev nodes: all that the Gaussian sees of them."""
    weights: Floats = moments.reshape(-1, SUBPANELS * TERMS) @ chebyshev.REFINE
    return weights.ravel()


def through_kernel(weights: Floats) -> Floats:
    """The Gaussian between panels, at their nodes."""
    panels = len(weights)
    values = np.zeros_like(weights)
    for panel in range(panels):
        for other in range(max(0, panel - REACH), min(panels, panel + REACH + 1)):
            values[panel] += weights[other] @ chebyshev.KERNEL[other - panel + REACH]
    return values


def smoothed(weights: Floats) -> Floats:
    """Polynomials of the Gauss sum, sub-panel by sub-panel."""
    coefficients: Floats = through_kernel(weights) @ chebyshev.EXPAND
    return np.ascontiguousarray(coefficients.reshape(-1, TERMS))
