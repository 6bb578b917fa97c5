"""Parameters chosen automatically, in the paper's protocol: 50 labels to fit on, 50 validation points to choose by.

Errors are of points that are neither. BC, the best case, is the lowest of them in a fixed grid: what a choice by the
answers themselves would have found in each draw. «One setting» is the setting of the grid that is best on average.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Classes, DataSet, draw_labels, read, usps
from benchmarks.measure import timed, warm_up
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.selection import Selection, select

SETS = ("ssl_usps", "ssl_text", "pcmac", "ccat", "gcat")
LABELS = VALIDATION = 50

# The best case's grid: n_neighbors, λ1, σ_f and λ2 as shares of their defaults; IRR stands for λ2 = 0.
NEIGHBORS = (5, 10, 20, 40, 80)
LAMBDA1 = (1e-3, 1e-2, 1e-1)
SIGMA_F = (0.67, 1.0, 1.5)
LAMBDA2 = (0.33, 1.0, 3.3)

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


class Judged(NamedTuple):
    """A draw's row of the table, and the test errors of the whole grid."""

    row: dict[str, Any]
    grid: NDArray[np.float64]


def run(options: Options, report: Report) -> None:
    draws = options.seeds or (1 if options.quick else 10)
    sets = [usps(None, 400)] if options.data is None else [read(options.data, name) for name in SETS]
    found: dict[str, list[Judged]] = {data.name: [] for data in sets}
    warm_up()
    for seed in range(options.first_seed, options.first_seed + draws):
        for data in sets:
            found[data.name].append(judge(data, draw(data.y, seed), seed, quick=options.quick))
            shown = {name: value for name, value in found[data.name][-1].row.items() if isinstance(value, float)}
            report.progress(f"{data.name}, draw {seed}: " + ", ".join(f"{k} {v:.4g}" for k, v in shown.items()))
    means: list[Row] = []
    for name, judged in found.items():
        rows = [one.row for one in judged]
        report.table(f"{name}: test error %, {LABELS} labels, {VALIDATION} validation points", rows)
        one_setting = float(np.mean([one.grid for one in judged], axis=0).min())
        # Where others use the machine, the clock measures them too; free cores never take longer than the CPU seconds.
        slowest = max(min(float(row["s (ERR)"]), float(row["CPU s (ERR)"])) for row in rows)
        means.append({"set": name, **mean(rows), "one setting": one_setting, "slowest s": slowest})
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


def judge(data: DataSet, split: Draw, seed: int, *, quick: bool) -> Judged:
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
    grid = grid_errors(data, split, NEIGHBORS[:2] if quick else NEIGHBORS)
    parameters = {name: value for name, value in found["ERR"].best.parameters.items() if name != "metric"}
    told = ", ".join(f"{name} {value:.3g}" for name, value in parameters.items())
    return Judged({"seed": seed, **errors, **chosen, "BC": float(grid.min()), **seconds, "choice": told}, grid)


def grid_errors(data: DataSet, split: Draw, neighbors: tuple[int, ...]) -> NDArray[np.float64]:
    """The test error of every setting of the grid, all of one graph and λ1 from one IRR solution."""
    graphs = [KNNGraph(n_neighbors=k, metric=data.metric).fit(data.X) for k in neighbors]
    lines = joblib.Parallel(n_jobs=-1, prefer="threads")(
        joblib.delayed(line_errors)(graph, lambda1, data, split) for graph, lambda1 in product(graphs, LAMBDA1)
    )
    return np.array(lines)


def line_errors(graph: KNNGraph, lambda1: float, data: DataSet, split: Draw) -> list[float]:
    """The errors of IRR, and of ERR from its solution, over σ_f and λ2."""
    start = IRRClassifier(lambda1=lambda1, n_jobs=1).fit(graph, split.few)
    errors = [split.error(start.transduction_, data.y)]
    default = ERRClassifier()
    width = default._sigma_f(start.solution_.shape[1])
    for sigma_f, lambda2 in product(SIGMA_F, LAMBDA2):
        shares: dict[str, Any] = {"sigma_f": sigma_f * width, "lambda2": lambda2 * default.lambda2}
        model = ERRClassifier(lambda1=lambda1, **shares, n_jobs=1).fit(graph, split.few, init=start.solution_)
        errors.append(split.error(model.transduction_, data.y))
    return errors
