"""How good parameters are: fits on a part of the labels, judged on the labels that were held out.

Validation points are held out where they are given. Otherwise folds of the labels are, repeated when labels are few; or
a single part of them when there are many.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_consistent_length

from homophily.arrays import Floats
from homophily.estimators.classifiers import ERRClassifier, IRRClassifier
from homophily.estimators.transduction import GraphClassifier
from homophily.exceptions import ParameterError, warned_already
from homophily.graph.knn_graph import KNNGraph
from homophily.selection.ranges import OF_THE_GRAPH, SEARCHED
from homophily.selection.records import Group, Method, Outcome, Parameters, Result, Trial
from homophily.supervision.calibration import fit_calibration, label_folds
from homophily.supervision.labels import Labels, encode_labels

Indices = NDArray[np.intp]

#: The usual number; more folds cost as many fits.
FOLDS = 5
#: Folds are drawn again until about this number of labels was held out: 60 answers tell 10 % errors from 20 %.
ENOUGH_ANSWERS = 60
#: From this number of labels on, one part is held out instead of folds: 500 answers have a standard error below 2 %.
MANY_LABELS = 2000
HELD_OUT_SHARE = 0.25
#: Lowest probability that enters the log-loss, so that one wrong answer of a confident fit does not decide.
LEAST_CHANCE = 1e-3
#: What a line of trials shares: all that is searched of the classifier but λ2.
_LINE = tuple(name for name in SEARCHED if name not in OF_THE_GRAPH and name != "lambda2")
#: A trial is stopped between folds when its error will exceed the lowest of its group by more than this. The choice
#: smooths errors, so that a trial a little worse may still matter.
HOPELESS = 0.05


class Part(NamedTuple):
    """One fit of a trial: the labels that it sees, and those that it is judged by."""

    confidence: Floats
    """(u,) confidence of the labels seen, 0 elsewhere."""
    held_out: Indices
    classes: NDArray[Any]
    """Of the points held out."""


def build_graph(parameters: Parameters, X: Any, n_jobs: int | None = None) -> KNNGraph:
    """Build the graph of a group: ``build_graph(group.graph, X)``.

    Parameters
    ----------
    parameters : dict
        Parameters of :class:`~homophily.KNNGraph`.
    X : array-like, sparse matrix or KNNGraph
        Points; a fitted graph is returned as it is.
    n_jobs : int, default=None
        Number of threads.

    Returns
    -------
    KNNGraph
        The fitted graph.

    Examples
    --------
    >>> build_graph({"n_neighbors": 1}, [[0.0], [1.0], [3.0]]).n_points
    3
    """
    return X if isinstance(X, KNNGraph) else KNNGraph(**{**parameters, "n_jobs": n_jobs}).fit(X)


def hold_out(labels: Labels, validation: ArrayLike | None = None, seed: int = 0) -> list[Part]:
    """The parts that every trial of a search is fitted on; equal for equal labels and seed."""
    if validation is not None:
        return [_part(labels, _read_validation(validation, labels))]
    labelled = np.flatnonzero(labels.confidence > 0)
    classes = labels.class_index[labelled]
    if len(labelled) >= MANY_LABELS:
        folds = label_folds(classes, round(1 / HELD_OUT_SHARE), seed)
        return [_part(labels, labelled[folds == 0])]
    parts = []
    for repeat in range(max(1, round(ENOUGH_ANSWERS / len(labelled)))):
        folds = label_folds(classes, FOLDS, seed + repeat)
        parts += [_part(labels, labelled[folds == fold]) for fold in range(FOLDS) if (folds == fold).any()]
    if not parts:
        raise ParameterError(
            "A search needs labels to judge by: at least two of one class, or validation points. "
            f"Got {len(labelled)} labels of {len(labels.classes)} classes instead.",
            "y",
        )
    return parts


def _part(labels: Labels, held_out: Indices) -> Part:
    confidence = labels.confidence.copy()
    confidence[held_out] = 0.0
    return Part(confidence, held_out, labels.classes[labels.class_index[held_out]])


def _read_validation(validation: ArrayLike, labels: Labels) -> Indices:
    points = np.unique(np.asarray(validation))
    within = points.size and points.dtype.kind in "iu" and points[0] >= 0 and points[-1] < len(labels.confidence)
    if not within or not (labels.confidence[points] > 0).all():
        raise ParameterError(
            "The 'validation' parameter must be positions of points whose class is in y. "
            f"Got {np.asarray(validation)!r} instead.",
            "validation",
        )
    if not (np.delete(labels.confidence, points) > 0).any():
        raise ParameterError(
            "The 'validation' parameter must leave labels to fit on. Got all of them instead.", "validation"
        )
    return points.astype(np.intp)


def evaluate(
    group: Group,
    X: Any,
    y: ArrayLike,
    *,
    validation: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    seed: int = 0,
    seconds: float | None = None,
    n_jobs: int | None = None,
    warm_start: bool = False,
    callback: Callable[[Trial], object] | None = None,
) -> Outcome:
    """Fit every trial of a group and judge it on labels that the fit did not see.

    Every ERR fit starts from the one IRR solution of its part, as the final fit will. With ``warm_start`` it starts
    from the solution of the next smaller λ2, which saves evaluations, but is then judged for a solution that the
    parameters alone do not quite lead to (the optimiser stops early on purpose).

    Parameters
    ----------
    group : Group
        One of the groups that :meth:`homophily.Search.ask` returned.
    X : array-like, sparse matrix or KNNGraph
        Points, or the graph of the group, as :func:`build_graph` makes it.
    y : array-like
        Classes as for ``fit``, those of the validation points included.
    validation : array-like of int, default=None
        Positions of the points to judge by, whose classes no fit sees. None holds out labels in turn.
    sample_weight : array-like, default=None
        Confidence in each label.
    seed : int, default=0
        Seed of the folds; the same for all groups of a search.
    seconds : float, default=None
        Trials that have not begun within this time are left out, and count as pruned.
    n_jobs : int, default=None
        Number of threads.
    warm_start : bool, default=False
        Start along rising λ2, see above.
    callback : callable, default=None
        Called with each :class:`Trial` that is finished or left out; raise in it to cancel.

    Returns
    -------
    Outcome
        A result for each trial.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from homophily.selection import Group, evaluate
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> y[20:] = -1
    >>> outcome = evaluate(Group(0, "graph", "irr", {"n_neighbors": 8}, ({"lambda1": 0.1},)), X, y)
    >>> bool(outcome.results[0].error < 0.2)
    True
    """
    deadline = math.inf if seconds is None else time.perf_counter() + seconds
    labels = encode_labels(y, sample_weight)
    with warned_already():
        return run_group(group, X, y, hold_out(labels, validation, seed), deadline, n_jobs, callback, warm_start)


def run_group(
    group: Group,
    X: Any,
    y: ArrayLike,
    parts: list[Part],
    deadline: float,
    n_jobs: int | None,
    callback: Callable[[Trial], object] | None,
    warm_start: bool = False,
    starts: Starts | None = None,
) -> Outcome:
    """:func:`evaluate` with its labels read and ``deadline`` by the clock ``time.perf_counter``.

    ``starts`` are the IRR solutions on this graph and these parts that other groups have found, and may use.
    """
    started = time.perf_counter()
    left_out = Result(None, None, 0, 0.0, pruned=True)
    results: list[Result] = []

    def note(result: Result) -> None:
        results.append(result)
        if callback is not None:
            callback(trial_of(group, len(results) - 1, result))

    if started > deadline:
        for _ in group.trials:
            note(left_out)
        return Outcome(group, tuple(results), 0.0, late=True)
    graph = build_graph(group.graph, X, n_jobs)
    check_consistent_length(graph.W, parts[0].confidence)
    fits = _Fits(group.method, graph, y, parts, n_jobs, warm_start, starts or Starts())
    answers = sum(len(part.held_out) for part in parts)
    lines: dict[Any, list[Result]] = {}
    late = False
    for solver in group.trials:
        # With the graph's: some, like the backend, concern both.
        parameters = {**group.graph, **solver}
        began = time.perf_counter()
        late = began > deadline
        line = lines.setdefault(line_of(parameters), [])
        if late or _rises(line):
            note(left_out)
            continue
        lowest = min((result.error for result in results if result.error is not None), default=1.0)
        wrong, scores, classes = 0, [], []
        for number, part in enumerate(parts):
            model = fits(parameters, number)
            wrong += int(np.count_nonzero(model.transduction_[part.held_out] != part.classes))
            scores.append(model.decision_scores_[part.held_out].reshape(len(part.held_out), -1))
            classes.append(part.classes)
            if wrong / answers > lowest + HOPELESS:
                break
        answered = sum(map(len, classes))
        loss = calibrated_loss(np.concatenate(scores), np.concatenate(classes), model.classes_)
        taken = time.perf_counter() - began
        note(Result(wrong / answered, float(loss.mean()), answered, taken, pruned=answered < answers))
        line.append(results[-1])
    return Outcome(group, tuple(results), time.perf_counter() - started, late)


def line_of(parameters: Parameters) -> tuple[float, ...]:
    """What trials have in common that differ in λ2 only."""
    return tuple(float(parameters.get(name) or 0.0) for name in _LINE)


def _rises(line: list[Result]) -> bool:
    """Whether the error at the end of a line is above the line's lowest by more than chance explains."""
    errors = [result.error for result in line if result.error is not None]
    if not errors:
        return False
    lowest, held_out = min(errors), max(result.held_out for result in line)
    # Two standard errors of the lowest error, counting one more wrong answer.
    likely = (lowest * held_out + 1.0) / (held_out + 2.0)
    return errors[-1] > lowest + 2.0 * math.sqrt(likely * (1.0 - likely) / held_out)


