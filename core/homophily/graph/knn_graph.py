"""The graph that points live on: weights between near points, its Laplacian and powers of it, connected components.

The search for near points is in ``neighbors``; products with the Laplacian are in ``laplacian``.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from homophily.arrays import Floats
from homophily.exceptions import ParameterError
from homophily.graph.computing import BACKEND_CONSTRAINT, BackendName, Device, find_device
from homophily.graph.coordinates import Space, SpaceName
from homophily.graph.dense_index import DenseIndex
from homophily.graph.grow import can_grow, grow
from homophily.graph.index_base import Distances, Indices, NeighborIndex, Report, available_neighbors, part_of
from homophily.graph.listed import listed_neighbors, listed_weights
from homophily.graph.neighbors import neighbor_index
from homophily.graph.sparse_index import SparseIndex
from homophily.graph.weights import (
    WeightRule,
    affinity_weights,
    canonical,
    edge_weights,
    farthest_listed,
    graph_laplacian,
    neighborhood_pattern,
    symmetric_weights,
    with_edges,
)
from homophily.parameters import AT_LEAST_ONE, POSITIVE, CheckedEstimator, refuse_device_array, wrong_parameter
from homophily.state import FLOATS, State, StateReader, csr_arrays, feature_entries, plain
from homophily.tables.columns import in_fitted_order

# What scikit-learn's check of points is asked for.
POINTS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}


#: Default numbers of neighbours. Distances between texts tell near from far badly, so that only the mean over more
#: neighbours is reliable: on four sets of texts with 50 labels (draws 0 to 7) the mean error is 20.7 % with 10 and 18.9
#: % with 20. 30 have 17.8 %, but with one to five labels per class the higher error, and L² twice the entries.
DENSE_NEIGHBORS, SPARSE_NEIGHBORS = 10, 20


def default_neighbors(*, is_sparse: bool) -> int:
    """The number of neighbours when none is given."""
    return SPARSE_NEIGHBORS if is_sparse else DENSE_NEIGHBORS


def small_floats(X: Any) -> Any:
    """Arrays of small numbers, as of images, in float32, which has all of them; scikit-learn would take float64."""
    refuse_device_array(X, "X")
    small = isinstance(X, np.ndarray) and X.dtype.kind in "uif" and X.dtype.itemsize <= 2
    return X.astype(np.float32) if small else X


@dataclass(eq=False, repr=False)
class KNNGraph(CheckedEstimator):
    """Symmetric weighted graph of each point's nearest neighbours.

    Parameters
    ----------
    n_neighbors : int, default=None
        Number k of neighbours of each point, itself not counted; cut to u - 1, with a warning, for fewer points. None
        means 20 for sparse points and 10 for others.
    metric : {"auto", "euclidean", "cosine", "precomputed", "affinity"}, default="auto"
        Distance between points. "auto" is "euclidean" for dense and "cosine" for sparse points. For "cosine", a row of
        zeros is at distance 1 from all rows but other rows of zeros. "precomputed" takes X as the square matrix of
        distances; a sparse X leaves out pairs that are no neighbours, and a stored 0 is the distance 0. "affinity"
        takes X as the symmetric matrix of weights; its diagonal is ignored.
    weights : {"local", "self-tuning", "global", "fixed"}, default="local"
        Weight of an edge between i and j at distance d, with q = ``exponent`` and σ_i the distance of i to its k-th
        neighbour:

        - "local": exp(-4 (d/(σ_x σ_i))^q), directed, then symmetrised;
        - "self-tuning": exp(-(d/(σ_x √(σ_i σ_j)))^q);
        - "global": exp(-(d/σ_x)^q / m), m the mean of d^q over all neighbour pairs;
        - "fixed": exp(-d^q / σ_x²).

        Distance 0 always has weight 1. Where k copies of a point make σ_i = 0, the mean of the positive σ replaces it.
        No weight is smaller than exp(-600), so that every neighbour is linked.
    sigma_x : float, default=None
        Width σ_x of "fixed" weights, in the unit of the distances; for the others a factor of the widths that they
        find. None means 1.
    exponent : {1, 2}, default=2
        Exponent q of the weights; the paper prints 1, most of the field uses 2.
    symmetrize : {"mean", "max"}, default="mean"
        Rule for one-sided neighbours: "mean" is (W + Wᵀ)/2, where they count half.
    space : {"input", "principal", "whitened"}, default="input"
        Coordinates in which dense points are compared. "principal" keeps the principal directions of largest variance,
        which leaves out noise that is spread over many columns. "whitened" scales them to variance 1 (Mahalanobis
        distance), for classes that differ where points vary little; it needs several times more points than directions.
        Both start at the mean of the points; the cosine is of angles seen from there.
    n_directions : int, default=None
        Number of principal directions, at most the columns; None means 50 for "principal" and all for "whitened".
    edge_share : float, default=0.5
        Share of the weight of ``edges`` given to ``fit``, from 0 to 1; the rest is that of near points.
    backend : {"numpy", "cupy", "cupy-mixed", "auto"}, default="numpy"
        Where to search: "cupy" and "cupy-mixed" compare all pairs of dense points on a GPU, "auto" does so if there is
        one.
    n_jobs : int, default=None
        Number of threads; None means every core this process may use.

    Attributes
    ----------
    metric_ : str
        The metric in use.
    n_neighbors_ : int
        The number of neighbours in use, before any cut.
    W : csr_array of shape (u, u)
        Symmetric weights with a zero diagonal.
    degrees, n_points, n_components, component_labels : ndarray, int, int, ndarray
        Row sums, size and connected components of W.
    distances_, indices_ : ndarray of shape (u, k)
        Neighbours of each point, nearest first; None for "affinity". A missing neighbour (sparse precomputed distances)
        has distance inf and index 0.
    index_ : NeighborIndex
        Index of the points in ``space``; None for "precomputed" and "affinity".
    recall_ : float
        Share of the true neighbours found; 1 unless the data are large (see ``neighbors``).
    n_searched_ : int
        Number of points that were searched as a whole; fewer than u after :meth:`append`.
    resolved_params_ : dict
        All parameters with the values in use.

    Examples
    --------
    >>> import numpy as np
    >>> graph = KNNGraph(n_neighbors=1).fit(np.array([[0.0], [1.0], [9.0], [10.0]]))
    >>> graph.n_components, graph.laplacian().toarray()[0].round(12).tolist()
    (2, [1.0, -1.0, 0.0, 0.0])
    """

    n_neighbors: int | None = None
    metric: Literal["auto", "euclidean", "cosine", "precomputed", "affinity"] = "auto"
    weights: Literal["local", "self-tuning", "global", "fixed"] = "local"
    sigma_x: float | None = None
    exponent: int = 2
    symmetrize: Literal["max", "mean"] = "mean"
    space: SpaceName = "input"
    n_directions: int | None = None
    edge_share: float = 0.5
    backend: BackendName = "numpy"
    n_jobs: int | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_neighbors": [AT_LEAST_ONE, None],
        "metric": [StrOptions({"auto", "euclidean", "cosine", "precomputed", "affinity"})],
        "weights": [StrOptions({"local", "self-tuning", "global", "fixed"})],
        "sigma_x": [POSITIVE, None],
        "exponent": [Options(Integral, {1, 2})],
        "symmetrize": [StrOptions({"max", "mean"})],
        "space": [StrOptions({"input", "principal", "whitened"})],
        "n_directions": [AT_LEAST_ONE, None],
        "edge_share": [Interval(Real, 0, 1, closed="both")],
        "backend": BACKEND_CONSTRAINT,
        "n_jobs": [Integral, None],
    }

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
        edges: Any = None,
        callback: Callable[[float], object] | None = None,
    ) -> Self:
        """Find the neighbours of the rows of X and weigh them.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (u, d) or (u, u)
            Points; or, by ``metric``, distances or weights.
        y : object, default=None
            Ignored.
        edges : sparse matrix or array of shape (u, u), default=None
            Symmetric weights of edges that are known besides the points, such as who knows whom. They are scaled to the
            mean degree of near points, and count with ``edge_share``. New points have no such edges.
        callback : callable, default=None
            Called with the share of the work that is done, from 0 to 1, at least every second or two of a search among
            points. Raise in it to cancel.

        Returns
        -------
        Self
            The fitted graph.
        """
        if self.weights == "fixed" and self.sigma_x is None:
            raise self._wrong("sigma_x", "given with weights='fixed'")
        # A cancelled fit leaves a graph that is not fitted.
        self.__dict__.pop("_component_labels", None)
        device = find_device(self.backend)
        X = validate_data(self, small_floats(X), **POINTS)
        self.metric_: Any = self.metric
        if self.metric == "auto":
            self.metric_ = "euclidean" if isinstance(X, np.ndarray) else "cosine"
        is_listed = self.metric_ in ("precomputed", "affinity")
        if edges is not None and is_listed:
            raise self._wrong("metric", "'euclidean' or 'cosine' with edges, which are the graph otherwise")
        self._edges = None if edges is None else edge_weights(edges, X.shape[0])
        self.n_neighbors_ = self.n_neighbors or default_neighbors(is_sparse=sparse.issparse(X) and not is_listed)
        if is_listed and X.shape[0] != X.shape[1]:
            raise wrong_parameter("X", "KNNGraph", f"square with metric={self.metric_!r}", X.shape)
        self._check_entries(X)
        if self.space != "input" and (self.metric_ not in ("euclidean", "cosine") or not isinstance(X, np.ndarray)):
            raise self._wrong("space", "'input' unless X is dense and metric is 'euclidean' or 'cosine'")
        if self.space == "input" and self.n_directions is not None:
            raise self._wrong("n_directions", "None with space='input'")
        self.distances_: Distances | None = None
        self.indices_: Indices | None = None
        self.index_: NeighborIndex | None = None
        self.recall_ = 1.0
        self._listed = X if self.metric_ == "precomputed" else None
        self.n_searched_: int = X.shape[0]
        self._space = None if self.space == "input" else Space.learn(X, self.space, self.n_directions)
        if self.metric_ == "affinity":
            self._W = affinity_weights(X)
        else:
            if self.metric_ != "precomputed":
                points = X if self._space is None else self._space(X, self.n_jobs)
                self.index_ = neighbor_index(points, self.metric_, self.n_jobs, device, part_of(callback, 0.0, 0.4))
            self._n_found = available_neighbors(self.n_neighbors_, X.shape[0] - 1)
            self.distances_, self.indices_ = self._others(self._n_found, part_of(callback, 0.4, 0.95))
            if self.index_ is not None:
                self.recall_ = self.index_.recall
        self._link()
        if callback is not None:
            callback(1.0)
        return self

    @property
    def resolved_params_(self) -> dict[str, Any]:
        """All parameters with the values in use."""
        check_is_fitted(self)
        return {**self.get_params(deep=False), "metric": self.metric_, "n_neighbors": self.n_neighbors_}

    @property
    def default_neighbors(self) -> int:
        """What ``n_neighbors=None`` means for the points of this graph."""
        return default_neighbors(is_sparse=isinstance(self.index_, SparseIndex))

    @property
    def W(self) -> sparse.csr_array:
        """Symmetric weights, zero diagonal."""
        check_is_fitted(self)
        return self._W

    @property
    def degrees(self) -> Floats:
        """Row sums of W; 0 for an isolated point."""
        # Asked for with every prediction, of which scikit-learn's check takes a twentieth.
        if not hasattr(self, "_degrees"):
            check_is_fitted(self)
        return self._degrees

    @property
    def n_points(self) -> int:
        """The number of points u."""
        return int(self.W.shape[0])

    @property
    def n_components(self) -> int:
        """The number of connected components."""
        check_is_fitted(self)
        return int(self._n_components)

    @property
    def component_labels(self) -> NDArray[np.int32]:
        """The component of each point, counted from 0."""
        check_is_fitted(self)
        return self._component_labels

    def laplacian(self, power: int = 1, normalized: bool = True) -> sparse.csr_array:
        """L^power with L = I - D^{-1/2} W D^{-1/2}, or D - W; sparse, exactly symmetric, kept for the next call.

        An isolated point has a row of zeros in both forms.
        """
        check_is_fitted(self)
        if not isinstance(power, Integral) or power < 1:
            raise wrong_parameter("power", "laplacian", "an int of at least 1", repr(power))
        key = (int(power), bool(normalized))
        if key not in self._laplacians:
            if power == 1:
                self._laplacians[key] = graph_laplacian(self._W, self._degrees, normalized)
            else:
                product = self.laplacian(power - 1, normalized) @ self.laplacian(1, normalized)
                self._laplacians[key] = canonical((product + product.T) * 0.5)
        return self._laplacians[key]

    def append(self, X: Any, callback: Callable[[float], object] | None = None) -> Self:
        """A graph of these points and more, by a search for what changes instead of one among all.

        The weights are those of a new fit to all points, except that ``space`` stays that of these points, and that
        ``recall_`` is what the search among these points had. The cost grows with the points times the new points, a
        small fraction of a new fit for few of them.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (m, d)
            New points, with the columns of ``fit``.
        callback : callable, default=None
            Called with the share of the search that is done, from 0 to 1. Raise in it to cancel.

        Returns
        -------
        Self
            A new graph, whose first ``n_points`` points are those of this one, in their order.
        """
        check_is_fitted(self)
        if self.index_ is None or self.distances_ is None or self.indices_ is None:
            raise self._wrong("metric", "'euclidean' or 'cosine' for append")
        if self._edges is not None:
            raise ParameterError("A graph with edges beside its points cannot grow: new points would have none.", "X")
        X = validate_data(self, small_floats(in_fitted_order(self, X)), reset=False, **POINTS)
        if self._space is not None:
            X = self._space(X, self.n_jobs)
        if isinstance(self.index_, DenseIndex):
            with np.errstate(over="ignore"):
                X = self.index_._prepare(X)
            if not np.isfinite(X).all():
                raise ParameterError(
                    "The 'X' parameter of KNNGraph.append must fit into float32, as the points do.", "X"
                )
        graph = copy(self)
        u, added = self.n_points, X.shape[0]
        k = graph._n_found = min(self.n_neighbors_, u + added - 1)
        if can_grow(self.index_, added):
            grown = grow(self.index_, X, self.distances_, self.indices_, k, callback)
            graph.index_, graph.distances_, graph.indices_ = grown
        else:
            # Many more points are searched in another way.
            points = self.index_.grown(self.index_._prepare(X)).points
            graph.index_ = neighbor_index(points, self.metric_, self.n_jobs, None, part_of(callback, 0.0, 0.4))
            graph.distances_, graph.indices_ = graph.index_.self_query(k, part_of(callback, 0.4, 1.0))
            graph.recall_, graph.n_searched_ = graph.index_.recall, u + added
        graph._link()
        return graph

    def attach(self, X: Any) -> tuple[Indices, Distances, Floats]:
        """Indices, distances and weights (m, k) of the edges from new points to their nearest stored points.

        An edge weighs what it would in the graph, if the neighbours of the stored points did not change: it counts as
        two-sided when the new point is no farther than the stored point's k-th neighbour. X has the stored points'
        columns; distances to them (m, u) for "precomputed"; weights (m, u) for "affinity", which are returned as they
        are, k being the most in a row. Missing neighbours have distance inf, weight 0 and index 0; with "affinity"
        every distance is inf.
        """
        check_is_fitted(self)
        return self.attach_validated(validate_data(self, small_floats(in_fitted_order(self, X)), reset=False, **POINTS))

    def attach_validated(self, X: Any) -> tuple[Indices, Distances, Floats]:
        """What :meth:`attach` does, for an X that an estimator on this graph has validated."""
        self._check_entries(X)
        if self.metric_ == "affinity":
            return listed_weights(X)
        if self._space is not None:
            X = self._space(X, self.n_jobs)
        k = max(1, self._n_found)
        distances, indices = listed_neighbors(X, k) if self.index_ is None else self.index_.query(X, k)
        own, theirs = farthest_listed(distances)[:, None], self._reach[indices]
        there = self._rule(distances, own, theirs)
        back = np.where(distances <= theirs, self._rule(distances, theirs, own), 0.0)
        weights = np.maximum(there, back) if self.symmetrize == "max" else (there + back) / 2
        if self._edges is not None:
            weights *= 1.0 - self.edge_share
        return indices, distances, weights

    def on_device(self, device: Device) -> Self:
        """A graph like this one that finds the neighbours of new points on a device, during its job."""
        if not device.on_device or not isinstance(self.index_, DenseIndex):
            return self
        graph = copy(self)
        graph.index_ = self.index_.on_device(device)
        return graph

    def neighborhoods(self, size: int) -> sparse.csr_array:
        """Pattern (u, u) of ones at each point's ``size`` nearest points, itself among them; kept for the next call."""
        check_is_fitted(self)
        if self.metric_ == "affinity":
            raise ValueError("Neighbourhoods need distances, which a graph with metric='affinity' does not have.")
        size = available_neighbors(size, self.n_points)
        if size not in self._neighborhoods:
            distances, indices = self._others(size - 1)
            itself = np.arange(self.n_points, dtype=np.int32)[:, None]
            indices = np.hstack([itself, indices])
            present = np.hstack([itself >= 0, np.isfinite(distances)])
            self._neighborhoods[size] = neighborhood_pattern(indices, present, self.n_points)
        return self._neighborhoods[size]

    def to_arrays(self) -> State:
        """The fitted graph as arrays, with what new points need; see :mod:`homophily.storage`."""
        arrays = csr_arrays("weights", self.W) | {"degrees": self.degrees, "components": self.component_labels}
        search = State({}, {"kind": "none"})
        rule = None
        if self.distances_ is not None and self.indices_ is not None:
            arrays |= {"distances": self.distances_, "neighbors": self.indices_, "reach": self._reach}
            rule = plain(vars(self._rule))
        if self._space is not None:
            arrays |= self._space.to_arrays().arrays
        if self._edges is not None:
            arrays |= csr_arrays("edges", self._edges)
        if self.index_ is not None:
            search = self.index_.to_arrays()
        elif isinstance(self._listed, np.ndarray):
            search = State({"listed": self._listed}, {"kind": "listed"})
        elif self._listed is not None:
            search = State(csr_arrays("listed", self._listed), {"kind": "listed-sparse"})
        document = {
            "parameters": plain(self.resolved_params_),
            "n_points": self.n_points,
            "n_components": self.n_components,
            "recall": float(self.recall_),
            "n_searched": self.n_searched_,
            "search": search.document,
            "rule": rule,
            "has_edges": self._edges is not None,
            **feature_entries(self),
        }
        return State(arrays | search.arrays, document)

    @classmethod
    def from_arrays(cls, stored: StateReader) -> Self:
        """The graph whose :meth:`to_arrays` is stored."""
        graph = cls(**stored.parameters(cls))
        graph._validate_params()
        # Older files of sparse points have 10 here, as every file has what was in use.
        graph.n_neighbors_ = graph.n_neighbors or DENSE_NEIGHBORS
        graph.metric_ = stored.section("parameters").choice("metric", "euclidean", "cosine", "precomputed", "affinity")
        u = stored.integer("n_points", 1)
        graph._n_components = stored.integer("n_components", 1, u)
        stored.features(graph)
        graph.recall_ = stored.number("recall")
        graph._degrees = stored.array("degrees", (u,))
        graph._component_labels = stored.positions("components", (u,), graph._n_components, ("int32",))
        graph._W = stored.csr("weights", (u, u))
        graph.distances_ = graph.indices_ = graph.index_ = graph._listed = None
        graph._laplacians, graph._neighborhoods, graph._space = {}, {}, None
        if stored.document.get("rule") is not None:
            graph.distances_ = stored.array("distances", (u, None))
            graph._n_found = graph.distances_.shape[1]
            graph.indices_ = stored.positions("neighbors", graph.distances_.shape, u, ("int32",))
            graph._reach = stored.array("reach", (u,))
            graph._rule = WeightRule.from_arrays(stored.section("rule"))
        graph._edges = stored.csr("edges", (u, u)) if stored.document.get("has_edges") else None
        expected = {"affinity": ["none"], "precomputed": ["listed", "listed-sparse"]}
        search = stored.section("search")
        kind = search.choice("kind", *expected.get(graph.metric_, ["dense", "sparse"]))
        if (graph.distances_ is None) != (kind == "none"):
            raise ValueError(f"A graph's state with metric={graph.metric_!r} does not fit its rule of weights.")
        if kind == "listed":
            graph._listed = stored.array("listed", (u, u), FLOATS)
        elif kind == "listed-sparse":
            graph._listed = stored.csr("listed", (u, u), FLOATS, canonical=False)
        elif kind != "none":
            columns = int(graph.n_features_in_)
            if graph.space != "input":
                graph._space = Space.from_arrays(stored, columns)
                columns = graph._space.directions.shape[1]
            of_points = DenseIndex if kind == "dense" else SparseIndex
            graph.index_ = of_points.from_arrays(search, u, columns, graph.metric_, graph.n_jobs)
            graph.index_.recall = graph.recall_
        # Older files lack it: their graphs were searched as a whole.
        graph.n_searched_ = stored.integer("n_searched", 1, u) if "n_searched" in stored.document else u
        return graph

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"_laplacians": {}, "_neighborhoods": {}} if "_laplacians" in state else state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_component_labels")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.metric in ("precomputed", "affinity")
        return tags

    def _check_entries(self, X: Any) -> None:
        """Refuse negative distances and weights."""
        if self.metric_ in ("precomputed", "affinity"):
            entries: NDArray[Any] = X if isinstance(X, np.ndarray) else X.data
            smallest = entries.min(initial=0)
            if smallest < 0:
                raise ParameterError(
                    f"The 'X' parameter of KNNGraph must have no negative entry with metric={self.metric_!r}. "
                    f"Got {smallest} instead.",
                    "X",
                )

    def _others(self, k: int, report: Report | None = None) -> tuple[Distances, Indices]:
        """Each stored point's ``k`` nearest others."""
        if self.index_ is None:
            return listed_neighbors(self._listed, k, without_diagonal=True)
        if k == 0:
            return np.empty((self.index_.size, 0)), np.empty((self.index_.size, 0), dtype=np.int32)
        return self.index_.self_query(k, report)

    def _link(self) -> None:
        """Weigh the neighbours, if that is what was found, and describe the graph."""
        if self.distances_ is not None and self.indices_ is not None:
            self._W = self._weigh(self.distances_, self.indices_)
            if self._edges is not None:
                self._W = with_edges(self._W, self._edges, self.edge_share)
        self._degrees = np.asarray(self._W.sum(axis=1), dtype=np.float64)
        self._n_components, self._component_labels = connected_components(self._W, directed=False)
        self._laplacians: dict[tuple[int, bool], sparse.csr_array] = {}
        self._neighborhoods: dict[int, sparse.csr_array] = {}

    def _weigh(self, distances: Distances, indices: Indices) -> sparse.csr_array:
        self._reach = farthest_listed(distances)
        self._rule = WeightRule.learn(self.weights, self.exponent, self.sigma_x, distances, self._reach)
        weights = self._rule(distances, self._reach[:, None], self._reach[indices])
        return symmetric_weights(weights, indices, np.isfinite(distances), self.symmetrize, self.n_jobs)
