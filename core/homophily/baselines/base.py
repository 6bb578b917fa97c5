"""What the compared systems share: points or a graph, links, the number of clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import ClusterMixin, _fit_context

from homophily.arrays import Floats
from homophily.estimators.graph_estimator import GraphEstimator
from homophily.estimators.partition import kmeans_by_cut
from homophily.graph.knn_graph import KNNGraph
from homophily.parameters import AT_LEAST_ONE
from homophily.supervision.links import Links, check_links


@dataclass(eq=False, repr=False)
class LinkClustering(ClusterMixin, GraphEstimator):
    """Clusters of the points of a graph, with links; the subclasses document the parameters."""

    n_clusters: int = 2
    graph: KNNGraph | None = None
    n_init: int = 10
    random_state: Any = None
    n_jobs: int | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GraphEstimator._parameter_constraints,
        "n_clusters": [AT_LEAST_ONE],
        "n_init": [AT_LEAST_ONE],
        "random_state": ["random_state"],
    }

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, must_link: Any = None, cannot_link: Any = None) -> Self:  # noqa: ARG002
        """Cluster the rows of X, or the points of a fitted :class:`~homophily.KNNGraph`; y is ignored.

        Links are pairs (i, j) of points that belong together (``must_link``) or apart (``cannot_link``).
        """
        graph = self._graph(self._points(X))
        if graph.n_points < 2:
            raise ValueError(f"{type(self).__name__} needs at least 2 points. Got n_samples=1 instead.")
        links = check_links(must_link, cannot_link, graph.n_points, owner=f"{type(self).__name__}.fit")
        if self.n_clusters > graph.n_points:
            raise self._wrong("n_clusters", f"at most the number of points, n_samples={graph.n_points}")
        self.labels_ = self._cluster(graph, links)
        self.graph_, self.links_ = graph, links
        return self

    def _cluster(self, graph: KNNGraph, links: Links) -> NDArray[np.int32]:
        raise NotImplementedError

    def _kmeans(self, embedding: Floats, W: csr_array) -> NDArray[np.int32]:
        self.embedding_ = embedding
        return kmeans_by_cut(embedding, self.n_clusters, W, self.n_init, self.random_state)
