"""The map of a graph's smoothest eigenvectors, as a scikit-learn estimator, and new points on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import _fit_context

from homophily.arrays import Floats
from homophily.estimators.graph_estimator import COMPUTED, GraphEstimator, MapMixin, in_blocks
from homophily.graph.computing import BackendName
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.spectral import spectral_coordinates
from homophily.parameters import AT_LEAST_ONE, POSITIVE
from homophily.solve.new_points import Columns, extend


@dataclass(eq=False, repr=False)
class SpectralEmbedding(MapMixin, GraphEstimator):
    """The map T = √u·[e₂, e₃, …] of the smoothest eigenvectors of a neighbour graph's Laplacian.

    In a graph of several components the first coordinates separate these, with a warning.

    Parameters
    ----------
    n_components : int, default=2
        Number of coordinates of the map.
    graph, normalized : KNNGraph, bool
        As :class:`ERRClassifier` has them.
    tol : float, default=1e-6
        Accuracy of the eigenvectors.
    backend : {"numpy", "cupy", "cupy-mixed", "auto"}, default="numpy"
        Where to compute: "cupy" uses a GPU, "cupy-mixed" one whose float64 is slow, "auto" one if it is there.
    n_jobs : int, default=None
        Number of threads; None means every core this process may use. The result does not depend on it.

    Attributes
    ----------
    embedding_ : ndarray of shape (u, n_components)
        The map; each column has mean square 1.
    eigenvalues_ : ndarray of shape (n_components + 1,)
        The smallest eigenvalues; the first is 0.
    graph_ : KNNGraph
        The fitted graph.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily import KNNGraph, SpectralEmbedding
    >>> X, y = make_moons(300, noise=0.05, random_state=0)
    >>> T = SpectralEmbedding(graph=KNNGraph(n_neighbors=15)).fit_transform(X)
    >>> T.shape, (T**2).mean(axis=0).round(6).tolist()
    ((300, 2), [1.0, 1.0])
    """

    n_components: int = 2
    graph: KNNGraph | None = None
    normalized: bool = True
    tol: float = 1e-6
    backend: BackendName = "numpy"
    n_jobs: int | None = None

    _parameter_constraints = (
        GraphEstimator._parameter_constraints | COMPUTED | {"n_components": [AT_LEAST_ONE], "tol": [POSITIVE]}
    )

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Map the rows of X, or the points of a fitted :class:`~homophily.KNNGraph`; y is ignored."""
        graph = self._graph(self._points(X))
        if self.n_components >= graph.n_points:
            raise self._wrong("n_components", f"smaller than the number of points, n_samples={graph.n_points}")
        how: dict[str, Any] = {"tolerance": self.tol, "backend": self._backend(), "n_jobs": self.n_jobs}
        found = spectral_coordinates(graph, self.n_components, normalized=self.normalized, **how)
        self.graph_, (self.eigenvalues_, self.embedding_) = graph, found
        return self

    def transform(self, X: Any) -> Floats:
        """Coordinates of points: those that make the map smoothest at each of them, the stored ones held still.

        A point at distance 0 from one of ``fit`` has that one's coordinates; a point without neighbours is at 0.
        """
        X = self._new_points(X)
        fitted = self.graph_, (Columns(self.embedding_, None),), np.ones(self.graph_.n_points, dtype=bool)
        how: dict[str, Any] = {"normalized": self.normalized, "lambda1": 1.0, "n_jobs": self.n_jobs}
        return in_blocks(X, self.graph_, lambda block: extend(block, *fitted, **how))[0]
