"""From the distances of neighbours to the weights of a graph, and to its Laplacian; formulas are in ``knn_graph``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from homophily.arrays import Floats
from homophily.graph.index_base import Distances, Indices
from homophily.parameters import wrong_parameter
from homophily.state import StateReader
from homophily.threads import even_rows, run_ranges, thread_count

# exp(-600) ≈ 1e-261: small enough to mean "hardly linked", large enough to divide by. Without a floor a far neighbour's
# weight would underflow to 0 and its edge vanish.
_LARGEST_EXPONENT = 600.0
# Entries that take about a millisecond.
_ENTRIES_WORTH_THREADS = 100_000


@dataclass(frozen=True)
class WeightRule:
    """From distances to weights; the formulas are in ``KNNGraph``.

    ``width`` is the common σ of "global" and "fixed", such that the weight is exp(-(d/width)^q); ``typical`` stands in
    for the σ of points with k copies; ``factor`` is what "local" and "self-tuning" widths are multiplied by.
    """

    kind: str
    exponent: int
    width: float
    typical: float
    factor: float = 1.0

    @classmethod
    def learn(cls, kind: str, exponent: int, sigma_x: float | None, distances: Distances, reach: Floats) -> Self:
        """The rule of that kind for neighbours at these distances."""
        positive = reach[reach > 0]
        typical = float(positive.mean()) if positive.size else 1.0
        width = typical
        factor = 1.0 if sigma_x is None else float(sigma_x)
        if kind == "fixed" and sigma_x is not None:
            width = float(sigma_x) ** (2 / exponent)
        elif kind == "global" and positive.size:
            # Relative to the largest distance, so that no square leaves the range of floats.
            largest = reach.max()
            mean = float(np.mean((distances[np.isfinite(distances)] / largest) ** exponent))
            width = largest * mean ** (1 / exponent) * factor
        return cls(kind, exponent, width, typical, factor)

    @classmethod
    def from_arrays(cls, stored: StateReader) -> Self:
        """The stored rule."""
        kind = stored.choice("kind", "local", "self-tuning", "global", "fixed")
        # Older files lack `factor`.
        factor = stored.number("factor") if "factor" in stored.document else 1.0
        return cls(kind, stored.integer("exponent", 1), stored.number("width"), stored.number("typical"), factor)

    def __call__(self, distances: Distances, own: Floats, other: Floats) -> Floats:
        """Weights from points of reach ``own`` to points of reach ``other``; 0 where the distance is inf."""
        own, other = (self.factor * np.where(reach > 0, reach, self.typical) for reach in (own, other))
        with np.errstate(over="ignore"):
            if self.kind == "local":
                fall = 4.0 * (distances / own) ** self.exponent
            elif self.kind == "self-tuning":
                fall = (np.sqrt(distances / own) * np.sqrt(distances / other)) ** self.exponent
            else:
                fall = (distances / self.width) ** self.exponent
        weights: Floats = np.exp(-np.minimum(fall, _LARGEST_EXPONENT))
        weights[np.isinf(distances)] = 0.0
        return weights


def farthest_listed(distances: Distances) -> Floats:
    """σ_i: the distance to the farthest neighbour listed, 0 without any."""
    listed: Distances = np.where(np.isfinite(distances), distances, 0.0)
    return np.asarray(listed.max(axis=1, initial=0.0))


def graph_laplacian(W: sparse.csr_array, degrees: Floats, normalized: bool) -> sparse.csr_array:
    """The Laplacian, normalised or not; an isolated point has a row of zeros."""
    linked = degrees > 0
    if not normalized:
        return canonical(sparse.diags_array(degrees, format="csr") - W)
    roots = np.sqrt(np.where(linked, degrees, 1.0))
    rows = np.repeat(np.arange(len(degrees)), np.diff(W.indptr))
    # Product of the roots first: it is the same for (i, j) and (j, i), so that L is symmetric to the last bit.
    scaled = sparse.csr_array((W.data / (roots[rows] * roots[W.indices]), W.indices, W.indptr), shape=W.shape)
    return canonical(sparse.diags_array(linked.astype(np.float64), format="csr") - scaled)


def canonical(matrix: Any) -> sparse.csr_array:
    """CSR in float64 with sorted, 32-bit indices where they fit, without stored zeros."""
    csr = sparse.csr_array(matrix, dtype=np.float64)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    if csr.nnz <= np.iinfo(np.int32).max:
        csr.indices, csr.indptr = csr.indices.astype(np.int32, copy=False), csr.indptr.astype(np.int32, copy=False)
    return csr


def neighborhood_pattern(indices: Indices, present: NDArray[np.bool_], columns: int) -> sparse.csr_array:
    """CSR of ones at equally long rows of indices, of which those not ``present`` are left out."""
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    ones = np.ones(int(indptr[-1]))
    return canonical(sparse.csr_array((ones, indices[present], indptr), shape=(len(indices), columns)))


def affinity_weights(X: Any, name: str = "X", owner: str = "KNNGraph") -> sparse.csr_array:
    """Symmetric weights without their diagonal."""
    weights = canonical(sparse.csr_array(X, copy=True))
    difference = abs(weights - weights.T)
    if difference.nnz and difference.max() > 1e-10 * weights.max():
        got = f"entries that differ by {difference.max():.3g} from their mirror image"
        raise wrong_parameter(name, owner, "symmetric" if name != "X" else "symmetric with metric='affinity'", got)
    weights = sparse.csr_array((weights + weights.T) * 0.5)
    weights.setdiag(0.0)
    return canonical(weights)


def edge_weights(edges: Any, points: int) -> sparse.csr_array:
    """Weights of given edges between the points."""
    matrix = sparse.csr_array(edges)
    if matrix.shape != (points, points):
        raise wrong_parameter("edges", "KNNGraph.fit", f"of shape ({points}, {points})", matrix.shape)
    if not np.isfinite(matrix.data).all() or matrix.data.min(initial=0) < 0:
        raise wrong_parameter("edges", "KNNGraph.fit", "finite weights of at least 0", "others")
    return affinity_weights(matrix, "edges", "KNNGraph.fit")


def with_edges(W: sparse.csr_array, edges: sparse.csr_array, share: float) -> sparse.csr_array:
    """(1 − share) W + share · edges, these scaled to the mean degree of W."""
    total = float(edges.sum())
    scale = float(W.sum()) / total if total > 0 else 0.0
    return canonical((1.0 - share) * W + (share * scale) * edges)


def symmetric_weights(
    weights: Floats,
    indices: Indices,
    present: NDArray[np.bool_],
    symmetrize: Literal["max", "mean"],
    n_jobs: int | None = None,
) -> sparse.csr_array:
    """W of directed weights (u, k): the mean or the larger one of W_ij and W_ji, where the missing one is 0."""
    u, k = weights.shape
    rows = even_rows(u, thread_count(n_jobs) if u * k > _ENTRIES_WORTH_THREADS else 1)
    columns, values = np.where(present, indices, -1), weights.copy()
    run_ranges(_sort_rows, rows, columns, values)
    back = np.zeros(u + 1, dtype=np.int64)
    _count_columns(columns, back)
    back_rows, back_values = np.empty(back[-1], dtype=np.int32), np.empty(back[-1])
    _transpose(columns, values, back[:-1].copy(), back_rows, back_values)
    counts = np.empty(u, dtype=np.int64)
    run_ranges(_count_merged, rows, columns, back, back_rows, counts)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    merged, data = np.empty(indptr[-1], dtype=np.int32), np.empty(indptr[-1])
    mirrored = back, back_rows, back_values
    run_ranges(_merge, rows, columns, values, *mirrored, symmetrize == "max", indptr, merged, data)
    if indptr[-1] <= np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)
    W = sparse.csr_array((data, merged, indptr), shape=(u, u))
    W.has_canonical_format = True
    return W


@njit(cache=True, nogil=True)
def _sort_rows(first, last, columns, values):  # type: ignore[no-untyped-def]
    """Sort each row by its columns; those that are missing (−1) come first."""
    for i in range(first, last):
        order = np.argsort(columns[i])
        columns[i] = columns[i][order]
        values[i] = values[i][order]


@njit(cache=True, nogil=True)
def _count_columns(columns, starts):  # type: ignore[no-untyped-def]
    for i in range(columns.shape[0]):
        for j in columns[i]:
            if j >= 0:
                starts[j + 1] += 1
    for j in range(starts.size - 1):
        starts[j + 1] += starts[j]


@njit(cache=True, nogil=True)
def _transpose(columns, values, place, rows, transposed):  # type: ignore[no-untyped-def]
    for i in range(columns.shape[0]):
        for c in range(columns.shape[1]):
            j = columns[i, c]
            if j >= 0:
                rows[place[j]], transposed[place[j]] = i, values[i, c]
                place[j] += 1


@njit(cache=True, nogil=True)
def _count_merged(first, last, columns, back, back_rows, counts):  # type: ignore[no-untyped-def]
    k = columns.shape[1]
    for i in range(first, last):
        c, e, count = 0, back[i], 0
        while c < k and columns[i, c] < 0:
            c += 1
        while c < k or e < back[i + 1]:
            there = c < k and (e == back[i + 1] or columns[i, c] <= back_rows[e])
            here = e < back[i + 1] and (c == k or back_rows[e] <= columns[i, c])
            c, e, count = c + there, e + here, count + 1
        counts[i] = count


@njit(cache=True, nogil=True)
def _merge(  # type: ignore[no-untyped-def]
    first, last, columns, values, back, back_rows, back_values, take_larger, indptr, merged, data
):
    k = columns.shape[1]
    for i in range(first, last):
        c, e, place = 0, back[i], indptr[i]
        while c < k and columns[i, c] < 0:
            c += 1
        while c < k or e < back[i + 1]:
            there = c < k and (e == back[i + 1] or columns[i, c] <= back_rows[e])
            here = e < back[i + 1] and (c == k or back_rows[e] <= columns[i, c])
            merged[place] = columns[i, c] if there else back_rows[e]
            ours, theirs = values[i, c] if there else 0.0, back_values[e] if here else 0.0
            data[place] = max(ours, theirs) if take_larger else (ours + theirs) * 0.5
            c, e, place = c + there, e + here, place + 1
