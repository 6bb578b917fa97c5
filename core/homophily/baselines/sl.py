"""Spectral learning: links are written into the weights of the graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.baselines.base import LinkClustering
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import spectral_vectors
from homophily.supervision.links import Links, pair_matrix


class SL(LinkClustering):
    """Spectral learning (Kamvar, Klein and Manning 2003).

    W_ij is 1 for a must-link and 0 for a cannot-link. The leading eigenvectors of (W + d_max I − D)/d_max, as many as
    clusters, have their rows scaled to unit length and go through k-means. They are the smoothest eigenvectors of
    D − W, which is how they are found.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters.
    graph, n_init, random_state, n_jobs : KNNGraph, int, int, int
        As :class:`Original` has them.

    Attributes
    ----------
    labels_ : ndarray of shape (u,)
        Clusters, numbered by their first point.
    embedding_ : ndarray of shape (u, n_clusters)
        The scaled eigenvectors.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily.baselines import SL
    >>> X, y = make_moons(100, noise=0.05, random_state=0)
    >>> model = SL().fit(X, must_link=[(0, 1)], cannot_link=[(0, 2)])
    >>> model.labels_.shape, model.embedding_.shape
    ((100,), (100, 2))
    """

    def _cluster(self, graph: KNNGraph, links: Links) -> NDArray[np.int32]:
        linked = linked_weights(graph.W, links)
        _, vectors = spectral_vectors(linked, self.n_clusters, normalized=False, n_jobs=self.n_jobs)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return self._kmeans(vectors / np.where(lengths > 0, lengths, 1.0), linked)


def linked_weights(W: csr_array, links: Links) -> csr_array:
    """W with 1 for must-links and without the edges of cannot-links."""
    must, cannot = (pair_matrix(pairs, np.ones(len(pairs)), W.shape[0]) for pairs in (links.must, links.cannot))
    changed = csr_array(must + cannot)
    changed.data[:] = 1.0
    linked = csr_array(W - W.multiply(changed) + must)
    linked.eliminate_zeros()
    return linked
