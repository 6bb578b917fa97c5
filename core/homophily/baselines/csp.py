"""Flexible constrained spectral clustering: two clusters that obey links to a given degree."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, null_space
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.utils._param_validation import Interval

from homophily.arrays import Floats, factorise
from homophily.baselines.base import LinkClustering
from homophily.estimators.partition import in_order_of_appearance
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import null_vectors, spectral_vectors
from homophily.supervision.links import Links, pair_matrix
from homophily.threads import single_threaded_blas

#: Up to this number of points, all eigenvectors of a dense problem take seconds.
DENSE_POINTS = 2_000
#: Solutions compared in a sparse problem: those of the smallest λ, which cut least.
CANDIDATES = 8


class CSP(LinkClustering):
    """Flexible constrained spectral clustering (Wang and Davidson 2010), for two clusters.

    With Q_ij = 1 for a must-link and −1 for a cannot-link, and both matrices normalised by degrees, the solutions of
    L̄v = λ(Q̄ − (β/vol) I)v with λ > 0 obey the links by β at least. The one that cuts least (vᵀL̄v at ‖v‖ = 1) is taken,
    and the clusters are the signs of D^{-1/2}v. Without links, or if no vector obeys them so far, it is the smoothest
    eigenvector of L̄.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, 1 or 2.
    beta : float, default=None
        The bound β as a share of λ_max(Q̄) vol, below which there are solutions. None takes the paper's rule, 0.5 plus
        up to 0.4 with the share of all pairs that are linked.
    graph : KNNGraph, default=None
        Unfitted graph to build from points; None means ``KNNGraph()``.
    n_init, random_state : int, default=10 and None
        Not used; there for uniformity.
    n_jobs : int, default=None
        Number of threads; None means every core this process may use.

    Attributes
    ----------
    labels_ : ndarray of shape (u,)
        Clusters, numbered by their first point.
    embedding_ : ndarray of shape (u, 1)
        The vector D^{-1/2}v.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily.baselines import CSP
    >>> X, y = make_moons(100, noise=0.05, random_state=0)
    >>> model = CSP().fit(X, must_link=[(0, 1)], cannot_link=[(0, 2)])
    >>> model.labels_.shape, model.embedding_.shape
    ((100,), (100, 1))
    """

    _parameter_constraints = LinkClustering._parameter_constraints | {
        "beta": [Interval(Real, None, 1, closed="neither"), None]
    }

    def __init__(
        self,
        n_clusters: int = 2,
        beta: float | None = None,
        graph: KNNGraph | None = None,
        n_init: int = 10,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        super().__init__(n_clusters, graph, n_init, random_state, n_jobs)
        self.beta = beta

    def _cluster(self, graph: KNNGraph, links: Links) -> NDArray[np.int32]:
        if self.n_clusters > 2:
            raise self._wrong("n_clusters", "2 (or 1): it divides in two")
        roots = np.sqrt(np.where(graph.degrees > 0, graph.degrees, 1.0))
        with single_threaded_blas():
            v = self._vector(graph, links, roots)
        self.embedding_ = (v / roots)[:, None]
        return in_order_of_appearance((v > 0) & (self.n_clusters == 2))

    def _vector(self, graph: KNNGraph, links: Links, roots: Floats) -> Floats:
        u = graph.n_points
        smoothest: Floats = spectral_vectors(graph, min(2, u), n_jobs=self.n_jobs)[1][:, -1]
        if len(links) == 0:
            return smoothest
        Q = _link_matrix(links, roots)
        largest = float(eigsh(Q, k=1, which="LA", v0=np.ones(u), return_eigenvectors=False)[0]) if u > 2 else 1.0
        share = 0.5 + 0.4 * len(links) / (u * (u - 1) / 2) if self.beta is None else float(self.beta)
        bounded = csr_array(Q - share * largest * eye_array(u))
        L = graph.laplacian()
        vectors = (_dense_solutions if u <= DENSE_POINTS else _sparse_solutions)(L, bounded, null_vectors(graph))
        if vectors.shape[1] == 0:
            return smoothest
        vectors = vectors / np.linalg.norm(vectors, axis=0)
        cuts = np.einsum("ij,ij->j", vectors, L @ vectors)
        return np.asarray(vectors[:, np.argmin(cuts)])


def _link_matrix(links: Links, roots: Floats) -> csr_array:
    """D^{-1/2} Q D^{-1/2}."""
    Q = pair_matrix(links.pairs, np.where(links.targets > 0, 1.0, -1.0), len(roots))
    scale = diags_array(1.0 / roots)
    return csr_array(scale @ Q @ scale)


def _dense_solutions(L: csr_array, bounded: csr_array, null: csr_array) -> Floats:
    """All v with Lv = λBv and λ > 0."""
    # They are B-orthogonal to the null vectors of L, where L is positive definite: there Bv = μLv with μ = 1/λ > 0.
    basis = null_space((bounded @ null).toarray().T)
    mu, y = eigh(basis.T @ (bounded @ basis), basis.T @ (L @ basis))
    return np.asarray(basis @ y[:, mu > 0])


def _sparse_solutions(L: csr_array, bounded: csr_array, null: csr_array) -> Floats:
    """The v with the smallest λ > 0, as the largest μ, by Lanczos iterations with a factorised L."""
    u = L.shape[0]
    shifted = L + 1e-9 * eye_array(u)
    inverse = LinearOperator((u, u), matvec=factorise(shifted).solve, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=u)
    mu, v = eigsh(bounded, k=CANDIDATES + null.shape[1], M=shifted, Minv=inverse, which="LA", v0=start)
    # What the shift made of the null vectors is no solution.
    smooth = np.einsum("ij,ij->j", v, L @ v) <= 1e-6 * np.einsum("ij,ij->j", v, v)
    real = np.linalg.norm(null.T @ v, axis=0) < 0.999 * np.linalg.norm(v, axis=0)
    return np.asarray(v[:, (mu > 0) & (real | ~smooth)])
