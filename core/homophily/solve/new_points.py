"""Values for points that were not there in ``fit``: the energy in f(x) alone, everything else fixed.

It is that of :mod:`homophily.solve.point_energy` with α = λ1, t = Σ_j a_j f_j, w = λ2/u and g_own = (1 − r) g + ĝ/d,
where r = (1 − repulsion)(1 − Σ_j a_j) is left out of the point's own row sum (λ2 = 0 for IRR, whose minimum is t). The
Gauss sums g over the stored values and ĝ over the stored edges are smooth, so each is kept as a few Gaussians at
landmark positions. Powers of the Laplacian are extended with p = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.graph.knn_graph import KNNGraph
from homophily.relationship.edges import UpperEdges
from homophily.relationship.nystrom import choose_landmarks
from homophily.solve.point_energy import Attached, attach, descend
from homophily.state import State, StateReader
from homophily.threads import even_rows, run_chunks, thread_count

# Landmarks of the Gauss sums: with 256 they are good to a few parts in a million (tests: new_points).
MAX_LANDMARKS = 256
# A value stops where it moves by less than this, in units of σ_f.
PRECISION = 1e-10
BLOCK = 16_384


class GaussSums(NamedTuple):
    """g/u and ĝ/u as Σ_z coefficients_z exp(−2‖x − z‖²/σ_f²)."""

    landmarks: Floats
    stored: Floats
    """Coefficients of g/u."""
    edges: Floats
    """Coefficients of ĝ/u."""


class RelationshipTerm(NamedTuple):
    """What ERR adds to a new point's energy."""

    sigma_f: float
    lambda2: float
    repulsion: float
    sums: GaussSums

    @staticmethod
    def to_arrays(terms: Sequence[RelationshipTerm | None]) -> State:
        """The terms of one solution, with their landmarks one after the other."""
        there = [term for term in terms if term is not None]
        arrays = {
            f"term_{name}": np.concatenate([getattr(term.sums, name) for term in there])
            for name in GaussSums._fields
            if there
        }
        return State(arrays, {"terms": [None if term is None else term._numbers() for term in terms]})

    def _numbers(self) -> dict[str, Any]:
        numbers = {name: float(value) for name, value in self._asdict().items() if name != "sums"}
        return numbers | {"landmarks": len(self.sums.landmarks)}

    @classmethod
    def from_arrays(cls, stored: StateReader, columns: int) -> tuple[Self | None, ...]:
        """The terms of a solution with ``columns`` columns whose :meth:`to_arrays` is stored."""
        terms = stored.value("terms", list)
        if len(terms) not in (1, columns):
            raise ValueError(f"The 'terms' of a classifier's state must be 1 or {columns}. Got {len(terms)} instead.")
        if terms == [None]:
            return (None,)
        sections = [StateReader(State(stored.arrays, term), f"term {i}") for i, term in enumerate(terms)]
        ends = np.cumsum([section.integer("landmarks", 1) for section in sections])
        count = int(ends[-1])
        landmarks = np.split(stored.copy("term_landmarks", (count, columns // len(terms))), ends[:-1])
        values, edges = (np.split(stored.copy(f"term_{name}", (count,)), ends[:-1]) for name in ("stored", "edges"))
        return tuple(
            cls(section.number("sigma_f"), section.number("lambda2"), section.number("repulsion"), GaussSums(*sums))
            for section, *sums in zip(sections, landmarks, values, edges, strict=True)
        )


class Columns(NamedTuple):
    """Columns of F whose new values are found together, contiguous in memory."""

    F: Floats
    relationships: RelationshipTerm | None


def gauss_sums(F: Floats, G: csr_array, sigma_f: float) -> GaussSums:
    """Project the mean of the Gauss sums over values and edges onto Gaussians at landmarks chosen among the values."""
    narrow = sigma_f / np.sqrt(2.0)
    landmarks = choose_landmarks(F, narrow, most=MAX_LANDMARKS, tolerance=1e-4)
    edges = UpperEdges.of(G)
    at_landmarks = np.zeros((len(landmarks), 2))
    for start in range(0, len(F), BLOCK):
        block = F[start : start + BLOCK]
        kernel = _kernel(landmarks, block, narrow)
        at_landmarks += kernel @ np.column_stack([np.ones(len(block)), edges.diagonal[start : start + BLOCK]])
    for start in range(0, edges.rows.size, BLOCK):
        rows, columns, doubled = edges.part(start, start + BLOCK)
        ends, others = F[rows], F[columns]
        weights = doubled * np.exp(-np.sum((ends - others) ** 2, axis=1) / (2 * sigma_f**2))
        at_landmarks[:, 1] += _kernel(landmarks, (ends + others) / 2, narrow) @ weights
    gram = _kernel(landmarks, landmarks, narrow)
    gram[np.diag_indices_from(gram)] += 1e-10
    stored, adjoint = cho_solve(cho_factor(gram), at_landmarks / len(F)).T
    return GaussSums(landmarks, np.ascontiguousarray(stored), np.ascontiguousarray(adjoint))


def _kernel(Z: Floats, F: Floats, width: float) -> Floats:
    squares = np.sum(Z**2, axis=1)[:, None] + np.sum(F**2, axis=1) - 2.0 * Z @ F.T
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / width**2))


def extend(
    X: Any,
    graph: KNNGraph,
    columns: Sequence[Columns],
    known: NDArray[np.bool_],
    *,
    normalized: bool,
    lambda1: float,
    n_jobs: int | None = None,
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Values (m, n) and degrees (m,) of new points, and which of them have a neighbour whose value is ``known``.

    X is validated. A point at distance 0 from a stored one has the stored value and degree; where several are that
    close, the lowest index counts.
    """
    edges = attach(X, graph, normalized=normalized, known=known)
    own, reached = edges.degrees, edges.degrees > 0.0
    damping = np.ones_like(own) if normalized else np.where(reached, own, 1.0)
    parts = []
    for F, relationships in columns:
        values = np.einsum("mk,mkn->mn", edges.shares, F[edges.indices])
        if relationships is not None:
            values = _minimise(values, edges, damping, F, lambda1, relationships, n_jobs)
        values[edges.copies] = F[edges.twins]
        parts.append(values)
    own[edges.copies], reached[edges.copies] = graph.degrees[edges.twins], known[edges.twins]
    return np.hstack(parts), own, reached


def _minimise(
    t: Floats, edges: Attached, damping: Floats, F: Floats, lambda1: float, term: RelationshipTerm, n_jobs: int | None
) -> Floats:
    """Where the energy of each point is least, from IRR's value t."""
    sigma_f, weight, repulsion, sums = term
    own_weight = 1.0 - (1.0 - repulsion) * (1.0 - edges.shares.sum(axis=1))
    values = t.copy()
    weights = lambda1, weight, sigma_f**-2
    # The first step takes the curvature that the optimiser's preconditioner assumes.
    first_step = 0.5 / (lambda1 + weight / (2.0 * sigma_f**2))
    chunks = min(thread_count(n_jobs), max(1, len(t) // 64))
    cuts = even_rows(len(t), chunks)
    positions = np.ascontiguousarray(sums.landmarks.T)

    def run(chunk: int) -> None:
        part = slice(cuts[chunk], cuts[chunk + 1])
        attached = edges.shares[part], edges.indices[part], own_weight[part], damping[part]
        _descend(values[part], t[part], *attached, F, weights, positions, sums.stored, sums.edges, first_step)

    run_chunks(run, chunks)
    return values


@njit(cache=True, nogil=True)
def _descend(  # type: ignore[no-untyped-def]
    values, linear, shares, indices, own_weight, damping, F, weights, positions, stored, edges, first_step
):
    search = first_step, np.inf, np.inf, PRECISION
    room = np.empty((6, F.shape[1])), np.empty(stored.size)
    ends = np.empty((shares.shape[1], F.shape[1]))
    for i in range(values.shape[0]):
        for e in range(shares.shape[1]):
            for d in range(F.shape[1]):
                ends[e, d] = F[indices[i, e], d]
        own = own_weight[i] * stored + edges / damping[i]
        gauss = positions, own, positions, stored
        descend(values[i], linear[i], weights, gauss, (ends, shares[i], np.inf), None, search, *room)
