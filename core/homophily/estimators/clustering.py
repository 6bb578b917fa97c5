"""Clusters that obey links: k-means on a map of ERR, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClusterMixin, _fit_context
from sklearn.utils.validation import check_is_fitted

from homophily.arrays import Floats
from homophily.estimators.embedding import ERREmbedding, LinkPenalty
from homophily.estimators.graph_estimator import MapMixin
from homophily.estimators.partition import kmeans_by_cut, suggest_n_clusters
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import spectral_vectors
from homophily.parameters import AT_LEAST_ONE, CheckedEstimator
from homophily.supervision.links import Links

#: Largest number of clusters suggested: each costs an eigenvector.
MOST_SUGGESTED = 20


class _Directions(ERREmbedding):
    """A map in which T is the spectral map with only the direction of each point from the origin."""

    _owner = "ERRClustering"

    def _target(self, graph: KNNGraph, links: Links, n: int) -> Floats:
        T = self._spectral_map(graph, links, n)
        lengths = np.linalg.norm(T, axis=1, keepdims=True)
        return np.asarray(T / np.where(lengths > 0.0, lengths, 1.0))


def default_embedding() -> ERREmbedding:
    """The map that :class:`ERRClustering` divides by default."""
    return ERREmbedding(lambda2=0.05, sigma_f=0.9, link_penalty=LinkPenalty(edges=3.0))


@dataclass(eq=False, repr=False)
class ERRClustering(MapMixin, ClusterMixin, CheckedEstimator):
    """Clusters of points that are neighbours or linked together, and not linked apart.

    The map of an :class:`ERREmbedding`, in which T keeps only the direction of each point from the origin, is divided
    by k-means; of ``n_init`` results the one with the smallest normalised cut of the graph is taken. Directions
    separate clusters; lengths say how far a point is from the rest of the graph, and would divide a cluster.

    Parameters
    ----------
    n_clusters : int, default=None
        Number of clusters; None takes the number before the widest gap of the graph's eigenvalues.
    n_components : int, default=None
        Coordinates of the map that is divided; None means ``n_clusters``.
    embedding : ERREmbedding, default=None
        Unfitted map to divide; its ``n_components`` and ``n_vectors`` are not used. None means one with
        ``lambda2=0.05``, ``sigma_f=0.9`` and ``link_penalty=LinkPenalty(edges=3.0)``: the directions of two clusters
        are about √2 apart, and ``sigma_f`` must reach from one to the other.
    n_init : int, default=10
        Number of starts of k-means.
    random_state : int, RandomState instance or None, default=None
        Seed of the starts.

    Attributes
    ----------
    labels_ : ndarray of shape (u,)
        Cluster of each point, numbered by the first point of each.
    n_clusters_ : int
        Number of clusters.
    map_ : ERREmbedding
        The fitted map.
    embedding_, graph_, links_ : ndarray, KNNGraph, Links
        Coordinates, graph and links of ``map_``.
    divided_must_, joined_cannot_ : ndarray of shape (m, 2)
        Given must-links between clusters, and given cannot-links inside one.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily import ERRClustering
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> labels = ERRClustering(n_clusters=2, random_state=0).fit_predict(X, must_link=[(1, 2)], cannot_link=[(0, 1)])
    >>> labels.shape, bool(labels[1] == labels[2] != labels[0])
    ((200,), True)
    """

    n_clusters: int | None = None
    n_components: int | None = None
    embedding: ERREmbedding | None = None
    n_init: int = 10
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [AT_LEAST_ONE, None],
        "n_components": [AT_LEAST_ONE, None],
        "embedding": [ERREmbedding, None],
        "n_init": [AT_LEAST_ONE],
        "random_state": ["random_state"],
    }
    _parts: ClassVar[Mapping[str, Callable[[], Any]]] = {"embedding": default_embedding}

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, *, must_link: Any = None, cannot_link: Any = None, init: Any = None) -> Self:
        """Divide the rows of X into clusters; parameters as :meth:`ERREmbedding.fit` has them."""
        self.__dict__.pop("labels_", None)
        chosen = self.embedding or default_embedding()
        mapped = _Directions(**chosen.get_params(deep=False))
        mapped._validate_params()
        mapped._check_together()
        with mapped._backend().job():
            graph = mapped._graph(mapped._points(X))
            self.n_clusters_ = self._suggest(graph, mapped) if self.n_clusters is None else self.n_clusters
            if self.n_clusters_ >= graph.n_points:
                raise self._wrong("n_clusters", f"smaller than the number of points, n_samples={graph.n_points}")
            mapped.n_components = self.n_clusters_ if self.n_components is None else self.n_components
            mapped._map(graph, y, must_link, cannot_link, init)
        self._take_features(mapped)
        self.map_, self.embedding_, self.graph_, self.links_ = mapped, mapped.embedding_, graph, mapped.links_
        self.labels_ = kmeans_by_cut(self.embedding_, self.n_clusters_, graph.W, self.n_init, self.random_state)
        self.divided_must_ = self.links_.must[~self._together(self.links_.must)]
        self.joined_cannot_ = self.links_.cannot[self._together(self.links_.cannot)]
        return self

    def fit_predict(self, X: Any, y: Any = None, **links: Any) -> NDArray[np.int32]:
        """Fit, and return ``labels_``."""
        return np.asarray(self.fit(X, y, **links).labels_)

    def transform(self, X: Any) -> Floats:
        """Places of points on the map, as :meth:`ERREmbedding.transform` has them."""
        check_is_fitted(self)
        return self.map_.transform(X)

    def _together(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self.labels_[pairs[:, 0]] == self.labels_[pairs[:, 1]])

    def _suggest(self, graph: KNNGraph, mapped: ERREmbedding) -> int:
        most = min(MOST_SUGGESTED + 1, graph.n_points)
        how: dict[str, Any] = {"backend": mapped._backend(), "n_jobs": mapped.n_jobs}
        return suggest_n_clusters(spectral_vectors(graph, most, normalized=mapped.normalized, **how)[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = (self.embedding or default_embedding()).__sklearn_tags__().input_tags
        return tags
