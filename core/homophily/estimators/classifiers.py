"""Classifiers that label every point of a graph from a few labels: IRR (linear) and ERR, as scikit-learn estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions

from homophily.device.operations import CpuOperations
from homophily.estimators.transduction import POSITIVE, Answer, GraphClassifier, Problem
from homophily.exceptions import ParameterError
from homophily.graph.computing import BackendName
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.laplacian import row_sums
from homophily.relationship.choose import ENGINE_NAMES, EngineName, warn_of_error
from homophily.relationship.masked import SparseEngine
from homophily.solve.irr import irr_energy
from homophily.solve.new_points import RelationshipTerm, gauss_sums
from homophily.solve.nonlinear_cg import State

Floats = NDArray[np.float64]


class IRRClassifier(GraphClassifier):
    """Implicit relationship regularisation: the minimiser of Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F).

    Parameters are those of :class:`ERRClassifier` that do not concern relationships; ``tol`` is the relative accuracy
    of the linear solution, and ``callback(iteration, residual)`` is called as the solution proceeds.

    >>> from sklearn.datasets import make_moons
    >>> from homophily import IRRClassifier
    >>> X, y = make_moons(500, noise=0.1, random_state=0)
    >>> few = y.copy()
    >>> few[10:] = -1
    >>> classifier = IRRClassifier().fit(X, few)
    >>> bool((classifier.transduction_ == y).mean() > 0.98)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GraphClassifier._parameter_constraints,
        "tol": [POSITIVE],
    }

    def __init__(
        self,
        graph: KNNGraph | None = None,
        power: int | None = None,
        lambda1: float = 1e-2,
        class_prior: Any = None,
        tol: float = 1e-10,
        normalized: bool = True,
        backend: BackendName = "numpy",
        callback: Callable[[int, float], object] | None = None,
        n_jobs: int | None = None,
    ):
        self.graph = graph
        self.power = power
        self.lambda1 = lambda1
        self.class_prior = class_prior
        self.tol = tol
        self.normalized = normalized
        self.backend = backend
        self.callback = callback
        self.n_jobs = n_jobs

    def _minimise(self, problem: Problem, init: Floats | None, callback: Callable[..., object] | None) -> Answer:
        arguments = problem.laplacian, problem.confidence, problem.targets, self.lambda1
        found = self._irr(problem, self.tol, init, callback)
        energy = irr_energy(found.solution, *arguments, power=self._power, n_jobs=self.n_jobs)
        return Answer(found.solution, energy, found.iterations, 0)


@dataclass(frozen=True)
class Start:
    """What ERR's callback sees while the IRR start is computed: a :class:`State` before there is an energy."""

    residual: float
    """How far the IRR solution still is from its end, as :class:`~homophily.solve.irr.IRRSolution` states it."""
    iteration: int = 0
    energy: None = None
    gradient_norm: None = None
    n_evaluations: int = 0


