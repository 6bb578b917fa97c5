"""Spectral clustering as it is without links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from homophily.baselines.base import LinkClustering
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import spectral_vectors
from homophily.supervision.links import Links


class Original(LinkClustering):
    """k-means on the smoothest eigenvectors of the normalised Laplacian, the constant one left out; links are ignored.

    As many eigenvectors as clusters less one (two for two clusters), times √u. Parameters and attributes are those of
    :class:`~homophily.baselines.base.LinkClustering`.

    >>> from sklearn.datasets import make_blobs
    >>> from homophily.baselines import Original
    >>> X, y = make_blobs(90, centers=3, cluster_std=2.0, random_state=5)
    >>> len(set(Original(n_clusters=3, random_state=0).fit_predict(X).tolist()))
    3
    """

    def _cluster(self, graph: KNNGraph, links: Links) -> NDArray[np.int32]:  # noqa: ARG002
        columns = min(max(2, self.n_clusters - 1), graph.n_points - 1)
        _, vectors = spectral_vectors(graph, columns + 1, n_jobs=self.n_jobs)
        self.embedding_ = np.ascontiguousarray(vectors[:, 1:] * np.sqrt(graph.n_points))
        return self._kmeans(graph.W)
