"""Spectral clustering as it is without links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from homophily.baselines.base import LinkClustering
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import spectral_vectors
from homophily.supervision.links import Links


class Original(LinkClustering):
    """Spectral clustering, which ignores links.

    It is k-means on the smoothest eigenvectors of the normalised Laplacian times √u, without the constant one: as many
    as clusters less one, but two for two clusters.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters.
    graph : KNNGraph, default=None
        Unfitted graph to build from points; None means ``KNNGraph()``.
    n_init : int, default=10
        Starts of k-means; the result with the smallest normalised cut is taken.
    random_state : int, RandomState instance or None, default=None
        Seed of the starts.
    n_jobs : int, default=None
        Number of threads; None means every core this process may use.

    Attributes
    ----------
    labels_ : ndarray of shape (u,)
        Clusters, numbered by their first point.
    embedding_ : ndarray of shape (u, n)
        The eigenvectors.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from homophily.baselines import Original
    >>> X, y = make_blobs(90, centers=3, cluster_std=2.0, random_state=5)
    >>> len(set(Original(n_clusters=3, random_state=0).fit_predict(X).tolist()))
    3
    """

    def _cluster(self, graph: KNNGraph, links: Links) -> NDArray[np.int32]:  # noqa: ARG002
        columns = min(max(2, self.n_clusters - 1), graph.n_points - 1)
        _, vectors = spectral_vectors(graph, columns + 1, n_jobs=self.n_jobs)
        return self._kmeans(np.ascontiguousarray(vectors[:, 1:] * np.sqrt(graph.n_points)), graph.W)
