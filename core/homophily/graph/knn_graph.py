"""The graph that points live on: weights between near points, its Laplacian and powers of it, connected components.

The search for near points is in ``neighbors``; products with the Laplacian are in ``laplacian``.
"""

from __future__ import annotations

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

from homophily.exceptions import ParameterError
from homophily.graph.computing import BACKEND_CONSTRAINT, BackendName, find_device
from homophily.graph.coordinates import Space, SpaceName
from homophily.graph.neighbors import Distances, Indices, NeighborIndex, available_neighbors, neighbor_index
from homophily.parameters import CheckedEstimator

# exp(-600) ≈ 1e-261: small enough to mean "hardly linked", large enough to divide by. Without a floor a far neighbour's
# weight would underflow to 0 and its edge vanish.
_LARGEST_EXPONENT = 600.0
_BLOCK_ENTRIES = 4_000_000
# What scikit-learn's check of points is asked for.
_POINTS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}


class KNNGraph(CheckedEstimator):
    """Symmetric weighted graph of each point's nearest neighbours.

    Parameters
    ----------
    n_neighbors : k, the neighbours of each point, itself not counted. Cut to u - 1 (with a warning) for fewer points.
    metric : "auto", which is "euclidean" for dense and "cosine" for sparse points; "euclidean"; "cosine" (a row of
        zeros is at distance 1 from every row but other rows of zeros);
        "precomputed": X is the square matrix of distances, where a sparse X leaves out pairs that are no neighbours
        and a stored 0 is the distance 0; "affinity": X is the symmetric matrix of weights itself, diagonal ignored.
    weights : how a distance d between i and j becomes a weight, with q = ``exponent`` and σ_i the distance of i to its
        k-th neighbour:

        - "local": exp(-4 (d/(σ_x σ_i))^q), directed, then symmetrised;
        - "self-tuning": exp(-(d/(σ_x √(σ_i σ_j)))^q);
        - "global": exp(-(d/σ_x)^q / m), m the mean of d^q over all neighbour pairs;
        - "fixed": exp(-d^q / σ_x²).

        Distance 0 always has weight 1. Where k copies of a point make σ_i = 0, the mean of the positive σ stands in
        for it. No weight is smaller than exp(-600), so that every neighbour is linked.
    sigma_x : σ_x, the width of the "fixed" weights, in the unit of the distances; of the others a factor of the widths
        that they find, 1 if None.
    exponent : q, 2 (the field's habit) or 1 (as the paper prints it).
    symmetrize : "mean", (W + Wᵀ)/2, where a one-sided neighbour counts half; or "max".
    space : the coordinates in which near points are looked for, of dense points: "input", as they come; "principal",
        the principal directions of largest variance, which leaves out noise that is spread over many columns;
        "whitened", principal directions scaled to variance 1 (Mahalanobis's distance), where what tells classes apart
        varies little. The last needs several times more points than directions. Both begin at the mean of the points,
        and the cosine is of angles seen from there.
    n_directions : how many of the principal directions count, at most the columns; None means 50 of "principal" and
        all of "whitened". Fewer leave out more noise.
    backend : "numpy", or "cupy" to search among dense points on a GPU, all pairs of them; "auto": if there is one.
    n_jobs : threads; None means every core this process may use.

    Attributes
    ----------
    metric_ : the metric in use.
    W : csr_array (u, u), the symmetric weights with a zero diagonal.
    degrees, n_points, n_components, component_labels : of W.
    distances_, indices_ : (u, k), each point's neighbours, nearest first; None for "affinity". A missing neighbour
        (sparse precomputed distances) has distance inf and index 0.
    index_ : the :class:`~homophily.graph.neighbors.NeighborIndex` of the points in ``space``; None for "precomputed"
        and "affinity".
    recall_ : share of the true neighbours found; 1 unless the data are large (see ``neighbors``).

    >>> import numpy as np
    >>> graph = KNNGraph(n_neighbors=1).fit(np.array([[0.0], [1.0], [9.0], [10.0]]))
    >>> graph.n_components, graph.laplacian().toarray()[0].round(12).tolist()
    (2, [1.0, -1.0, 0.0, 0.0])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "metric": [StrOptions({"auto", "euclidean", "cosine", "precomputed", "affinity"})],
        "weights": [StrOptions({"local", "self-tuning", "global", "fixed"})],
        "sigma_x": [Interval(Real, 0, None, closed="neither"), None],
        "exponent": [Options(Integral, {1, 2})],
        "symmetrize": [StrOptions({"max", "mean"})],
        "space": [StrOptions({"input", "principal", "whitened"})],
        "n_directions": [Interval(Integral, 1, None, closed="left"), None],
        "backend": BACKEND_CONSTRAINT,
        "n_jobs": [Integral, None],
    }

    def __init__(
        self,
        n_neighbors: int = 10,
        metric: Literal["auto", "euclidean", "cosine", "precomputed", "affinity"] = "auto",
        weights: Literal["local", "self-tuning", "global", "fixed"] = "local",
        sigma_x: float | None = None,
        exponent: int = 2,
        symmetrize: Literal["max", "mean"] = "mean",
        space: SpaceName = "input",
        n_directions: int | None = None,
        backend: BackendName = "numpy",
        n_jobs: int | None = None,
    ):
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.weights = weights
        self.sigma_x = sigma_x
        self.exponent = exponent
        self.symmetrize = symmetrize
        self.space = space
        self.n_directions = n_directions
        self.backend = backend
        self.n_jobs = n_jobs

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Find the neighbours of the rows of X and weigh them; y is ignored."""
        if self.weights == "fixed" and self.sigma_x is None:
            raise self._wrong("sigma_x", "given with weights='fixed'")
        device = find_device(self.backend)
        X = validate_data(self, X, **_POINTS)
        self.metric_: Any = self.metric
        if self.metric == "auto":
            self.metric_ = "euclidean" if isinstance(X, np.ndarray) else "cosine"
        if self.metric_ in ("precomputed", "affinity") and X.shape[0] != X.shape[1]:
            raise ParameterError(
                f"The 'X' parameter of KNNGraph must be square with metric={self.metric_!r}. Got {X.shape} instead.",
                "X",
            )
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
        self._space = None if self.space == "input" else Space.learn(X, self.space, self.n_directions)
        if self.metric_ == "affinity":
            self._W = _affinity_weights(X)
        else:
            if self.metric_ != "precomputed":
                points = X if self._space is None else self._space(X, self.n_jobs)
                self.index_ = neighbor_index(points, self.metric_, self.n_jobs, device)
                self.recall_ = self.index_.recall
            self._n_found = available_neighbors(self.n_neighbors, X.shape[0] - 1)
            self.distances_, self.indices_ = self._others(self._n_found)
            self._W = self._weigh(self.distances_, self.indices_)
        self._degrees = np.asarray(self._W.sum(axis=1), dtype=np.float64)
        self._n_components, self._component_labels = connected_components(self._W, directed=False)
        self._laplacians: dict[tuple[int, bool], sparse.csr_array] = {}
        self._neighborhoods: dict[int, sparse.csr_array] = {}
        return self

    @property
    def resolved_params_(self) -> dict[str, Any]:
        """All parameters with the values in use."""
        check_is_fitted(self)
        return {**self.get_params(deep=False), "metric": self.metric_}

    @property
    def W(self) -> sparse.csr_array:
        """Symmetric weights, zero diagonal."""
        check_is_fitted(self)
        return self._W

    @property
    def degrees(self) -> NDArray[np.float64]:
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
            raise ParameterError(
                f"The 'power' parameter of laplacian must be an int of at least 1. Got {power!r} instead.", "power"
            )
        key = (int(power), bool(normalized))
        if key not in self._laplacians:
            if power == 1:
                self._laplacians[key] = _laplacian(self._W, self._degrees, normalized)
            else:
                product = self.laplacian(power - 1, normalized) @ self.laplacian(1, normalized)
                self._laplacians[key] = _canonical((product + product.T) * 0.5)
        return self._laplacians[key]

    def attach(self, X: Any) -> tuple[Indices, Distances, NDArray[np.float64]]:
        """Indices, distances and weights (m, k) of the edges from new points to their nearest stored points.

        An edge weighs what it would in the graph, if the neighbours of the stored points did not change: it counts as
        two-sided when the new point is no farther than the stored point's k-th neighbour. X has the stored points'
        columns; distances to them (m, u) for "precomputed"; weights (m, u) for "affinity", which are returned as they
        are, k being the most in a row. Missing neighbours have distance inf, weight 0 and index 0; with "affinity"
        every distance is inf.
        """
        check_is_fitted(self)
        return self.attach_validated(validate_data(self, X, reset=False, **_POINTS))

    def attach_validated(self, X: Any) -> tuple[Indices, Distances, NDArray[np.float64]]:
        """What :meth:`attach` does, for an X that an estimator on this graph has validated."""
        self._check_entries(X)
        if self.metric_ == "affinity":
            return _listed_weights(X)
        if self._space is not None:
            X = self._space(X, self.n_jobs)
        k = max(1, self._n_found)
        distances, indices = _listed_neighbors(X, k) if self.index_ is None else self.index_.query(X, k)
        own, theirs = _reach(distances)[:, None], self._reach[indices]
        there = self._rule(distances, own, theirs)
        back = np.where(distances <= theirs, self._rule(distances, theirs, own), 0.0)
        weights = np.maximum(there, back) if self.symmetrize == "max" else (there + back) / 2
        return indices, distances, weights

    def neighborhoods(self, size: int) -> sparse.csr_array:
        """Pattern (u, u) of ones at each point's ``size`` nearest points, itself among them; kept for the next call."""
        check_is_fitted(self)
        if self.metric_ == "affinity":
            raise ValueError("Neighbourhoods need distances, which a graph with metric='affinity' does not have.")
        size = available_neighbors(size, self.n_points)
        if size in self._neighborhoods:
            return self._neighborhoods[size]
        distances, indices = self._others(size - 1)
        itself = np.arange(self.n_points, dtype=np.int32)[:, None]
        indices = np.hstack([itself, indices])
        present = np.hstack([itself >= 0, np.isfinite(distances)])
        self._neighborhoods[size] = _rows_to_csr(np.ones(indices.shape), indices, present, self.n_points)
        return self._neighborhoods[size]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"_laplacians": {}, "_neighborhoods": {}} if "_laplacians" in state else state

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

    def _others(self, k: int) -> tuple[Distances, Indices]:
        """Each stored point's ``k`` nearest others."""
        if self.index_ is None:
            return _listed_neighbors(self._listed, k, without_diagonal=True)
        if k == 0:
            return np.empty((self.index_.size, 0)), np.empty((self.index_.size, 0), dtype=np.int32)
        return self.index_.self_query(k)

    def _weigh(self, distances: Distances, indices: Indices) -> sparse.csr_array:
        self._reach = _reach(distances)
        self._rule = _WeightRule.learn(self.weights, self.exponent, self.sigma_x, distances, self._reach)
        weights = self._rule(distances, self._reach[:, None], self._reach[indices])
        directed = _rows_to_csr(weights, indices, np.isfinite(distances), len(distances))
        if self.symmetrize == "max":
            return _canonical(directed.maximum(directed.T))
        return _canonical((directed + directed.T) * 0.5)


