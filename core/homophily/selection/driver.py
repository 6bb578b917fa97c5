"""A search on one machine: ask, evaluate in parallel, tell."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from threadpoolctl import threadpool_limits

from homophily.arrays import Floats
from homophily.exceptions import NeighborsWarning, warned_already
from homophily.graph.knn_graph import KNNGraph
from homophily.selection.evaluation import Starts, build_graph, hold_out, run_group
from homophily.selection.records import Best, Group, Method, Outcome, Parameters, Trial
from homophily.selection.search import Search
from homophily.supervision.labels import encode_labels
from homophily.threads import thread_count

#: With more points a single fit keeps all threads of a usual machine busy, and groups run one after another.
PARALLEL_POINTS = 20_000


class Found(NamedTuple):
    """A finished search, with the inputs of the final fit."""

    search: Search
    best: Best
    graph: KNNGraph
    """The graph of the best parameters."""
    confidence: Floats
    """Confidence of the labels that the final fit may see."""


_Built = tuple[KNNGraph, list[Warning | str]]
"""A graph and what was warned of as it was built, which a user should hear of the best one only."""


def find(
    X: Any,
    y: ArrayLike,
    *,
    validation: ArrayLike | None = None,
    method: Method = "err",
    trials: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    vary: Sequence[str] | None = None,
    sample_weight: ArrayLike | None = None,
    n_jobs: int | None = None,
    warm_start: bool = False,
    callback: Callable[[Trial], object] | None = None,
    **fixed: Any,
) -> Found:
    """Search; arguments as in :class:`~homophily.TunedClassifier`; ``fixed`` parameters are not searched."""
    began = time.perf_counter()
    labels = encode_labels(y, sample_weight)
    parts = hold_out(labels, validation, seed)
    given = isinstance(X, KNNGraph)
    if issparse(X) and fixed.get("metric", "auto") == "auto":
        fixed["metric"] = "cosine"
    n_points = X.n_points if given else np.shape(X)[0]
    threads = thread_count(n_jobs)
    # One GPU has nothing left for a second fit.
    parallel_groups = n_points <= PARALLEL_POINTS and fixed.get("backend", "numpy") == "numpy"
    workers, inner = (threads, 1) if parallel_groups else (1, threads)
    searched: dict[str, Any] = {"vary": vary, "fixed": fixed, "graph": not given, "n_features": dense_columns(X)}
    budget: dict[str, Any] = {"trials": trials, "seconds": seconds, "seed": seed}
    search = Search(n_points, len(labels.classes), method=method, **budget, **searched)
    graphs: dict[str, _Built] = {}
    starts: dict[str, Starts] = {}

    def run(group: Group) -> Outcome:
        key = _key(group.graph)
        deadline = began + search.seconds_until(group.stage)
        points = graphs[key][0] if key in graphs else X
        outcome = run_group(group, points, y, parts, deadline, inner, callback, warm_start, starts.get(key))
        return outcome._replace(ended=time.perf_counter() - began)

    # BLAS threads and group threads would wait for each other: measured, a search takes three times as long.
    one_thread = threadpool_limits(1) if workers > 1 else nullcontext()
    # Around all threads: warning filters belong to the process, not to a thread.
    with warned_already(), one_thread, joblib.Parallel(n_jobs=workers, prefer="threads") as parallel:
        while groups := search.ask():
            wanted = {_key(group.graph): group.graph for group in groups}
            # Graphs of large data are large: only those of the batch before are kept.
            graphs = {key: built for key, built in graphs.items() if key in wanted}
            starts = {key: starts.get(key) or Starts() for key in wanted}
            for key, parameters in wanted.items():
                if key not in graphs and time.perf_counter() < began + search.seconds_until(groups[0].stage):
                    graphs[key] = _build(parameters, X, n_jobs)
            search.tell(parallel(joblib.delayed(run)(group) for group in groups))
    best = search.best
    graph, caught = graphs.get(_key(best.graph)) or _build(best.graph, X, n_jobs)
    for warning in caught:
        warnings.warn(warning, stacklevel=4)
    return Found(search, best, graph, labels.confidence if validation is None else parts[0].confidence)


def dense_columns(X: Any) -> int | None:
    """The ``n_features`` of :class:`Search`: columns of dense points, None for graphs and sparse points."""
    return None if isinstance(X, KNNGraph) or issparse(X) else int(np.shape(X)[1])


def _build(parameters: Parameters, X: Any, n_jobs: int | None) -> _Built:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NeighborsWarning)
        return build_graph(parameters, X, n_jobs), [each.message for each in caught]


def _key(parameters: Parameters) -> str:
    return repr(sorted(parameters.items()))
