"""What transductive classifiers share: graph, labels, decision, probabilities, new points.

The energies, and how they are minimised, are in :mod:`homophily.estimators.classifiers`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from homophily.arrays import Floats, read_only, submatrix
from homophily.device.backend import get_backend
from homophily.device.operations import CpuOperations
from homophily.estimators.graph_estimator import COMPUTED, GraphEstimator, in_blocks
from homophily.estimators.held_out import without_own_fold, without_own_label
from homophily.estimators.problem import Answer, Problem
from homophily.estimators.sharpening import sharpened
from homophily.estimators.stored_classifier import StoredClassifier
from homophily.exceptions import ParameterError, UnlabelledComponentsWarning
from homophily.graph.computing import BackendName
from homophily.graph.order import gathered
from homophily.parameters import AT_LEAST_ONE, POSITIVE
from homophily.solve.irr import IRRSolution, irr_energy
from homophily.solve.new_points import Columns, RelationshipTerm, extend
from homophily.solve.sharpen import Sharpened, sharp_scores
from homophily.supervision.calibration import DEFAULT_SLOPE, Calibration, fit_calibration
from homophily.supervision.class_shares import (
    bounded_offsets,
    check_bounds,
    check_prior,
    class_offsets,
    estimate_prior,
    likely_offsets,
    nearest_shares,
)
from homophily.supervision.labels import Labels, class_shares_of, decide_index, encode_labels, known_classes

#: ``sharpen="auto"`` sharpens up to this number of labels per class. On ten sets it lowered the error much at 1 to 5,
#: and a little at 10; from 15 on it was as often higher.
SHARP_LABELS = 15
#: Sharp scores are log shares around a point. These are diffuse: the decision is surer than they are.
SHARP_SLOPE = 1.7
#: Points whose probabilities are held at a time when class shares are judged.
SHARE_ROWS = 10_000
#: This number of values fills a core's own cache (1 MB).
CACHED_VALUES = 100_000


Report = Callable[..., object]


class Answers(NamedTuple):
    """Classes (m,), decision scores and, if asked for, probabilities (m, C) of new points."""

    classes: NDArray[Any]
    scores: Floats
    probabilities: Floats | None


class GraphClassifier(ClassifierMixin, StoredClassifier):
    """What IRR and ERR share: graph, labels, decision, probabilities, new points."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GraphEstimator._parameter_constraints,
        **COMPUTED,
        "power": [AT_LEAST_ONE, None],
        "lambda1": [POSITIVE],
        "class_prior": ["array-like", StrOptions({"estimate", "balanced"}), None],
        "sharpen": ["boolean", StrOptions({"auto"})],
        "callback": [callable, None],
    }

    #: Parameters that sharp relationships do not use: whoever sets one of them wants smooth ones.
    _SMOOTH: ClassVar[tuple[str, ...]] = ()

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, init: Any = None) -> Self:
        """Label every point of X.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (u, d), or KNNGraph
            Points; a fitted graph; or, by the graph's ``metric``, distances or weights (u, u).
        y : array-like of shape (u,) or (u, C)
            Classes, where −1, NaN, None or "" means unlabelled; or class shares, where a row of 0 means unlabelled.
        sample_weight : array-like of shape (u,), default=None
            Confidence in each label; None means 1.
        init : array-like of shape (u, n), default=None
            Values to start from instead of zeros (IRR) or the IRR solution (ERR).

        Returns
        -------
        Self
            The fitted classifier.
        """
        self._check_together()
        # A cancelled fit leaves an estimator that is not fitted.
        self.__dict__.pop("transduction_", None)
        X = self._points(X)
        labels = encode_labels(y, sample_weight)
        if isinstance(self.class_prior, str) and self.class_prior == "balanced":
            self.class_prior_ = np.full(len(labels.classes), 1.0 / len(labels.classes))
        elif self.class_prior is None or isinstance(self.class_prior, str):
            self.class_prior_ = estimate_prior(labels)
        elif np.ndim(self.class_prior) == 2:
            bounds = check_bounds(self.class_prior, len(labels.classes), type(self).__name__)
            self.class_prior_ = nearest_shares(estimate_prior(labels), bounds)
        else:
            self.class_prior_ = check_prior(self.class_prior, len(labels.classes), type(self).__name__)
        start = None if init is None else self._check_init(init, labels.targets.shape)
        self.graph_ = self._graph(X)
        check_consistent_length(self.graph_.W, labels.targets)
        self.classes_ = labels.classes
        self.reached_ = self._reach(labels)
        # Computed on demand: the calibration, the mean degree, the terms and columns for new points.
        self._lazy = {}
        self.given_labels_ = labels
        problem = self._problem(labels)
        answer = self._solve(problem, None if start is None else start[problem.rows], self.callback)
        self.solution_ = np.zeros((self.graph_.n_points, answer.F.shape[1]))
        self.solution_[problem.rows] = answer.F
        self.energy_, self.n_iter_, self.n_evaluations_ = answer.energy, answer.n_iter, answer.n_evaluations
        self.engine_, self.engine_error_ = answer.engine, answer.engine_error
        self.engine_gradient_error_ = answer.engine_gradient_error
        self.sharp_shares_: NDArray[np.float32] | None = None
        if answer.sharp is not None:
            self._take_sharp(answer.sharp, problem)
        scores = self._fit_scores()
        if answer.sharp is None:
            self.offsets_ = self._offsets(scores[problem.rows], labels)
        self.transduction_ = self._decide(scores, self.reached_)
        return self

    def decision_function(self, X: Any) -> Floats:
        """Scores with the class offsets added: (m,) for two classes, positive for ``classes_[1]``; else (m, C).

        With the normalised Laplacian a score is the value divided by √(degree / mean degree): values follow that root
        (it is what the Laplacian calls constant), so offsets are added to what is left without it.
        """
        return self._decision(*self._extend(self._new_points(X)))

    @property
    def decision_scores_(self) -> Floats:
        """The :meth:`decision_function` of the points of ``fit``."""
        check_is_fitted(self)
        return self._decision_at(slice(None))

    def predict(self, X: Any) -> NDArray[Any]:
        """Classes of points.

        A point at distance 0 from one of ``fit`` gets that one's transduced class (with ``metric="affinity"`` there are
        no distances, and every point counts as new).
        """
        return self._decide(*self._extend(self._new_points(X)))

    def predict_proba(self, X: Any) -> Floats:
        """Calibrated class probabilities (m, C); the largest is always at the predicted class.

        The first call (or the first use of ``label_distributions_``) calibrates: the slope of a logistic curve is
        fitted to scores that labelled points would have without their labels.
        """
        return self._probabilities(*self._extend(self._new_points(X)))

    def answer(
        self, X: Any, *, probabilities: bool = False, validated: bool = False, backend: BackendName = "numpy"
    ) -> Answers:
        """The answers of :meth:`predict`, :meth:`decision_function` and :meth:`predict_proba` at the cost of one.

        A ``validated`` X is a finite float array or ``csr_array`` with the columns of ``fit``; for a point or two,
        validation takes as long as the answer. With ``backend="cupy"``, which is for thousands of new points, their
        neighbours are found on a GPU.
        """
        scores, reached = self._extend(X if validated else self._new_points(X), backend)
        classes, decision = self._decide(scores, reached), self._decision(scores, reached)
        return Answers(classes, decision, self._probabilities(scores, reached) if probabilities else None)

    @property
    def label_distributions_(self) -> Floats:
        """Calibrated class probabilities (u, C) of the points of ``fit``."""
        check_is_fitted(self)
        return self._probabilities(self._fit_scores(), self.reached_)

    @property
    def probabilities_at_hand_(self) -> Floats:
        """Class probabilities (u, C) of the points of ``fit``, calibrated only if they were asked for before."""
        check_is_fitted(self)
        probabilities = self._calibration_at_hand.probabilities(self._fit_scores())
        probabilities[~self.reached_] = self.class_prior_
        return probabilities

    @property
    def _calibration_at_hand(self) -> Calibration:
        return self._lazy.get("calibration") or Calibration(self._default_slope, self.offsets_)

    @property
    def class_share_range_(self) -> Floats:
        """How sure the class shares are, (C, 2): of the points of ``fit``, the share that is probably of a class.

        The first column counts points whose probability is at least 0.9, the second those with at least 0.1. The
        probabilities are calibrated if these were asked for before.
        """
        check_is_fitted(self)
        calibration = self._calibration_at_hand
        scores, counts = self._fit_scores(), np.zeros((len(self.classes_), 2))
        # In blocks: probabilities of all points and classes at once may take more memory than the fit.
        for start in range(0, len(scores), SHARE_ROWS):
            rows = slice(start, start + SHARE_ROWS)
            probabilities = calibration.probabilities(scores[rows])
            probabilities[~self.reached_[rows]] = self.class_prior_
            counts += np.column_stack([np.sum(probabilities >= least, axis=0) for least in (0.9, 0.1)])
        return np.asarray(counts / len(scores))

    @property
    def calibration_(self) -> Calibration:
        """The map from scores to probabilities, fitted on demand."""
        check_is_fitted(self)
        return self._once("calibration", self._calibrate)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of right answers among the points that ``y`` has a label for."""
        from sklearn.metrics import accuracy_score  # takes half as long to import as all of homophily

        labelled, classes = known_classes(y)
        if not labelled.any():
            raise ParameterError("The 'y' parameter of score must hold a label. Got none instead.", "y")
        weights = None if sample_weight is None else np.asarray(sample_weight)[labelled]
        return float(accuracy_score(classes[labelled], self.predict(X)[labelled], sample_weight=weights))

    def resolve_params(self, n_classes: int, n_points: int) -> dict[str, Any]:  # noqa: ARG002
        """The parameters that a fit of ``n_points`` points in ``n_classes`` classes uses, except the graph's."""
        own = {name: value for name, value in self.get_params(deep=False).items() if name not in ("graph", "callback")}
        return own | {"power": self._power}

    @property
    def resolved_params_(self) -> dict[str, Any]:
        """All parameters with the values in use, those of the graph as ``graph__n_neighbors`` and so on."""
        check_is_fitted(self)
        graph = {f"graph__{name}": value for name, value in self.graph_.resolved_params_.items()}
        return self.resolve_params(len(self.classes_), self.graph_.n_points) | {"sharpen": self._is_sharp} | graph

    @property
    def _power(self) -> int:
        if self.power is not None:
            return int(self.power)
        # Sharp relationships start from IRR. With 1, 2 and 5 labels per class the error from L was 0.6 to 0.9 points
        # lower than from L² on average over eight sets (draws 0 to 3), and IRR takes less time.
        return 1 if self._is_sharp else 2

    @property
    def _is_sharp(self) -> bool:
        """Whether the fit with the labels given has sharp relationships."""
        if self.sharpen != "auto":
            return bool(self.sharpen)
        if not hasattr(self, "given_labels_"):
            return False
        labels, parameters = self.given_labels_, inspect.signature(type(self)).parameters
        is_default = all(getattr(self, name) == parameters[name].default for name in self._SMOOTH)
        return is_default and int(np.count_nonzero(labels.confidence)) <= SHARP_LABELS * len(labels.classes)

    # -- fitting -------------------------------------------------------------------------------------------------

    def _check_together(self) -> None:
        """Refuse parameters that do not go together."""

    def _solve(self, problem: Problem, init: Floats | None, callback: Report | None) -> Answer:
        """Minimise where the backend computes."""
        with self._backend().job() as backend:
            try:
                problem = replace(problem, operations=backend.operations(problem.laplacian, self.n_jobs))
                answer = self._minimise(problem, init, callback)
                if not self._is_sharp:
                    return answer
                sharp = self._sharpen(problem, answer.F, callback)
                return replace(answer, sharp=sharp, n_iter=sharp.rounds)
            finally:
                # Nothing on the device outlives the job.
                del problem

    def _minimise(self, problem: Problem, init: Floats | None, callback: Report | None) -> Answer:
        raise NotImplementedError

    def _irr(self, problem: Problem, tolerance: float, init: Floats | None, callback: Report | None) -> IRRSolution:
        """The minimiser of the energy without relationships."""
        how: dict[str, Any] = {"power": self._power, "tolerance": tolerance, "initial": init, "callback": callback}
        return problem.operations.solve_irr(problem.confidence, problem.targets, self.lambda1, **how)

    def _linear(self, problem: Problem, tolerance: float, init: Floats | None, callback: Report | None) -> Answer:
        found = self._irr(problem, tolerance, init, callback)
        terms = problem.laplacian, problem.confidence, problem.targets, self.lambda1
        energy = irr_energy(found.solution, *terms, power=self._power, n_jobs=self.n_jobs)
        return Answer(found.solution, energy, found.iterations, 0)

    def _sharpen(self, problem: Problem, F: Floats, callback: Report | None) -> Sharpened:
        degrees = self.graph_.degrees[problem.rows]
        return sharpened(
            problem.operations,
            degrees,
            self.normalized,
            self._scores(F, degrees),
            problem.confidence,
            problem.targets,
            None if self._infers_shares else self.class_prior_,
            self._bounded,
            None if callback is None else lambda state: self._report_round(callback, state),
        )

    def _report_round(self, callback: Report, state: Any) -> None:
        callback(state)

    def _take_sharp(self, sharp: Sharpened, problem: Problem) -> None:
        """Decide by the shares that the dynamics settled at, in place of the values."""
        self.sharp_shares_ = np.zeros((self.graph_.n_points, len(self.classes_)), dtype=np.float32)
        self.sharp_shares_[problem.rows] = sharp.shares
        self.offsets_ = _score_offsets(sharp.offsets)
        if self._infers_shares:
            self.class_prior_ = Calibration(1.0, self.offsets_).probabilities(sharp_scores(sharp.shares)).mean(axis=0)

    @property
    def _infers_shares(self) -> bool:
        """Whether the class shares are not given, or given by bounds only."""
        return self.class_prior is None or np.ndim(self.class_prior) == 2

    def _bounded(self, scores: Floats, offsets: Floats) -> Floats:
        """Offsets whose decision keeps the bounds of the class shares, if there are any."""
        return offsets if self.class_prior is None else bounded_offsets(scores, offsets, np.asarray(self.class_prior))

    def _offsets(self, scores: Floats, labels: Labels) -> Floats:
        if self._infers_shares:
            return self._bounded(scores, likely_offsets(scores, labels.counts))
        return class_offsets(scores, self.class_prior_)

    def _fit_scores(self, rows: slice | list[int] = slice(None)) -> Floats:
        """Scores of points of ``fit``."""
        if self.sharp_shares_ is not None:
            return sharp_scores(self.sharp_shares_[rows])
        return self._scores(self.solution_[rows], self.graph_.degrees[rows])

    def _decision_at(self, rows: slice | list[int]) -> Floats:
        return self._decision(self._fit_scores(rows), self.reached_[rows])

    def _new_point_terms(self) -> tuple[RelationshipTerm | None, ...]:
        """The relationship term of a new point's energy: one for all columns of F together, or one for each."""
        return (None,)

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
                stacklevel=4,
            )
        return np.asarray(reached)

    def _problem(self, labels: Labels) -> Problem:
        rows: NDArray[np.intp] | slice = slice(None)
        laplacian = self.graph_.laplacian(normalized=self.normalized)
        if not self.reached_.all():
            rows = np.flatnonzero(self.reached_)
            laplacian = submatrix(laplacian, rows)
        if laplacian.shape[0] * labels.targets.shape[1] > CACHED_VALUES:
            order = gathered(laplacian)
            rows = np.arange(len(self.reached_))[rows][order]
            laplacian = submatrix(laplacian, order)
        operations = CpuOperations(laplacian, self.n_jobs)
        return Problem(rows, laplacian, labels.confidence[rows], labels.targets[rows], operations)

    def _scores(self, values: Floats, degrees: Floats) -> Floats:
        if not self.normalized:
            return values
        mean_degree = self._once("mean_degree", lambda: self.graph_.degrees[self.reached_].mean() or 1.0)
        return np.asarray(values / np.sqrt(np.where(degrees > 0, degrees, 1.0) / mean_degree)[:, None])

    def _calibrate(self) -> Calibration:
        """Fit the slope on scores that labels would have without themselves."""
        problem, n = self._problem(self.given_labels_), self.solution_.shape[1]
        confidence, targets, rows = problem.confidence, problem.targets, problem.rows
        class_index, component = self.given_labels_.class_index[rows], self.graph_.component_labels[rows]
        points, degrees = np.flatnonzero(confidence > 0), self.graph_.degrees[rows]
        with self._backend().job() as backend:
            operations = backend.operations(problem.laplacian, self.n_jobs)
            if self.sharp_shares_ is None:
                system: dict[str, Any] = {"lambda1": self.lambda1, "power": self._power}
                given = confidence, self._own_targets(problem), class_index
                scores = self._scores(without_own_label(operations, *given, **system), degrees[points])
            else:
                shares = class_shares_of(targets)
                decided = np.searchsorted(self.classes_, self.transduction_)[rows]
                on_graph = operations, degrees, self.normalized
                logits = without_own_fold(*on_graph, confidence, shares, class_index, decided)
                scores = logits if n > 1 else logits[:, 1:] - logits[:, :1]
            # Nothing on the device outlives the job.
            del operations
        # The only label of its class in a component of the graph: without it, nothing there is of the class.
        own = component[points] * np.int64(len(self.classes_)) + class_index[points]
        _, kind, counts = np.unique(own, return_inverse=True, return_counts=True)
        has_others = counts[kind] > 1
        used = points[has_others]
        known = scores[has_others], class_index[used], self.offsets_, confidence[used]
        return fit_calibration(*known, default=self._default_slope)

    def _own_targets(self, problem: Problem) -> Floats:
        """Targets in the units of F."""
        return problem.targets

    @property
    def _default_slope(self) -> float:
        """Without held-out labels."""
        return SHARP_SLOPE if self._is_sharp else DEFAULT_SLOPE

    # -- answering -----------------------------------------------------------------------------------------------

    def _decide(self, scores: Floats, reached: NDArray[np.bool_]) -> NDArray[Any]:
        index = decide_index(scores + self.offsets_)
        index[~reached] = self.class_prior_.argmax()
        return np.asarray(self.classes_[index])

    def _decision(self, scores: Floats, reached: NDArray[np.bool_]) -> Floats:
        corrected = scores + self.offsets_
        odds = np.log(self.class_prior_)
        corrected[~reached] = odds[1:] - odds[:1] if corrected.shape[1] == 1 else odds
        return corrected[:, 0] if corrected.shape[1] == 1 else corrected

    def _probabilities(self, scores: Floats, reached: NDArray[np.bool_]) -> Floats:
        probabilities = self.calibration_.probabilities(scores)
        probabilities[~reached] = self.class_prior_
        return probabilities

    def _extend(self, X: Any, backend: BackendName = "numpy") -> tuple[Floats, NDArray[np.bool_]]:
        """Scores of points, and which of them a label reaches."""
        is_sharp = self.sharp_shares_ is not None
        columns = self._once("columns", self._columns)
        # A step of the walk takes the mean of the neighbours' shares.
        normalized = self.normalized and not is_sharp
        how: dict[str, Any] = {"normalized": normalized, "lambda1": self.lambda1, "n_jobs": self.n_jobs}

        with get_backend(backend).job() as device:
            graph = self.graph_.on_device(device)
            values, degrees, reached = in_blocks(
                X, graph, lambda block: extend(block, graph, columns, self.reached_, **how)
            )
        return sharp_scores(values) if is_sharp else self._scores(values, degrees), reached

    def _terms(self) -> tuple[RelationshipTerm | None, ...]:
        return self._once("terms", self._new_point_terms)

    def _columns(self) -> tuple[Columns, ...]:
        """The columns that are extended together: the sharp shares, or those of the solution, each with its term."""
        if self.sharp_shares_ is not None:
            return (Columns(read_only(self.sharp_shares_.astype(np.float64)), None),)
        terms = self._terms()
        parts = np.split(self.solution_, len(terms), axis=1)
        return tuple(Columns(read_only(np.ascontiguousarray(F)), term) for F, term in zip(parts, terms, strict=True))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "transduction_")


def _score_offsets(offsets: Floats) -> Floats:
    """Offsets of C classes as they are added to scores: of two classes, to the one column."""
    return offsets[1:] - offsets[:1] if len(offsets) == 2 else offsets
