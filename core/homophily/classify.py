"""Classifiers that label every point of a graph from a few labels: IRR (linear) and ERR, as scikit-learn estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from homophily.calibration import Calibration, fit_calibration, label_folds
from homophily.energy import LabelEnergy, PolynomialPreconditioner
from homophily.errors import UnlabelledComponentsWarning
from homophily.extend import RelationshipTerm, extend, gauss_sums
from homophily.graph import KNNGraph
from homophily.labels import (
    Labels,
    check_prior,
    class_offsets,
    decide_index,
    encode_labels,
    estimate_prior,
    likely_offsets,
)
from homophily.linear import irr_energy, solve_irr
from homophily.optimize import NonlinearCG, State
from homophily.relationship import ENGINE_NAMES, Engine, EngineName, choose_engine, make_engine
from homophily.relationship.nystrom import NystromEngine
from homophily.relationship.sparse import SparseEngine

Floats = NDArray[np.float64]

CALIBRATION_FOLDS = 5
_POSITIVE = Interval(Real, 0, None, closed="neither")


@dataclass(frozen=True)
class _Problem:
    """The part of the graph that labels reach: what the energies are computed on."""

    rows: NDArray[np.intp] | slice
    laplacian: csr_array
    confidence: Floats
    targets: Floats

    def restricted(self, matrix: csr_array) -> csr_array:
        return matrix if isinstance(self.rows, slice) else csr_array(matrix[self.rows][:, self.rows])


@dataclass(frozen=True)
class _Answer:
    """F on the rows of a problem, with what is told about how it was found."""

    F: Floats
    energy: float
    n_iter: int
    n_evaluations: int
    engine: str | None = None
    engine_error: float | None = None


class _GraphClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What IRR and ERR share: graph, labels, decision, probabilities, new points."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **KNNGraph._parameter_constraints,
        "power": [Interval(Integral, 1, None, closed="left")],
        "normalized": ["boolean"],
        "lambda1": [_POSITIVE],
        "class_prior": ["array-like", StrOptions({"estimate"}), None],
        "backend": [StrOptions({"numpy"})],
    }

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, init: Any = None) -> Self:
        """Label every point of X.

        Parameters
        ----------
        X : points (u, d), dense or CSR; a fitted :class:`KNNGraph`; or, by ``metric``, distances or weights (u, u).
        y : (u,) classes, where −1, NaN, None or "" means unlabelled; or (u, C) class shares, rows of 0 unlabelled.
        sample_weight : (u,) confidence in each label, 1 if not given.
        init : (u, n) values to start from instead of zeros (IRR) or the IRR solution (ERR).
        """
        self._check_together()
        # A fit that is cancelled half-way leaves an estimator that is not fitted.
        vars(self).pop("transduction_", None)
        self.graph_ = self._graph(X)
        check_consistent_length(self.graph_.W, y)
        labels = encode_labels(y, sample_weight)
        start = None if init is None else self._read_init(init, labels)
        self.classes_ = labels.classes
        self.reached_ = self._reach(labels)
        problem = self._problem(labels)
        answer = self._minimise(problem, None if start is None else start[problem.rows])
        self.solution_ = np.zeros((self.graph_.n_points, answer.F.shape[1]))
        self.solution_[problem.rows] = answer.F
        self.energy_, self.n_iter_, self.n_evaluations_ = answer.energy, answer.n_iter, answer.n_evaluations
        self.engine_, self.engine_error_ = answer.engine, answer.engine_error
        self._labels = labels
        self._calibration: Calibration | None = None
        self._terms: tuple[RelationshipTerm | None, ...] | None = None
        scores = self._scores(self.solution_, self.graph_.degrees)
        self._set_decision(labels, scores[problem.rows])
        self.transduction_ = self._decide(scores, self.reached_)
        return self

    def decision_function(self, X: Any) -> Floats:
        """Scores with the class offsets added: (m,) for two classes, positive for ``classes_[1]``; else (m, C).

        With the normalised Laplacian a score is the value divided by √(degree / mean degree): values follow that root
        (it is what the Laplacian calls constant), so offsets are added to what is left without it.
        """
        scores, _ = self._extend(X)
        corrected = scores + self.offsets_
        return corrected[:, 0] if corrected.shape[1] == 1 else corrected

    def predict(self, X: Any) -> NDArray[Any]:
        """Classes of points; a point of ``fit`` gets its transduced class."""
        return self._decide(*self._extend(X))

    def predict_proba(self, X: Any) -> Floats:
        """Calibrated class probabilities (m, C); the largest is always at the predicted class.

        The first call (or the first use of ``label_distributions_``) calibrates: the fit is repeated on folds of the
        labels, and the slope of a logistic curve is fitted to the scores of those left out.
        """
        return self._probabilities(*self._extend(X))

    @property
    def label_distributions_(self) -> Floats:
        """Calibrated class probabilities (u, C) of the points of ``fit``."""
        check_is_fitted(self)
        return self._probabilities(self._scores(self.solution_, self.graph_.degrees), self.reached_)

    @property
    def calibration_(self) -> Calibration:
        """From scores to probabilities, fitted when first asked for."""
        check_is_fitted(self)
        if self._calibration is None:
            self._calibration = self._calibrate()
        return self._calibration

    # -- fitting -------------------------------------------------------------------------------------------------

    def _check_together(self) -> None:
        """Refuse parameters that are right one by one but not together."""

    def _minimise(self, problem: _Problem, init: Floats | None) -> _Answer:
        raise NotImplementedError

    def _new_point_terms(self) -> tuple[RelationshipTerm | None, ...]:
        """What relationships add to a new point's energy; one for all columns of F together, or one for each."""
        return (None,)

    def _graph(self, X: Any) -> KNNGraph:
        if isinstance(X, KNNGraph):
            check_is_fitted(X)
            if hasattr(X, "n_features_in_"):
                self.n_features_in_ = X.n_features_in_
            return X
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        return KNNGraph(**{name: getattr(self, name) for name in KNNGraph._parameter_constraints}).fit(X)

    def _read_init(self, init: Any, labels: Labels) -> Floats:
        values = np.array(init, dtype=np.float64)
        shape = labels.targets.shape
        if values.shape not in (shape, shape[:1] if shape[1] == 1 else shape) or not np.isfinite(values).all():
            raise ValueError(
                f"The 'init' parameter of {type(self).__name__}.fit must be a finite array of shape {shape}. "
                f"Got one of shape {values.shape} instead."
            )
        return values.reshape(shape)

    def _reach(self, labels: Labels) -> NDArray[np.bool_]:
        """Which points are connected to a label; a warning counts the components that are not."""
        component = self.graph_.component_labels
        labelled = np.bincount(component, weights=labels.confidence, minlength=self.graph_.n_components) > 0
        reached = labelled[component]
        if not labelled.all():
            warnings.warn(
                f"{np.count_nonzero(~labelled)} of {len(labelled)} connected components of the graph hold no label; "
                f"their {np.count_nonzero(~reached)} points get the class prior as their answer. "
                "Label a point in each, or raise n_neighbors.",
                UnlabelledComponentsWarning,
                stacklevel=3,
            )
        return np.asarray(reached)

    def _problem(self, labels: Labels) -> _Problem:
        rows = slice(None) if self.reached_.all() else np.flatnonzero(self.reached_)
        whole = self.graph_.laplacian(normalized=self.normalized)
        laplacian = whole if isinstance(rows, slice) else csr_array(whole[rows][:, rows])
        return _Problem(rows, laplacian, labels.confidence[rows], labels.targets[rows])

    def _scores(self, values: Floats, degrees: Floats) -> Floats:
        if not self.normalized:
            return values
        relative = np.where(degrees > 0, degrees, 1.0) / (self.graph_.degrees.mean() or 1.0)
        return np.asarray(values / np.sqrt(relative)[:, None])

    def _set_decision(self, labels: Labels, scores: Floats) -> None:
        if self.class_prior is None:
            self.class_prior_ = estimate_prior(labels)
            self.offsets_ = likely_offsets(scores, labels.counts)
            return
        if isinstance(self.class_prior, str):
            self.class_prior_ = estimate_prior(labels)
        else:
            self.class_prior_ = check_prior(self.class_prior, len(labels.classes))
        self.offsets_ = class_offsets(scores, self.class_prior_)

    def _calibrate(self) -> Calibration:
        """Fit the slope on scores of labelled points that a repeated fit did not see."""
        labels, reached = self._labels, self.reached_
        candidates = np.flatnonzero((labels.confidence > 0) & reached)
        folds = label_folds(labels.class_index[candidates], CALIBRATION_FOLDS)
        problem = self._problem(labels)
        scores = np.zeros((len(candidates), self.solution_.shape[1]))
        for fold in range(CALIBRATION_FOLDS):
            held_out = candidates[folds == fold]
            if held_out.size == 0:
                continue
            confidence = labels.confidence.copy()
            confidence[held_out] = 0.0
            part = _Problem(problem.rows, problem.laplacian, confidence[problem.rows], problem.targets)
            values = np.zeros_like(self.solution_)
            values[problem.rows] = self._minimise(part, None).F
            scores[folds == fold] = self._scores(values, self.graph_.degrees)[held_out]
        used = folds >= 0
        return fit_calibration(
            scores[used],
            labels.class_index[candidates[used]],
            self.offsets_,
            labels.confidence[candidates[used]],
        )

    # -- answering -----------------------------------------------------------------------------------------------

    def _decide(self, scores: Floats, reached: NDArray[np.bool_]) -> NDArray[Any]:
        index = decide_index(scores + self.offsets_)
        index[~reached] = self.class_prior_.argmax()
        return np.asarray(self.classes_[index])

    def _probabilities(self, scores: Floats, reached: NDArray[np.bool_]) -> Floats:
        probabilities = self.calibration_.probabilities(scores)
        probabilities[~reached] = self.class_prior_
        return probabilities

    def _extend(self, X: Any) -> tuple[Floats, NDArray[np.bool_]]:
        """Scores of points, and which of them a label reaches."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        if self._terms is None:
            self._terms = self._new_point_terms()
        columns = np.split(self.solution_, len(self._terms), axis=1)
        parts = [
            extend(
                X,
                self.graph_,
                np.ascontiguousarray(F),
                self.reached_,
                normalized=self.normalized,
                lambda1=self.lambda1,
                relationships=term,
                n_jobs=self.n_jobs,
            )
            for F, term in zip(columns, self._terms, strict=True)
        ]
        _, degrees, reached = parts[0]
        return self._scores(np.hstack([values for values, _, _ in parts]), degrees), reached

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "transduction_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.metric in ("precomputed", "affinity")
        return tags


class IRRClassifier(_GraphClassifier):
    """Implicit relationship regularisation: the minimiser of Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F).

    Parameters are those of :class:`ERRClassifier` that do not concern relationships; ``tol`` is the relative accuracy
    of the linear solution.

    >>> from sklearn.datasets import load_digits
    >>> from homophily import IRRClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> few = y.copy()
    >>> few[200:] = -1
    >>> classifier = IRRClassifier().fit(X, few)
    >>> bool((classifier.transduction_ == y).mean() > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_GraphClassifier._parameter_constraints,
        "tol": [_POSITIVE],
        "callback": [callable, None],
    }

    def __init__(
        self,
        n_neighbors: int = 10,
        power: int = 1,
        lambda1: float = 1e-2,
        class_prior: Any = None,
        tol: float = 1e-10,
        metric: str = "euclidean",
        weights: str = "local",
        sigma_x: float | None = None,
        exponent: int = 2,
        symmetrize: str = "mean",
        normalized: bool = True,
        backend: str = "numpy",
        callback: Callable[[int, float], object] | None = None,
        n_jobs: int | None = None,
    ):
        self.n_neighbors = n_neighbors
        self.power = power
        self.lambda1 = lambda1
        self.class_prior = class_prior
        self.tol = tol
        self.metric = metric
        self.weights = weights
        self.sigma_x = sigma_x
        self.exponent = exponent
        self.symmetrize = symmetrize
        self.normalized = normalized
        self.backend = backend
        self.callback = callback
        self.n_jobs = n_jobs

    def _minimise(self, problem: _Problem, init: Floats | None) -> _Answer:
        arguments = problem.laplacian, problem.confidence, problem.targets, self.lambda1
        found = solve_irr(
            *arguments,
            power=self.power,
            tolerance=self.tol,
            initial=init,
            n_jobs=self.n_jobs,
            callback=self.callback,
        )
        energy = irr_energy(found.solution, *arguments, power=self.power)
        return _Answer(found.solution, energy, found.iterations, 0)


