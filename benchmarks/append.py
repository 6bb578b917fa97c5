"""A graph with more points, extended against searched anew: its time, its edges, and the answers on both."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.data import Classes, manifolds, read
from benchmarks.measure import cpu_timed, warm_up
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, KNNGraph

SHARES = (0.001, 0.01, 0.1)
REPEATS, DRAWS = 5, 5


def run(options: Options, report: Report) -> None:
    warm_up()
    X, y = digits(options)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    KNNGraph().fit(X[:2000]).append(X[2000:2020])
    report.progress("a search among all points")
    fresh, whole = cpu_timed(lambda: KNNGraph().fit(X))
    rows: list[Row] = []
    for share in SHARES:
        kept = round(len(y) / (1 + share))
        report.progress(f"{len(y) - kept:,} points appended")
        base = KNNGraph().fit(X[:kept])
        times = sorted(cpu_timed(partial(base.append, X[kept:]))[0] for _ in range(REPEATS))
        grown = base.append(X[kept:])
        row: dict[str, Any] = {
            "appended": len(y) - kept,
            "CPU s": times[REPEATS // 2],
            "/ new search": times[REPEATS // 2] / fresh,
            "same edges %": 100 * same_edges(grown, whole),
        }
        draws = range(options.seeds or (1 if options.quick else DRAWS))
        for name, classes, labels in problems(y, options):
            found = [same_answers(grown, whole, classes, labels, draw) for draw in draws]
            row[f"same labels %, {name}"] = 100 * float(np.mean(found))
        rows.append(row)
    report.table(f"Points appended to a graph, {len(y):,} in all ({X.shape[1]} columns)", rows)
    report.note(
        f"A search among all points takes {fresh:.2f} CPU s. Times are medians of {REPEATS}. Labels are those of a fit "
        f"on the extended graph that are the same on the other one, means of {len(draws)} draws."
    )
    report.note(
        f"Two searches in different orders: {100 * between_orders(X, y, options):.2f} % of the labels are the same."
    )


def digits(options: Options) -> tuple[Any, Classes]:
    """Digits of ten classes."""
    if options.data is None or options.quick:
        return manifolds(3_000 if options.quick else 60_000, seed=2)
    data = read(options.data, "mnist")
    return data.X, data.y


def problems(y: Classes, options: Options) -> list[tuple[str, Classes, int]]:
    """Names, classes and numbers of labels."""
    return [("10 classes, 100 labels", y, 100), ("two classes, 300 labels", np.isin(y, [2, 5]).astype(int), 300)][
        : 1 if options.quick else 2
    ]


def same_edges(grown: KNNGraph, whole: KNNGraph) -> float:
    """The share of the neighbours on one graph that are neighbours on the other."""
    assert grown.indices_ is not None
    assert whole.indices_ is not None
    return float(np.mean((grown.indices_[:, :, None] == whole.indices_[:, None, :]).any(axis=2)))


def same_answers(first: KNNGraph, second: KNNGraph, y: Classes, labels: int, draw: int) -> float:
    """The share of points that get the same class on both graphs."""
    few = np.full(len(y), -1)
    chosen = np.random.default_rng(draw).permutation(round(0.9 * len(y)))[:labels]
    few[chosen] = y[chosen]
    answers = [ERRClassifier().fit(graph, few).transduction_ for graph in (first, second)]
    return float(np.mean(answers[0] == answers[1]))


def between_orders(X: Any, y: Classes, options: Options) -> float:
    """The same for two searches among the same points in different orders, whose approximation differs too."""
    order = np.random.default_rng(1).permutation(len(y))
    first, second = KNNGraph().fit(X), KNNGraph().fit(X[order])
    found = []
    for draw in range(1 if options.quick else DRAWS):
        few = np.full(len(y), -1)
        chosen = np.random.default_rng(draw).permutation(round(0.9 * len(y)))[:100]
        few[chosen] = y[chosen]
        ours = ERRClassifier().fit(first, few).transduction_
        theirs = ERRClassifier().fit(second, few[order]).transduction_
        found.append(float(np.mean(ours[order] == theirs)))
    return float(np.mean(found))
