"""Table 1: classes from a few labels, in the paper's protocol.

Some points are labelled, as many others are for choosing parameters, and errors are of the rest. “Chosen” figures come
from :func:`homophily.selection.select`, which sees labels and validation points only; “best case” is the lowest error
of a draw in a fixed grid: what a choice by the answers themselves would find. ERR's grid holds IRR's, as λ2 = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.data import Classes, DataSet, mnist, read, usps
from benchmarks.measure import cpu_timed
from benchmarks.peers import TRUE_SHARES
from benchmarks.tables.cells import Cell, Records, Result
from benchmarks.tables.grid import STARTS, Draw, Relationships, draw, grid_errors, grid_graphs, spaces
from benchmarks.tables.peers import GRAPHS, label_peers
from benchmarks.tables.run import FAILED, Options
from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.selection import Search, TunedClassifier

TABLE = "table1"
FILES = {
    "usps": "ssl_usps",
    "text": "ssl_text",
    "bci": "ssl_bci",
    "pcmac": "pcmac",
    "real-sim": "real_sim",
    "ccat": "ccat",
    "gcat": "gcat",
}
LARGE_POINTS = 20_000
"""Above it there is one graph for all, of :func:`large_graph`, and nothing of it is searched."""
LARGE_GRAPH: dict[str, Any] = {"n_neighbors": 10, "space": "principal"}
LARGE_SPARSE_GRAPH: dict[str, Any] = {"n_neighbors": 10, "space": "input"}
SUBSET = 2_000
OURS = ("IRR", "ERR")
#: The same with default parameters, which change more often than searches and take a hundredth of their time.
DEFAULTS = {f"{method}, defaults": method for method in OURS}
GRID = "best case"
"""Of both, found in one grid."""
POWERS = (1, 2)
FIRST_DRAW = 50
"""Draws before it were looked at while searches and defaults were made."""
#: Fits of two classes on dense points take a twentieth of a second, others ten times as long.
FAST_STARTS = 6
SLOW_STARTS = 1
FAST_RELATIONSHIPS = Relationships((0.67, 1.0, 1.4), (0.03, 0.1, 0.3), (1.0, 0.65))


class Protocol(NamedTuple):
    """How many points are labelled, how many are to choose by, how many trials a search has, and how many draws."""

    labels: int
    validation: int
    per_class: bool = False
    trials: int = 60
    quick_trials: int = 15
    draws: int = 10


PROTOCOLS = {name: Protocol(50, 50) for name in FILES} | {
    # A search over 60,000 points has fewer trials: its first ones are those that matter most.
    "mnist": Protocol(300, 300, trials=15, quick_trials=5, draws=5),
    "mnist-multi": Protocol(50, 50, per_class=True, draws=5),
}


def plan(options: Options, records: Records) -> list[Cell]:  # noqa: ARG001
    """Every method on every set that is there, set by set."""
    cells = []
    peers = list(label_peers())
    for name, protocol in PROTOCOLS.items():
        if not available(options.data, name):
            continue
        seeds = options.seeds or (1 if options.quick else protocol.draws)
        split = {"labels": protocol.labels, "validation": protocol.validation}
        trials = protocol.quick_trials if options.quick else protocol.trials
        # As many as the first stage of ERR's search has, so that both have the same graph to choose.
        budgets = {"IRR": Search.graph_trials(trials), "ERR": trials}
        for seed in range(FIRST_DRAW, FIRST_DRAW + seeds):
            cells += [
                Cell(TABLE, name, method, seed, {**split, "power": power, "trials": budgets[method]})
                for method in OURS
                for power in POWERS
            ]
            cells += [
                Cell(TABLE, name, method, seed, {**split, "power": power}) for method in DEFAULTS for power in POWERS
            ]
            cells += [Cell(TABLE, name, GRID, seed, {**split, "power": power}) for power in _grids(options, name)]
            cells += [
                Cell(TABLE, name, peer, seed, {**split, "neighbors": _graphs(options, name, peer)}) for peer in peers
            ]
    return cells


def _grids(options: Options, name: str) -> tuple[int, ...]:
    """The powers that a best case is looked for with; the grids of many classes and of many texts take minutes."""
    if options.quick:
        return POWERS[-1:] if name in ("usps", "text", "bci", "mnist") else ()
    return POWERS


def _graphs(options: Options, name: str, peer: str) -> list[int]:
    """The numbers of neighbours that a peer chooses among."""
    # The graph of 60,000 points is the one that ours has too; who is told the true shares is not compared anyway.
    return [10] if options.quick or name == "mnist" or peer.endswith(TRUE_SHARES) else list(GRAPHS)


def available(folder: Path | None, name: str) -> bool:
    """Whether there is data; without the folder, stand-ins for two of the sets."""
    if folder is None:
        return name in ("usps", "mnist-multi")
    return (folder / f"{FILES.get(name, 'mnist')}.npz").exists()


def compute(cell: Cell, folder: Path | None) -> Result:
    """Error of a method on one draw, and the seconds of its search (of a peer or defaults: of a fit); or best cases."""
    # A new sample of MNIST for each draw, as a single one would have luck of its own.
    data = _data(folder, cell.data, cell.seed if cell.data == "mnist-multi" else 0)
    split = split_points(data.y, cell.data, cell.seed)
    if cell.method in OURS:
        result = search(data, split, cell.method, cell.setting["power"], cell.setting["trials"])
    elif cell.method in DEFAULTS:
        result = by_default(data, split, DEFAULTS[cell.method], cell.setting["power"])
    elif cell.method == GRID:
        result = best_cases(data, split, cell.setting["power"])
    else:
        result = peer(data, split, cell.method, cell.setting["neighbors"])
    return {**result, "points": len(data.y)}


@lru_cache(maxsize=2)
def _data(folder: Path | None, name: str, sample: int) -> DataSet:
    if name == "mnist":
        return mnist(folder)
    if name == "mnist-multi":
        if folder is None:
            return DataSet(name, *_standin_digits(sample))
        whole = read(folder, "mnist")
        chosen = np.random.default_rng([sample, 2]).choice(len(whole.y), SUBSET, replace=False)
        return DataSet(name, whole.X[chosen], whole.y[chosen])
    return usps(None, 400) if folder is None else read(folder, FILES[name])


def _standin_digits(sample: int) -> tuple[Any, Classes]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(sample).choice(len(y), 1200, replace=False)
    return X[chosen], y[chosen].astype(np.int64)


def split_points(y: Classes, name: str, seed: int) -> Draw:
    """The points that are labelled and those to choose by: so many in all, or of each class."""
    protocol = PROTOCOLS[name]
    if not protocol.per_class:
        return draw(y, seed, protocol.labels, protocol.validation)
    rng = np.random.default_rng([seed, 3])
    few, known = np.full(len(y), -1), np.full(len(y), -1)
    chosen = []
    for c in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == c))
        labelled, held = members[: protocol.labels], members[protocol.labels :][: protocol.validation]
        few[labelled] = known[labelled] = known[held] = c
        chosen.append(held)
    return Draw(known, few, np.concatenate(chosen))


def graph_of(data: DataSet, n_neighbors: int | None = None, **how: Any) -> KNNGraph:
    """A graph, kept while the same data set is worked on."""
    if not _kept or _kept[0][0] is not data.X:
        _kept[:] = [(data.X, {})]
    graphs = _kept[0][1]
    key = repr((n_neighbors, how))
    if key not in graphs:
        graphs[key] = KNNGraph(**{"n_neighbors": n_neighbors, "metric": data.metric, **how}).fit(data.X)
    return graphs[key]


_kept: list[tuple[Any, dict[str, KNNGraph]]] = []


def large_graph(data: DataSet) -> dict[str, Any]:
    """The one graph of many points, as parameters of :class:`KNNGraph`."""
    return LARGE_SPARSE_GRAPH if data.metric == "cosine" else LARGE_GRAPH


def search(data: DataSet, split: Draw, method: str, power: int, trials: int) -> Result:
    """What automatic choice finds."""
    large = len(data.y) > LARGE_POINTS
    X = graph_of(data, **large_graph(data)) if large else data.X
    way: Literal["irr", "err"] = "irr" if method == "IRR" else "err"
    tuned = TunedClassifier(_kind(way)(power=power), trials)
    seconds, found = cpu_timed(lambda: tuned.fit(X, split.known, validation=split.validation))
    error = split.error(found.transduction_, data.y)
    return {
        "error": error,
        "seconds": seconds,
        "trials": len(found.results_),
        "parameters": {name.removeprefix("graph__"): value for name, value in found.best_params_.items()},
    }


def by_default(data: DataSet, split: Draw, method: str, power: int) -> Result:
    """Default parameters, nothing chosen; many points on the one graph."""
    graph = graph_of(data, **(large_graph(data) if len(data.y) > LARGE_POINTS else {}))
    model = _kind("irr" if method == "IRR" else "err")(power=power)
    seconds, found = cpu_timed(lambda: model.fit(graph, split.few))
    return {"error": split.error(found.transduction_, data.y), "seconds": seconds}


def best_cases(data: DataSet, split: Draw, power: int) -> Result:
    """The lowest errors of IRR and ERR in the grid; for many points, on the one graph."""
    starts, relationships = STARTS, Relationships()
    graphs = [large_graph(data)]
    if len(data.y) > LARGE_POINTS:
        starts = SLOW_STARTS
    else:
        graphs = grid_graphs(data)
        if data.y.max() > 1:
            starts = SLOW_STARTS
        elif data.metric == "euclidean":
            starts, relationships = FAST_STARTS, FAST_RELATIONSHIPS
    found = grid_errors([graph_of(data, **how) for how in graphs], data, split, power, starts, relationships)
    return {"IRR": min(found.irr), "ERR": min(*found.irr, *found.err)}


def _kind(way: Literal["irr", "err"]) -> type[IRRClassifier] | type[ERRClassifier]:
    return IRRClassifier if way == "irr" else ERRClassifier


def peer(data: DataSet, split: Draw, name: str, graphs: Sequence[int]) -> Result:
    """A peer's error with the graph and variant that do best on the validation points, and its best case."""
    found: list[tuple[float, float, float, str]] = []
    failure = ""
    # Of many points the graph that ours has, too.
    allowed = [{"space": large_graph(data)["space"]}] if len(data.y) > LARGE_POINTS else spaces(data)
    for neighbors, space in product(graphs, allowed):
        W = graph_of(data, neighbors, **space).W
        for number, method in enumerate(label_peers()[name]):
            try:
                seconds, classes = cpu_timed(lambda: method(W, split.few, data.y))  # noqa: B023
            except (ValueError, RuntimeError, np.linalg.LinAlgError) as error:
                failure = f"{type(error).__name__}: {error}"[:200]
                continue
            wrong = float(np.mean(classes[split.validation] != data.y[split.validation]))
            # Of equals the one nearest to the default comes first.
            rank = (neighbors != 10) + (number != 0) + (space["space"] != "input")
            choice = f"k = {neighbors}, {' '.join(map(str, space.values()))}, {number}"
            found.append((wrong + 1e-6 * rank, split.error(classes, data.y), seconds, choice))
    if not found:
        return {FAILED: failure}
    _, wrong_share, seconds, choice = min(found)
    return {"error": wrong_share, "best": min(each[1] for each in found), "seconds": seconds, "choice": choice}
