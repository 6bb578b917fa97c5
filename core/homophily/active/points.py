"""Which points to label next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from homophily.active.situation import Situation
from homophily.active.strategies import STRATEGIES, StrategyName
from homophily.arrays import Floats
from homophily.estimators.transduction import GraphClassifier
from homophily.parameters import AT_LEAST_ONE, check_parameters, wrong_parameter

#: A component without a label counts in full from this size on: a label in a small one tells of few points.
LARGE_COMPONENT = 20


@dataclass(frozen=True)
class PointSuggestion:
    """A point worth a label, and why."""

    point: int
    """Its position in the data."""
    score: float
    """Its worth by the strategy; only good for comparison within one call."""
    reason: str
    """Why: "unlabelled component" if no label reaches it, "far" if every label is, or "between" classes."""
    classes: tuple[Any, ...]
    """Its two most probable classes, the more probable one first; none where no label reaches."""
    component_size: int
    """The number of points connected with it."""

    def __str__(self) -> str:
        if self.reason == "unlabelled component":
            return f"in a component of {self.component_size} points without a label"
        one, other = self.classes
        return f"between {one} and {other}" if self.reason == "between" else f"far from every label, perhaps {one}"


def suggest_points(
    model: GraphClassifier, n: int, *, strategy: StrategyName = "surroundings", exclude: ArrayLike | None = None
) -> list[PointSuggestion]:
    """Points whose labels would help most, the best first.

    Suggestions are spread out: each counts with the ones before it as if they had labels already. It takes time linear
    in the points ("variance" and "sigma" need eigenvectors of the graph, which take longer).

    Parameters
    ----------
    model : ERRClassifier or IRRClassifier
        A fitted classifier.
    n : int
        How many; fewer are returned if fewer points have no label.
    strategy : {"surroundings", "margin", "norm", "variance", "sigma"}, default="surroundings"
        What makes a point worth a label:

        - "surroundings": it is in the middle of points that are far from labels or between classes;
        - "margin": its two most probable classes are nearly as probable;
        - "norm": its probabilities, discounted by the distance to the labels, have a small norm;
        - "variance", "sigma": its label would lower the sum of the variances of a Gaussian field on the graph, or the
          variance of its sum (VarOpt, SigmaOpt). These do not look at the classes.
    exclude : array-like of int, default=None
        Positions of points not to suggest, such as those that a person could not tell.

    Returns
    -------
    list of PointSuggestion
        With positions, scores and reasons; ``str()`` gives the reason in words.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from homophily import ERRClassifier
    >>> from homophily.active import suggest_points
    >>> X, y = load_digits(return_X_y=True)
    >>> few = y.copy()
    >>> few[10:] = -1
    >>> suggestions = suggest_points(ERRClassifier().fit(X, few), 5)
    >>> len(suggestions), all(few[one.point] == -1 for one in suggestions)
    (5, True)
    """
    check_is_fitted(model)
    check_parameters({"n": n}, {"n": [AT_LEAST_ONE]}, "suggest_points")
    if strategy not in STRATEGIES:
        must = f"one of {', '.join(map(repr, get_args(StrategyName)))}"
        raise wrong_parameter("strategy", "suggest_points", must, repr(strategy))
    situation = Situation(model)
    is_open = _open_points(situation, exclude)
    sizes = np.bincount(situation.graph.component_labels)[situation.graph.component_labels]
    # A label tells of its component only.
    worth = np.where(situation.reached, 1.0, np.minimum(1.0, sizes / LARGE_COMPONENT))
    chooser = STRATEGIES[strategy](situation)
    found: list[PointSuggestion] = []
    while is_open.any() and len(found) < n:
        scores = np.where(is_open, chooser.scores() * worth, -np.inf)
        point = int(scores.argmax())
        found.append(_suggestion(situation, point, float(scores[point]), int(sizes[point])))
        chooser.take(point)
        is_open[point] = False
    return found


def _open_points(situation: Situation, exclude: ArrayLike | None) -> NDArray[np.bool_]:
    is_open = np.ones(situation.graph.n_points, dtype=bool)
    is_open[situation.labelled] = False
    if exclude is not None:
        is_open[check_positions(exclude, len(is_open), "exclude", "suggest_points")] = False
    return is_open


def check_positions(given: ArrayLike, size: int, name: str, owner: str) -> NDArray[np.intp]:
    """Positions among ``size`` points; an error names the first that is none."""
    positions = np.atleast_1d(np.asarray(given))
    if positions.size == 0:
        return np.empty(0, dtype=np.intp)
    if positions.dtype.kind not in "iu" or positions.ndim != 1:
        raise wrong_parameter(name, owner, "positions of points, integers", repr(given))
    wrong = positions[(positions < 0) | (positions >= size)]
    if wrong.size:
        raise wrong_parameter(name, owner, f"positions from 0 to {size - 1}", wrong[0])
    return positions.astype(np.intp)


def _suggestion(situation: Situation, point: int, score: float, size: int) -> PointSuggestion:
    if not situation.reached[point]:
        return PointSuggestion(point, score, "unlabelled component", (), size)
    best = np.argsort(-situation.probabilities[point], kind="stable")[:2]
    nearness: Floats = situation.nearness
    reason = "far" if nearness[point] < situation.margin[point] else "between"
    return PointSuggestion(point, score, reason, tuple(situation.classes[best].tolist()), size)
