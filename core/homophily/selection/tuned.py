"""A classifier whose parameters are chosen by held-out labels, as a scikit-learn meta-estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, MetaEstimatorMixin, _fit_context, clone
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.validation import check_is_fitted

from homophily.arrays import Floats
from homophily.estimators.classifiers import ERRClassifier, IRRClassifier
from homophily.parameters import AT_LEAST_ONE, POSITIVE, CheckedEstimator
from homophily.selection.driver import find
from homophily.selection.ranges import OF_THE_GRAPH
from homophily.selection.records import Method, Trial

Classifier = IRRClassifier | ERRClassifier


@dataclass(eq=False, repr=False)
class TunedClassifier(MetaEstimatorMixin, ClassifierMixin, CheckedEstimator):
    """An :class:`IRRClassifier` or :class:`ERRClassifier` with parameters chosen by held-out labels.

    Trials come in two stages: the graph and λ1 by IRR, then σ_f and λ2 on the best few graphs. Labels are held out in
    turn, while all points stay in the graph.

    Parameters
    ----------
    estimator : IRRClassifier or ERRClassifier, default=None
        What to tune; None means ``ERRClassifier()``. Parameters that differ from their defaults, those of its graph
        included, stay as they are.
    trials : int, default=None
        Number of trials; None takes as many as both stages need.
    seconds : float, default=None
        Time limit: no trial begins after it.
    vary : sequence of str, default=None
        What to search, such as ``["n_neighbors", "lambda2"]``; None means all that usually matters.
    warm_start : bool, default=False
        Start every ERR trial from the solution of the next smaller λ2 tried with otherwise equal parameters, instead of
        from IRR's. Fewer evaluations, and answers that may differ a little from the final fit's.
    random_state : int, default=0
        Seed of the folds and of the sampler.
    callback : callable, default=None
        Called with each :class:`~homophily.selection.Trial` that is finished or left out, from its thread; raise in it
        to cancel.
    n_jobs : int, default=None
        Trials at once, or threads of a fit of many points; None means every core this process may use.

    Attributes
    ----------
    best_estimator_ : IRRClassifier or ERRClassifier
        Fitted with the best parameters.
    best_params_ : dict
        The parameters found, those of the graph as ``graph__n_neighbors`` and so on.
    results_ : list of :class:`~homophily.selection.Trial`
        All trials.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily import IRRClassifier, TunedClassifier
    >>> X, y = make_moons(300, noise=0.1, random_state=0)
    >>> few = y.copy()
    >>> few[20:] = -1
    >>> tuned = TunedClassifier(IRRClassifier(), trials=4, n_jobs=1).fit(X, few)
    >>> len(tuned.results_), bool((tuned.transduction_ == y).mean() > 0.98)
    (4, True)
    """

    estimator: Classifier | None = None
    trials: int | None = None
    seconds: float | None = None
    vary: Sequence[str] | None = None
    warm_start: bool = False
    random_state: int = 0
    callback: Callable[[Trial], object] | None = None
    n_jobs: int | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "estimator": [HasMethods(["fit"]), None],
        "trials": [AT_LEAST_ONE, None],
        "seconds": [POSITIVE, None],
        "vary": ["array-like", None],
        "warm_start": ["boolean"],
        "random_state": [Interval(Integral, 0, None, closed="left")],
        "callback": [callable, None],
        "n_jobs": [Integral, None],
    }

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: ArrayLike, sample_weight: Any = None, validation: ArrayLike | None = None) -> Self:
        """Search, and fit with what was found.

        Parameters
        ----------
        X : array-like, sparse matrix or fitted KNNGraph
            Points; of a graph nothing is searched.
        y : array-like
            Classes as for :meth:`ERRClassifier.fit`, those of the validation points among them.
        sample_weight : array-like, default=None
            Confidence in each label.
        validation : array-like of int, default=None
            Positions of the points to judge by; no fit, the final one included, sees their classes. None holds out
            labels in turn, and the final fit sees them all.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self.__dict__.pop("best_estimator_", None)
        estimator: Classifier = ERRClassifier() if self.estimator is None else self.estimator
        if not isinstance(estimator, Classifier):
            raise self._wrong("estimator", "an IRRClassifier, an ERRClassifier or None")
        method: Method = "irr" if isinstance(estimator, IRRClassifier) else "err"
        checked: Classifier = clone(estimator)
        X = checked._points(X)
        fixed = _given(estimator)
        own = ("trials", "seconds", "vary", "warm_start", "callback", "n_jobs")
        how: dict[str, Any] = {name: getattr(self, name) for name in own} | {"seed": self.random_state}
        found = find(X, y, validation=validation, method=method, sample_weight=sample_weight, **how, **fixed)
        chosen = {name: value for name, value in found.best.parameters.items() if name not in fixed}
        self.best_params_ = {f"graph__{name}" if name in OF_THE_GRAPH else name: chosen[name] for name in chosen}
        self.results_: list[Trial] = found.search.trials
        best: Classifier = clone(estimator).set_params(**self.best_params_)
        if best.sharpen == "auto":
            # The trials judged smooth relationships.
            best.sharpen = False
        if best.n_jobs is None:
            best.n_jobs = self.n_jobs
        best.fit(found.graph, y, sample_weight=found.confidence)
        for fitted in (best, self):
            fitted._take_features(checked)
        self.best_estimator_ = best
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Classes of points, by the best estimator."""
        return self._best.predict(X)

    def predict_proba(self, X: Any) -> Floats:
        """Calibrated class probabilities of points, by the best estimator."""
        return self._best.predict_proba(X)

    def decision_function(self, X: Any) -> Floats:
        """Scores of points, by the best estimator."""
        return self._best.decision_function(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of right answers among the points that ``y`` has a label for."""
        return self._best.score(X, y, sample_weight)

    @property
    def transduction_(self) -> NDArray[Any]:
        """Classes of all points of ``fit``."""
        return np.asarray(self._best.transduction_)

    @property
    def label_distributions_(self) -> Floats:
        """Calibrated class probabilities of all points of ``fit``."""
        return self._best.label_distributions_

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes."""
        return np.asarray(self._best.classes_)

    @property
    def _best(self) -> Classifier:
        check_is_fitted(self)
        best: Classifier = self.best_estimator_
        return best

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "best_estimator_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = (self.estimator or ERRClassifier()).__sklearn_tags__().input_tags
        return tags


def _given(estimator: Classifier) -> dict[str, Any]:
    """The parameters of a classifier and of its graph that differ from their defaults."""

    def differing(one: Any) -> dict[str, Any]:
        defaults = type(one)().get_params(deep=False)
        # By repr, because a class prior may be an array.
        return {
            name: value for name, value in one.get_params(deep=False).items() if repr(value) != repr(defaults[name])
        }

    graph = {} if estimator.graph is None else differing(estimator.graph)
    own = differing(estimator)
    return {name: value for name, value in (graph | own).items() if name not in ("graph", "callback", "n_jobs")}
