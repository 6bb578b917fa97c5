"""All of MNIST, digits {2, 5} against the rest, 300 labels: error, CPU time and memory beside other libraries."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data import Classes, DataSet, draw_labels, error_percent, mnist
from benchmarks.measure import PlainERR, cpu_timed, forget_peak, isolated, peak_memory, traced_fit, warm_up
from benchmarks.peers import graph_methods
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.graph.dense_index import DenseIndex

LABELS = 300
RELATIONSHIPS = 200
PLAIN = {"tol": 0.0, "max_iter": 50}


class Outcome(NamedTuple):
    """One fit: the classes found, and what the optimiser's steps took of its CPU seconds."""

    classes: Classes
    evaluations: int | None = None
    steps: float | None = None


Solve = Callable[[KNNGraph, Classes, Classes], Outcome]


def run(options: Options, report: Report) -> None:
    data = mnist(options.data, 3_000 if options.quick else 60_000)
    warm_up()
    whole(options, report)
    graph = build(data, report)
    seeds = options.seeds or (2 if options.quick else 5)
    labels = [draw_labels(data.y, LABELS, seed) for seed in range(seeds)]
    rows = []
    for name, solve in solvers().items():
        report.progress(name)
        rows.append(measure(name, solve, graph, data.y, labels))
    report.progress("principal directions")
    principal = KNNGraph(space="principal").fit(data.X)
    rows += [
        measure(f"{name}, principal directions", solvers()[name], principal, data.y, labels)
        for name in ("IRR p = 2", "ERR p = 2")
    ]
    report.table(
        f"{data.name}: {len(data.y):,} points, {{2, 5}} against the rest, {LABELS} labels, {seeds} draws", rows
    )
    report.note(
        "CPU seconds are of the whole fit on a ready graph, with its IRR start; steps are the ERR steps among them."
    )
    if not any("graphlearning" in name for name in solvers()):
        report.note("graphlearning is not installed: its rows are left out (pip install graphlearning).")


def whole(options: Options, report: Report) -> None:
    """From points to labels with the defaults, beside the same with the former search for neighbours."""
    report.progress("points to labels")
    seconds, search, former, peak = isolated(points_to_labels, options)
    report.note(
        f"From points to labels with the defaults: {seconds:.1f} CPU s, {search:.1f} of them the search for "
        f"neighbours, peak {peak:,.0f} MiB with the points. With the former search, {former:.1f} CPU s, it would take "
        f"{seconds - search + former:.1f}: {seconds / (seconds - search + former):.2f} of it."
    )


def points_to_labels(options: Options) -> tuple[float, float, float, float]:
    """CPU seconds of a fit, of its search and of the former one; MiB that the process held at most for the fit."""
    data = mnist(options.data, 3_000 if options.quick else 60_000)
    few = draw_labels(data.y, LABELS, seed=0)
    ERRClassifier().fit(data.X[:2000], few[:2000])
    forget_peak()
    seconds, fitted = cpu_timed(lambda: ERRClassifier().fit(data.X, few))
    peak, neighbors = peak_memory(), fitted.graph_.n_neighbors_

    def search(method: Any) -> float:
        return cpu_timed(lambda: DenseIndex(data.X, "euclidean", method).self_query(neighbors))[0]

    return seconds, search("auto"), search("hnsw"), peak


def build(data: DataSet, report: Report) -> KNNGraph:
    report.progress("graph")
    forget_peak()
    graph = KNNGraph()
    seconds, _ = cpu_timed(lambda: graph.fit(data.X))
    report.note(f"Graph: {seconds:.1f} CPU s, recall {graph.recall_:.4f}, peak {peak_memory():,.0f} MiB.")
    for power in (1, 2):
        seconds, G = cpu_timed(lambda: graph.laplacian(power))  # noqa: B023
        report.note(f"L^{power}: {seconds:.1f} CPU s, {G.nnz / len(data.y):.1f} non-zeros a row.")
    seconds, _ = cpu_timed(lambda: graph.neighborhoods(RELATIONSHIPS))
    report.note(f"{RELATIONSHIPS} nearest points of each, for sparse ERR: {seconds:.1f} CPU s.")
    return graph


def measure(name: str, solve: Solve, graph: KNNGraph, y: Classes, labels: list[Classes]) -> Row:
    forget_peak()
    runs = [cpu_timed(lambda: solve(graph, few, y)) for few in labels]  # noqa: B023
    outcomes = [outcome for _, outcome in runs]
    errors = [error_percent(outcome.classes, y, few) for outcome, few in zip(outcomes, labels, strict=True)]
    return {
        "method": name,
        "error %": float(np.mean(errors)),
        "± standard error": float(np.std(errors, ddof=1) / np.sqrt(len(errors))) if len(errors) > 1 else None,
        "CPU seconds": float(np.mean([seconds for seconds, _ in runs])),
        "steps CPU s": _mean([outcome.steps for outcome in outcomes]),
        "evaluations": _mean([outcome.evaluations for outcome in outcomes]),
        "peak MiB": peak_memory(),
    }


def solvers() -> dict[str, Solve]:
    def irr(power: int) -> Solve:
        return lambda graph, few, _: Outcome(IRRClassifier(power=power).fit(graph, few).transduction_)

    def err(kind: type[ERRClassifier] = ERRClassifier, **settings: Any) -> Solve:
        def solve(graph: KNNGraph, few: Classes, _: Classes) -> Outcome:
            classifier = kind(**settings)
            trace = traced_fit(classifier, graph, few, clock=process_time)
            return Outcome(classifier.transduction_, trace[-1].evaluations, trace[-1].seconds)

        return solve

    ours = {
        "IRR p = 1": irr(1),
        "ERR p = 1": err(power=1),
        "ERR p = 1, plain 50 steps": err(PlainERR, power=1, **PLAIN),
        "IRR p = 2": irr(2),
        "ERR p = 2": err(power=2),
        "ERR p = 2, tol = 1e-4": err(power=2, tol=1e-4, max_iter=200),
        "ERR p = 2, repulsion = 1": err(power=2, repulsion=1.0),
        "ERR p = 2, repulsion = 1, tol = 1e-4": err(power=2, repulsion=1.0, tol=1e-4, max_iter=200),
        "ERR p = 2, plain 50 steps": err(PlainERR, power=2, **PLAIN),
        f"sparse ERR |N_K| = {RELATIONSHIPS}": err(power=1, relationship_neighbors=RELATIONSHIPS),
    }
    peers: dict[str, Solve] = {
        name: lambda graph, few, y, method=method: Outcome(method(graph.W, few, y))  # type: ignore[misc]
        for name, method in graph_methods().items()
    }
    return ours | peers


def _mean(values: list[float | None] | list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
