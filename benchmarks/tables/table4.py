"""Table 4: what sparse relationships cost and save; MNIST, digits {2, 5} against the rest, G = L.

2,000 points with 100 labels as in the paper, and all 60,000 with 300 labels. Every fit is in a process of its own, on a
ready graph: its CPU seconds are those of all threads, with the search for the |N_K| nearest points where there is one;
its memory is what it needed beyond what was held before.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.data import Classes, mnist
from benchmarks.measure import forget_peak, isolated, peak_memory
from benchmarks.tables.cells import Cell, Records, Result
from benchmarks.tables.grid import Draw, draw
from benchmarks.tables.run import Options
from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.selection import TunedClassifier

TABLE = "table4"
DENSE = "full, dense form"
METHODS = ("25", "50", "100", "200", "full", DENSE, "IRR")
QUICK_LARGE = ("25", "full", "IRR")
POINTS = {"mnist-2k": 2_000, "mnist-60k": 60_000}
LABELS = {"mnist-2k": 100, "mnist-60k": 300}
TRIALS = 15
SEEDS = {"mnist-2k": 10, "mnist-60k": 3}


def plan(options: Options, records: Records) -> list[Cell]:  # noqa: ARG001
    """Parameters chosen on validation points, and defaults; for all of MNIST defaults only."""
    cells = []
    for name in POINTS:
        large = name == "mnist-60k"
        if large and options.data is None:
            continue
        seeds = options.seeds or SEEDS[name]
        if options.quick:
            seeds = 1 if large else min(seeds, 2)
        for form in ("default",) if large else ("default", "chosen"):
            setting: dict[str, Any] = {"labels": LABELS[name], "form": form}
            if form == "chosen":
                setting["trials"] = TRIALS
            for method in METHODS:
                if large and (method == DENSE or (options.quick and method not in QUICK_LARGE)):
                    continue
                cells += [Cell(TABLE, name, method, seed, setting) for seed in range(seeds)]
    return cells


def compute(cell: Cell, folder: Path | None) -> Result:
    """Error, CPU seconds and MiB of one fit."""
    graph, y = _graph(folder, cell.data, cell.seed if cell.data == "mnist-2k" else 0)
    split = draw(y, cell.seed, cell.setting["labels"], cell.setting["labels"])
    form = _form(cell.method)
    chosen: dict[str, Any] = {}
    if cell.setting["form"] == "chosen":
        chosen = _choose(graph, split, form, cell.setting["trials"])
    cost = isolated(_fit, graph, split.few, form, chosen)
    return {
        "error": split.error(cost.classes, y),
        "seconds": cost.cpu_seconds,
        "elapsed": cost.elapsed,
        "mask_seconds": cost.mask_seconds,
        "memory": cost.memory,
        "points": len(y),
        "parameters": chosen,
    }


def _form(method: str) -> dict[str, Any]:
    """What a column means for the classifier."""
    if method == "IRR":
        return {"method": "irr"}
    if method.isdigit():
        return {"method": "err", "relationship_neighbors": int(method)}
    return {"method": "err", "engine": "dense" if method == DENSE else "auto"}


@lru_cache(maxsize=1)
def _graph(folder: Path | None, name: str, sample: int) -> tuple[KNNGraph, Classes]:
    points = POINTS[name] if folder is not None else 600
    if name == "mnist-60k":
        data = mnist(folder)
    else:
        whole = mnist(folder, 60_000 if folder is not None else 3_000)
        chosen = np.random.default_rng([sample, 4]).choice(len(whole.y), points, replace=False)
        data = whole._replace(X=whole.X[chosen], y=whole.y[chosen])
    graph: KNNGraph = KNNGraph().fit(data.X)
    return graph, data.y


def _choose(graph: KNNGraph, split: Draw, form: dict[str, Any], trials: int) -> dict[str, Any]:
    """The parameters that automatic choice finds on this graph."""
    fixed = dict(form)
    method: Literal["irr", "err"] = fixed.pop("method")
    # What the dense engine finds the default one finds as well, and sooner.
    fixed.pop("engine", None)
    kind: Any = {"irr": IRRClassifier, "err": ERRClassifier}[method]
    tuned = TunedClassifier(kind(power=1, **fixed), trials).fit(graph, split.known, validation=split.validation)
    return {name: value for name, value in tuned.best_params_.items() if name not in ("power", *fixed)}


class Cost(NamedTuple):
    """A fit and what it took."""

    classes: Classes
    cpu_seconds: float
    elapsed: float
    mask_seconds: float
    memory: float


def _fit(graph: KNNGraph, few: Classes, form: dict[str, Any], chosen: dict[str, Any]) -> Cost:
    settings = {**form, "power": 1, **chosen}
    kind = IRRClassifier if settings.pop("method") == "irr" else ERRClassifier
    _warm(kind, settings)
    neighbors = settings.get("relationship_neighbors")
    if neighbors is not None:
        # The index of a graph that came from another process is built anew; that is no part of the fit.
        graph.neighborhoods(2)
    forget_peak()
    held = peak_memory()
    cpu, wall = time.process_time(), time.perf_counter()
    if neighbors is not None:
        graph.neighborhoods(neighbors)
    mask = time.process_time() - cpu
    model = kind(**settings).fit(graph, few)
    return Cost(
        np.asarray(model.transduction_),
        time.process_time() - cpu,
        time.perf_counter() - wall,
        mask,
        peak_memory() - held,
    )


def _warm(kind: type[IRRClassifier] | type[ERRClassifier], settings: dict[str, Any]) -> None:
    """Load the compiled kernels before anything is measured."""
    X = np.random.default_rng(0).normal(size=(400, 3))
    y = np.full(400, -1)
    y[:20] = X[:20, 0] > 0
    kind(**settings).fit(X, y)
