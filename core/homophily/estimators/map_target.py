"""Where the search for a map starts, and what the map stays near to: the matrix T of maps and clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components

from homophily.arrays import Floats
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import smallest_eigenpairs, spectral_coordinates
from homophily.supervision.links import Links, pair_matrix

#: Share of the largest eigenvalue that is added to all of them, so that none weighs more than ten times another.
DAMPING = 0.01
#: Share of a component's square that it fills, along each axis. The rest is the gap between components.
FILLED = 0.8
#: Components of fewer points have no structure worth eigenvectors, of which there may be thousands.
FEW = 30


def linked_coordinates(
    graph: KNNGraph, links: Links, strength: float, n: int, *, normalized: bool = True, **how: Any
) -> tuple[Floats, Floats]:
    """Eigenvalues (n,) and spectral map √u·[e₂, …] of a graph with links as edges: W + γ d̄ (must − cannot).

    d̄ is the mean degree. Degrees are sums of absolute weights, so that no eigenvalue is negative. ``backend`` and
    ``n_jobs`` say how.
    """
    if strength == 0.0 or len(links) == 0:
        values, T = spectral_coordinates(graph, n, normalized=normalized, **how)
        return values[1:], T
    u = graph.n_points
    edges = link_edges(graph, links, strength)
    W = csr_array(graph.W + edges)
    parts, _ = connected_components(W, directed=False)
    if parts > 1:
        # Which vectors separate components is known only without negative weights.
        values, T = spectral_coordinates(csr_array(graph.W + edges.maximum(0.0)), n, **how)
        return values[1:], T
    degrees = np.asarray(abs(W).sum(axis=1))
    if normalized:
        roots = diags_array(degrees**-0.5)
        matrix = csr_array(diags_array(np.ones(u)) - roots @ W @ roots)
        constant = np.sqrt(degrees / degrees.sum())
    else:
        matrix = csr_array(diags_array(degrees) - W)
        constant = np.full(u, u**-0.5)
    matrix.sort_indices()
    values, vectors = smallest_eigenpairs(matrix, n + 1, **how)
    # Cannot-links may make the constant vector rougher than the others: then it is not among them.
    overlap = (constant @ vectors) ** 2
    constant_at = int(overlap.argmax()) if overlap.max() > 0.5 else n
    return np.delete(values, constant_at), np.ascontiguousarray(np.sqrt(u) * np.delete(vectors, constant_at, axis=1))


def link_edges(graph: KNNGraph, links: Links, strength: float) -> csr_array:
    """Links as edges, in units of the mean degree: positive weights for must-links, negative ones for cannot-links."""
    weight = strength * graph.degrees.mean()
    return pair_matrix(links.pairs, weight * np.where(links.targets > 0, 1.0, -1.0), graph.n_points)


def spread_target(graph: KNNGraph, links: Links, strength: float, n: int, vectors: int, **how: Any) -> Floats:
    """T (u, n), which fills the map evenly: the folded directions of each component, the components side by side."""
    has_edges = strength > 0.0 and len(links) > 0
    W = csr_array(graph.W + link_edges(graph, links, strength).maximum(0.0)) if has_edges else graph.W
    parts, component = connected_components(W, directed=False)
    if parts == 1:
        return folded(*linked_coordinates(graph, links, strength, vectors, **how), n)
    order = np.argsort(component, kind="stable")
    sizes = np.bincount(component, minlength=parts)
    starts = np.cumsum(sizes) - sizes
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    within = [pairs[component[pairs[:, 0]] == component[pairs[:, 1]]] for pairs in (links.must, links.cannot)]
    sorted_W, sorted_links = csr_array(graph.W[order][:, order]), [np.sort(position[pairs], axis=1) for pairs in within]
    T = np.zeros((len(order), n))
    for start, size in zip(starts, sizes, strict=True):
        end = start + size
        if size < max(FEW, vectors + 1):
            T[start:end] = disc(size, n)
            continue
        own = [pairs[(pairs[:, 0] >= start) & (pairs[:, 0] < end)] - start for pairs in sorted_links]
        block = KNNGraph(metric="affinity").fit(csr_array(sorted_W[start:end][:, start:end]))
        T[start:end] = folded(*linked_coordinates(block, Links(*own), strength, vectors, **how), n)
    side_by_side(T, starts, sizes)
    return np.ascontiguousarray(T[position])


def disc(points: int, n: int) -> Floats:
    """Places (points, n) spread evenly over a disc, or over a line."""
    radius, turn = np.sqrt(np.arange(points) + 0.5), np.arange(points) * np.pi * (3 - np.sqrt(5))
    places = np.zeros((points, n))
    places[:, 0] = radius * np.cos(turn) if n > 1 else np.arange(points)
    if n > 1:
        places[:, 1] = radius * np.sin(turn)
    return places


def folded(values: Floats, vectors: Floats, n: int) -> Floats:
    """The directions of points in eigenvectors (u, m), smooth ones weighted more, folded to n columns of mean square 1.

    Each eigenvector weighs λ^−½, as in the commute time of a random walk. The columns are the principal directions of
    the points' directions.
    """
    Z = vectors / np.sqrt(np.maximum(values, 0.0) + DAMPING * values.max() + np.finfo(float).tiny)
    lengths = np.linalg.norm(Z, axis=1, keepdims=True)
    Z /= np.where(lengths > 0.0, lengths, 1.0)
    Z -= Z.mean(axis=0)
    variances, axes = np.linalg.eigh(Z.T @ Z)
    if variances[-n] <= 1e-9 * variances[-1]:
        # Directions that lie on a line or in one point have nothing to fold.
        return np.ascontiguousarray(vectors[:, :n])
    axes = axes[:, : -n - 1 : -1]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(n)] < 0, -1.0, 1.0)
    T = Z @ axes
    return np.ascontiguousarray(T / np.sqrt((T**2).mean(axis=0)))


def side_by_side(T: Floats, starts: NDArray[np.intp], sizes: NDArray[np.intp]) -> None:
    """Move components, each laid out in its rows of T, to squares in rows, the largest first.

    A square's area is the component's number of points. The columns of T have mean square 1 on average then.
    """
    is_plane = T.shape[1] > 1
    widest = 1.1 * np.sqrt(sizes.sum()) if is_plane else np.inf
    across = down = height = 0.0
    for index in np.argsort(-sizes, kind="stable"):
        place, side = T[starts[index] : starts[index] + sizes[index]], np.sqrt(sizes[index])
        if across > 0.0 and across + side > widest:
            across, down, height = 0.0, down + height, 0.0
        height = max(height, side)
        place -= (place.min(axis=0) + place.max(axis=0)) / 2
        reach = np.abs(place).max()
        if reach > 0.0:
            place *= FILLED * side / 2 / reach
        place[:, 0] += across + side / 2
        if is_plane:
            place[:, 1] += down + side / 2
        across += side
    T -= T.mean(axis=0)
    T /= np.sqrt((T[:, :2] ** 2).mean())
