"""The ratio-of-differences scheme for a cut with penalties: one division of a graph into two.

A division C of n vertices is scored by

    (cut(C) + γ · cannot-links with both ends on one side) · vol(V) / (vol(C) vol(V∖C)),

and f ∈ Rⁿ, of which C is a level set, by the Lovász extensions of numerator and denominator:

    R(f) = Σ_edges w|f_i − f_j| + γ Σ_cannot (max f − min f − |f_i − f_j|),   S(f) = Σ_{i<j} d_i d_j |f_i − f_j| / vol.

R is a difference of convex functions, S is convex. A step replaces what is subtracted by its tangent at f and minimises

    Σ_edges w|f_i − f_j| + κ (max f − min f) − ⟨g, f⟩,   κ = γ · number of cannot-links,   over ‖f‖ ≤ 1,

with g out of the subgradients of γ Σ_cannot |f_i − f_j| + (R/S) S. Its dual is the point nearest to 0 of a box and two
simplices, which accelerated projected gradients find. R/S falls with every step; the best level set is no worse than f.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array, triu

from homophily.arrays import Floats

# Bounds: outer steps end when the ratio no longer falls, and inner ones need not be exact for it to fall.
OUTER_STEPS = 40
INNER_STEPS = 400
CHECK_EVERY = 25


class Division(NamedTuple):
    """One of the two sides, its score without the penalty, and the cannot-links inside a side."""

    inside: NDArray[np.bool_]
    score: float
    violations: float


class CutProblem:
    """Weights, vertex masses d and cannot-links (a symmetric matrix of multiplicities) of the vertices to divide."""

    def __init__(self, weights: csr_array, masses: Floats, cannot: csr_array) -> None:
        self.weights, self.masses, self.cannot = weights, masses, cannot
        self.n_links = float(cannot.sum()) / 2
        edges = triu(weights, k=1).tocoo()
        self.rows, self.cols = edges.row.astype(np.int64), edges.col.astype(np.int64)
        self.bounds = edges.data.astype(np.float64)
        apart = triu(cannot, k=1).tocoo()
        self.apart = apart.row.astype(np.int64), apart.col.astype(np.int64), apart.data.astype(np.float64)
        links = np.bincount(self.rows, minlength=len(masses)) + np.bincount(self.cols, minlength=len(masses))
        # Gershgorin on AᵀA, and 2 for the simplices.
        self.lipschitz = 2.0 * float(links.max(initial=0)) + 2.0

    def divide(self, f: Floats, gamma: float) -> tuple[Floats, Division]:
        """Descend from f; the last f and the best level set seen."""
        best = self.best_level(f, gamma)
        ties = f.copy()
        dual = np.zeros(len(self.bounds)), np.full(len(f), 1.0 / len(f)), np.full(len(f), 1.0 / len(f))
        edges, kappa = (self.rows, self.cols, self.bounds), gamma * self.n_links
        value = self._ratio(f, gamma)
        for _ in range(OUTER_STEPS):
            g = value * _balance_slope(f, self.masses)
            _add_cannot_slope(g, f, ties, *self.apart, gamma)
            following = _inner(edges, g, kappa, self.lipschitz, *dual, INNER_STEPS)
            lower = self._ratio(following, gamma)
            if not lower < value * (1 - 1e-6):
                break
            f, value = following, lower
            best = min(best, self.best_level(f, gamma), key=lambda division: self.total(division, gamma))
            # The level set scores no worse than f, and often better: then go on from there.
            jump = best.inside.astype(np.float64)
            if self._ratio(jump, gamma) < value * (1 - 1e-6):
                f, value = jump, self._ratio(jump, gamma)
        return f, best

    def best_level(self, f: Floats, gamma: float) -> Division:
        """The level set of f with the lowest score."""
        order = np.argsort(-f, kind="stable")
        weights, cannot = ((each.indptr, each.indices, each.data) for each in (self.weights, self.cannot))
        size, score, violations = _best_prefix(order, f, self.masses, weights, cannot, gamma)
        inside = np.zeros(len(f), dtype=bool)
        inside[order[:size]] = True
        return Division(inside, score, violations)

    def obey(self, division: Division) -> NDArray[np.bool_]:
        """The division after one end of each violated cannot-link, the one with less to cut, has changed sides."""
        inside = division.inside.copy()
        for i, j in zip(*self.apart[:2], strict=True):
            if inside[i] == inside[j]:
                inside[min((i, j), key=lambda vertex: self._cost_of_moving(vertex, inside))] ^= True
        return inside

    def _cost_of_moving(self, vertex: int, inside: NDArray[np.bool_]) -> float:
        row = slice(self.weights.indptr[vertex], self.weights.indptr[vertex + 1])
        same = inside[self.weights.indices[row]] == inside[vertex]
        return float(np.sum(np.where(same, self.weights.data[row], -self.weights.data[row])))

    def total(self, division: Division, gamma: float) -> float:
        """Score and penalty of a division."""
        mass, volume = float(self.masses[division.inside].sum()), float(self.masses.sum())
        balance = mass * (volume - mass) / volume
        return division.score + gamma * division.violations / balance if balance > 0 else np.inf

    def _ratio(self, f: Floats, gamma: float) -> float:
        balance = float(_balance_slope(f, self.masses) @ f)
        if not balance > 0:
            return np.inf
        variation = float(self.bounds @ np.abs(f[self.rows] - f[self.cols]))
        i, j, count = self.apart
        spread = self.n_links * np.ptp(f) - float(count @ np.abs(f[i] - f[j]))
        return (variation + gamma * spread) / balance


def _balance_slope(f: Floats, masses: Floats) -> Floats:
    """A subgradient of S: d_i (mass below f_i − mass above f_i)/vol."""
    _, level = np.unique(f, return_inverse=True)
    at = np.bincount(level, weights=masses)
    up_to = np.cumsum(at)
    return np.asarray(masses * (2.0 * up_to - at - up_to[-1])[level] / up_to[-1])


@njit(cache=True)
def _add_cannot_slope(g: Any, f: Any, ties: Any, i: Any, j: Any, count: Any, gamma: float) -> None:
    """Add a subgradient of γ Σ |f_i − f_j|; ends of the same value are parted as the start had them."""
    for e in range(i.size):
        difference = f[i[e]] - f[j[e]]
        if difference == 0.0:
            difference = ties[i[e]] - ties[j[e]]
        slope = gamma * count[e] * np.sign(difference)
        g[i[e]] += slope
        g[j[e]] -= slope


@njit(cache=True)
def _best_prefix(order: Any, f: Any, masses: Any, weights: Any, cannot: Any, gamma: float) -> Any:
    """Size, score and violations of the best C among the first vertices in ``order``."""
    indptr, indices, data = weights
    link_indptr, link_indices, links = cannot
    n = order.size
    inside = np.zeros(n, dtype=np.bool_)
    volume, violated = masses.sum(), links.sum() / 2
    cut, mass = 0.0, 0.0
    best, size, score, violations = np.inf, 0, np.inf, violated
    for k in range(n - 1):
        i = order[k]
        for e in range(indptr[i], indptr[i + 1]):
            if indices[e] != i:
                cut += -data[e] if inside[indices[e]] else data[e]
        for e in range(link_indptr[i], link_indptr[i + 1]):
            violated += links[e] if inside[link_indices[e]] else -links[e]
        inside[i] = True
        mass += masses[i]
        if f[order[k]] == f[order[k + 1]]:
            continue
        balance = mass * (volume - mass) / volume
        if balance > 0 and (cut + gamma * violated) / balance < best:
            best = (cut + gamma * violated) / balance
            size, score, violations = k + 1, cut / balance, violated
    return size, score, violations


@njit(cache=True)
def _project_simplex(x: Any, total: float) -> None:
    """The nearest point with x ≥ 0 and Σx = total."""
    falling = np.sort(x)[::-1]
    running, shift = 0.0, 0.0
    for k in range(x.size):
        running += falling[k]
        level = (running - total) / (k + 1)
        if falling[k] >= level:
            shift = level
    for k in range(x.size):
        x[k] = max(x[k] - shift, 0.0)


@njit(cache=True)
def _inner(edges: Any, g: Any, kappa: float, lipschitz: float, alpha: Any, high: Any, low: Any, steps: int) -> Any:
    """Minimise ½‖Aᵀα + high − low − g‖² with |α| ≤ w and high, low in the simplex of sum κ; f is minus the residual.

    The three dual arrays are where it starts and where it ends.
    """
    rows, cols, bounds = edges
    n, m = g.size, bounds.size
    high *= kappa / max(high.sum(), 1e-300)
    low *= kappa / max(low.sum(), 1e-300)
    ahead, ahead_high, ahead_low = alpha.copy(), high.copy(), low.copy()
    momentum, step = 1.0, 1.0 / lipschitz
    f = np.empty(n)
    best = np.zeros(n)
    best_value = 0.0
    for iteration in range(1, steps + 1):
        for i in range(n):
            f[i] = g[i] - ahead_high[i] + ahead_low[i]
        for e in range(m):
            f[rows[e]] -= ahead[e]
            f[cols[e]] += ahead[e]
        rate = (1.0 + np.sqrt(1.0 + 4.0 * momentum * momentum)) / 2.0
        push = (momentum - 1.0) / rate
        momentum = rate
        for e in range(m):
            moved = ahead[e] + step * (f[rows[e]] - f[cols[e]])
            moved = min(max(moved, -bounds[e]), bounds[e])
            ahead[e] = moved + push * (moved - alpha[e])
            alpha[e] = moved
        if kappa > 0.0:
            moved_high, moved_low = ahead_high + step * f, ahead_low - step * f
            _project_simplex(moved_high, kappa)
            _project_simplex(moved_low, kappa)
            for i in range(n):
                ahead_high[i] = moved_high[i] + push * (moved_high[i] - high[i])
                ahead_low[i] = moved_low[i] + push * (moved_low[i] - low[i])
                high[i], low[i] = moved_high[i], moved_low[i]
        if iteration % CHECK_EVERY == 0:
            for i in range(n):
                f[i] = g[i] - high[i] + low[i]
            for e in range(m):
                f[rows[e]] -= alpha[e]
                f[cols[e]] += alpha[e]
            norm = np.sqrt(np.sum(f * f))
            if norm == 0.0:
                break
            value = kappa * (f.max() - f.min()) - np.sum(g * f)
            for e in range(m):
                value += bounds[e] * abs(f[rows[e]] - f[cols[e]])
            value /= norm
            if value < best_value:
                best_value = value
                best[:] = f / norm
            # Primal and dual value meet at −‖residual‖.
            if value + norm <= 0.02 * norm:
                break
    return best
