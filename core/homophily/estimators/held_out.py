"""Scores that labels would get if they were held out, which probabilities are calibrated on, without repeated fits.

Smooth values depend on labels through a linear system, or nearly so: how much a label decides its own value tells what
the value would be without it. Sharp relationships are not linear: there, each fold of the labels is left out of a cheap
start, from which one round of the dynamics is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily.arrays import Floats
from homophily.device.operations import Operations
from homophily.solve.sharpen import STEPS, Held, class_logits, membership
from homophily.supervision.calibration import label_folds
from homophily.supervision.class_shares import class_offsets
from homophily.supervision.labels import decide_index

#: Parts that the labels are dealt into, each of which is left out once.
FOLDS = 5
#: Columns in which labels' influences are computed. Labels that share one disturb each other a little, so most have
#: their own, or share it with labels of other classes. With the targets of two classes these are 8, which a block is
#: quick with: one more lowered the calibration error on 14 sets from 5.5 to 5.3 %, and took 1.53 instead of 1.44 times
#: the fit where it took most.
COLUMNS = 7
#: Relative accuracy of the influences.
INFLUENCE_TOLERANCE = 3e-3
#: Steps of the walks from the other labels. On digits, USPS, Pendigits, MNIST and ssl_coil with 50 labels (draws 0 to
#: 5) 16 to 256 gave about the same calibration error, and the same as IRR without their labels.
REACH = 128
#: Points whose scores settle the start's class shares.
OFFSET_POINTS = 1_000


def without_own_label(
    operations: Operations,
    confidence: Floats,
    targets: Floats,
    class_index: NDArray[Any],
    n_columns: int = COLUMNS,
    tolerance: float = INFLUENCE_TOLERANCE,
    **system: Any,
) -> Floats:
    """IRR's values (s, n) of the labelled points without their own label; ``system`` has ``lambda1`` and ``power``.

    Of F = BT with B = (H + λ1 L^p)⁻¹H, point i without its label has t_i − (t_i − f_i)/(1 − b_ii). The b_ii are read
    off a few columns BZ, in which labels have random signs; the more columns, the less labels disturb each other. ERR's
    values must not stand for f: where 1 − b_ii is 0.005, what relationships move a label by would count 200 times.
    """
    points = np.flatnonzero(confidence > 0)
    rng, columns = np.random.default_rng(0), min(n_columns, len(points))
    # The labels of a class are spread over the columns.
    order = rng.permutation(len(points))
    order = order[np.argsort(class_index[points[order]], kind="stable")]
    column = np.empty(len(points), dtype=np.intp)
    column[order] = np.arange(len(points)) % columns
    signs = np.zeros((len(confidence), columns))
    signs[points, column] = rng.choice([-1.0, 1.0], len(points))
    found = operations.solve_irr(confidence, np.hstack([signs, targets]), tolerance=tolerance, **system).solution[
        points
    ]
    influence = found[np.arange(len(points)), column] * signs[points, column]
    given, values = targets[points], found[:, columns:]
    left = given - (given - values) / np.maximum(1.0 - influence, 1e-9)[:, None]
    low, high = given.min(axis=0), given.max(axis=0)
    return np.clip(left, low - (high - low) / 2, high + (high - low) / 2)


def without_own_fold(
    operations: Operations,
    degrees: Floats,
    normalized: bool,
    confidence: Floats,
    targets: Floats,
    class_index: NDArray[Any],
    decided: NDArray[np.intp],
) -> Floats:
    """Class logits (s, C) of the labelled points after a round of the dynamics without the labels of their fold.

    ``decided`` are the classes (u,) that the fit with all labels settled at. A fold starts from the classes that walks
    from the other labels reach, with as many points in each class as in the fit.
    """
    classes = targets.shape[1]
    held, walk = Held.of(confidence, targets), operations.walk(degrees, normalized)
    shares = np.bincount(decided, minlength=classes) + 0.5
    weights = np.where(degrees > 0, degrees, 1.0)
    folds = label_folds(class_index[held.points], FOLDS)
    logits = np.zeros((len(held.points), classes))
    for fold in np.unique(folds[folds >= 0]):
        is_out = folds == fold
        kept = Held(*(part[~is_out] for part in held))
        sources = np.zeros((len(degrees), classes))
        sources[kept.points] = confidence[kept.points, None] * kept.targets / np.sqrt(weights[kept.points, None])
        # What is constant over the graph tells no class apart.
        sources -= weights @ sources / weights.sum()
        scores = np.asarray(walk(sources, REACH), dtype=np.float64)
        scores = scores[:, 1:] - scores[:, :1] if classes == 2 else scores
        some = scores[:: max(1, len(scores) // OFFSET_POINTS)]
        classes_without = decide_index(scores + class_offsets(some, shares / shares.sum()))
        classes_without[kept.points] = kept.targets.argmax(axis=1)
        around = np.asarray(walk(membership(classes_without, classes), STEPS, kept))
        logits[is_out] = class_logits(around[held.points[is_out]])
    return logits
