"""Maps that obey links: ERR embedding, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy.sparse import csr_array, diags_array
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from homophily.arrays import Floats
from homophily.device.backend import Backend
from homophily.estimators.graph_estimator import COMPUTED, GraphEstimator, MapMixin, in_blocks
from homophily.estimators.map_target import linked_coordinates, spread_target
from homophily.exceptions import ContradictingLinksError
from homophily.graph.computing import BackendName
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.laplacian import row_sums
from homophily.parameters import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, CheckedEstimator
from homophily.relationship.choose import ENGINE_NAMES, EngineName
from homophily.relationship.functions import RELATIONSHIPS
from homophily.solve.map_energy import violated_links
from homophily.solve.map_points import Surroundings, place_points
from homophily.solve.nonlinear_cg import State
from homophily.supervision.links import Links, check_links, close_links, links_from_labels
from homophily.threads import single_threaded_blas

#: Largest factor between one width and the next; small, because each starts from the map of the one before.
STEP_OF_WIDTHS = 2.0


@dataclass(eq=False, repr=False)
class LinkPenalty(CheckedEstimator):
    """The part of a map's energy that comes from links.

    Parameters
    ----------
    weight : float, default=30.0
        Weight λ3 of a link.
    loss : {"log", "squared"}, default="log"
        Energy of a must-link, −log K_ij or (1 − K_ij)². That of a cannot-link is K_ij².
    closure : bool or "two-class", default=True
        Also obey the links that follow from the given ones: together with together is together, together with apart is
        apart. "two-class" adds that apart with apart is together, which is right for two classes.
    edges : float, default=0.3
        Weight γ of a link as an edge of the graph whose spectral map is the start T, positive for must-links and
        negative for cannot-links, in units of the mean degree.

    Examples
    --------
    >>> from homophily import ERREmbedding, LinkPenalty
    >>> ERREmbedding(link_penalty=LinkPenalty(weight=10.0)).get_params()["link_penalty__weight"]
    10.0
    """

    weight: float = 30.0
    loss: Literal["log", "squared"] = "log"
    closure: bool | Literal["two-class"] = True
    edges: float = 0.3

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "weight": [NOT_NEGATIVE],
        "loss": [StrOptions({"log", "squared"})],
        "closure": ["boolean", StrOptions({"two-class"})],
        "edges": [NOT_NEGATIVE],
    }


def falling_widths(last: float, continuation: float) -> tuple[float, ...]:
    """The widths σ_f of a search that begins ``continuation`` times wider than it ends."""
    steps = int(np.ceil(np.log(continuation) / np.log(STEP_OF_WIDTHS) - 1e-9))
    return tuple(float(width) for width in last * np.geomspace(continuation, 1.0, steps + 1))


#: Default widths, chosen on the link sets of `python -m benchmarks embedding`.
WIDTHS = falling_widths(0.2, 5.0)


@dataclass(eq=False, repr=False)
class ERREmbedding(MapMixin, GraphEstimator):
    """A map on which neighbours in the graph have similar relationships, and linked points are together or apart.

    It minimises E(F) = α‖F − T‖² + λ2 R(F) + 2λ3 (Σ_must −log K_ij + Σ_cannot K_ij²), with relationships
    K_ij = exp(−‖f_i − f_j‖²/σ_f²) and R = tr(KᵀLK) − (1 − ρ) Σ_j (L 1)_j ‖k_j‖². The search starts from T, which comes
    from the smoothest eigenvectors of the graph with the links in it: each point's direction among ``n_vectors`` of
    them, projected on the ``n_components`` axes along which directions differ most. Lengths are left out: they are
    large for a few points far from all others. Components of the graph lie side by side.

    Parameters
    ----------
    n_components : int, default=2
        Number n of coordinates of the map.
    graph : KNNGraph, default=None
        Unfitted graph to build from points; None means ``KNNGraph(symmetrize="max")``. Its parameters can be set as
        ``graph__n_neighbors`` and so on.
    data_weight : float, default=1.0
        Weight α of staying near T. R alone is least where all points are far apart; α keeps the map together.
    lambda2 : float, default=0.5
        Weight λ2 of the smoothness of relationships.
    sigma_f : float or sequence of float, default=(1.0, 0.58, 0.34, 0.2)
        Width σ_f (not squared) of the relationship function; the columns of T have mean square 1. Several falling
        widths are used one after the other: the first see the whole map.
    repulsion : float, default=0.65
        The share ρ of the push that counts, see :class:`ERRClassifier`.
    n_vectors : int, default=8
        Number of eigenvectors that T is made of. With ``n_components`` of them or fewer, T is the spectral map
        √u·[e₂, e₃, …] of :class:`SpectralEmbedding`.
    link_penalty : LinkPenalty, default=None
        Weight λ3 and form of links in the energy; None means ``LinkPenalty()``.
    relationship : {"gaussian", "cauchy"}, default="gaussian"
        The relationship function. "cauchy" is K_ij = 1/(1 + ‖f_i − f_j‖²/σ_f²), which takes time u² unless
        ``relationship_neighbors`` is given.
    relationship_neighbors : int, default=None
        In the sparse form, the number of nearest points, itself included, whose relationships with a point are
        regularised. None means all points.
    max_iter : int, default=60
        Largest number of steps of the optimiser for each width.
    tol : float, default=1e-2
        The optimiser stops when the gradient's norm has fallen to this share. More steps lower the energy a little and
        change neither errors nor links.
    engine : str, default="auto"
        Method of computing R, see :mod:`homophily.relationship`.
    normalized : bool, default=True
        Use the normalised Laplacian.
    backend : {"numpy", "cupy", "cupy-mixed", "auto"}, default="numpy"
        Where to compute: "cupy" uses a GPU, "cupy-mixed" one whose float64 is slow, "auto" one if it is there.
    callback : callable, default=None
        Called with the optimiser's state (``iteration``, ``energy``, ``gradient_norm``, ``n_evaluations``, and the map
        ``x``) before the first step and after each. Raise in it to cancel.
    n_jobs : int, default=None
        Number of threads; None means every core this process may use.

    Attributes
    ----------
    embedding_ : ndarray of shape (u, n)
        The map F.
    target_ : ndarray of shape (u, n)
        The map T.
    links_ : Links
        The links given.
    violated_must_, violated_cannot_ : ndarray of shape (m, 2)
        Given must-links with K_ij < ½ on the map, and given cannot-links with K_ij ≥ ½.
    energy_, n_iter_, n_evaluations_ : float, int, int
        Energy with the last width, steps and evaluations with all widths.
    sigma_f_, engine_ : float, str
        The last width and the engine used.
    graph_ : KNNGraph
        The fitted graph.
    resolved_params_ : dict
        All parameters with the values in use.

    Notes
    -----
    The paper's form, with its unit-norm eigenvectors, its λ2 (divided by the number of links, as it ties them), λ3 and
    σ_f, is ``n_vectors=n_components``, ``data_weight=1/u``, ``sigma_f=σ_f √u``, ``lambda2=λ2``, ``repulsion=1``,
    ``max_iter=50``, ``tol=0`` and ``link_penalty=LinkPenalty(weight=λ3, loss="squared", closure=False, edges=0)``;
    ``embedding_ / √u`` is its map.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily import ERREmbedding
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> embedding = ERREmbedding().fit(X, must_link=[(0, 4), (1, 2)], cannot_link=[(0, 1)])
    >>> embedding.embedding_.shape, len(embedding.violated_must_), len(embedding.violated_cannot_)
    ((200, 2), 0, 0)
    """

    n_components: int = 2
    graph: KNNGraph | None = None
    data_weight: float = 1.0
    lambda2: float = 0.5
    sigma_f: float | Sequence[float] = WIDTHS
    repulsion: float = 0.65
    n_vectors: int = 8
    link_penalty: LinkPenalty | None = None
    relationship: str = "gaussian"
    relationship_neighbors: int | None = None
    max_iter: int = 60
    tol: float = 1e-2
    engine: EngineName = "auto"
    normalized: bool = True
    backend: BackendName = "numpy"
    callback: Callable[[State], object] | None = None
    n_jobs: int | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GraphEstimator._parameter_constraints,
        **COMPUTED,
        "n_components": [AT_LEAST_ONE],
        "data_weight": [NOT_NEGATIVE],
        "lambda2": [NOT_NEGATIVE],
        "sigma_f": [POSITIVE, "array-like"],
        "repulsion": [NOT_NEGATIVE],
        "n_vectors": [AT_LEAST_ONE],
        "link_penalty": [LinkPenalty, None],
        "relationship": [StrOptions(set(RELATIONSHIPS))],
        "relationship_neighbors": [AT_LEAST_ONE, None],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [NOT_NEGATIVE],
        "engine": [StrOptions(set(ENGINE_NAMES))],
        "callback": [callable, None],
    }
    _parts: ClassVar[Mapping[str, Callable[[], Any]]] = {
        "graph": lambda: KNNGraph(symmetrize="max"),
        "link_penalty": LinkPenalty,
    }

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, *, must_link: Any = None, cannot_link: Any = None, init: Any = None) -> Self:
        """Map the rows of X.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (u, d), or KNNGraph
            Points; a fitted graph; or, by the graph's ``metric``, distances or weights (u, u).
        y : array-like of shape (u,), default=None
            Classes of some points, where −1, NaN, None or "" means unlabelled: they are links between all labelled
            points.
        must_link, cannot_link : array-like of shape (m, 2), default=None
            Pairs (i, j) of positions in X that belong together, or apart.
        init : array-like of shape (u, n), default=None
            Map to start from, such as the ``embedding_`` of a fit with fewer links. Only the last width is used then,
            and T is rotated to fit the map: points that no link concerns stay where they were.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._check_together()
        # A cancelled fit leaves an estimator that is not fitted.
        self.__dict__.pop("embedding_", None)
        with self._backend().job():
            graph = self._graph(self._points(X))
            self._map(graph, y, must_link, cannot_link, init)
        return self

    def _check_together(self) -> None:
        """Refuse parameters that do not go together."""
        self._penalty._validate_params()

    def _map(self, graph: KNNGraph, y: Any, must_link: Any, cannot_link: Any, init: Any) -> None:
        widths = self.widths
        u, n = graph.n_points, self.n_components
        if n >= u:
            raise self._wrong("n_components", f"smaller than the number of points, n_samples={u}")
        self.links_ = self._read_links(y, must_link, cannot_link, u)
        start = None if init is None else self._check_init(init, (u, n))
        self.target_ = self._target(graph, self.links_, n)
        if start is None:
            start = self.target_
        else:
            self.target_, widths = _turned(self.target_, start), widths[-1:]
        # The optimiser's dot products are short: BLAS threads would wait for each other, and for the engine's.
        with single_threaded_blas():
            state = self._descend(self._backend(), graph, start, widths)
        self.graph_, self.sigma_f_ = graph, widths[-1]
        self.energy_, self.n_iter_, self.n_evaluations_ = state.energy, state.iteration, state.n_evaluations
        violated = violated_links(state.x, self.links_, self.sigma_f_, RELATIONSHIPS[self.relationship])
        self.violated_must_, self.violated_cannot_ = violated.must, violated.cannot
        # Computed on demand: the surroundings that new points are placed in.
        self._lazy = {}
        self.embedding_ = state.x

    def transform(self, X: Any) -> Floats:
        """Places of points on the map: where the energy of each is least, near most of its neighbours, the rest fixed.

        A point at distance 0 from one of ``fit`` has that one's place. The energy of new points has no links, and the
        relationships with all points in it, also where ``fit`` took some.
        """
        X = self._new_points(X)
        fitted = self.graph_, self._once("surroundings", self._surroundings), self.target_
        names = "normalized", "repulsion", "data_weight", "lambda2"
        how: dict[str, Any] = {name: getattr(self, name) for name in names}
        return in_blocks(X, self.graph_, lambda block: (place_points(block, *fitted, **how),))[0]

    def _surroundings(self) -> Surroundings:
        laplacian = self.graph_.laplacian(normalized=self.normalized)
        G = csr_array(laplacian + diags_array(self._left_out(laplacian)))
        return Surroundings.of(self.embedding_, G, self.sigma_f_, RELATIONSHIPS[self.relationship])

    def _target(self, graph: KNNGraph, links: Links, n: int) -> Floats:
        """T, where the search starts and what it stays near to."""
        vectors = min(self.n_vectors, graph.n_points - 1)
        if vectors <= n:
            return self._spectral_map(graph, links, n)
        return spread_target(graph, links, self._penalty.edges, n, vectors, **self._eigen_options())

    def _spectral_map(self, graph: KNNGraph, links: Links, n: int) -> Floats:
        return linked_coordinates(graph, links, self._penalty.edges, n, **self._eigen_options())[1]

    def _eigen_options(self) -> dict[str, Any]:
        return {"normalized": self.normalized, "backend": self._backend(), "n_jobs": self.n_jobs}

    def _left_out(self, laplacian: csr_array) -> Floats:
        """Diagonal (ρ − 1)·L·1 added to L."""
        return (self.repulsion - 1.0) * row_sums(laplacian, 1, self.n_jobs)

    def _read_links(self, y: Any, must_link: Any, cannot_link: Any, points: int) -> Links:
        labelled = None
        if y is not None:
            labelled = links_from_labels(y)
            check_consistent_length(y, np.empty(points))
        how: dict[str, Any] = {"two_classes": self._penalty.closure == "two-class", "owner": f"{self._owner}.fit"}
        return check_links(must_link, cannot_link, points, more=labelled, stacklevel=6, **how)

    @property
    def widths(self) -> tuple[float, ...]:
        """The falling widths σ_f of the search, each for ``max_iter`` steps at most; with ``init``, only the last."""
        try:
            widths = tuple(float(width) for width in np.atleast_1d(np.asarray(self.sigma_f, dtype=np.float64)))
        except (TypeError, ValueError):
            widths = ()
        if not widths or min(widths) <= 0 or not np.isfinite(widths).all() or any(np.diff(widths) >= 0):
            raise self._wrong("sigma_f", "a positive number, or several that fall")
        return widths

    @property
    def _penalty(self) -> LinkPenalty:
        return LinkPenalty() if self.link_penalty is None else self.link_penalty

    @property
    def resolved_params_(self) -> dict[str, Any]:
        """All parameters with the values in use, those of the graph as ``graph__n_neighbors`` and so on."""
        check_is_fitted(self)
        nested = {"graph": self.graph_.resolved_params_, "link_penalty": self._penalty.get_params()}
        own = {name: value for name, value in self.get_params(deep=False).items() if name not in (*nested, "callback")}
        own |= {"sigma_f": self.widths, "engine": self.engine_}
        return own | {f"{part}__{name}": value for part, values in nested.items() for name, value in values.items()}

    def _obeyed_links(self, points: int) -> Links:
        """The links in the energy. Nothing is concluded from links that contradict each other; a warning said so."""
        closure = self._penalty.closure
        if closure is False:
            return self.links_
        try:
            return close_links(self.links_, points, two_classes=closure == "two-class")
        except ContradictingLinksError:
            return self.links_

    def _descend(self, backend: Backend, graph: KNNGraph, F: Floats, widths: tuple[float, ...]) -> State:
        laplacian, function = graph.laplacian(normalized=self.normalized), RELATIONSHIPS[self.relationship]
        diagonal, links = self._left_out(laplacian), self._obeyed_links(graph.n_points)
        operations = backend.operations(laplacian, self.n_jobs)
        before = 0, 0
        for sigma_f in widths:
            relationships: Any
            how: dict[str, Any] = {"relationship": function}
            if self.relationship_neighbors is not None:
                mask = graph.neighborhoods(self.relationship_neighbors)
                degrees = graph.degrees if self.normalized else None
                how |= {"repulsion": self.repulsion}
                self.engine_, relationships = "sparse", operations.sparse_engine(graph.W, degrees, mask, sigma_f, **how)
            else:
                how |= {"engine": self.engine, "diagonal": diagonal, "tolerance": 1e-6}
                self.engine_, relationships = operations.engine(F, sigma_f, **how)
            energy = self.target_, self.data_weight, relationships, self.lambda2, links, self._penalty.weight, sigma_f
            form: dict[str, Any] = {"link_loss": self._penalty.loss, "relationship": function}
            optimizer = operations.map_optimizer(operations.map_energy(*energy, **form), self.max_iter, self.tol)
            state = _after(before, optimizer.run(F, self._show(before)))
            F, before = state.x, (state.iteration, state.n_evaluations)
        return state

    def _show(self, before: tuple[int, int]) -> Callable[[State], object] | None:
        callback = self.callback
        return None if callback is None else lambda state: callback(_after(before, state))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "embedding_")


def _after(before: tuple[int, int], state: State) -> State:
    """The state with the iterations and evaluations of earlier widths counted in."""
    return replace(state, iteration=state.iteration + before[0], n_evaluations=state.n_evaluations + before[1])


def _turned(T: Floats, F: Floats) -> Floats:
    """T rotated and mirrored to lie on F as well as it can."""
    left, _, right = np.linalg.svd(T.T @ F)
    return np.ascontiguousarray(T @ (left @ right))
