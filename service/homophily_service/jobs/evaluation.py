"""Comparison of answers with labels that were not used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily.storage import PointLabels
from homophily_client._pb import model_pb2

MOST_CLASSES_SHOWN = 100
RELIABILITY_BINS = 10


def evaluation(
    classes: NDArray[Any],
    known: PointLabels,
    answers: NDArray[np.integer],
    probabilities: NDArray[np.float64] | None,
) -> model_pb2.Evaluation:
    """Compare ``answers``, positions in ``classes`` for the points of ``known``; probabilities are of all points."""
    count = len(classes)
    truth = np.full(len(known.points), -1)
    if known.classes.dtype.kind == classes.dtype.kind:
        is_known = np.isin(known.classes, classes)
        truth[is_known] = np.searchsorted(classes, known.classes[is_known])
    right = truth == answers
    message = model_pb2.Evaluation(point_count=len(truth), error_rate=float(np.mean(~right)))
    if count <= MOST_CLASSES_SHOWN:
        listed = truth >= 0
        cells = np.bincount(truth[listed] * count + answers[listed], minlength=count * count)
        message.confusion.extend(cells.tolist())
    if probabilities is not None:
        confidence = probabilities[known.points, answers]
        bins = np.minimum((confidence * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
        for place in np.unique(bins):
            in_bin = bins == place
            message.reliability.add(
                confidence=float(confidence[in_bin].mean()),
                accuracy=float(right[in_bin].mean()),
                point_count=int(in_bin.sum()),
            )
    return message