class ERRClassifier(_GraphClassifier):
    """Explicit relationship regularisation over all pairs of points, in time linear in the points.

    Minimises Σ_i h_i‖f_i − t_i‖² + λ1 tr(Fᵀ L^p F) + λ2/u tr(Kᵀ L^p K) with K_ij = exp(−‖f_i − f_j‖²/σ_f²), starting
    from the IRR minimiser. Two classes are one column of values with targets ±1; more are one column each with one-hot
    targets, or (``multiclass="one-vs-rest"``) as many two-class problems, which is faster for many points.

    Parameters
    ----------
    n_neighbors, metric, weights, sigma_x, exponent, symmetrize : see :class:`KNNGraph`.
    power : p, the power of the Laplacian. p = 2 is usually more accurate and costs about five times as much.
    lambda1 : λ1, weight of the smoothness of values.
    lambda2 : λ2, weight of the smoothness of relationships, in units of λ1: the paper's λ2 is ``lambda2 / u``
        (``lambda2 / relationship_neighbors`` in the sparse form).
    sigma_f : σ_f (not squared), the width of the relationship function. None takes SIGMA_F of the distance between
        the targets of two classes.
    max_iter, tol : the optimiser stops after so many steps, or when the gradient's norm has fallen by the factor tol.
    precondition : precondition the nonlinear conjugate gradients; False is the paper's plain form.
    class_prior : what is known of the class shares. An array: the decision gives the classes these shares.
        "estimate": the same with the labels' own shares. None (the default): the labels' shares are weighed as the
        small sample they are, against cutting where many scores lie (:func:`homophily.labels.likely_offsets`).
    relationship_neighbors : |N_K|, regularise only the relationships of each point with that many nearest points,
        itself among them (sparse ERR, for power=1). None means all.
    multiclass : "vector" or "one-vs-rest", for more than two classes.
    engine : how the relationship energy is computed, see :mod:`homophily.relationship`.
    normalized : use the normalised Laplacian.
    backend : "numpy".
    callback : called with the optimiser's state (``iteration``, ``energy``, ``gradient_norm``, ``n_evaluations``)
        before the first step and after each; raise from it to cancel.
    n_jobs : threads; None means every core this process may use.

    Attributes
    ----------
    transduction_ : (u,) classes of all points. label_distributions_ : (u, C) their calibrated probabilities.
    solution_ : (u, n) values F. offsets_ : (n,) what is added to scores before the decision.
    classes_, class_prior_, graph_ : the classes, their assumed shares, the :class:`KNNGraph`.
    reached_ : (u,) False for points in components without a label, which get the prior.
    energy_, n_iter_, n_evaluations_ : of the optimiser. engine_, engine_error_ : the engine used and, for "nystrom",
        its relative error in the relationship energy at the solution.

    >>> from sklearn.datasets import load_digits
    >>> from homophily import ERRClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> few = y.copy()
    >>> few[200:] = -1
    >>> classifier = ERRClassifier().fit(X, few)
    >>> bool((classifier.transduction_ == y).mean() > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_GraphClassifier._parameter_constraints,
        "lambda2": [Interval(Real, 0, None, closed="left")],
        "sigma_f": [_POSITIVE, None],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "precondition": ["boolean"],
        "relationship_neighbors": [Interval(Integral, 1, None, closed="left"), None],
        "multiclass": [StrOptions({"vector", "one-vs-rest"})],
        "engine": [StrOptions(set(ENGINE_NAMES))],
        "callback": [callable, None],
    }

    SIGMA_F = 0.75

    def __init__(
        self,
        n_neighbors: int = 10,
        power: int = 1,
        lambda1: float = 1e-2,
        lambda2: float = 1e-2,
        sigma_f: float | None = None,
        max_iter: int = 50,
        tol: float = 1e-4,
        precondition: bool = True,
        class_prior: Any = None,
        relationship_neighbors: int | None = None,
        multiclass: Literal["vector", "one-vs-rest"] = "vector",
        engine: EngineName = "auto",
        metric: str = "euclidean",
        weights: str = "local",
        sigma_x: float | None = None,
        exponent: int = 2,
        symmetrize: str = "mean",
        normalized: bool = True,
        backend: str = "numpy",
        callback: Callable[[State], object] | None = None,
        n_jobs: int | None = None,
    ):
        self.n_neighbors = n_neighbors
        self.power = power
        self.lambda1 = lambda1
        self.lambda2 = lambda2
        self.sigma_f = sigma_f
        self.max_iter = max_iter
        self.tol = tol
        self.precondition = precondition
        self.class_prior = class_prior
        self.relationship_neighbors = relationship_neighbors
        self.multiclass = multiclass
        self.engine = engine
        self.metric = metric
        self.weights = weights
        self.sigma_x = sigma_x
        self.exponent = exponent
        self.symmetrize = symmetrize
        self.normalized = normalized
        self.backend = backend
        self.callback = callback
        self.n_jobs = n_jobs

    def _check_together(self) -> None:
        if self.relationship_neighbors is not None and self.power != 1:
            raise ValueError(
                "The 'power' parameter of ERRClassifier must be 1 when relationship_neighbors is given: the sparse "
                f"form is defined for L only. Got {self.power} instead."
            )

    @property
    def _one_vs_rest(self) -> bool:
        return self.multiclass == "one-vs-rest" and len(self.classes_) > 2

    def _sigma_f(self, columns: int) -> float:
        """The width in use: targets are 2 apart in one column, √2 in more."""
        if self.sigma_f is not None:
            return float(self.sigma_f)
        return float(self.SIGMA_F * (2.0 if columns == 1 else np.sqrt(2.0)))

    def _minimise(self, problem: _Problem, init: Floats | None) -> _Answer:
        if self._one_vs_rest:
            targets = np.where(problem.confidence[:, None] > 0, 2.0 * problem.targets - 1.0, 0.0)
            problem = _Problem(problem.rows, problem.laplacian, problem.confidence, targets)
        F = init
        if F is None:
            F = solve_irr(
                problem.laplacian,
                problem.confidence,
                problem.targets,
                self.lambda1,
                power=self.power,
                tolerance=1e-10,
                n_jobs=self.n_jobs,
            ).solution
        if not self._one_vs_rest:
            return self._descend(problem, F, self._engine(problem, F))
        engine = self._engine(problem, F[:, :1])
        answers = [
            self._descend(
                _Problem(problem.rows, problem.laplacian, problem.confidence, problem.targets[:, c : c + 1]),
                F[:, c : c + 1],
                engine,
            )
            for c in range(F.shape[1])
        ]
        return _Answer(
            np.hstack([answer.F for answer in answers]),
            sum(answer.energy for answer in answers),
            max(answer.n_iter for answer in answers),
            sum(answer.n_evaluations for answer in answers),
            answers[0].engine,
        )

    def _engine(self, problem: _Problem, F: Floats) -> tuple[str, Engine, float]:
        """Name, engine, and the relationships of a point (which λ2 is divided by)."""
        sigma_f = self._sigma_f(F.shape[1])
        if self.relationship_neighbors is not None:
            mask = self.graph_.neighborhoods(self.relationship_neighbors)
            degrees = self.graph_.degrees[problem.rows] if self.normalized else None
            engine: Engine = SparseEngine(
                problem.restricted(self.graph_.W), degrees, problem.restricted(mask), sigma_f, n_jobs=self.n_jobs
            )
            return "sparse", engine, mask.nnz / mask.shape[0]
        name = choose_engine(F, sigma_f) if self.engine == "auto" else self.engine
        G = problem.restricted(self.graph_.laplacian(self.power, self.normalized))
        classes = np.eye(F.shape[1]) if F.shape[1] > 1 else None
        return name, make_engine(G, F, sigma_f, engine=name, n_jobs=self.n_jobs, targets=classes), float(len(F))

    def _descend(self, problem: _Problem, F: Floats, engine: tuple[str, Engine, float]) -> _Answer:
        name, relationships, count = engine
        energy = LabelEnergy(
            problem.laplacian,
            self.power,
            problem.confidence,
            problem.targets,
            self.lambda1,
            relationships,
            self.lambda2 / count,
            self.n_jobs,
        )
        preconditioner = None
        if self.precondition:
            preconditioner = PolynomialPreconditioner(
                problem.laplacian,
                self.power,
                problem.restricted(self.graph_.laplacian(self.power, self.normalized)),
                problem.confidence,
                self.lambda1 + self.lambda2 / (2.0 * self._sigma_f(F.shape[1]) ** 2),
                self.n_jobs,
            )
        optimiser = NonlinearCG(energy, self.max_iter, self.tol, preconditioner)
        state = optimiser.run(np.ascontiguousarray(F), self.callback)
        error = relationships.error(state.x) if isinstance(relationships, NystromEngine) else None
        return _Answer(state.x, state.energy, state.iteration, state.n_evaluations, name, error)

    def _new_point_terms(self) -> tuple[RelationshipTerm | None, ...]:
        if self.relationship_neighbors is not None or self.lambda2 == 0.0:
            # The masked sums of the sparse form have no Gauss sum to keep: IRR's closed form answers.
            return (None,)
        columns = np.split(self.solution_, self.solution_.shape[1] if self._one_vs_rest else 1, axis=1)
        terms = []
        for F in columns:
            sigma_f = self._sigma_f(F.shape[1])
            sums = gauss_sums(np.ascontiguousarray(F), self.graph_, self.normalized, sigma_f)
            terms.append(RelationshipTerm(sigma_f, self.lambda2 / len(F), sums))
        return tuple(terms)
