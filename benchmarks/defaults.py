"""Default parameters on six sets, and on four that no default was chosen on, with 50 labels.

IRR against ERR, and the rules that turn values into classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.data import Classes, DataSet, default_sets, draw_labels, error_percent, unused_sets
from benchmarks.peers import spread_labels_knn
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph

LABELS = 50
MODELS: dict[str, Callable[[], IRRClassifier | ERRClassifier]] = {
    "IRR": lambda: IRRClassifier(),
    "ERR": lambda: ERRClassifier(),
    "IRR p = 1": lambda: IRRClassifier(power=1),
    "ERR p = 1": lambda: ERRClassifier(power=1),
    "IRR p = 2": lambda: IRRClassifier(power=2),
    "ERR p = 2": lambda: ERRClassifier(power=2),
}
RULES = ("class_prior=None", 'class_prior="estimate"', "sign")
PEER = "LabelSpreading"
Errors = dict[tuple[str, str], float]
"""By model and rule."""


def run(options: Options, report: Report) -> None:
    draws = options.seeds or (2 if options.quick else 10)
    seeds = range(options.first_seed, options.first_seed + draws)
    for title, sets in {
        "": default_sets(options.data),
        ", sets that no default was chosen on": unused_sets(options.data),
    }.items():
        errors = {}
        for data in sets:
            report.progress(f"{data.name} ({data.X.shape[0]} × {data.X.shape[1]})")
            errors[data.name] = judge(data, seeds)
        if errors:
            tell(errors, f"{draws} draws from seed {seeds.start}{title}", report)


def tell(errors: dict[str, Errors], what: str, report: Report) -> None:
    """A table for each rule."""
    for rule in RULES:
        columns = [(model, (model, rule)) for model in MODELS]
        if rule == RULES[0]:
            columns.append((PEER, (PEER, rule)))
        rows: list[Row] = [
            {"set": name, **{title: found[key] for title, key in columns}} for name, found in errors.items()
        ]
        average = {title: float(np.mean([found[key] for found in errors.values()])) for title, key in columns}
        report.table(
            f"Mean error % on unlabelled points, {LABELS} labels, {what}, {rule}",
            [*rows, {"set": "average", **average}],
        )


def judge(data: DataSet, seeds: range) -> Errors:
    """Mean error of each model under each rule."""
    graph = KNNGraph(metric=data.metric).fit(data.X)
    found: dict[tuple[str, str], list[float]] = {}
    for seed in seeds:
        few = draw_labels(data.y, LABELS, seed)
        answers = {(PEER, RULES[0]): spread_labels_knn(data.X, few)}
        for name, make in MODELS.items():
            answers |= {(name, rule): answer for rule, answer in decisions(make(), graph, few).items()}
        for key, answer in answers.items():
            found.setdefault(key, []).append(error_percent(answer, data.y, few))
    return {key: float(np.mean(errors)) for key, errors in found.items()}


def decisions(model: IRRClassifier | ERRClassifier, graph: KNNGraph, few: Classes) -> dict[str, Classes]:
    """One solution, read by each rule."""
    model.fit(graph, few)
    own, sign = model.transduction_, (model.solution_[:, 0] > 0).astype(np.int64)
    estimated = model.set_params(class_prior="estimate").fit(graph, few).transduction_
    return dict(zip(RULES, (own, estimated, sign), strict=True))
