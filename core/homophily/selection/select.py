"""A whole search on one machine: ask, evaluate in parallel, tell, and fit with what was found."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_consistent_length

from homophily.classify import ERRClassifier, IRRClassifier
from homophily.errors import HomophilyWarning
from homophily.graph import KNNGraph
from homophily.labels import encode_labels
from homophily.selection.evaluate import build_graph, hold_out, run_group
from homophily.selection.records import Best, Group, Method, Outcome, Trial
from homophily.selection.search import DEFAULT_TRIALS, Search
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
    trials: int = DEFAULT_TRIALS,
    seconds: float | None = None,
    seed: int = 0,
    vary: Sequence[str] | None = None,
    sample_weight: ArrayLike | None = None,
    n_jobs: int | None = None,
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
    n_jobs : groups evaluated at once, or threads of a fit for many points; None means every core.
    callback : called with each finished :class:`Trial`, from the thread that ran it; raise in it to cancel.
    fixed : parameters of the classifier that are not to be searched.

    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(300, noise=0.1, random_state=0)
    >>> few = y.copy()
    >>> few[20:] = -1
    >>> found = select(X, few, method="irr", trials=4, n_jobs=1)
    >>> len(found.trials), bool((found.estimator_.transduction_ == y).mean() > 0.98)
    (4, True)
    """
    began = time.perf_counter()
    labels = encode_labels(y, sample_weight)
    parts = hold_out(labels, validation, seed)
    given = isinstance(X, KNNGraph)
    n_points = X.n_points if given else np.shape(X)[0]
    threads = thread_count(n_jobs)
    workers = threads if n_points <= PARALLEL_POINTS else 1
    search = Search(
        n_points,
        len(labels.classes),
        method=method,
        trials=trials,
        seconds=seconds,
        workers=workers,
        seed=seed,
        vary=vary,
        fixed=fixed,
        graph=not given,
    )
    graphs: dict[str, KNNGraph] = {}

    def run(group: Group) -> Outcome:
        key = repr(sorted(group.graph.items()))
        if key not in graphs:
            graphs[key] = build_graph(group.graph, X, threads // workers)
            check_consistent_length(graphs[key].W, labels.targets)
        left = None if seconds is None else seconds - (time.perf_counter() - began)
        return run_group(group, graphs[key], y, parts, left, threads // workers, callback)

    with warnings.catch_warnings():
        # Around all threads at once: the filters are the process's, not a thread's.
        warnings.simplefilter("ignore", HomophilyWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        while groups := search.ask():
            wanted = {repr(sorted(group.graph.items())) for group in groups}
            for key in [key for key in graphs if key not in wanted]:
                del graphs[key]
            search.tell(joblib.Parallel(n_jobs=workers, prefer="threads")(joblib.delayed(run)(g) for g in groups))
    best = search.best
    kind = IRRClassifier if method == "irr" else ERRClassifier
    estimator = kind(**best.parameters, n_jobs=n_jobs)
    weights = labels.confidence if validation is None else parts[0].confidence
    estimator.fit(X, y, sample_weight=weights)
    return Selection(estimator, best, search.trials)
