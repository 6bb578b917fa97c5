"""Spectral vectors: the smoothest functions on a graph, and the map that they make.

The eigenvectors of a Laplacian for its smallest eigenvalues. Those for the eigenvalue 0 are known without computing,
one for each connected component, so only the others are searched for, by subspace iteration on a block of a few columns
more than asked for: the spare columns carry convergence past multiple eigenvalues. What the iteration applies to the
block depends on the graph. A Chebyshev polynomial of L, which grows fastest below the block's own eigenvalues, needs
about as many products as the graph is deep: few for data of many dimensions. On chains and surfaces L is factorised
instead, and the block is multiplied by its inverse.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array
from sklearn.exceptions import ConvergenceWarning

from homophily.arrays import Floats, factorise
from homophily.exceptions import DisconnectedGraphWarning
from homophily.graph.computing import Device, EigenProblem
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.laplacian import choose_method, sparse_product
from homophily.graph.subspace import Filter, chebyshev_filter, iterate
from homophily.parameters import wrong_parameter
from homophily.threads import single_threaded_blas

DENSE_POINTS = 400  # below, LAPACK takes milliseconds
SPARE_COLUMNS = 8  # beside those asked for: they carry convergence past multiple eigenvalues


def smallest_eigenpairs(
    matrix: csr_array,
    n: int,
    *,
    known: csr_array | None = None,
    semidefinite: bool = True,
    tolerance: float = 1e-6,
    seed: int = 0,
    backend: Device | None = None,
    n_jobs: int | None = None,
) -> tuple[Floats, Floats]:
    """The ``n`` smallest eigenvalues of a symmetric sparse matrix, ascending, with orthonormal eigenvectors (u, n).

    The matrix has sorted indices. What is returned is orthogonal to the eigenspace that the orthonormal columns of
    ``known`` (u, c) span. ``semidefinite`` (no eigenvalue is negative) allows the factorisation that chain-like graphs
    need. ``tolerance`` is the largest residual ‖Av − λv‖, in units of the spread of the block's eigenvalues (or 1e-6 of
    the matrix' norm times that, if this is larger); a ConvergenceWarning tells that it was not reached. A GPU as
    ``backend`` leaves what it cannot find, and graphs that are better factorised, to the CPU.

    The same bits are returned for every number of threads. Each vector has its largest entry positive (the first such).
    """
    u = matrix.shape[0]
    free = u - (0 if known is None else known.shape[1])
    if not 1 <= n <= free:
        must = f"between 1 and the {free} eigenvectors that are not known yet"
        raise wrong_parameter("n", "smallest_eigenpairs", must, n)
    columns = -4 * (-(n + SPARE_COLUMNS) // 4)
    with single_threaded_blas():
        if u <= DENSE_POINTS or columns * 3 > free:
            values, vectors = _dense(matrix, n, known)
        else:
            start = np.random.default_rng(seed).normal(size=(u, columns))
            problem = EigenProblem(matrix, start, n, known, tolerance, float(abs(matrix).sum(axis=1).max()))
            values, vectors = _subspace(problem, semidefinite, backend, n_jobs)
    return values, _fix_signs(vectors)


def spectral_vectors(
    graph: KNNGraph | csr_array, n: int, *, normalized: bool = True, **how: Any
) -> tuple[Floats, Floats]:
    """The ``n`` smallest eigenvalues of a graph's Laplacian and orthonormal eigenvectors (u, n), constant one first.

    ``tolerance``, ``backend`` and ``n_jobs`` are those of :func:`smallest_eigenpairs`.
    ``graph`` is a :class:`KNNGraph` or symmetric weights (u, u). The first vector is √degrees (or ones, without
    ``normalized``). With c components, the following c − 1 also have the eigenvalue 0 and tell components apart: each
    the next smaller one from all larger ones, so that large components are parted first. Isolated points count as the
    smallest.
    """
    graph = _as_graph(graph)
    parts = graph.n_components
    if not 1 <= n <= graph.n_points:
        must = f"between 1 and the number of points, {graph.n_points}"
        raise wrong_parameter("n", "spectral_vectors", must, n)
    kernel, masses = _kernel(graph, normalized)
    known = _kernel_vectors(kernel, masses, min(n, parts))
    values = np.zeros(known.shape[1])
    if n > parts:
        laplacian = graph.laplacian(normalized=normalized)
        more, vectors = smallest_eigenpairs(laplacian, n - parts, known=kernel, **how)
        # Rounding may leave the smallest a hair below 0.
        values, known = np.append(values, np.maximum(more, 0.0)), np.hstack([known, vectors])
    return values, np.ascontiguousarray(known)


def spectral_coordinates(graph: KNNGraph | csr_array, n: int, **how: Any) -> tuple[Floats, Floats]:
    """Eigenvalues (n + 1,) and the map T = √u·[e₂ … e_{n+1}], whose columns have mean square 1.

    Further arguments are those of :func:`spectral_vectors`.
    A DisconnectedGraphWarning tells that the first columns do nothing but tell components apart.
    """
    graph = _as_graph(graph)
    values, vectors = spectral_vectors(graph, n + 1, **how)
    if graph.n_components > 1:
        warnings.warn(
            f"The graph has {graph.n_components} connected components: {min(graph.n_components - 1, n)} of the {n} "
            "coordinates only tell them apart. Raise n_neighbors to connect them, or n_components to see more of each.",
            DisconnectedGraphWarning,
            # Whoever called the ``fit`` that asked, past scikit-learn's wrapper.
            stacklevel=4,
        )
    return values, np.ascontiguousarray(vectors[:, 1:] * np.sqrt(len(vectors)))


def _as_graph(graph: KNNGraph | csr_array) -> KNNGraph:
    return graph if isinstance(graph, KNNGraph) else KNNGraph(metric="affinity").fit(graph)


def null_vectors(graph: KNNGraph, *, normalized: bool = True) -> csr_array:
    """Orthonormal vectors (u, c) that span the null space of the Laplacian, one per component, large ones first."""
    return _kernel(graph, normalized)[0]


def _kernel(graph: KNNGraph, normalized: bool) -> tuple[csr_array, Floats]:
    """The null vectors, by falling mass of their component: its degrees' sum, or its size."""
    labels, parts = graph.component_labels, graph.n_components
    amplitude = np.sqrt(graph.degrees) if normalized else np.ones(graph.n_points)
    masses: Floats = np.bincount(labels, weights=amplitude**2, minlength=parts).astype(np.float64)
    order = np.argsort(-masses, kind="stable")
    rank = np.argsort(order)
    norms = np.sqrt(masses)
    # An isolated point has no degree; its null vector is the point itself.
    entries = np.where(norms[labels] > 0, amplitude / np.where(norms > 0, norms, 1.0)[labels], 1.0)
    kernel = csr_array((entries, (np.arange(len(labels)), rank[labels])), shape=(len(labels), parts))
    return kernel, masses[order]


