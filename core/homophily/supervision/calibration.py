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

#: Without held-out labels, a score on its target (±1, or 1 against 0) has odds of 99 to 1 against each other class.
DEFAULT_SLOPE = float(np.log(99.0))
#: Scale and degrees of freedom of the prior of log a, a Student distribution around the default slope. A few dozen
#: held-out labels alone give slopes that are off by half; on most sets the best one is within a quarter of the default.
#: The tails let labels overrule it where it is not, as on sets that neighbours tell nothing about. Chosen with the
#: default on 13 sets with 50 labels, draws 0 to 59 and 200 to 209: scales of 0.1 to 0.2 and 3 to 6 degrees of freedom
#: differ little.
PRIOR_SCALE, PRIOR_FREEDOM = 0.2, 5.0
#: Slopes are kept within this factor of the default.
WIDEST = 1e6


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
    """Fit the slope to held-out scores (m, n) with their classes (m,): the most probable one given these labels.

    It is weighed against the prior belief that the slope is about ``default``, which holds with nothing held out.
    """
    offsets = np.asarray(offsets, dtype=np.float64)
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, dtype=np.float64)
    logits = _logits(np.asarray(scores, dtype=np.float64) + offsets)
    if not weights.sum() > 0 or not np.ptp(logits, axis=1).any():
        return Calibration(default, offsets)
    weights = weights * np.count_nonzero(weights) / weights.sum()
    return Calibration(_fit_slope(logits, class_index, weights, default), offsets)


def _logits(corrected: Floats) -> Floats:
    """One column per class: a single column x becomes (0, x), whose softmax is the logistic function."""
    return np.hstack([np.zeros_like(corrected), corrected]) if corrected.shape[1] == 1 else corrected


def _fit_slope(x: Floats, class_index: NDArray[np.integer], weights: Floats, default: float) -> float:
    """The a that maximises Σ_i w_i Σ_c t_ic log softmax(a x_i)_c plus the log of the prior density of log a.

    Of n held-out labels, t takes one more to be right and one more to be wrong (Laplace's rule): that none of a few is
    wrong is no proof that none ever is.
    """
    from scipy.optimize import brentq  # most fits are not calibrated: they need not wait for its import

    count, others = weights.sum(), x.shape[1] - 1
    own = x[np.arange(len(x)), class_index]
    wanted = weights @ ((count + 1.0) * own + (x.sum(axis=1) - own) / others) / (count + 2.0)

    def descent(log_ratio: float) -> float:
        slope = default * np.exp(log_ratio)
        missing = weights @ (softmax(slope * x, axis=1) * x).sum(axis=1) - wanted
        pull = (PRIOR_FREEDOM + 1.0) * log_ratio / (PRIOR_FREEDOM * PRIOR_SCALE**2 + log_ratio**2)
        return float(slope * missing + pull)

    limit = float(np.log(WIDEST))
    if descent(-limit) >= 0:
        return default / WIDEST
    return WIDEST * default if descent(limit) <= 0 else float(default * np.exp(brentq(descent, -limit, limit)))


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
