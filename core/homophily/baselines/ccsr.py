"""Constrained clustering by spectral regularisation: a metric on smooth functions that fits the links."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily.arrays import Floats
from homophily.baselines.base import LinkClustering
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import spectral_vectors
from homophily.parameters import AT_LEAST_ONE
from homophily.supervision.links import Links
from homophily.threads import single_threaded_blas

#: Pairs at a time, so that their products take some tens of megabytes.
BLOCK = 16_384
#: A bound for ill-conditioned problems; others end by the tolerance.
MAX_ITER = 20_000


class CCSR(LinkClustering):
    """Constrained clustering via spectral regularisation (Li, Liu and Tang 2009).

    F holds the ``n_vectors`` smoothest eigenvectors of the normalised Laplacian. The positive semi-definite M that
    minimises Σ_i (f_iᵀMf_i − 1)² + Σ_links (f_iᵀMf_j − T_ij)², with T = 1 for a must-link and 0 for a cannot-link, puts
    points on the unit sphere and linked ones together or at right angles. k-means on F M^{1/2}.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters.
    n_vectors : int, default=15
        Number m of eigenvectors, the constant one included; cut to the number of points.
    graph, n_init, random_state, n_jobs : KNNGraph, int, int, int
        As :class:`Original` has them.

    Attributes
    ----------
    labels_ : ndarray of shape (u,)
        Clusters, numbered by their first point.
    embedding_ : ndarray of shape (u, m)
        F M^{1/2}.
    metric_ : ndarray of shape (m, m)
        The matrix M.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily.baselines import CCSR
    >>> X, y = make_moons(100, noise=0.05, random_state=0)
    >>> model = CCSR(n_vectors=8).fit(X, must_link=[(0, 1)], cannot_link=[(0, 2)])
    >>> model.labels_.shape, model.embedding_.shape
    ((100,), (100, 8))
    """

    _parameter_constraints = LinkClustering._parameter_constraints | {"n_vectors": [AT_LEAST_ONE]}

    def __init__(
        self,
        n_clusters: int = 2,
        n_vectors: int = 15,
        graph: KNNGraph | None = None,
        n_init: int = 10,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        super().__init__(n_clusters, graph, n_init, random_state, n_jobs)
        self.n_vectors = n_vectors

    def _cluster(self, graph: KNNGraph, links: Links) -> NDArray[np.int32]:
        _, vectors = spectral_vectors(graph, min(self.n_vectors, graph.n_points), n_jobs=self.n_jobs)
        F = vectors * np.sqrt(graph.n_points)
        with single_threaded_blas():
            self.metric_ = fit_metric(F, links)
            values, rotation = np.linalg.eigh(self.metric_)
            embedding = F @ (rotation * np.sqrt(np.maximum(values, 0.0))) @ rotation.T
        return self._kmeans(embedding, graph.W)


def fit_metric(F: Floats, links: Links) -> Floats:
    """M ⪰ 0 of least Σ_i (f_iᵀMf_i − 1)² + Σ_links (f_iᵀMf_j − T_ij)².

    A convex quadratic zᵀBz/2 − bᵀz in the m² entries z of M, minimised by accelerated projected gradients that start
    afresh whenever the step turns uphill.
    """
    m = F.shape[1]
    B, b = np.zeros((m * m, m * m)), np.zeros(m * m)
    own = np.arange(len(F))
    pairs = np.vstack([np.column_stack([own, own]), links.pairs])
    targets = np.concatenate([np.ones(len(F)), links.targets])
    for start in range(0, len(pairs), BLOCK):
        i, j = pairs[start : start + BLOCK].T
        products = F[i][:, :, None] * F[j][:, None, :]
        # M is symmetric, and so is what it is multiplied with.
        products = ((products + products.transpose(0, 2, 1)) / 2).reshape(len(i), m * m)
        B += products.T @ products
        b += products.T @ targets[start : start + BLOCK]
    step = 1.0 / np.linalg.eigvalsh(B)[-1]
    M = ahead = np.eye(m).ravel() / m
    momentum = 1.0
    for _ in range(MAX_ITER):
        following = _semidefinite(ahead - step * (B @ ahead - b), m)
        change = following - M
        if change @ change <= 1e-20 * (following @ following):
            break
        if (ahead - following) @ change > 0:
            momentum, ahead = 1.0, following
        else:
            rate = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2
            ahead = following + (momentum - 1.0) / rate * change
            momentum = rate
        M = following
    return np.asarray(M.reshape(m, m))


def _semidefinite(z: Floats, m: int) -> Floats:
    """The nearest positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(z.reshape(m, m))
    return np.asarray(((vectors * np.maximum(values, 0.0)) @ vectors.T).ravel())