def _kernel_vectors(kernel: csr_array, masses: Floats, n: int) -> Floats:
    """The constant vector, then each component against all larger ones."""
    total = masses.sum()
    constant = np.sqrt(masses / total) if total > 0 else np.full(len(masses), len(masses) ** -0.5)
    vectors = [kernel @ constant]
    if total == 0:
        # Nothing but isolated points: the constant and any complement of it.
        masses = np.ones(len(masses))
    larger = np.cumsum(masses)
    for j in range(1, n):
        contrast = np.zeros(len(masses))
        contrast[:j] = -np.sqrt(masses[:j]) * np.sqrt(masses[j] / larger[j - 1] / larger[j])
        contrast[j] = np.sqrt(larger[j - 1] / larger[j])
        vectors.append(kernel @ contrast)
    return np.column_stack(vectors)


def _fix_signs(vectors: Floats) -> Floats:
    """Largest entry positive; among entries as large to 6 digits the first counts, so that rounding does not choose."""
    size = np.abs(vectors)
    first = np.argmax(size >= (1 - 1e-6) * size.max(axis=0), axis=0)
    return np.asarray(vectors * np.where(vectors[first, np.arange(vectors.shape[1])] < 0, -1.0, 1.0))


def _dense(matrix: csr_array, n: int, known: csr_array | None) -> tuple[Floats, Floats]:
    full = matrix.toarray()
    if known is not None:
        # Moved past the largest eigenvalue, the known ones are not among the smallest.
        full += (3.0 * abs(matrix).sum(axis=1).max() + 1.0) * (known @ known.T).toarray()
    values, vectors = eigh(full, subset_by_index=(0, n - 1))
    return values, vectors


def _subspace(
    problem: EigenProblem, semidefinite: bool, backend: Device | None, n_jobs: int | None
) -> tuple[Floats, Floats]:
    matrix, X, n, known, tolerance, bound = problem
    direct = semidefinite and choose_method(matrix, 1, X.shape[1]) == "direct"
    # Where the CPU would factorise, products are too many for a GPU as well.
    on_device = None if backend is None or direct else backend.eigenpairs(problem)
    if on_device is not None:
        values, found, residual = on_device
        if residual <= tolerance:
            return values[:n], found[:, :n]

    def product(block: Floats) -> Floats:
        return sparse_product(matrix, block, n_jobs=n_jobs)

    def without_known(block: Floats) -> Floats:
        return block if known is None else block - known @ (known.T @ block)

    filters = [chebyshev_filter(product, bound)]
    if direct:
        filters.insert(0, _inverse(matrix, bound))
    for apply in filters:
        values, X, residual = iterate(np, np.asarray, product, apply, problem._replace(start=X), without_known)
        if residual <= tolerance:
            break
    else:
        warnings.warn(
            f"The eigenvectors are accurate to {residual:.1e} of their eigenvalues' spread only; {tolerance:.1e} was "
            "asked for. The graph may be very long, or have many equal eigenvalues.",
            ConvergenceWarning,
            stacklevel=4,
        )
    return values[:n], X[:, :n]


def _inverse(matrix: csr_array, bound: float) -> Filter:
    """The inverse of a semi-definite matrix, shifted by a hair so that it exists."""
    factors = factorise(matrix + diags_array(np.full(matrix.shape[0], 1e-10 * bound)))
    return lambda X, _: factors.solve(X)
