"""Table 5: one to fifty labels per class, with default parameters, beside peers on the same graphs and draws.

Three protocols: (a) labels drawn at random; (b) the same number of labels of each class, balanced classes; (c) the same
number of labels of each class, unbalanced classes. Peers know as much about the shares of the classes as we do: nothing
(in (a) the labels' own shares), or, in rows that say so, the true shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.data import Classes, DataSet, draw_labels, error_percent, manifolds, read
from benchmarks.peers import TRUE_SHARES, graph_methods
from benchmarks.tables.cells import Cell, Records, Result
from benchmarks.tables.run import FAILED, Options
from homophily import ERRClassifier, IRRClassifier, KNNGraph

TABLE = "table5"
FEW, MORE = (1, 2, 3, 4, 5), (10, 50)
#: Parameters were chosen on draws 0 to 11.
FIRST_DRAW = 100
DRAWS = 10
#: How much rarer the rarest class of an unbalanced set is than the most frequent one.
UNBALANCED = 8.0

BALANCED_SETS = ("digits", "pendigits", "ssl_coil", "ssl_text")
NATURAL_SETS = ("usps", "ssl_usps", "gcat", "mnist")
PROTOCOLS = {
    "a": (*BALANCED_SETS, *NATURAL_SETS),
    "b": BALANCED_SETS,
    "c": ("digits, unbalanced", "pendigits, unbalanced", *NATURAL_SETS),
}
STAND_INS = {"a": ("digits", "drawn"), "b": ("digits", "drawn"), "c": ("digits, unbalanced",)}
#: Sets on which a peer's fit takes long come last, the slowest at the end. MNIST-60k has fewer numbers of labels and
#: fewer methods.
SLOW_SETS = ("usps", "pendigits, unbalanced", "ssl_coil", "pendigits", "mnist")
MNIST_LABELS = (1, 5)
MNIST_PEERS = ("Laplace", "Poisson")

INFERRED, BALANCED = "", ", balanced shares"
SHARES = (INFERRED, BALANCED, TRUE_SHARES)
SMOOTH = "ERR, smooth"
OURS = ("ERR", "IRR", SMOOTH)
#: Smooth ERR with many classes takes minutes on larger sets.
SMOOTH_SETS = ("digits", "digits, unbalanced", "drawn", "ssl_coil", "ssl_text", "ssl_usps", "gcat")


def plan(options: Options, records: Records) -> list[Cell]:  # noqa: ARG001
    """Few labels before more, quick sets before slow ones, and all cells of a draw before those of the next."""
    sets = PROTOCOLS if options.data is not None else STAND_INS
    named = [(protocol, name) for protocol, names in sets.items() for name in names]
    if options.quick:
        named = [(protocol, name) for protocol, name in named if name != "mnist"]
    slow = [(protocol, name) for late in SLOW_SETS for protocol, name in named if name == late]
    quick = [(protocol, name) for protocol, name in named if name not in SLOW_SETS]
    draws = range(options.seeds or (1 if options.quick else DRAWS))
    return [
        Cell(TABLE, name, method, FIRST_DRAW + draw, {"protocol": protocol, "labels": count})
        for counts in (FEW, MORE)
        for part in (quick, slow)
        for draw in draws
        for protocol, name in part
        for count in counts
        if count in numbers_of_labels(name, options.quick) and count < smallest_class(options.data, name)
        for method in methods(name)
    ]


def numbers_of_labels(name: str, quick: bool) -> tuple[int, ...]:
    """The numbers of labels per class that a set is tried with."""
    return MNIST_LABELS if name == "mnist" else (1, 5) if quick else (*FEW, *MORE)


def methods(name: str) -> list[str]:
    """Ours, with each knowledge of the shares, and the peers."""
    ours = [method + shares for method in OURS for shares in SHARES if method != SMOOTH or name in SMOOTH_SETS]
    peers = [peer for peer in graph_methods() if name != "mnist" or any(f" {kept}" in peer for kept in MNIST_PEERS)]
    return [*ours, *peers]


def compute(cell: Cell, folder: Path | None) -> Result:
    """Error and CPU seconds of one fit on a ready graph."""
    graph, y = _graph(folder, cell.data)
    draw = at_random if cell.setting["protocol"] == "a" else per_class
    few = draw(y, cell.setting["labels"], cell.seed)
    began = time.process_time()
    try:
        answer = solver(cell.method)(graph, few, y)
    except Exception as failure:
        if cell.method.startswith(("ERR", "IRR")):
            raise
        return {FAILED: f"{type(failure).__name__}: {failure}"[:200]}
    return {"error": error_percent(answer, y, few), "seconds": round(time.process_time() - began, 3)}


def solver(method: str) -> Callable[[KNNGraph, Classes, Classes], Classes]:
    """The call behind a method's name."""
    peers = graph_methods()
    if method in peers:
        return lambda graph, few, y: peers[method](graph.W, few, y)
    shares = next(shares for shares in reversed(SHARES) if method.endswith(shares))
    name = method.removesuffix(shares)

    def ours(graph: KNNGraph, few: Classes, y: Classes) -> Classes:
        prior: Any = {INFERRED: None, BALANCED: "balanced", TRUE_SHARES: np.bincount(y) / len(y)}[shares]
        model: IRRClassifier | ERRClassifier
        if name == "IRR":
            model = IRRClassifier(class_prior=prior)
        else:
            model = ERRClassifier(class_prior=prior, sharpen=False if name == SMOOTH else "auto")
        return np.asarray(model.fit(graph, few).transduction_)

    return ours


@cache
def _data(folder: Path | None, name: str) -> DataSet:
    if name.endswith(", unbalanced"):
        return thinned(_data(folder, name.removesuffix(", unbalanced")))
    if name == "digits":
        return DataSet(name, *load_digits(return_X_y=True))
    if name == "drawn":
        return DataSet(name, *manifolds(1000, seed=3))
    assert folder is not None
    return read(folder, name)


@cache
def smallest_class(folder: Path | None, name: str) -> int:
    """The number of points of the rarest class."""
    return int(np.bincount(_data(folder, name).y).min())


@cache
def _graph(folder: Path | None, name: str) -> tuple[KNNGraph, Classes]:
    data = _data(folder, name)
    graph: KNNGraph = KNNGraph(metric=data.metric).fit(data.X)
    return graph, data.y


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
