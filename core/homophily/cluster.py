"""Clusters that obey links: k-means on the map of :class:`~homophily.embed.ERREmbedding`."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin, _fit_context
from sklearn.utils._param_validation import Interval

from homophily.embed import ERREmbedding
from homophily.graph_estimator import GraphEstimator
from homophily.partition import kmeans_by_cut, suggest_n_clusters
from homophily.spectral import spectral_vectors

# As many eigenvalues are looked at when the number of clusters is not given.
MOST_SUGGESTED = 20


class ERRClustering(ClusterMixin, GraphEstimator, BaseEstimator):
    """Clusters of points that are neighbours or linked together, and not linked apart.

    Fits an :class:`ERREmbedding` and divides its map by k-means, started ``n_init`` times; of the results the one with
    the smallest normalised cut of the graph is taken.

    Parameters
    ----------
    n_clusters : the number of clusters; None takes the number before the widest gap of the graph's eigenvalues.
    n_components : coordinates of the map that is divided; None takes ``n_clusters − 1``, at least 2.
    n_init, random_state : starts of k-means, and the seed of their centres.
    Other parameters are those of :class:`ERREmbedding`.

    Attributes
    ----------
    labels_ : (u,) cluster of each point, numbered by the first point of each. n_clusters_ : their number.
    embedding_ : the fitted :class:`ERREmbedding`, with the links and those violated on the map.
    violated_must_, violated_cannot_ : (·, 2) must-links between clusters, and cannot-links inside one.

    >>> from sklearn.datasets import make_moons
    >>> from homophily import ERRClustering
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> labels = ERRClustering(n_clusters=2, random_state=0).fit_predict(X, must_link=[(1, 2)], cannot_link=[(0, 1)])
    >>> labels.shape, bool(labels[1] == labels[2] != labels[0])
    ((200,), True)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ERREmbedding._parameter_constraints,
        "n_clusters": [Interval(Integral, 2, None, closed="left"), None],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters: int | None = None,
        n_components: int | None = None,
        n_neighbors: int = 10,
        data_weight: float = 1.0,
        lambda2: float = 0.5,
        lambda3: float = 100.0,
        sigma_f: float = 0.3,
        continuation: float = 3.0,
        repulsion: float = 0.65,
        closure: bool | Literal["two-class"] = True,
        link_edges: float = 1.0,
        link_loss: Literal["log", "squared"] = "log",
        max_iter: int = 60,
        tol: float = 1e-2,
        n_init: int = 10,
        random_state: Any = None,
        engine: Any = "auto",
        metric: str = "euclidean",
        weights: str = "local",
        sigma_x: float | None = None,
        exponent: int = 2,
        symmetrize: str = "max",
        normalized: bool = True,
        callback: Any = None,
        n_jobs: int | None = None,
    ):
        self.n_clusters = n_clusters
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.data_weight = data_weight
        self.lambda2 = lambda2
        self.lambda3 = lambda3
        self.sigma_f = sigma_f
        self.continuation = continuation
        self.repulsion = repulsion
        self.closure = closure
        self.link_edges = link_edges
        self.link_loss = link_loss
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.random_state = random_state
        self.engine = engine
        self.metric = metric
        self.weights = weights
        self.sigma_x = sigma_x
        self.exponent = exponent
        self.symmetrize = symmetrize
        self.normalized = normalized
        self.callback = callback
        self.n_jobs = n_jobs

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, *, must_link: Any = None, cannot_link: Any = None, init: Any = None) -> Self:
        """Divide the rows of X into clusters; parameters as :meth:`ERREmbedding.fit` has them."""
        graph = self._graph(self._points(X))
        self.n_clusters_ = self._suggest(graph) if self.n_clusters is None else self.n_clusters
        if self.n_clusters_ > graph.n_points:
            raise ValueError(
                "The 'n_clusters' parameter of ERRClustering must be no larger than the number of points, "
                f"n_samples={graph.n_points}. Got {self.n_clusters} instead."
            )
        n = max(2, self.n_clusters_ - 1) if self.n_components is None else self.n_components
        names = ERREmbedding._parameter_constraints
        embedding = ERREmbedding(**{name: getattr(self, name) for name in names} | {"n_components": n})
        self.embedding_ = embedding.fit(graph, y, must_link=must_link, cannot_link=cannot_link, init=init)
        self.labels_ = kmeans_by_cut(
            embedding.embedding_, self.n_clusters_, graph.W, n_init=self.n_init, random_state=self.random_state
        )
        self.graph_, self.links_ = graph, embedding.links_
        self.violated_must_ = self.links_.must[~self._together(self.links_.must)]
        self.violated_cannot_ = self.links_.cannot[self._together(self.links_.cannot)]
        return self

    def fit_predict(self, X: Any, y: Any = None, **links: Any) -> NDArray[np.int32]:
        """Fit, and return ``labels_``."""
        labels: NDArray[np.int32] = self.fit(X, y, **links).labels_
        return labels

    def _together(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self.labels_[pairs[:, 0]] == self.labels_[pairs[:, 1]])

    def _suggest(self, graph: Any) -> int:
        values, _ = spectral_vectors(
            graph, min(MOST_SUGGESTED + 1, graph.n_points), normalized=self.normalized, n_jobs=self.n_jobs
        )
        return suggest_n_clusters(values)
