"""Model selection with scikit-learn's own tools on partly labelled data.

``GridSearchCV`` and ``cross_val_score`` split points, which is wrong here twice over: held-out points would be missing
from the graph, and points without a label would be scored. :class:`AllPoints` leaves every point where it is, and
:class:`HeldOutLabels` hides labels instead of points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.pipeline import Pipeline

from homophily.exceptions import ParameterError, warned_already
from homophily.supervision.calibration import label_folds
from homophily.supervision.labels import encode_labels

__all__ = ["AllPoints", "HeldOutLabels"]


class AllPoints:
    """A ``cv`` with one split: all points to fit, and all points for :class:`HeldOutLabels` to score.

    Examples
    --------
    >>> [(train, test)] = AllPoints().split(["a", "b", "c"])
    >>> train.tolist(), test.tolist()
    ([0, 1, 2], [0, 1, 2])
    """

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:  # noqa: ARG002
        """Split into all points and all points.

        Yields
        ------
        train, test : ndarray of int
            The positions of all points, twice.
        """
        everything = np.arange(X.shape[0] if hasattr(X, "shape") else len(X))
        yield everything, everything

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: ARG002
        """Return 1."""
        return 1


class HeldOutLabels:
    """A ``scoring`` that hides a fold of the labels at a time, fits again, and compares the answers with them.

    Every fit has all points in its graph, and points without a label are never scored. Folds are stratified, and every
    class keeps a label outside each fold, so that a class with a single label is never held out. Use it with
    ``cv=AllPoints()``. A candidate costs one fit for each fold and one more.

    Parameters
    ----------
    metric : callable, default=accuracy_score
        Called with the hidden labels and the answers of all folds together; greater is better.
    n_folds : int, default=5
        Number of folds of the labels.
    random_state : int, default=0
        Seed of the folds. All candidates are scored on the same ones.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from sklearn.model_selection import GridSearchCV
    >>> from homophily import IRRClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> y[30:] = -1
    >>> search = GridSearchCV(IRRClassifier(), {"power": [1, 2]}, cv=AllPoints(), scoring=HeldOutLabels())
    >>> bool(search.fit(X, y).best_score_ > 0.9)
    True
    """

    def __init__(
        self, metric: Callable[[Any, Any], float] = accuracy_score, n_folds: int = 5, random_state: int = 0
    ) -> None:
        self.metric, self.n_folds, self.random_state = metric, n_folds, random_state

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """Score an estimator, or a pipeline that ends with one, that was fitted on ``X`` and ``y``."""
        labels = encode_labels(y)
        labelled = np.flatnonzero(labels.class_index >= 0)
        folds = np.full(len(labels.class_index), -1)
        folds[labelled] = label_folds(labels.class_index[labelled], self.n_folds, self.random_state)
        if not (folds >= 0).any():
            raise ParameterError(
                "No label can be held out: y must hold at least two labels of one class, and one of each other class.",
                "y",
            )
        answers = labels.classes[labels.class_index]
        for fold in range(self.n_folds):
            hidden = folds == fold
            if hidden.any():
                with warned_already():
                    answers[hidden] = _transduced(estimator, X, y, ~hidden)[hidden]
        held_out = folds >= 0
        return float(self.metric(labels.classes[labels.class_index[held_out]], answers[held_out]))


def _transduced(estimator: Any, X: Any, y: Any, visible: NDArray[np.bool_]) -> NDArray[Any]:
    """All points' classes according to a new fit that sees only the visible labels."""
    weights = visible.astype(np.float64)
    fitted = clone(estimator)
    if isinstance(fitted, Pipeline):
        name, last = fitted.steps[-1]
        fitted.fit(X, y, **{f"{name}__sample_weight": weights})
        return np.asarray(last.transduction_)
    # The graph does not depend on labels, so the fits share the one that is there.
    return np.asarray(fitted.fit(estimator.graph_, y, sample_weight=weights).transduction_)
