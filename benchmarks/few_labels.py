"""One to fifty labels per class: IRR, ERR and both with sharp relationships beside peers on the same graphs and draws.

Three protocols: (a) labels drawn at random; (b) the same number of labels of each class, balanced classes; (c) the same
number of labels of each class, unbalanced classes. Peers know as much about the shares of the classes as we do: nothing
(in (a) the labels' own shares), or, in rows that say so, the true shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.data import Classes, DataSet, draw_labels, error_percent, manifolds, read
from benchmarks.peers import TRUE_SHARES, graph_methods
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph

LABELS = (1, 2, 3, 4, 5, 10, 50)
#: Draws that nothing was chosen by: `sharpen` was made on draws 0 to 3.
FIRST_DRAW, DRAWS = 100, 10
#: How much rarer the rarest class of an unbalanced set is than the most frequent one.
UNBALANCED = 8.0
TRUE, BALANCED = TRUE_SHARES, ", balanced shares"

Solve = Callable[[KNNGraph, Classes, Classes], Classes]


def run(options: Options, report: Report) -> None:
    draws = options.seeds or (2 if options.quick else DRAWS)
    first = options.first_seed or FIRST_DRAW
    labels = (1, 3) if options.quick else LABELS
    for protocol, sets in protocols(options).items():
        for data in sets:
            report.progress(f"{protocol}: {data.name} ({data.X.shape[0]} × {data.X.shape[1]})")
            graph = KNNGraph(metric=data.metric).fit(data.X)
            draw = at_random if protocol == "a" else per_class
            rows = judge(graph, data.y, draw, labels, range(first, first + draws))
            report.table(f"({protocol}) {data.name}: error %, {draws} draws from {first}, by labels per class", rows)


def protocols(options: Options) -> dict[str, list[DataSet]]:
    digits = DataSet("digits", *load_digits(return_X_y=True))
    balanced = [digits]
    if options.data is None:
        X, y = manifolds(3000, seed=3)
        balanced.append(DataSet("drawn digits", X, y))
        natural: list[DataSet] = []
    else:
        balanced += [read(options.data, name) for name in ("pendigits", "ssl_coil", "ssl_text")]
        natural = [read(options.data, "usps"), read(options.data, "ssl_usps"), read(options.data, "gcat")]
        if not options.quick:
            natural.append(read(options.data, "mnist"))
    return {"a": [*balanced, *natural], "b": balanced, "c": [*map(thinned, balanced[:2]), *natural]}


def thinned(data: DataSet) -> DataSet:
    """The set with classes whose sizes fall from 1 to 1/8, in random order."""
    rng = np.random.default_rng(5)
    counts = np.bincount(data.y)
    shares = rng.permutation(np.geomspace(1.0, 1.0 / UNBALANCED, len(counts)))
    kept = np.floor(shares * np.min(counts / shares)).astype(int)
    chosen = [rng.choice(np.flatnonzero(data.y == c), count, replace=False) for c, count in enumerate(kept)]
    rows = rng.permutation(np.concatenate(chosen))
    return DataSet(f"{data.name}, unbalanced", data.X[rows], data.y[rows])


def per_class(y: Classes, count: int, seed: int) -> Classes:
    """``count`` labels of each class; −1 elsewhere."""
    rng, few = np.random.default_rng(seed), np.full(len(y), -1)
    for c in np.unique(y):
        few[rng.choice(np.flatnonzero(y == c), count, replace=False)] = c
    return few


def at_random(y: Classes, count: int, seed: int) -> Classes:
    """``count`` labels times the number of classes, drawn at random with every class among them."""
    return draw_labels(y, count * len(np.unique(y)), seed)


def judge(
    graph: KNNGraph, y: Classes, draw: Callable[[Classes, int, int], Classes], labels: tuple[int, ...], draws: range
) -> list[Row]:
    rows: list[Row] = []
    counts = [count for count in labels if count < np.bincount(y).min()]
    for name, solve in methods().items():
        row: dict[str, str | float] = {"method": name}
        seconds = 0.0
        for count in counts:
            errors = []
            for seed in draws:
                few = draw(y, count, seed)
                began = time.perf_counter()
                errors.append(error_percent(solve(graph, few, y), y, few))
                seconds += time.perf_counter() - began
            row[str(count)] = round(float(np.mean(errors)), 2)
        rows.append(row | {"seconds": seconds / len(counts) / len(draws)})
    return rows


def methods() -> dict[str, Solve]:
    def ours(kind: type[IRRClassifier | ERRClassifier], sharpen: bool, shares: str) -> Solve:
        def solve(graph: KNNGraph, few: Classes, y: Classes) -> Classes:
            known = {"": None, BALANCED: "balanced", TRUE: np.bincount(y) / len(y)}[shares]
            return np.asarray(kind(sharpen=sharpen, class_prior=known).fit(graph, few).transduction_)

        return solve

    def theirs(graph: KNNGraph, few: Classes, y: Classes, method: Callable[..., Classes]) -> Classes:
        return method(graph.W, few, y)

    found: dict[str, Solve] = {}
    for shares in ("", BALANCED, TRUE):
        for name, kind in {"IRR": IRRClassifier, "ERR": ERRClassifier}.items():
            for sharpen in (False, True):
                found[f"{name}{' sharpened' if sharpen else ''}{shares}"] = ours(kind, sharpen, shares)
    return found | {name: partial(theirs, method=method) for name, method in graph_methods().items()}
