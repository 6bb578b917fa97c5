"""Many classes: time, error and growth of IRR and ERR with 2 to 100 classes, beside Poisson learning."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import Classes, error_percent, manifolds, read
from benchmarks.measure import cpu_timed, isolated, peak_memory, warm_up
from benchmarks.peers import graph_methods
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph

LABELS, MANY_LABELS = 5, 50
OURS: dict[str, Any] = {
    "IRR": IRRClassifier(),
    "ERR, defaults": ERRClassifier(),
    "ERR, vector": ERRClassifier(multiclass="vector", sharpen=False),
    "ERR, one-vs-rest": ERRClassifier(multiclass="one-vs-rest", sharpen=False),
}
#: Points and classes whose growth is measured; more points than the last number only with the defaults.
SIZES = ((10_000, 10), (100_000, 10), (1_000_000, 10), (20_000, 26), (100_000, 100))
MOST_SMOOTH = 100_000
PEERS = ("graphlearning Poisson", "graphlearning Poisson-MBO")


def run(options: Options, report: Report) -> None:
    warm_up()
    small = 1_000 if options.quick else 5_600
    rows: list[Row] = []
    graph, y = drawn(small, 10)
    for name, classes in (("2 classes", y % 2), ("10 classes", y)):
        rows += compare(f"{small:,} drawn digits, {name}", graph, classes, tuple(OURS))
    report.progress("digits")
    large, digits = (drawn(3_000, 10)) if options.data is None or options.quick else mnist(options.data)
    for name, classes in (("2 classes", digits % 2), ("10 classes", digits)):
        methods = ("IRR", "ERR, defaults", "ERR, one-vs-rest") if name == "2 classes" else (*OURS, *PEERS)
        rows += compare(f"{len(digits):,} digits, {name}", large, classes, methods)
        report.progress(f"{len(digits):,} digits, {name}")
    report.table(f"CPU seconds after the graph, {LABELS} labels per class", rows)
    found = compare(f"{len(digits):,} digits, 10 classes", large, digits, tuple(OURS), MANY_LABELS)
    report.table(f"CPU seconds after the graph, {MANY_LABELS} labels per class", found)
    sizes = ((2_000, 5), (3_000, 10)) if options.quick else SIZES
    grown: list[dict[str, Any]] = []
    for points, count in sizes:
        if points <= options.max_points:
            report.progress(f"{points:,} points, {count} classes")
            grown.append(isolated(growth, points, count))
    report.table("CPU seconds on drawn points, the graph included in the memory", grown)
    ten = [row for row in grown if row["classes"] == 10]
    for few, many in [*pairwise(ten), (ten[0], ten[-1])]:
        grows = np.log(many["ERR CPU seconds"] / few["ERR CPU seconds"]) / np.log(many["points"] / few["points"])
        report.note(f"Ten classes, {few['points']:,} to {many['points']:,} points: ERR grows as points^{grows:.2f}.")


def drawn(points: int, classes: int) -> tuple[KNNGraph, Classes]:
    X, y = manifolds(points, seed=6, classes=classes)
    return KNNGraph().fit(X), y


def mnist(folder: Path) -> tuple[KNNGraph, Classes]:
    data = read(folder, "mnist")
    return KNNGraph().fit(data.X), data.y


def few_of(y: Classes, seed: int = 0, labels: int = LABELS) -> Classes:
    """The same number of labels of each class."""
    rng, few = np.random.default_rng(seed), np.full(len(y), -1)
    for c in np.unique(y):
        few[rng.permutation(np.flatnonzero(y == c))[:labels]] = c
    return few


def compare(name: str, graph: KNNGraph, y: Classes, methods: tuple[str, ...], labels: int = LABELS) -> list[Row]:
    few, peers = few_of(y, labels=labels), graph_methods()
    rows: list[Row] = []
    for method in methods:
        if method in OURS:
            classifier = OURS[method]
            seconds, _ = cpu_timed(lambda: classifier.fit(graph, few))  # noqa: B023
            answer, error = classifier.transduction_, getattr(classifier, "engine_error_", None)
        elif method in peers:
            seconds, answer = cpu_timed(lambda: peers[method](graph.W, few, y))  # noqa: B023
            error = None
        else:
            continue
        rows.append(
            {
                "points": name,
                "method": method,
                "CPU seconds": seconds,
                "error %": error_percent(answer, y, few),
                "energy's error": error,
            }
        )
    return rows


def growth(points: int, classes: int) -> dict[str, Any]:
    graph, y = drawn(points, classes)
    few, classifier = few_of(y), ERRClassifier()
    seconds, _ = cpu_timed(lambda: classifier.fit(graph, few))
    row = {
        "points": points,
        "classes": classes,
        "ERR CPU seconds": seconds,
        "error %": error_percent(classifier.transduction_, y, few),
        "peak MiB": peak_memory(),
    }
    if points > MOST_SMOOTH:
        return row
    irr, _ = cpu_timed(lambda: IRRClassifier().fit(graph, few))
    smooth = ERRClassifier(multiclass="one-vs-rest", sharpen=False)
    smooth_seconds, _ = cpu_timed(lambda: smooth.fit(graph, few))
    return row | {
        "IRR CPU seconds": irr,
        "one-vs-rest CPU seconds": smooth_seconds,
        "one-vs-rest error %": error_percent(smooth.transduction_, y, few),
        "peak MiB": peak_memory(),
    }
