"""Clusters that obey links: k-means on a map of ERR, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClusterMixin, _fit_context
from sklearn.utils._param_validation import Interval

from homophily.device.backend import BackendName
from homophily.estimators.embedding import ERREmbedding, Floats
from homophily.estimators.partition import kmeans_by_cut, suggest_n_clusters
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import spectral_vectors
from homophily.relationship.choose import EngineName
from homophily.relationship.functions import Relationship
from homophily.solve.nonlinear_cg import State
from homophily.supervision.links import Links

# As many eigenvalues are looked at when the number of clusters is not given.
MOST_SUGGESTED = 20


class ERRClustering(ClusterMixin, ERREmbedding):
    """Clusters of points that are neighbours or linked together, and not linked apart.

    The map of :class:`ERREmbedding` with as many coordinates as clusters, in which T keeps only the direction of each
    point from the origin, is divided by k-means; of ``n_init`` results the one with the smallest normalised cut of the
    graph is taken. Directions are what tells clusters apart: the lengths tell how far a point is from the rest of the
    graph, and k-means would divide a cluster by them.

    Parameters
    ----------
    n_clusters : the number of clusters; None takes the number before the widest gap of the graph's eigenvalues.
    n_components : coordinates of the map that is divided; None takes ``n_clusters``.
    n_init, random_state : starts of k-means, and the seed of their centres.
    Other parameters are those of :class:`ERREmbedding`, with other defaults: the directions of two clusters are about
    √2 apart, and ``sigma_f`` is to see the one from the other.

    Attributes
    ----------
    labels_ : (u,) cluster of each point, numbered by the first point of each. n_clusters_ : their number.
    divided_must_, joined_cannot_ : (·, 2) given must-links between clusters, and given cannot-links inside one.
    Others are those of :class:`ERREmbedding`.

    >>> from sklearn.datasets import make_moons
    >>> from homophily import ERRClustering
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> labels = ERRClustering(n_clusters=2, random_state=0).fit_predict(X, must_link=[(1, 2)], cannot_link=[(0, 1)])
    >>> labels.shape, bool(labels[1] == labels[2] != labels[0])
    ((200,), True)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ERREmbedding._parameter_constraints,
        "n_clusters": [Interval(Integral, 1, None, closed="left"), None],
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
        lambda2: float = 0.05,
        lambda3: float = 30.0,
        sigma_f: float = 0.9,
        continuation: float = 1.0,
        repulsion: float = 0.65,
        closure: bool | Literal["two-class"] = True,
        link_edges: float = 3.0,
        link_loss: Literal["log", "squared"] = "log",
        relationship: Relationship = "gaussian",
        relationship_neighbors: int | None = None,
        lambda2_per_link: bool = False,
        max_iter: int = 60,
        tol: float = 1e-2,
        n_init: int = 10,
        random_state: Any = None,
        engine: EngineName = "auto",
        metric: str = "euclidean",
        weights: str = "local",
        sigma_x: float | None = None,
        exponent: int = 2,
        symmetrize: str = "max",
        space: str = "input",
        n_directions: int | None = None,
        normalized: bool = True,
        backend: BackendName = "numpy",
        callback: Callable[[State], object] | None = None,
        n_jobs: int | None = None,
    ):
        super().__init__(
            n_components=n_components,  # type: ignore[arg-type]
            n_neighbors=n_neighbors,
            data_weight=data_weight,
            lambda2=lambda2,
            lambda3=lambda3,
            sigma_f=sigma_f,
            continuation=continuation,
            repulsion=repulsion,
            closure=closure,
            link_edges=link_edges,
            link_loss=link_loss,
            relationship=relationship,
            relationship_neighbors=relationship_neighbors,
            lambda2_per_link=lambda2_per_link,
            max_iter=max_iter,
            tol=tol,
            engine=engine,
            metric=metric,
            weights=weights,
            sigma_x=sigma_x,
            exponent=exponent,
            symmetrize=symmetrize,
            space=space,
            n_directions=n_directions,
            normalized=normalized,
            backend=backend,
            callback=callback,
            n_jobs=n_jobs,
        )
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, *, must_link: Any = None, cannot_link: Any = None, init: Any = None) -> Self:
        """Divide the rows of X into clusters; parameters as :meth:`ERREmbedding.fit` has them."""
        with self._backend().job():
            self._map(X, y, must_link, cannot_link, init)
        self.labels_ = kmeans_by_cut(
            self.embedding_, self.n_clusters_, self.graph_.W, n_init=self.n_init, random_state=self.random_state
        )
        self.divided_must_ = self.links_.must[~self._together(self.links_.must)]
        self.joined_cannot_ = self.links_.cannot[self._together(self.links_.cannot)]
        return self

    def fit_predict(self, X: Any, y: Any = None, **links: Any) -> NDArray[np.int32]:
        """Fit, and return ``labels_``."""
        labels: NDArray[np.int32] = self.fit(X, y, **links).labels_
        return labels

    def _together(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self.labels_[pairs[:, 0]] == self.labels_[pairs[:, 1]])

    def _dimensions(self, graph: KNNGraph) -> int:
        self.n_clusters_ = self._suggest(graph) if self.n_clusters is None else self.n_clusters
        if self.n_clusters_ >= graph.n_points:
            raise ValueError(
                "The 'n_clusters' parameter of ERRClustering must be smaller than the number of points, "
                f"n_samples={graph.n_points}. Got {self.n_clusters_} instead."
            )
        return self.n_clusters_ if self.n_components is None else self.n_components

    def _suggest(self, graph: KNNGraph) -> int:
        values, _ = spectral_vectors(
            graph,
            min(MOST_SUGGESTED + 1, graph.n_points),
            normalized=self.normalized,
            backend=self._backend(),
            n_jobs=self.n_jobs,
        )
        return suggest_n_clusters(values)

    def _target(self, graph: KNNGraph, links: Links, n: int) -> Floats:
        T = super()._target(graph, links, n)
        lengths = np.linalg.norm(T, axis=1, keepdims=True)
        return np.asarray(T / np.where(lengths > 0.0, lengths, 1.0))
