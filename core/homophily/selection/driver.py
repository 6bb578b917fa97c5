"""A whole search on one machine: ask, evaluate in parallel, tell, and fit with what was found."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from homophily.estimators.classifiers import ERRClassifier, IRRClassifier
from homophily.exceptions import HomophilyWarning
from homophily.graph.knn_graph import KNNGraph
from homophily.selection.evaluation import Starts, build_graph, hold_out, run_group
from homophily.selection.records import Best, Group, Method, Outcome, Parameters, Trial
from homophily.selection.search import Search
from homophily.supervision.labels import encode_labels
from homophily.threads import thread_count

#: With more points than this a single fit keeps all threads busy, and groups run one after another.
PARALLEL_POINTS = 20_000


@dataclass(frozen=True)
class Selection:
    """What :func:`select` found."""

    estimator_: IRRClassifier | ERRClassifier
    """Fitted with the best parameters, on the labels without the validation points."""
    best: Best
    trials: list[Trial]


def select(
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
) -> Selection:
    """Choose hyper-parameters by held-out labels, and fit with them.

    Parameters
    ----------
    X : points, or a fitted :class:`KNNGraph`, of which then nothing is searched.
    y : classes as for ``fit``, those of the validation points among them.
    validation : positions of the points to judge by; no fit, the final one included, sees their classes. None holds
        out labels in turn, and the final fit sees them all.
    method, trials, seconds, seed, vary : see :class:`Search`.
    warm_start : start every ERR trial from the solution of the next smaller λ2 tried with otherwise equal parameters,
        instead of from IRR's. Fewer evaluations, and answers that may differ a little from the final fit's.
    n_jobs : groups evaluated at once, or threads of a fit for many points; None means every core.
    callback : called with each :class:`Trial` that is finished or left out, from its thread; raise in it to cancel.
    fixed : parameters of the classifier that are not to be searched.

    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(300, noise=0.1, random_state=0)
    >>> few = y.copy()
    >>> few[20:] = -1
    >>> found = select(X, few, method="irr", trials=4, n_jobs=1)
    >>> len(found.trials), bool((found.estimator_.transduction_ == y).mean() > 0.98)
    (4, True)
    """
    found = find(
        X,
        y,
        validation=validation,
        method=method,
        trials=trials,
        seconds=seconds,
        seed=seed,
        vary=vary,
        sample_weight=sample_weight,
        n_jobs=n_jobs,
        warm_start=warm_start,
        callback=callback,
        **fixed,
    )
    kind = IRRClassifier if method == "irr" else ERRClassifier
    estimator = kind(**found.best.parameters, n_jobs=n_jobs)
    estimator.fit(found.graph, y, sample_weight=found.confidence)
    return Selection(estimator, found.best, found.search.trials)


class Found(NamedTuple):
    """A finished search with what the final fit needs."""

    search: Search
    best: Best
    graph: KNNGraph
    """The best parameters' graph."""
    confidence: NDArray[np.float64]
    """Of the labels that the final fit may see."""


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
    """:func:`select` without the final fit."""
    began = time.perf_counter()
    labels = encode_labels(y, sample_weight)
    parts = hold_out(labels, validation, seed)
    given = isinstance(X, KNNGraph)
    n_points = X.n_points if given else np.shape(X)[0]
    threads = thread_count(n_jobs)
    # One GPU has nothing left for a second fit.
    parallel_groups = n_points <= PARALLEL_POINTS and fixed.get("backend", "numpy") == "numpy"
    workers, inner = (threads, 1) if parallel_groups else (1, threads)
    search = Search(
        n_points,
        len(labels.classes),
        method=method,
        trials=trials,
        seconds=seconds,
        seed=seed,
        vary=vary,
        fixed=fixed,
        graph=not given,
        n_features=dense_columns(X),
    )
    graphs: dict[str, KNNGraph] = {}
    starts: dict[str, Starts] = {}

    def run(group: Group) -> Outcome:
        key = _key(group.graph)
        deadline = began + search.seconds_until(group.stage)
        outcome = run_group(group, graphs.get(key, X), y, parts, deadline, inner, callback, warm_start, starts.get(key))
        return outcome._replace(ended=time.perf_counter() - began)

    # Threads of BLAS beside those of the groups would wait for one another: a search takes three times as long then.
    one_thread = threadpool_limits(1) if workers > 1 else nullcontext()
    with warnings.catch_warnings(), one_thread, joblib.Parallel(n_jobs=workers, prefer="threads") as parallel:
        # Around all threads at once: the filters are the process's, not a thread's.
        warnings.simplefilter("ignore", HomophilyWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        while groups := search.ask():
            wanted = {_key(group.graph): group.graph for group in groups}
            # Graphs of large data are large: those of a batch are kept for the next, no others.
            graphs = {key: graph for key, graph in graphs.items() if key in wanted}
            starts = {key: starts.get(key) or Starts() for key in wanted}
            for key, parameters in wanted.items():
                if key not in graphs and time.perf_counter() < began + search.seconds_until(groups[0].stage):
                    graphs[key] = build_graph(parameters, X, n_jobs)
            search.tell(parallel(joblib.delayed(run)(group) for group in groups))
    best = search.best
    graph = graphs.get(_key(best.graph)) or build_graph(best.graph, X, n_jobs)
    return Found(search, best, graph, labels.confidence if validation is None else parts[0].confidence)


def dense_columns(X: Any) -> int | None:
    """The columns of dense points, which :class:`Search` is told of; None for graphs and sparse points."""
    return None if isinstance(X, KNNGraph) or issparse(X) else int(np.shape(X)[1])


def _key(parameters: Parameters) -> str:
    return repr(sorted(parameters.items()))
