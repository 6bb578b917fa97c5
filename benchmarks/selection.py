"""Parameters chosen automatically, in the paper's protocol: 50 labels to fit on, 50 validation points to choose by.

Errors are of points that are neither. BC, the best case, is the lowest of them in a fixed grid: what a choice by the
answers themselves would have found in each draw.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.data import Classes, DataSet, draw_labels, read, usps
from benchmarks.measure import timed, warm_up
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.selection import Selection, select

SETS = ("ssl_usps", "ssl_text", "pcmac", "ccat", "gcat")
LABELS = VALIDATION = 50

# The best case's grid; σ_f in shares of its default, λ2 in shares of λ1. IRR stands for λ2 = 0.
NEIGHBORS = (6, 8, 10, 20, 40)
WHITENED_NEIGHBORS = (40, 80)
WEIGHTS: tuple[dict[str, Any], ...] = (
    {"weights": "global", "sigma_x": 0.5},
    {"weights": "global", "sigma_x": 0.75},
    {"weights": "local", "sigma_x": 1.0},
)
LAMBDA1 = (0.1, 1.0, 10.0)
SIGMA_F = (0.67, 1.0)
LAMBDA2 = (0.03, 0.08, 0.25, 2.0)
#: So many of IRR's settings with the lowest errors are taken on to ERR.
STARTS = 4

# What must be reached on real data.
MOST_SECONDS = 60.0
MOST_ABOVE_BEST = 1.25
MOST_SETS_WORSE = 1


class Draw(NamedTuple):
    """Which points are labelled, and what is asked of the rest."""

    known: Classes
    """Classes of labelled and validation points, −1 elsewhere."""
    few: Classes
    """The same without the validation points."""
    validation: NDArray[np.int64]

    def error(self, answer: NDArray[Any], y: Classes) -> float:
        """In percent, of the points that are neither labelled nor for validation."""
        rest = self.known == -1
        return 100.0 * float(np.mean(answer[rest] != y[rest]))


def run(options: Options, report: Report) -> None:
    draws = options.seeds or (1 if options.quick else 10)
    sets = [usps(None, 400)] if options.data is None else [read(options.data, name) for name in SETS]
    found: dict[str, list[dict[str, Any]]] = {data.name: [] for data in sets}
    warm_up()
    for seed in range(options.first_seed, options.first_seed + draws):
        for data in sets:
            found[data.name].append(judge(data, draw(data.y, seed), seed, quick=options.quick))
            shown = {name: value for name, value in found[data.name][-1].items() if isinstance(value, float)}
            report.progress(f"{data.name}, draw {seed}: " + ", ".join(f"{k} {v:.4g}" for k, v in shown.items()))
    means: list[Row] = []
    for name, rows in found.items():
        report.table(f"{name}: test error %, {LABELS} labels, {VALIDATION} validation points", rows)
        # Where others use the machine, the clock measures them too; free cores never take longer than the CPU seconds.
        slowest = max(min(float(row["s (ERR)"]), float(row["CPU s (ERR)"])) for row in rows)
        means.append({"set": name, **mean(rows), "slowest s": slowest})
    title = f"Means over {draws} draws from seed {options.first_seed}"
    report.table(title, [*means, {"set": "average", **mean(means)}])
    check(means, report, is_binding=options.data is not None)


def check(means: list[Row], report: Report, *, is_binding: bool) -> None:
    """Hold the means of every set against what is expected; a miss fails where ``is_binding``."""
    average = mean(means)
    worse = [str(row["set"]) for row in means if float(row["auto ERR"]) > float(row["auto IRR"])]  # type: ignore[arg-type]
    above = average["auto ERR"] / average["BC"]
    slowest = max(float(row["slowest s"]) for row in means)  # type: ignore[arg-type]
    bars = {
        f"automatic ERR {average['auto ERR']:.2f} %, automatic IRR {average['auto IRR']:.2f} % on average": (
            average["auto ERR"] <= average["auto IRR"]
        ),
        f"automatic ERR is worse than automatic IRR on {len(worse)} of {len(means)} sets {worse}": (
            len(worse) <= MOST_SETS_WORSE
        ),
        f"a search of one draw takes {slowest:.0f} s at most, of {MOST_SECONDS:.0f} s": slowest <= MOST_SECONDS,
        f"automatic ERR is {100 * (above - 1):.0f} % above the best case of the grid on average": (
            above <= MOST_ABOVE_BEST
        ),
    }
    for sentence, is_reached in bars.items():
        if is_reached or not is_binding:
            report.note(sentence)
        else:
            report.fail(sentence)


def mean(rows: list[Any]) -> dict[str, float]:
    """Of every column of numbers but the seed."""
    names = [name for name, value in rows[0].items() if isinstance(value, float)]
    return {name: float(np.mean([row[name] for row in rows])) for name in names}


def draw(y: Classes, seed: int, labels: int = LABELS, validation: int = VALIDATION) -> Draw:
    """Labels as in the other benchmarks, and validation points from the rest."""
    few = draw_labels(y, labels, seed)
    chosen = np.random.default_rng([seed, 1]).choice(np.flatnonzero(few == -1), validation, replace=False)
    known = few.copy()
    known[chosen] = y[chosen]
    return Draw(known, few, chosen)


def judge(data: DataSet, split: Draw, seed: int, *, quick: bool) -> dict[str, Any]:
    """Errors and seconds of one draw."""
    found: dict[str, Selection] = {}
    seconds: dict[str, float] = {}
    for method in ("irr", "err"):
        asked: dict[str, Any] = {"method": method, "metric": data.metric, "validation": split.validation}
        asked |= {"trials": 8} if quick else {}
        spent = time.process_time()
        name = method.upper()
        seconds[f"s ({name})"], found[name] = timed(
            lambda asked=asked: select(data.X, split.known, **asked)  # type: ignore[misc]
        )
        seconds[f"CPU s ({name})"] = time.process_time() - spent
    graph = KNNGraph(metric=data.metric).fit(data.X)
    defaults = {"IRR": IRRClassifier(), "ERR": ERRClassifier()}
    errors = {name: split.error(one.fit(graph, split.few).transduction_, data.y) for name, one in defaults.items()}
    chosen = {f"auto {name}": split.error(one.estimator_.transduction_, data.y) for name, one in found.items()}
    settings = grid_graphs(data)
    graphs = [KNNGraph(metric=data.metric, **how).fit(data.X) for how in (settings[:4] if quick else settings)]
    grid = grid_errors(graphs, data, split)
    best = min([*grid.irr, *grid.err])
    parameters = {name: value for name, value in found["ERR"].best.parameters.items() if name != "metric"}
    told = ", ".join(f"{name} {value}" for name, value in parameters.items())
    return {"seed": seed, **errors, **chosen, "BC": best, **seconds, "choice": told}


def spaces(data: DataSet) -> tuple[str, ...]:
    """What distances a graph of these points may take; whitened ones need points enough."""
    if data.metric == "cosine":
        return ("input",)
    return ("input", "principal", *(("whitened",) if 3 * data.X.shape[1] <= len(data.y) else ()))


def grid_graphs(data: DataSet) -> list[dict[str, Any]]:
    """The grid's graphs, as parameters of :class:`KNNGraph`."""
    return [
        {"n_neighbors": k, "space": space, **how}
        for space in spaces(data)
        for k in (WHITENED_NEIGHBORS if space == "whitened" else NEIGHBORS)
        for how in WEIGHTS
    ]