class Starts:
    """Solutions that several threads want, each found once."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Floats] = {}
        self._asked: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def __call__(self, key: Hashable, solve: Callable[[], Floats]) -> Floats:
        """The result of ``solve`` for a key; it is called once, and other threads wait for it."""
        with self._lock:
            asked = self._asked[key]
        with asked:
            if key not in self._found:
                self._found[key] = solve()
            return self._found[key]


@dataclass
class _Fits:
    """The fits of a group, which start from the IRR solutions of their graph, or from one another."""

    method: Method
    graph: KNNGraph
    y: ArrayLike
    parts: list[Part]
    n_jobs: int | None
    warm_start: bool
    starts: Starts
    lines: dict[Any, Floats] = field(default_factory=dict)

    def __call__(self, parameters: Parameters, number: int) -> GraphClassifier:
        """A fit on the labels that a part shows."""
        own = {name: value for name, value in parameters.items() if name not in OF_THE_GRAPH}
        if self.method == "irr":
            return self._fit(IRRClassifier(**own, n_jobs=self.n_jobs), number, None)
        # What is searched for are the parameters of smooth relationships.
        own = {"sharpen": False} | own
        irr = ERRClassifier(**{**own, "max_iter": 0}, n_jobs=self.n_jobs)
        key = number, parameters.get("lambda1"), parameters.get("power")
        start = self.starts(key, lambda: self._fit(irr, number, None).solution_)
        # Trials of a group come in lines of rising λ2.
        line = number, line_of(parameters)
        start = self.lines.get(line, start)
        found = self._fit(ERRClassifier(**own, n_jobs=self.n_jobs), number, start)
        if self.warm_start:
            self.lines[line] = found.solution_
        return found

    def _fit(self, model: GraphClassifier, number: int, start: Floats | None) -> GraphClassifier:
        fitted: GraphClassifier = model.fit(self.graph, self.y, sample_weight=self.parts[number].confidence, init=start)
        return fitted


def trial_of(group: Group, position: int, result: Result) -> Trial:
    """The row of a result in the table of trials."""
    parameters = {**group.graph, **group.trials[position]}
    return Trial(group.number + position, group.stage, group.method, parameters, *result)


def calibrated_loss(scores: Floats, classes: NDArray[Any], known: NDArray[Any]) -> Floats:
    """Log-loss of each answer under the one slope that suits all these scores best, whatever their scale."""
    # No fit can know a class that only validation points have.
    possible = np.isin(classes, known)
    index = np.searchsorted(known, classes[possible])
    calibration = fit_calibration(scores[possible], index, np.zeros(scores.shape[1]))
    losses = np.full(len(scores), -np.log(LEAST_CHANCE))
    chance = calibration.probabilities(scores[possible])[np.arange(len(index)), index]
    losses[possible] = -np.log(np.maximum(chance, LEAST_CHANCE))
    return losses
