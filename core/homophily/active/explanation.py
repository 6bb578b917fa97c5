"""Which labels carry an answer, and on which path through the graph; how they are found is in
:mod:`homophily.estimators.contributions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from homophily.active.paths import paths_from
from homophily.active.points import check_positions
from homophily.arrays import Floats
from homophily.estimators.contributions import Place, gap, lead, places, refitted_without, stored_place
from homophily.estimators.transduction import GraphClassifier
from homophily.parameters import wrong_parameter


@dataclass(frozen=True)
class Contribution:
    """What one label adds to an answer."""

    point: int
    """The labelled point's position."""
    label: Any
    """Its class."""
    value: float
    """What it adds to the score; below 0, it speaks for the runner-up."""
    share: float
    """Its part of all contributions' sizes, from 0 to 1."""


@dataclass(frozen=True)
class Explanation:
    """Why a point has its answer rather than the runner-up."""

    point: int | None
    """Its position in the data; None for a new point."""
    answer: Any
    """Its class."""
    runner_up: Any
    """The class with the second score."""
    score: float
    """The lead of the answer's score over the runner-up's. With sharp relationships, of its share around the point."""
    offset: float
    """The part of the score that class shares, not labels, brought in."""
    remainder: float
    """What is left of the score: 0 for IRR; for smooth ERR, what is not linear in the labels. With sharp relationships,
    what ends among points of the class that are not connected, within it, with any of its labels."""
    contributions: tuple[Contribution, ...]
    """Of all labels that add anything, the largest first."""
    without_largest: float | None
    """The score without the label that adds most. It comes from a formula, or with ``refit`` from a fit without that
    label. None where there is no formula (sharp relationships, and more than two classes in the vector form), and
    with ``refit`` where the label is the only one of its class."""
    nearest: int
    """The point itself, or the stored point next to a new one: where paths begin. −1 if no label reaches a new one."""
    graph: Any
    """The sparse weights of the graph, for paths."""

    def path(self, label: int) -> list[int]:
        """Points from this one to a label, by the fewest edges; empty if they are not connected."""
        return self.paths([label])[0]

    def paths(self, labels: ArrayLike) -> list[list[int]]:
        """The :meth:`path` to each of several labels, at the cost of one."""
        return paths_from(self.graph, self.nearest, labels)


def explain(
    model: GraphClassifier, points: ArrayLike | None = None, *, X: Any = None, refit: bool = False
) -> list[Explanation]:
    """Which labels carry the answers for some points.

    Parameters
    ----------
    model : ERRClassifier or IRRClassifier
        A fitted classifier.
    points : array-like of int, default=None
        Positions of points of ``fit``.
    X : array-like or sparse matrix of shape (m, d), default=None
        New points, instead of ``points``.
    refit : bool, default=False
        Fit the model again without the label that adds most, to say what the score would be. Costs a fit for each such
        label, but no graph.

    Returns
    -------
    list of Explanation
        One for each point.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from homophily import IRRClassifier
    >>> from homophily.active import explain
    >>> X, y = load_digits(return_X_y=True)
    >>> few = y.copy()
    >>> few[50:] = -1
    >>> why = explain(IRRClassifier().fit(X, few), [1000])[0]
    >>> bool(abs(sum(part.value for part in why.contributions) + why.offset - why.score) < 1e-6)
    True
    """
    check_is_fitted(model)
    if (points is None) == (X is None):
        raise wrong_parameter("points", "explain", "given, or X, but not both", "both" if X is not None else "neither")
    if X is not None:
        X = model._new_points(X)
        asked = [_Asked(None, place, X[[row]]) for row, place in enumerate(places(model, X))]
    else:
        positions = check_positions(points, model.graph_.n_points, "points", "explain")  # type: ignore[arg-type]
        asked = [_Asked(int(point), stored_place(model, int(point)), None) for point in positions]

    without = cache(partial(refitted_without, model)) if refit else None
    return [_explained(model, one, without) for one in asked]


@dataclass(frozen=True)
class _Asked:
    """A point that is asked about."""

    point: int | None
    place: Place
    row: Any
    """A new point's columns."""

    def scores(self, model: GraphClassifier) -> Floats:
        """One for each class."""
        if self.point is None:
            found = model.answer(self.row, validated=True).scores[0]
        else:
            found = model._decision_at([self.point])[0]
        return np.array([0.0, found]) if np.ndim(found) == 0 else found


def _explained(
    model: GraphClassifier, asked: _Asked, without: Callable[[int], GraphClassifier | None] | None
) -> Explanation:
    point, place, scores = asked.point, asked.place, asked.scores(model)
    answer, other = (int(c) for c in np.argsort(-scores, kind="stable")[:2])
    nearest = int(place.points[place.weights.argmax()]) if place.points.size else -1
    classes = model.classes_[answer], model.classes_[other]
    score = gap(model, place, scores, answer, other)
    if nearest < 0 or not model.reached_[place.points].any():
        # No label reaches it: the class prior decides.
        score = float(scores[answer] - scores[other])
        return Explanation(point, *classes, score, score, 0.0, (), None, nearest, model.graph_.W)
    found = lead(model, place, answer, other, score)
    total = float(np.abs(found.parts).sum()) or 1.0
    order = np.argsort(-np.abs(found.parts), kind="stable")
    given = model.given_labels_.class_index[found.labels[order]]
    parts = zip(found.labels[order], model.classes_[given], found.parts[order], strict=True)
    contributions = tuple(
        Contribution(int(j), label, float(part), float(abs(part) / total)) for j, label, part in parts if part
    )
    without_largest = found.without_largest
    if without is not None and contributions:
        again = without(contributions[0].point)
        without_largest = None if again is None else gap(again, place, asked.scores(again), answer, other)
    remainder = score - found.offset - float(found.parts.sum())
    return Explanation(
        *(point, *classes, score, found.offset, remainder),
        *(contributions, without_largest, nearest, model.graph_.W),
    )
