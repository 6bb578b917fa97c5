"""What estimators on a neighbour graph share: points, or a fitted graph in their place, and the graph's parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from homophily.device.backend import Backend, get_backend
from homophily.graph.knn_graph import KNNGraph

#: Constraints of the parameters that are handed on to :class:`KNNGraph`.
GRAPH_CONSTRAINTS: dict[str, list[Any]] = {
    name: constraint for name, constraint in KNNGraph._parameter_constraints.items() if name != "backend"
}


class GraphEstimator:
    """Mixin for estimators that have the parameters of :class:`KNNGraph` among their own."""

    def _points(self, X: Any) -> Any:
        """X, checked; a fitted graph counts as points and is passed on as it is. A missing GPU is told of here."""
        self._backend()
        if isinstance(X, KNNGraph):
            check_is_fitted(X)
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
                if hasattr(X, name):
                    setattr(self, name, getattr(X, name))
            return X
        return validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])

    def _graph(self, X: Any) -> KNNGraph:
        """The graph of checked points."""
        if isinstance(X, KNNGraph):
            return X
        parameters = {name: getattr(self, name) for name in GRAPH_CONSTRAINTS if hasattr(self, name)}
        graph: KNNGraph = KNNGraph(**parameters, backend=getattr(self, "backend", "numpy")).fit(X)
        return graph

    def _backend(self) -> Backend:
        """Where to compute; estimators without the parameter know the CPU only."""
        return get_backend(getattr(self, "backend", "numpy"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.metric in ("precomputed", "affinity")  # type: ignore[attr-defined]
        return tags