class ERRClassifier(GraphClassifier):
    """Explicit relationship regularisation over all pairs of points, in time linear in the points.

    Minimises Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F) + λ2/u R(F), starting from the IRR minimiser, with the relationships
    K_ij = exp(−‖f_i − f_j‖²/σ_f²) and R = tr(Kᵀ L^p K) − (1 − ρ) Σ_j (L^p 1)_j ‖k_j‖². The paper has ρ = 1. As the rows
    of the normalised L^p do not sum to 0, its R is a sum over edges of differences between two points' relationships,
    and a push of each point out of the crowd, or into it. The push parts classes where the graph is thin, but in full
    it also drives whole clusters apart (``repulsion``).

    Two classes are one column of values with targets ±1; more are one column each with one-hot targets, or
    (``multiclass="one-vs-rest"``) as many two-class problems, which is faster for many points.

    Parameters
    ----------
    graph : the unfitted :class:`KNNGraph` to make of points; None means ``KNNGraph()``. Its parameters can be set as
        ``graph__n_neighbors`` and so on.
    power : p, the power of the Laplacian. None takes 2, which is usually the more accurate, and 1 for the sparse form,
        which has no other. p = 1 costs about an eighth of the time and memory.
    lambda1 : λ1, weight of the smoothness of values.
    lambda2 : λ2, weight of the smoothness of relationships, in units of λ1: the paper's λ2 is ``lambda2 / u``
        (``lambda2 / relationship_neighbors`` in the sparse form).
    sigma_f : σ_f (not squared), the width of the relationship function. None takes 0.65 of the distance between the
        targets of two classes: 1.3 for two classes, 0.92 for more.
    repulsion : ρ, how much of the push counts. None takes 0.65, and 1 for the sparse form. Without ``normalized`` there
        is no push, and it changes nothing.
    max_iter, tol : the optimiser stops after so many steps (with a warning), or when the gradient's norm has fallen to
        the share ``tol``. The default stops early on purpose: the first steps sharpen the classes, and what follows
        lowers the energy but is no better for the labels (much worse with the whole ``repulsion``).
    class_prior : what is known of the class shares. An array: the decision gives the classes these shares.
        "estimate": the same with the labels' own shares. None (the default): the labels' shares are weighed as the
        small sample they are, against cutting where many scores lie
        (:func:`homophily.supervision.class_shares.likely_offsets`).
    relationship_neighbors : |N_K|, regularise only the relationships of each point with that many nearest points,
        itself among them (sparse ERR, for power=1). None means all.
    multiclass : "vector" or "one-vs-rest", for more than two classes.
    engine : how the relationship energy is computed, see :mod:`homophily.relationship`.
    normalized : use the normalised Laplacian.
    backend : "numpy", or "cupy" for a GPU; "auto": if there is one.
    callback : called with the optimiser's state (``iteration``, ``energy``, ``gradient_norm``, ``n_evaluations``)
        before the first step and after each. Before that, each iteration of the IRR start shows it a :class:`Start`
        (a direct solution only one, at its end), whose ``iteration`` is 0 and whose ``energy`` None. Raise to cancel.
        A GPU tells of several steps at a time, with the numbers of each and the arrays of the last.
    n_jobs : threads; None means every core this process may use.

    Attributes
    ----------
    transduction_ : (u,) classes of all points. label_distributions_ : (u, C) their calibrated probabilities.
    solution_ : (u, n) values F. offsets_ : (n,) what is added to scores before the decision.
    classes_, class_prior_, graph_ : the classes, their assumed shares, the :class:`KNNGraph`.
    reached_ : (u,) False for points in components without a label, which get the prior.
    energy_, n_iter_, n_evaluations_ : of the optimiser. engine_, engine_error_ : the engine used and, for "nystrom",
        its relative error in the relationship energy at the solution (a warning tells when it is large).

    >>> from sklearn.datasets import make_moons
    >>> from homophily import ERRClassifier
    >>> X, y = make_moons(500, noise=0.1, random_state=0)
    >>> few = y.copy()
    >>> few[10:] = -1
    >>> classifier = ERRClassifier().fit(X, few)
    >>> bool((classifier.transduction_ == y).mean() > 0.98)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GraphClassifier._parameter_constraints,
        "lambda2": [Interval(Real, 0, None, closed="left")],
        "sigma_f": [POSITIVE, None],
        "repulsion": [Interval(Real, 0, None, closed="left"), None],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "relationship_neighbors": [Interval(Integral, 1, None, closed="left"), None],
        "multiclass": [StrOptions({"vector", "one-vs-rest"})],
        "engine": [StrOptions(set(ENGINE_NAMES))],
    }

    SIGMA_F = 0.65
    REPULSION = 0.65
    #: False leaves the nonlinear conjugate gradients without their preconditioner, as the paper has them.
    preconditioned: ClassVar[bool] = True

    def __init__(
        self,
        graph: KNNGraph | None = None,
        power: int | None = None,
        lambda1: float = 1e-2,
        lambda2: float = 4e-3,
        sigma_f: float | None = None,
        repulsion: float | None = None,
        max_iter: int = 50,
        tol: float = 0.1,
        class_prior: Any = None,
        relationship_neighbors: int | None = None,
        multiclass: Literal["vector", "one-vs-rest"] = "vector",
        engine: EngineName = "auto",
        normalized: bool = True,
        backend: BackendName = "numpy",
        callback: Callable[[State | Start], object] | None = None,
        n_jobs: int | None = None,
    ):
        self.graph = graph
        self.power = power
        self.lambda1 = lambda1
        self.lambda2 = lambda2
        self.sigma_f = sigma_f
        self.repulsion = repulsion
        self.max_iter = max_iter
        self.tol = tol
        self.class_prior = class_prior
        self.relationship_neighbors = relationship_neighbors
        self.multiclass = multiclass
        self.engine = engine
        self.normalized = normalized
        self.backend = backend
        self.callback = callback
        self.n_jobs = n_jobs

    def _check_together(self) -> None:
        if self.relationship_neighbors is not None and self._power != 1:
            raise self._wrong("power", "1 when relationship_neighbors is given: the sparse form is defined for L only")
        if self.relationship_neighbors is not None and self.backend == "cupy":
            raise self._wrong(
                "backend", "'numpy' or 'auto' when relationship_neighbors is given: the sparse form has no GPU engine"
            )

    @property
    def resolved_params_(self) -> dict[str, Any]:
        """All parameters with the values in use, those of the graph as ``graph__n_neighbors`` and so on."""
        resolved = super().resolved_params_
        resolved["sigma_f"] = self._sigma_f(1 if self._one_vs_rest else self.solution_.shape[1])
        resolved["repulsion"] = self._repulsion
        if self.engine_ in ENGINE_NAMES:
            resolved["engine"] = self.engine_
        return resolved

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
        return self.multiclass == "one-vs-rest" and len(self.classes_) > 2

    def _sigma_f(self, columns: int) -> float:
        """The width in use: targets are 2 apart in one column, √2 in more."""
        if self.sigma_f is not None:
            return float(self.sigma_f)
        return float(self.SIGMA_F * (2.0 if columns == 1 else np.sqrt(2.0)))

    def _minimise(self, problem: Problem, init: Floats | None, callback: Callable[..., object] | None) -> Answer:
        if self._one_vs_rest:
            targets = np.where(problem.confidence[:, None] > 0, 2.0 * problem.targets - 1.0, 0.0)
            problem = replace(problem, targets=targets)
        F = init
        if F is None:
            show = None if callback is None else lambda _, residual: callback(Start(residual))
            F = self._irr(problem, 1e-10, None, show).solution
        if not self._one_vs_rest:
            return self._descend(problem, F, self._engine(problem, F), init is not None, callback)
        engine = self._engine(problem, F.reshape(-1, 1))
        answers = [
            self._descend(
                replace(problem, targets=problem.targets[:, c : c + 1]),
                F[:, c : c + 1],
                engine,
                init is not None,
                callback,
            )
            for c in range(F.shape[1])
        ]
        return Answer(
            np.hstack([answer.F for answer in answers]),
            sum(answer.energy for answer in answers),
            max(answer.n_iter for answer in answers),
            sum(answer.n_evaluations for answer in answers),
            answers[0].engine,
            max((answer.engine_error for answer in answers if answer.engine_error is not None), default=None),
        )

    def _engine(self, problem: Problem, F: Floats) -> tuple[str, Any, float]:
        """Name, engine, and the relationships of a point (which λ2 is divided by)."""
        sigma_f = self._sigma_f(F.shape[1])
        if self.relationship_neighbors is not None:
            mask = self.graph_.neighborhoods(self.relationship_neighbors)
            degrees = self.graph_.degrees[problem.rows] if self.normalized else None
            engine = SparseEngine(
                problem.restricted(self.graph_.W),
                degrees,
                problem.restricted(mask),
                sigma_f,
                repulsion=self._repulsion,
                n_jobs=self.n_jobs,
            )
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
        self,
        problem: Problem,
        F: Floats,
        engine: tuple[str, Any, float],
        warm: bool,
        callback: Callable[..., object] | None,
    ) -> Answer:
        name, relationships, count = engine
        lambda1, lambda2 = self.lambda1, self.lambda2
        weight = lambda2 / count
        operations = problem.operations
        if self.relationship_neighbors is not None:
            # The masked form has an engine for the CPU only.
            operations = CpuOperations(problem.laplacian, self.n_jobs)
        state = operations.descend_labels(
            self._power,
            problem.confidence,
            problem.targets,
            lambda1,
            relationships,
            weight,
            start=np.ascontiguousarray(F),
            curvature=lambda1 + lambda2 / (2.0 * self._sigma_f(F.shape[1]) ** 2) if self.preconditioned else None,
            warm=warm,
            max_iter=self.max_iter,
            tolerance=self.tol,
            callback=callback,
        )
        if not np.isfinite(state.energy):
            raise ParameterError(
                f"The 'engine' parameter of ERRClassifier must suit the problem: with {name!r}, values spread over "
                f"{np.ptp(F, axis=0).max() / self._sigma_f(F.shape[1]):.3g} sigma_f are too far apart. Use 'auto' or "
                "'tiles', or a larger sigma_f.",
                "engine",
            )
        if self.tol > 0.0 and not state.finished:
            warnings.warn(
                f"Not converged after {self.max_iter} steps; pass max_iter={4 * max(1, self.max_iter)} or a larger tol "
                f"than {self.tol:g} to ERRClassifier.",
                ConvergenceWarning,
                stacklevel=6,
            )
        error = relationships.error(state.x) if name == "nystrom" else None
        warn_of_error(error, stacklevel=7)
        return Answer(state.x, state.energy, state.iteration, state.n_evaluations, name, error)

    def _new_point_terms(self) -> tuple[RelationshipTerm | None, ...]:
        if self.relationship_neighbors is not None or self.lambda2 == 0.0:
            # The masked sums of the sparse form have no Gauss sum to keep: IRR's closed form answers.
            return (None,)
        problem = self._problem(self._labels)
        left_out = self._left_out(problem.laplacian, 1)
        G = problem.laplacian if left_out is None else csr_array(problem.laplacian + diags_array(left_out))
        known = self.solution_[problem.rows]
        terms = []
        for F in np.split(known, known.shape[1] if self._one_vs_rest else 1, axis=1):
            sigma_f = self._sigma_f(F.shape[1])
            sums = gauss_sums(np.ascontiguousarray(F), G, sigma_f)
            terms.append(RelationshipTerm(sigma_f, self.lambda2, self._repulsion, sums))
        return tuple(terms)
