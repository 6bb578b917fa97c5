"""Probabilities from scores, fitted on scores of labelled points that were held out.

The model has one parameter: ``softmax(a (f + b))`` with the slope a > 0 and the decision's own offsets b (for two
classes ``sigmoid(a (f + b))``). A free bias for each class would fit the held-out points better and move the decision:
with the slope alone, the most probable class is always the predicted one. Making the held-out scores (a fit for each
fold) is the caller's work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from homophily.arrays import Floats
from homophily.parameters import wrong_parameter
from homophily.supervision.labels import decide_index

#: Without held-out labels, a score on its target (±1, or 1 against 0) has odds of 19 to 1 against each other class.
DEFAULT_SLOPE = float(np.log(19.0))
#: Slopes are kept within this range, times 1 / (spread of the scores): beyond it probabilities are 0, 1 or all equal.
SLOPE_RANGE = (1e-3, 1e3)


@dataclass(frozen=True)
class Calibration:
    """``softmax(slope · (scores + offsets))``; ``offsets`` has one number for two classes, C for more."""

    slope: float
    offsets: Floats

    def probabilities(self, scores: Floats) -> Floats:
        """Class probabilities with shape (m, C): rows sum to 1, and the largest is at the decided class.

        Of two classes, the second one has more than 0.5 exactly where it is decided.
        """
        corrected = np.asarray(scores, dtype=np.float64) + self.offsets
        p = np.asarray(softmax(_logits(self.slope * corrected), axis=1))
        # Scores that differ by less than rounding share their probability; the decided class gets the last bit.
        decided = decide_index(corrected)
        is_short = p.argmax(axis=1) != decided
        if p.shape[1] == 2:
            is_short |= (decided == 1) & (p[:, 1] <= 0.5)
        rows = np.flatnonzero(is_short)
        p[rows, decided[rows]] = np.nextafter(p[rows].max(axis=1), 2.0)
        return p


def fit_calibration(
    scores: Floats,
    class_index: NDArray[np.integer],
    offsets: Floats,
    weights: Floats | None = None,
    default: float = DEFAULT_SLOPE,
) -> Calibration:
    """Fit the slope to held-out scores (m, n) with their classes (m,), by weighted likelihood.

    Platt's smoothed targets — (N_c + 1)/(N_c + 2) for the own class, the rest shared by the others — keep it finite
    when the scores part the classes and modest when labels are few. With nothing held out, the slope is ``default``.
    """
    offsets = np.asarray(offsets, dtype=np.float64)
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, dtype=np.float64)
    logits = _logits(np.asarray(scores, dtype=np.float64) + offsets)
    spread = float(np.sqrt(np.mean((logits - logits.mean(axis=1, keepdims=True)) ** 2))) if len(logits) else 0.0
    if spread == 0 or not weights.sum() > 0:
        return Calibration(default, offsets)
    weights = weights * np.count_nonzero(weights) / weights.sum()
    targets = _smoothed_targets(class_index, weights, logits.shape[1])
    return Calibration(_fit_slope(logits / spread, targets, weights) / spread, offsets)


def _logits(corrected: Floats) -> Floats:
    """One column per class: a single column x becomes (0, x), whose softmax is the logistic function."""
    return np.hstack([np.zeros_like(corrected), corrected]) if corrected.shape[1] == 1 else corrected


def _smoothed_targets(class_index: NDArray[np.integer], weights: Floats, classes: int) -> Floats:
    counts = np.bincount(class_index, weights=weights, minlength=classes)[class_index]
    targets = np.repeat(1.0 / (counts + 2.0) / (classes - 1), classes).reshape(-1, classes)
    targets[np.arange(len(targets)), class_index] = (counts + 1.0) / (counts + 2.0)
    return targets


def _fit_slope(x: Floats, targets: Floats, weights: Floats) -> float:
    """Minimise the convex ``−Σ_i w_i Σ_c t_ic log softmax(a x_i)_c`` over a in :data:`SLOPE_RANGE`."""
    from scipy.optimize import brentq  # fits without probabilities need not wait for its import

    wanted = weights @ (targets * x).sum(axis=1)

    def derivative(slope: float) -> float:
        return float(weights @ (softmax(slope * x, axis=1) * x).sum(axis=1) - wanted)

    low, high = SLOPE_RANGE
    if derivative(low) >= 0:
        return low
    return high if derivative(high) <= 0 else float(brentq(derivative, low, high, rtol=1e-14))


def label_folds(class_index: NDArray[np.integer], n_folds: int, seed: int | None = 0) -> NDArray[np.int64]:
    """The fold in which each labelled point is held out; −1 where a class has no second label to keep. Stratified."""
    if n_folds < 2:
        raise wrong_parameter("n_folds", "label_folds", "an int in the range [2, inf)", repr(n_folds))
    rng = np.random.default_rng(seed)
    folds = np.full(len(class_index), -1, dtype=np.int64)
    dealt = 0
    for c in np.unique(class_index):
        members = rng.permutation(np.flatnonzero(class_index == c))
        if len(members) > 1:
            folds[members] = (dealt + np.arange(len(members))) % n_folds
            dealt += len(members)
    return folds
