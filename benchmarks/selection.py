"""Parameters chosen automatically, in the paper's protocol: 50 labels to fit on, 50 validation points to choose by.

Errors are of points that are neither. BC, the best case, is the lowest of them among the defaults and all trials of the
ERR search of a draw, IRR trials included: what a choice by the answers themselves would have found.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Classes, DataSet, draw_labels, read, usps
from benchmarks.measure import timed
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.selection import Selection, Trial, select

SETS = ("ssl_usps", "ssl_text", "pcmac", "ccat", "gcat")
LABELS = VALIDATION = 50
COLUMNS = ("IRR", "ERR", "auto IRR", "auto ERR", "BC", "s (IRR)", "s (ERR)")


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
    means: list[Row] = []
    for data in sets:
        rows: list[Row] = []
        for seed in range(options.first_seed, options.first_seed + draws):
            report.progress(f"{data.name}, draw {seed}")
            rows.append(judge(data, draw(data.y, seed), {"seed": seed}, 8 if options.quick else None))
        report.table(f"{data.name}: test error %, {LABELS} labels, {VALIDATION} validation points", rows)
        means.append({"set": data.name, **mean(rows)})
    table: list[Row] = [{**row, "auto ERR / BC": float(row["auto ERR"]) / float(row["BC"])} for row in means]  # type: ignore[arg-type]
    report.table(
        f"Means over {draws} draws from seed {options.first_seed}", [*table, {"set": "average", **mean(table)}]
    )
    check(table, report)


def check(table: list[Row], report: Report) -> None:
    """Hold the means against what is expected."""
    worse = [str(row["set"]) for row in table if float(row["auto ERR"]) > float(row["auto IRR"])]  # type: ignore[arg-type]
    average = mean(table)
    report.note(f"Automatic ERR is worse than automatic IRR on {len(worse)} of {len(table)} sets {worse}.")
    report.note(f"It is {100 * (average['auto ERR / BC'] - 1):.0f} % above the best case on average.")


def mean(rows: list[Row]) -> dict[str, float]:
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


def judge(data: DataSet, split: Draw, first: Row, trials: int | None) -> Row:
    """Errors and seconds of one draw."""
    budget: dict[str, Any] = {} if trials is None else {"trials": trials}
    found: dict[str, tuple[float, Selection]] = {}
    for method in ("irr", "err"):
        asked: dict[str, Any] = {"method": method, "metric": data.metric, "validation": split.validation, **budget}
        found[method] = timed(lambda asked=asked: select(data.X, split.known, **asked))  # type: ignore[misc]
    graph = KNNGraph(metric=data.metric).fit(data.X)
    errors = {
        "IRR": split.error(IRRClassifier().fit(graph, split.few).transduction_, data.y),
        "ERR": split.error(ERRClassifier().fit(graph, split.few).transduction_, data.y),
        "auto IRR": split.error(found["irr"][1].estimator_.transduction_, data.y),
        "auto ERR": split.error(found["err"][1].estimator_.transduction_, data.y),
    }
    errors["BC"] = min([errors["IRR"], errors["ERR"], *test_errors(data, split, found["err"][1].trials)])
    seconds = {"s (IRR)": found["irr"][0], "s (ERR)": found["err"][0]}
    chosen = {name: value for name, value in found["err"][1].best.parameters.items() if name != "metric"}
    return {**first, **errors, **seconds, "choice": ", ".join(f"{name} {value:.3g}" for name, value in chosen.items())}


def test_errors(data: DataSet, split: Draw, trials: list[Trial]) -> list[float]:
    """What every trial would have done."""
    graphs: dict[int, KNNGraph] = {}
    errors = []
    for trial in trials:
        if trial.error is None:
            continue
        k = trial.parameters["n_neighbors"]
        if k not in graphs:
            graphs[k] = KNNGraph(n_neighbors=k, metric=data.metric).fit(data.X)
        kind = IRRClassifier if trial.method == "irr" else ERRClassifier
        errors.append(split.error(kind(**trial.parameters).fit(graphs[k], split.few).transduction_, data.y))
    return errors
