"""What a step asks of a GPU: kernels launched, waits of the host, and bytes sent and fetched.

Counted on the stand-in for CuPy of the tests, with emulated kernels: the code around them is what a machine with a GPU
runs, so these are its counts.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.report import Row
from homophily import ERRClassifier, ERREmbedding, KNNGraph
from homophily.device import backend

POINTS = 300
FEWEST, MOST = 2, 12
"""Steps of two fits whose difference is counted, so that what a fit does once is left out."""


@contextmanager
def standin() -> Iterator[Any]:
    """The stand-in in the place of CuPy; yields its counters."""
    made = import_module("tests.gpu.standin")
    with patch.dict(sys.modules, cupy=made.module(), cupyx=types.ModuleType("cupyx")):
        backend._cupy_backend.cache_clear()
        yield made.counters
    backend._cupy_backend.cache_clear()


def per_evaluation() -> list[Row]:
    """Counts of each kind of descent, for an evaluation of energy and gradient with all that follows from it."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(place, 1.0, (POINTS // 3, 6)) for place in (-1.0, 0.0, 1.0)])
    graph = KNNGraph(10, symmetrize="max").fit(X)
    two, ten = (np.where(np.arange(POINTS) % 7 == 0, np.arange(POINTS) % count, -1) for count in (2, 10))
    how: dict[str, Any] = {"tol": 0.0, "backend": "cupy"}

    def classes(labels: Any, power: int) -> Any:
        return lambda steps: ERRClassifier(power=power, sharpen=False, max_iter=steps, **how).fit(graph, labels)

    work = {
        "labels, n = 1, p = 1": classes(two, 1),
        "labels, n = 1, p = 2": classes(two, 2),
        "labels, n = 10, p = 1": classes(ten, 1),
        "map, n = 2": lambda steps: ERREmbedding(2, max_iter=steps, **how).fit(graph),
    }
    with standin() as counters:
        return [_counted(name, fit, counters) for name, fit in work.items()]


def _counted(name: str, fit: Any, counters: Any) -> Row:
    found = []
    for steps in (FEWEST, MOST):
        counters.__init__()
        evaluations = fit(steps).n_evaluations_
        counts = counters.launches, counters.operations, counters.waits, counters.sent, counters.fetched
        found.append([evaluations, *counts])
    evaluations, launches, operations, waits, sent, fetched = np.subtract(found[1], found[0]).tolist()
    return {
        "descent": name,
        "evaluations": evaluations,
        "launches": launches / evaluations,
        "CuPy's operations": operations / evaluations,
        "waits": waits / evaluations,
        "bytes sent a point": sent / evaluations / POINTS,
        "bytes fetched a point": fetched / evaluations / POINTS,
    }
