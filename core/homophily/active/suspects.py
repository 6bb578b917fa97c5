"""Labels that their surroundings contradict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from homophily.estimators.contributions import left_out_shares
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
    """From −1 to 1: the share of ``answer`` in what the other labels say of the point, less that of ``label``."""


def suspicious_labels(model: GraphClassifier, *, all_labels: bool = False) -> list[SuspiciousLabel]:
    """Labels that the point would not get if it had none, the most suspicious first.

    What the other labels say of a labelled point comes from the linear problem with ``power=1``, without fitting anew,
    in time linear in the points.

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
    points, shares = left_out_shares(model)
    given = labels.class_index[points]
    own = shares[np.arange(len(points)), given]
    shares[np.arange(len(points)), given] = -np.inf
    others, answer = shares.max(axis=1), shares.argmax(axis=1)
    suspicion = others - own
    order = np.argsort(-suspicion, kind="stable")
    return [
        SuspiciousLabel(
            int(points[i]),
            model.classes_[given[i]],
            model.classes_[answer[i] if suspicion[i] > 0.0 else given[i]],
            float(suspicion[i]),
        )
        for i in order
        if all_labels or suspicion[i] > 0.0
    ]
