"""What a classifier gives to the threshold dynamics of sharp relationships: starts, offsets, and a judge of results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from homophily.arrays import Floats
from homophily.device.operations import Operations
from homophily.solve.sharpen import Held, Sharpened, sharpen
from homophily.supervision.class_shares import LabelEvidence, class_offsets, informative_offsets, spread_sample
from homophily.supervision.labels import class_shares_of, decide_index
from homophily.threads import single_threaded_blas

#: Points whose scores offsets are inferred from, at most: a share of theirs is known to 0.5 %.
OFFSET_POINTS = 10_000


def sharpened(
    operations: Operations,
    degrees: Floats,
    normalized: bool,
    scores: Floats,
    confidence: Floats,
    targets: Floats,
    shares: Floats | None,
    bounded: Callable[[Floats, Floats], Floats],
    report: Callable[[Any], object] | None,
) -> Sharpened:
    """Threshold dynamics from the classes that ``scores`` give.

    Given ``shares`` are kept. Otherwise they are inferred, from three starts: no offsets, which follow the data and may
    starve a class; balancing ones, which may cut through one; and half of these. ``bounded(scores, offsets)`` corrects
    inferred offsets.
    """
    classes = max(2, scores.shape[1])
    held = Held.of(confidence, class_shares_of(targets))
    evidence = partial(LabelEvidence, targets=held.targets, weights=np.minimum(confidence[held.points], 1.0))

    def sample(logits: Floats) -> Floats:
        return logits[:: max(1, len(logits) // OFFSET_POINTS)]

    def choose(logits: Floats, before: Floats, labels: Callable[[], Floats]) -> Floats:
        if shares is not None:
            return class_offsets(logits, shares)
        some = sample(logits)
        fair = evidence(labels()).as_fair_sample(some, before)
        return bounded(logits, informative_offsets(some, before, fair))

    def judge(label_logits: Floats, logits: Floats, offsets: Floats) -> float:
        labels = evidence(label_logits)
        if shares is None:
            labels = labels.as_fair_sample(spread_sample(logits), offsets)
        return labels.weight * labels.log_likelihood(offsets)[0]

    if shares is None:
        wanted = class_offsets(sample(scores), np.full(classes, 1.0 / classes))
    else:
        wanted = class_offsets(scores, shares)
    starts = [factor * wanted for factor in ((0.0, 0.5, 1.0) if shares is None else (1.0,))]
    decided = [decide_index(scores + offsets) for offsets in starts]
    walk = operations.walk(degrees, normalized)
    # Its products are small: BLAS's own threads would wait for each other, at full load, most of the time.
    with single_threaded_blas():
        return sharpen(walk, degrees, held, decided, classes, choose, judge, report)
