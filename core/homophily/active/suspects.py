"""Labels that their surroundings contradict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from homophily.estimators.contributions import left_out_scores
from homophily.estimators.transduction import GraphClassifier


@dataclass(frozen=True)
class SuspiciousLabel:
    """A label, and what the point would be taken for without it."""

    point: int
    """Its position in the data."""
    label: Any
    """The class given."""
    answer: Any
    """The class that the other labels give the point."""
    suspicion: float
    """From −1 to 1: the probability of ``answer`` less that of ``label`` without it; 0 or less if they agree."""


def suspicious_labels(model: GraphClassifier, *, all_labels: bool = False) -> list[SuspiciousLabel]:
    """Labels that the point would not get if it had none, the most suspicious first.

    Each label is left out of the linear problem, at once and without fitting anew: with A = H + λ1 L^p, the value of a
    labelled point without its label is (f − a h t) / (1 − a h), a the diagonal entry of A⁻¹.

    Parameters
    ----------
    model : ERRClassifier or IRRClassifier
        A fitted classifier.
    all_labels : bool, default=False
        Return the labels that nothing speaks against as well.

    Returns
    -------
    list of SuspiciousLabel
        Only those with a suspicion above 0, unless ``all_labels``. The only label of a component is never suspicious.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from homophily import ERRClassifier
    >>> from homophily.active import suspicious_labels
    >>> X, y = load_digits(return_X_y=True)
    >>> few = y.copy()
    >>> few[100:] = -1
    >>> few[7] = 3
    >>> first = suspicious_labels(ERRClassifier().fit(X, few))[0]
    >>> first.point, int(first.label), int(first.answer)
    (7, 3, 7)
    """
    check_is_fitted(model)
    labels = model.given_labels_
    points, probabilities = left_out_scores(model)
    given = labels.class_index[points]
    own = probabilities[np.arange(len(points)), given]
    others = probabilities.copy()
    others[np.arange(len(points)), given] = -np.inf
    answer = np.where(own >= others.max(axis=1), given, others.argmax(axis=1))
    suspicion = others.max(axis=1) - own
    order = np.argsort(-suspicion, kind="stable")
    return [
        SuspiciousLabel(int(points[i]), model.classes_[given[i]], model.classes_[answer[i]], float(suspicion[i]))
        for i in order
        if all_labels or suspicion[i] > 0.0
    ]