@dataclass(frozen=True)
class _WeightRule:
    """From distances to weights; the formulas are in :class:`KNNGraph`.

    ``width`` is the common σ of "global" and "fixed", such that the weight is exp(-(d/width)^q); ``typical`` stands in
    for the σ of points with k copies; ``factor`` is what "local" and "self-tuning" widths are multiplied by.
    """

    kind: str
    exponent: int
    width: float
    typical: float
    factor: float = 1.0

    @classmethod
    def learn(
        cls, kind: str, exponent: int, sigma_x: float | None, distances: Distances, reach: NDArray[np.float64]
    ) -> Self:
        positive = reach[reach > 0]
        typical = float(positive.mean()) if positive.size else 1.0
        width = typical
        factor = 1.0 if sigma_x is None else float(sigma_x)
        if kind == "fixed" and sigma_x is not None:
            width = float(sigma_x) ** (2 / exponent)
        elif kind == "global" and positive.size:
            # Relative to the largest distance, so that no square leaves the range of floats.
            largest = reach.max()
            width = largest * float(np.mean((distances[np.isfinite(distances)] / largest) ** exponent)) ** (
                1 / exponent
            )
            width *= factor
        return cls(kind, exponent, width, typical, factor)

    def __call__(
        self, distances: Distances, own: NDArray[np.float64], other: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Weights from points of reach ``own`` to points of reach ``other``; 0 where the distance is inf."""
        own, other = (self.factor * np.where(reach > 0, reach, self.typical) for reach in (own, other))
        with np.errstate(over="ignore"):
            if self.kind == "local":
                fall = 4.0 * (distances / own) ** self.exponent
            elif self.kind == "self-tuning":
                fall = (np.sqrt(distances / own) * np.sqrt(distances / other)) ** self.exponent
            else:
                fall = (distances / self.width) ** self.exponent
        weights: NDArray[np.float64] = np.exp(-np.minimum(fall, _LARGEST_EXPONENT))
        weights[np.isinf(distances)] = 0.0
        return weights


def _reach(distances: Distances) -> NDArray[np.float64]:
    """σ_i: the distance to the farthest neighbour listed, 0 without any."""
    listed: Distances = np.where(np.isfinite(distances), distances, 0.0)
    return np.asarray(listed.max(axis=1, initial=0.0))


def _laplacian(W: sparse.csr_array, degrees: NDArray[np.float64], normalized: bool) -> sparse.csr_array:
    linked = degrees > 0
    if not normalized:
        return _canonical(sparse.diags_array(degrees, format="csr") - W)
    roots = np.sqrt(np.where(linked, degrees, 1.0))
    rows = np.repeat(np.arange(len(degrees)), np.diff(W.indptr))
    # Product of the roots first: it is the same for (i, j) and (j, i), so that L is symmetric to the last bit.
    scaled = sparse.csr_array((W.data / (roots[rows] * roots[W.indices]), W.indices, W.indptr), shape=W.shape)
    return _canonical(sparse.diags_array(linked.astype(np.float64), format="csr") - scaled)


def _canonical(matrix: Any) -> sparse.csr_array:
    """CSR in float64 with sorted, 32-bit indices where they fit, without stored zeros."""
    csr = sparse.csr_array(matrix, dtype=np.float64)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    if csr.nnz <= np.iinfo(np.int32).max:
        csr.indices, csr.indptr = csr.indices.astype(np.int32, copy=False), csr.indptr.astype(np.int32, copy=False)
    return csr


def _rows_to_csr(
    values: NDArray[np.float64], indices: Indices, present: NDArray[np.bool_], columns: int
) -> sparse.csr_array:
    """CSR of equally long rows, of which the entries not ``present`` are left out."""
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    return _canonical(sparse.csr_array((values[present], indices[present], indptr), shape=(len(values), columns)))


def _affinity_weights(X: Any) -> sparse.csr_array:
    weights = _canonical(sparse.csr_array(X, copy=True))
    difference = abs(weights - weights.T)
    if difference.nnz and difference.max() > 1e-10 * weights.max():
        raise ParameterError(
            "The 'X' parameter of KNNGraph must be symmetric with metric='affinity'. "
            f"Got entries that differ by {difference.max():.3g} from their mirror image instead.",
            "X",
        )
    weights = sparse.csr_array((weights + weights.T) * 0.5)
    weights.setdiag(0.0)
    return _canonical(weights)


def _listed_neighbors(X: Any, k: int, without_diagonal: bool = False) -> tuple[Distances, Indices]:
    """The ``k`` smallest entries of each row of a distance matrix, lowest index first among equals."""
    m, u = X.shape
    distances, indices = np.full((m, k), np.inf), np.zeros((m, k), dtype=np.int32)
    block_rows = max(1, _BLOCK_ENTRIES // u)
    for start in range(0, m if k else 0, block_rows):
        rows, columns, entries = _near_entries(X[start : start + block_rows], min(k + 1, u))
        rows += start
        if without_diagonal:
            others = rows != columns
            rows, columns, entries = rows[others], columns[others], entries[others]
        _fill_smallest(rows, columns, entries, distances, indices)
    return distances, indices


def _near_entries(X: Any, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Rows, columns and values of the stored entries; of a dense matrix, those up to the ``count``-th smallest."""
    if not isinstance(X, np.ndarray):
        listed = sparse.coo_array(X)
        return listed.row.astype(np.int64), listed.col.astype(np.int64), listed.data.astype(np.float64)
    bounds = np.partition(X, count - 1, axis=1)[:, count - 1 : count]
    rows, columns = np.nonzero(bounds >= X)
    return rows, columns, X[rows, columns].astype(np.float64)


def _fill_smallest(
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    entries: NDArray[np.float64],
    values: NDArray[np.float64],
    indices: Indices,
) -> None:
    """Put each row's smallest entries into ``values`` and their columns into ``indices``, in order."""
    order = np.lexsort((columns, entries, rows))
    rows, columns, entries = rows[order], columns[order], entries[order]
    rank = np.arange(rows.size) - np.searchsorted(rows, rows)
    kept = rank < values.shape[1]
    values[rows[kept], rank[kept]] = entries[kept]
    indices[rows[kept], rank[kept]] = columns[kept]


def _listed_weights(X: Any) -> tuple[Indices, Distances, NDArray[np.float64]]:
    """The positive entries of each row of a weight matrix, heaviest first."""
    edges = sparse.coo_array(_canonical(sparse.csr_array(X, copy=True)))
    k = int(np.bincount(edges.row, minlength=1).max())
    lightness, indices = np.zeros((X.shape[0], k)), np.zeros((X.shape[0], k), dtype=np.int32)
    _fill_smallest(edges.row.astype(np.int64), edges.col.astype(np.int64), -edges.data, lightness, indices)
    return indices, np.full(lightness.shape, np.inf), -lightness
