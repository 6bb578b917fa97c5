"""What the compared systems share: points or a graph, links, the number of clusters."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClusterMixin, _fit_context
from sklearn.utils._param_validation import Interval

from homophily.estimators.graph_estimator import GRAPH_CONSTRAINTS, GraphEstimator
from homophily.estimators.partition import kmeans_by_cut
from homophily.graph.knn_graph import KNNGraph
from homophily.supervision.links import Links, check_links

Floats = NDArray[np.float64]


class LinkClustering(ClusterMixin, GraphEstimator, BaseEstimator):
    """Clusters of the points of a graph, with links.

    Parameters
    ----------
    n_clusters : the number of clusters.
    n_neighbors, metric, weights, sigma_x, exponent, symmetrize, n_jobs : see :class:`KNNGraph`.
    n_init : starts of k-means, of whose results the one with the smallest normalised cut is taken.
    random_state : seed of the starts.

    Attributes
    ----------
    labels_ : (u,) clusters, numbered by their first point. embedding_ : (u, n) what was clustered, where there is such.
    graph_ : the :class:`KNNGraph`. links_ : the :class:`~homophily.supervision.links.Links`.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        # The systems are compared on graphs of points as they come.
        **{name: constraint for name, constraint in GRAPH_CONSTRAINTS.items() if name not in ("space", "n_directions")},
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters: int = 2,
        n_neighbors: int = 10,
        metric: str = "euclidean",
        weights: str = "local",
        sigma_x: float | None = None,
        exponent: int = 2,
        symmetrize: str = "mean",
        n_init: int = 10,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.weights = weights
        self.sigma_x = sigma_x
        self.exponent = exponent
        self.symmetrize = symmetrize
        self.n_init = n_init
        self.random_state = random_state
        self.n_jobs = n_jobs

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, must_link: Any = None, cannot_link: Any = None) -> Self:  # noqa: ARG002
        """Cluster the rows of X, or the points of a fitted :class:`KNNGraph`; y is ignored.

        Links are pairs (i, j) of points that belong together (``must_link``) or apart (``cannot_link``).
        """
        graph = self._graph(self._points(X))
        if graph.n_points < 2:
            raise ValueError(f"{type(self).__name__} needs at least 2 points. Got n_samples=1 instead.")
        links = check_links(must_link, cannot_link, graph.n_points, owner=f"{type(self).__name__}.fit")
        if self.n_clusters > graph.n_points:
            raise ValueError(
                f"The 'n_clusters' parameter of {type(self).__name__} must be at most the number of points, "
                f"n_samples={graph.n_points}. Got {self.n_clusters} instead."
            )
        self.labels_ = self._cluster(graph, links)
        self.graph_, self.links_ = graph, links
        return self

    def _cluster(self, graph: KNNGraph, links: Links) -> NDArray[np.int32]:
        raise NotImplementedError

    def _kmeans(self, W: csr_array) -> NDArray[np.int32]:
        """Clusters of the embedding."""
        return kmeans_by_cut(self.embedding_, self.n_clusters, W, self.n_init, self.random_state)

    embedding_: Floats
