"""What estimators on a neighbour graph share: points, or a fitted graph in their place, and how a graph is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from homophily.arrays import Floats
from homophily.device.backend import Backend, get_backend
from homophily.graph.computing import BACKEND_CONSTRAINT
from homophily.graph.knn_graph import POINTS, KNNGraph, small_floats
from homophily.parameters import CheckedEstimator, wrong_parameter
from homophily.tables.columns import in_fitted_order

Result = TypeVar("Result")

#: New points at a time, so that their edges take some megabytes.
BLOCK = 16_384
#: Edges of new points at a time, where each point says which it has.
BLOCK_ENTRIES = 64 * BLOCK
#: Parameters of the estimators that may compute on a GPU.
COMPUTED: dict[str, list[Any]] = {"normalized": ["boolean"], "backend": BACKEND_CONSTRAINT}
#: Parameters that do not change the graph.
_COMPUTING = ("backend", "n_jobs")


class GraphEstimator(CheckedEstimator):
    """An estimator with a parameter ``graph``: an unfitted :class:`KNNGraph`, or None for the default one."""

    graph: KNNGraph | None
    n_jobs: int | None
    _lazy: dict[str, Any]

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"graph": [KNNGraph, None], "n_jobs": [Integral, None]}
    _parts: ClassVar[Mapping[str, Callable[[], Any]]] = {"graph": KNNGraph}

    def _points(self, X: Any) -> Any:
        """Validate X. A fitted graph is returned as it is. Raises DeviceUnavailableError without the GPU asked for."""
        self._backend()
        if isinstance(X, KNNGraph):
            check_is_fitted(X)
            self._check_same(X)
            self._take_features(X)
            return X
        return validate_data(self, small_floats(X), **POINTS)

    def _check_same(self, fitted: KNNGraph) -> None:
        """Refuse a parameter ``graph`` that is not the graph in place of X."""
        if self.graph is None:
            return
        wanted, actual = self.graph.get_params(), fitted.resolved_params_
        if wanted["metric"] == "auto":
            wanted["metric"] = actual["metric"]
        if wanted["n_neighbors"] is None:
            wanted["n_neighbors"] = fitted.default_neighbors
        for name, value in wanted.items():
            if name not in _COMPUTING and value != actual[name]:
                got = f"{name}={value!r}, but X has {name}={actual[name]!r},"
                raise wrong_parameter("graph", self._owner, "None or agree with the graph given as X", got)

    def _graph(self, X: Any) -> KNNGraph:
        """The graph of checked points."""
        if isinstance(X, KNNGraph):
            return X
        if self.graph is None:
            computing = {"backend": getattr(self, "backend", "numpy"), "n_jobs": self.n_jobs}
            graph: KNNGraph = self._parts["graph"]().set_params(**computing)
        else:
            graph = clone(self.graph)
        graph.fit(X)
        graph._take_features(self)
        return graph

    def _new_points(self, X: Any) -> Any:
        """Validate points that were not there in ``fit``."""
        check_is_fitted(self)
        return validate_data(self, small_floats(in_fitted_order(self, X)), reset=False, **POINTS)

    def _check_init(self, init: Any, shape: tuple[int, int]) -> Floats:
        """Values to start from; a single column may be given with one dimension."""
        values = np.array(init, dtype=np.float64, order="C")
        columns = values[:, None] if values.ndim == shape[1] == 1 else values
        if columns.shape != shape or not np.isfinite(columns).all():
            must, got = f"a finite array of shape {shape}", f"one of shape {values.shape}"
            raise wrong_parameter("init", f"{self._owner}.fit", must, got)
        return columns

    def _once(self, name: str, make: Callable[[], Result]) -> Result:
        """What a fitted estimator computes on demand, and keeps until it is fitted again."""
        if name not in self._lazy:
            self._lazy[name] = make()
        made: Result = self._lazy[name]
        return made

    def _backend(self) -> Backend:
        """Where to compute; estimators without the parameter know the CPU only."""
        return get_backend(getattr(self, "backend", "numpy"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.graph is not None and self.graph.metric in ("precomputed", "affinity")
        return tags


class MapMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """A map ``embedding_``, whose columns are named after the estimator."""

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])


def in_blocks(X: Any, graph: KNNGraph, answer: Callable[[Any], tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], ...]:
    """The answers for new points, found block by block."""
    if graph.metric_ != "affinity" or isinstance(X, np.ndarray):
        answers = [answer(X[start : start + BLOCK]) for start in range(0, X.shape[0], BLOCK)]
        return tuple(np.concatenate(part) for part in zip(*answers, strict=True))
    # Each row takes the room of the longest one beside it.
    order = np.argsort(np.diff(X.indptr), kind="stable")
    answers = [answer(X[order[block]]) for block in _blocks(np.diff(X.indptr)[order])]
    back = np.argsort(order)
    return tuple(np.concatenate(part)[back] for part in zip(*answers, strict=True))


def _blocks(lengths: NDArray[Any]) -> Iterator[slice]:
    """Blocks of rows, whose lengths ascend, of few enough entries even if all rows were as long as the longest."""
    start = 0
    while start < len(lengths):
        ahead = lengths[start : start + BLOCK].astype(np.int64)
        size = np.searchsorted(np.arange(1, len(ahead) + 1) * ahead, BLOCK_ENTRIES, side="right")
        yield slice(start, start + max(1, int(size)))
        start += max(1, int(size))