class Errors(NamedTuple):
    """Test errors in percent of the grid's settings."""

    irr: list[float]
    err: list[float]


def grid_errors(graphs: Sequence[KNNGraph], data: DataSet, split: Draw, power: int = 2, starts: int = STARTS) -> Errors:
    """Of IRR over graphs and λ1, and of ERR over σ_f and λ2 where IRR does best."""
    parallel = joblib.Parallel(n_jobs=-1, prefer="threads")
    lines = list(product(graphs, LAMBDA1))
    with threadpool_limits(1):
        begun = parallel(joblib.delayed(_start)(graph, lambda1, data, split, power) for graph, lambda1 in lines)
        best = sorted(range(len(lines)), key=lambda line: begun[line][0])[:starts]
        settings = product(best, SIGMA_F, LAMBDA2)
        err = parallel(
            joblib.delayed(_goes_on)(*lines[line], begun[line][1], data, split, power, sigma_f, lambda2)
            for line, sigma_f, lambda2 in settings
        )
    return Errors([error for error, _ in begun], list(err))


def _start(graph: KNNGraph, lambda1: float, data: DataSet, split: Draw, power: int) -> tuple[float, Any]:
    model = IRRClassifier(power=power, lambda1=lambda1, n_jobs=1).fit(graph, split.few)
    return split.error(model.transduction_, data.y), model.solution_


def _goes_on(
    graph: KNNGraph, lambda1: float, init: Any, data: DataSet, split: Draw, power: int, sigma_f: float, lambda2: float
) -> float:
    width = ERRClassifier.SIGMA_F * (2.0 if init.shape[1] == 1 else 2.0**0.5)
    shares: dict[str, Any] = {"lambda1": lambda1, "lambda2": lambda2 * lambda1, "sigma_f": sigma_f * width}
    shares["repulsion"] = 1.0
    model = ERRClassifier(power=power, **shares, n_jobs=1).fit(graph, split.few, init=init)
    return split.error(model.transduction_, data.y)
