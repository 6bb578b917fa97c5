"""Classifiers that label every point of a graph from a few labels: IRR (linear) and ERR, as scikit-learn estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.sparse import csr_array, diags_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions

from homophily.arrays import Floats
from homophily.estimators.problem import Answer, Problem
from homophily.estimators.transduction import GraphClassifier, Report
from homophily.exceptions import ParameterError
from homophily.graph.computing import BackendName
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.laplacian import row_sums
from homophily.parameters import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE
from homophily.relationship.choose import ENGINE_NAMES, TILES_BEAT_NYSTROM, EngineName, warn_of_error
from homophily.relationship.nystrom import NystromEngine
from homophily.solve.follow_values import follow_values
from homophily.solve.new_points import RelationshipTerm, gauss_sums
from homophily.solve.nonlinear_cg import State
from homophily.solve.sharpen import Round
from homophily.threads import single_threaded_blas

#: Relative accuracy of the linear solution that ERR starts from.
IRR_TOLERANCE = 1e-10
#: The same for sharp relationships, which start from classes: at 1e-5 some of Pendigits' were others, at 1e-6 none.
SHARP_TOLERANCE = 1e-6


@dataclass(eq=False, repr=False)
class IRRClassifier(GraphClassifier):
    """Implicit relationship regularisation (IRR), the linear method that ERR starts from.

    It minimises Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F).

    Parameters
    ----------
    graph, power, lambda1, class_prior, sharpen : KNNGraph, int, float, array-like, bool
        As :class:`ERRClassifier` has them; a ``power`` of None means 2, or 1 with sharp relationships.
    tol : float, default=1e-10
        Relative accuracy of the linear solution.
    normalized, backend : bool, {"numpy", "cupy", "cupy-mixed", "auto"}
        As :class:`ERRClassifier` has them.
    callback : callable, default=None
        Called with the iteration and the residual as the solution proceeds; raise in it to cancel.
    n_jobs : int, default=None
        Number of threads; None means every core this process may use.

    Attributes
    ----------
    transduction_ : ndarray of shape (u,)
        Classes of all points. The other attributes are those of :class:`ERRClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily import IRRClassifier
    >>> X, y = make_moons(500, noise=0.1, random_state=0)
    >>> few = y.copy()
    >>> few[10:] = -1
    >>> classifier = IRRClassifier().fit(X, few)
    >>> bool((classifier.transduction_ == y).mean() > 0.98)
    True
    """

    graph: KNNGraph | None = None
    power: int | None = None
    lambda1: float = 1e-2
    class_prior: Any = None
    sharpen: bool | Literal["auto"] = False
    tol: float = 1e-10
    normalized: bool = True
    backend: BackendName = "numpy"
    callback: Callable[[int, float], object] | None = None
    n_jobs: int | None = None

    _parameter_constraints = GraphClassifier._parameter_constraints | {"tol": [POSITIVE]}

    def _minimise(self, problem: Problem, init: Floats | None, callback: Report | None) -> Answer:
        return self._linear(problem, self.tol, init, callback)

    def _report_round(self, callback: Report, state: Round) -> None:
        callback(state.iteration, state.changed)


@dataclass(frozen=True)
class Start:
    """The state that ERR's callback gets while the IRR start is computed: there is no energy yet."""

    residual: float
    """The residual of the IRR solution, as in :class:`~homophily.solve.irr.IRRSolution`."""
    iteration: int = 0
    energy: None = None
    gradient_norm: None = None
    n_evaluations: int = 0


@dataclass(eq=False, repr=False)
class ERRClassifier(GraphClassifier):
    """Explicit relationship regularisation (ERR) over all pairs of points, in time linear in the points.

    It labels every point from a few labels. Points that are neighbours in the graph get similar values, and similar
    relationships to all other points.

    Parameters
    ----------
    graph : KNNGraph, default=None
        Unfitted graph to build from points; None means ``KNNGraph()``. Its parameters can be set as
        ``graph__n_neighbors`` and so on.
    power : int, default=None
        The power p of the Laplacian. None means 2, which is usually the more accurate, or 1 for sharp relationships,
        which start from IRR, and in the sparse form, which allows no other. p = 1 costs about an eighth of the time and
        memory.
    lambda1 : float, default=1e-2
        Weight λ1 of the smoothness of values.
    lambda2 : float, default=4e-3
        Weight λ2 of the smoothness of relationships, in units of λ1: the paper's λ2 is ``lambda2 / u``, or
        ``lambda2 / relationship_neighbors`` in the sparse form.
    sigma_f : float, default=None
        Width σ_f (not squared) of the relationship function. None means 0.65 times the distance between the targets of
        two classes: 1.3 for two classes, 0.92 for more.
    repulsion : float, default=None
        The share ρ of the push that counts. None means 0.65, or 1 in the sparse form. Without ``normalized`` there is
        no push.
    max_iter : int, default=50
        Largest number of steps of the optimiser; it warns if that is not enough.
    tol : float, default=0.1
        The optimiser stops when the gradient's norm has fallen to this share. It stops early on purpose: the first
        steps sharpen the classes, later ones lower the energy but do not improve the labels.
    class_prior : array-like, "balanced" or "estimate", default=None
        Known class shares. With C numbers the decision gives the classes these shares; "balanced" gives all the same,
        "estimate" the labels' own. None weighs the labels' shares, as the small sample they are, against cutting where
        many scores lie; sharp relationships infer the shares from the graph as well. C pairs (low, high) are bounds of
        the shares that None would find.
    sharpen : bool or "auto", default="auto"
        Use sharp relationships, which need fewer labels: two points are related if they share a class, and not
        otherwise. Classes that spread over the graph from the IRR solution take turns with new decisions until they
        settle. The scores are then the log shares of each class around a point, and the parameters of smooth
        relationships (``lambda2``, ``sigma_f``, ``repulsion``, ``max_iter``, ``tol``, ``relationship_neighbors``,
        ``multiclass``, ``engine``) are not used. "auto" does so with at most 15 labels per class, unless one of these
        parameters is set.
    relationship_neighbors : int, default=None
        In the sparse form (for ``power=1``), the number of nearest points, itself included, whose relationships with a
        point are regularised. None means all points.
    multiclass : {"auto", "vector", "one-vs-rest"}, default="auto"
        For more than two classes, solve for all columns together, or one two-class problem per class, which is exact
        and several times faster for many points. "auto" does so with more than 4,000 points, but not in the sparse
        form.
    engine : str, default="auto"
        Method of computing the relationship energy, see :mod:`homophily.relationship`.
    normalized : bool, default=True
        Use the normalised Laplacian.
    backend : {"numpy", "cupy", "cupy-mixed", "auto"}, default="numpy"
        Where to compute: "cupy" uses a GPU, "cupy-mixed" one whose float64 is slow, "auto" one if it is there.
    callback : callable, default=None
        Called with the optimiser's state (``iteration``, ``energy``, ``gradient_norm``, ``n_evaluations``) before the
        first step and after each; before that with a ``Start`` for each iteration of IRR. Sharp relationships call it
        with a ``Round`` for each round instead of a step. Raise in it to cancel. A GPU reports several steps at a time,
        with the numbers of each and the arrays of the last.
    n_jobs : int, default=None
        Number of threads; None means every core this process may use.

    Attributes
    ----------
    transduction_ : ndarray of shape (u,)
        Classes of all points.
    label_distributions_ : ndarray of shape (u, C)
        Calibrated class probabilities of all points.
    solution_ : ndarray of shape (u, n)
        The values F; with sharp relationships, those of IRR.
    offsets_ : ndarray of shape (n,)
        Added to scores before the decision.
    classes_ : ndarray of shape (C,)
        The classes.
    class_prior_ : ndarray of shape (C,)
        The class shares assumed, or inferred with sharp relationships.
    class_share_range_ : ndarray of shape (C, 2)
        How sure the shares are: the share of points that are of a class with probability 0.9 or more, and 0.1 or more.
    sharp_shares_ : ndarray of shape (u, C), or None
        With sharp relationships, the share of each class around each point, which the decision is made on.
    given_labels_ : Labels
        The labels of ``fit``.
    graph_ : KNNGraph
        The fitted graph.
    reached_ : ndarray of shape (u,)
        False for points in components without a label, which get the prior.
    energy_, n_iter_, n_evaluations_ : float, int, int
        Energy of the solution, steps and evaluations of the optimiser; rounds count as steps.
    engine_, engine_error_ : str, float or None
        The engine used and, for "nystrom", the relative error of its energy at the solution.
    engine_gradient_error_ : float or None
        For "nystrom" on the CPU, the relative error of the gradient at the solution.
    resolved_params_ : dict
        All parameters with the values in use.

    Notes
    -----
    It minimises Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F) + λ2/u R(F), starting from the IRR minimiser, with relationships
    K_ij = exp(−‖f_i − f_j‖²/σ_f²) and R = tr(Kᵀ L^p K) − (1 − ρ) Σ_j (L^p 1)_j ‖k_j‖². The paper has ρ = 1. The rows of
    the normalised L^p do not sum to 0. So the paper's R is a sum over edges of differences between the relationships of
    two points, plus a push that separates classes where the graph is thin, but in full also drives clusters apart.

    Two classes are one column of values with targets ±1; more are one column per class with one-hot targets.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily import ERRClassifier
    >>> X, y = make_moons(500, noise=0.1, random_state=0)
    >>> few = y.copy()
    >>> few[10:] = -1
    >>> classifier = ERRClassifier().fit(X, few)
    >>> bool((classifier.transduction_ == y).mean() > 0.98)
    True
    """

    graph: KNNGraph | None = None
    power: int | None = None
    lambda1: float = 1e-2
    lambda2: float = 4e-3
    sigma_f: float | None = None
    repulsion: float | None = None
    max_iter: int = 50
    tol: float = 0.1
    class_prior: Any = None
    sharpen: bool | Literal["auto"] = "auto"
    relationship_neighbors: int | None = None
    multiclass: Literal["auto", "vector", "one-vs-rest"] = "auto"
    engine: EngineName = "auto"
    normalized: bool = True
    backend: BackendName = "numpy"
    callback: Callable[[State | Start | Round], object] | None = None
    n_jobs: int | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GraphClassifier._parameter_constraints,
        "lambda2": [NOT_NEGATIVE],
        "sigma_f": [POSITIVE, None],
        "repulsion": [NOT_NEGATIVE, None],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [NOT_NEGATIVE],
        "relationship_neighbors": [AT_LEAST_ONE, None],
        "multiclass": [StrOptions({"auto", "vector", "one-vs-rest"})],
        "engine": [StrOptions(set(ENGINE_NAMES))],
    }

    _SMOOTH: ClassVar[tuple[str, ...]] = (
        *("lambda2", "sigma_f", "repulsion", "max_iter", "tol", "relationship_neighbors", "multiclass", "engine"),
    )
    # Both were chosen on the six sets of `python -m benchmarks defaults`, with 50 labels each.
    SIGMA_F = 0.65
    REPULSION = 0.65
    #: False turns the preconditioner of the nonlinear conjugate gradients off, as in the paper.
    preconditioned: ClassVar[bool] = True

    def _check_together(self) -> None:
        if self.relationship_neighbors is not None and self._power != 1:
            raise self._wrong("power", "1 when relationship_neighbors is given: the sparse form is defined for L only")

    def resolve_params(self, n_classes: int, n_points: int) -> dict[str, Any]:
        """The parameters that a fit of ``n_points`` points in ``n_classes`` classes uses, except the graph's."""
        is_apart = self._is_one_vs_rest(n_points)
        own = {
            "sigma_f": self._sigma_f(1 if n_classes == 2 or is_apart else n_classes),
            "repulsion": self._repulsion,
            "multiclass": "one-vs-rest" if is_apart else "vector",
        }
        return super().resolve_params(n_classes, n_points) | own

    @property
    def resolved_params_(self) -> dict[str, Any]:
        """All parameters with the values in use, those of the graph as ``graph__n_neighbors`` and so on."""
        resolved = super().resolved_params_
        return resolved | {"engine": self.engine_} if self.engine_ in ENGINE_NAMES else resolved

    @property
    def _power(self) -> int:
        return 1 if self.power is None and self.relationship_neighbors is not None else super()._power

    @property
    def _repulsion(self) -> float:
        if not self.normalized:
            # Rows that sum to 0 do not push.
            return 1.0
        if self.repulsion is None:
            return self.REPULSION if self.relationship_neighbors is None else 1.0
        return float(self.repulsion)

    def _left_out(self, laplacian: csr_array, power: int) -> Floats | None:
        """Diagonal (ρ − 1)·L^p·1 added to L^p; None with ρ = 1."""
        if self._repulsion == 1.0:
            return None
        return (self._repulsion - 1.0) * row_sums(laplacian, power, self.n_jobs)

    @property
    def _one_vs_rest(self) -> bool:
        return self._is_one_vs_rest(self.graph_.n_points) and len(self.classes_) > 2 and not self._is_sharp

    def _is_one_vs_rest(self, n_points: int) -> bool:
        if self.multiclass == "auto":
            return n_points > TILES_BEAT_NYSTROM and self.relationship_neighbors is None
        return self.multiclass == "one-vs-rest"

    def _sigma_f(self, columns: int) -> float:
        """The width in use: targets are 2 apart in one column, √2 in more."""
        if self.sigma_f is not None:
            return float(self.sigma_f)
        return float(self.SIGMA_F * (2.0 if columns == 1 else np.sqrt(2.0)))

    def _minimise(self, problem: Problem, init: Floats | None, callback: Report | None) -> Answer:
        show = None if callback is None else lambda _, residual: callback(Start(residual))
        if self._is_sharp:
            return self._linear(problem, SHARP_TOLERANCE, init, show)
        problem = replace(problem, targets=self._own_targets(problem))
        F = init
        if F is None:
            F = self._irr(problem, IRR_TOLERANCE, None, show).solution
        parts = F.shape[1] if self._one_vs_rest else 1
        engine = self._engine(problem, F.reshape(-1, F.shape[1] // parts))
        answers = [
            self._descend(replace(problem, targets=targets), values, engine, init is not None, callback)
            for targets, values in zip(np.hsplit(problem.targets, parts), np.hsplit(F, parts), strict=True)
        ]
        answer = Answer(
            np.hstack([answer.F for answer in answers]),
            sum(answer.energy for answer in answers),
            max(answer.n_iter for answer in answers),
            sum(answer.n_evaluations for answer in answers),
            answers[0].engine,
            max((answer.engine_error for answer in answers if answer.engine_error is not None), default=None),
            max((one.engine_gradient_error for one in answers if one.engine_gradient_error is not None), default=None),
            all(answer.converged for answer in answers),
        )
        # Once per fit, not once per class.
        if self.tol > 0.0 and not answer.converged:
            warnings.warn(
                f"Not converged after {self.max_iter} steps, so labels may still change; "
                f"pass max_iter={4 * max(1, self.max_iter)} to continue.",
                ConvergenceWarning,
                stacklevel=5,
            )
        warn_of_error(answer.engine_error, stacklevel=6)
        return answer

    def _own_targets(self, problem: Problem) -> Floats:
        if not self._one_vs_rest:
            return problem.targets
        return np.where(problem.confidence[:, None] > 0, 2.0 * problem.targets - 1.0, 0.0)

    def _engine(self, problem: Problem, F: Floats) -> tuple[str, Any, float]:
        """Name, engine, and the number of relationships of a point, which λ2 is divided by."""
        sigma_f = self._sigma_f(F.shape[1])
        if self.relationship_neighbors is not None:
            mask = self.graph_.neighborhoods(self.relationship_neighbors)
            degrees = self.graph_.degrees[problem.rows] if self.normalized else None
            part = problem.restricted(self.graph_.W), degrees, problem.restricted(mask)
            engine = problem.operations.sparse_engine(*part, sigma_f, repulsion=self._repulsion)
            return "sparse", engine, mask.nnz / mask.shape[0]
        how: dict[str, Any] = {
            "engine": self.engine,
            "power": self._power,
            "diagonal": self._left_out(problem.laplacian, self._power),
            "powered": lambda: problem.restricted(self.graph_.laplacian(self._power, self.normalized)),
            "targets": np.eye(F.shape[1]) if F.shape[1] > 1 else None,
        }
        return *problem.operations.engine(F, sigma_f, **how), float(problem.laplacian.shape[0])

    def _descend(
        self, problem: Problem, F: Floats, engine: tuple[str, Any, float], warm: bool, callback: Report | None
    ) -> Answer:
        name, relationships, count = engine
        sigma_f, operations = self._sigma_f(F.shape[1]), problem.operations
        on_graph, start = (self._power, problem.confidence), np.ascontiguousarray(F)

        def minimise(relationships: Any, x: Floats, steps: int, scale: float | None, callback: Report | None) -> State:
            terms = problem.targets, self.lambda1, relationships, self.lambda2 / count
            energy = operations.label_energy(*on_graph, *terms)
            if warm and scale is None:
                # At the IRR minimiser the gradient is that of the relationships alone: a warm start is measured by it.
                scale = energy.relationship_slope(x)
            optimizer = operations.label_optimizer(energy, steps, self.tol, preconditioner, scale)
            # BLAS's own threads take longer to meet than a scalar product of one column takes.
            with single_threaded_blas():
                found: State = optimizer.run(x, callback)
            return found

        preconditioner = None
        if self.preconditioned:
            preconditioner = operations.preconditioner(*on_graph, self.lambda1 + self.lambda2 / (2.0 * sigma_f**2))
        if isinstance(relationships, NystromEngine):
            state, relationships = follow_values(relationships, minimise, start, self.max_iter, callback)
            name = "nystrom" if isinstance(relationships, NystromEngine) else "tiles"
        else:
            state = minimise(relationships, start, self.max_iter, None, callback)
        if not np.isfinite(state.energy):
            raise ParameterError(
                f"The 'engine' parameter of ERRClassifier must suit the problem: with {name!r}, values spread over "
                f"{np.ptp(F, axis=0).max() / sigma_f:.3g} sigma_f are too far apart. Use 'auto' or 'tiles', or a "
                "larger sigma_f.",
                "engine",
            )
        error, gradient_error = None, None
        if isinstance(relationships, NystromEngine):
            error, gradient_error = relationships.errors(state.x)
        elif name == "nystrom":
            # The device knows that of the energy.
            error = relationships.error(state.x)
        counts = state.iteration, state.n_evaluations
        return Answer(state.x, state.energy, *counts, name, error, gradient_error, state.finished)

    def _new_point_terms(self) -> tuple[RelationshipTerm | None, ...]:
        if self.relationship_neighbors is not None or self.lambda2 == 0.0 or self._is_sharp:
            # The sparse form has no Gauss sums to keep, and sharp relationships need none.
            return (None,)
        problem = self._problem(self.given_labels_)
        left_out = self._left_out(problem.laplacian, 1)
        G = problem.laplacian if left_out is None else csr_array(problem.laplacian + diags_array(left_out))
        known = self.solution_[problem.rows]
        terms = []
        for F in np.split(known, known.shape[1] if self._one_vs_rest else 1, axis=1):
            sigma_f = self._sigma_f(F.shape[1])
            sums = gauss_sums(np.ascontiguousarray(F), G, sigma_f)
            terms.append(RelationshipTerm(sigma_f, self.lambda2, self._repulsion, sums))
        return tuple(terms)
