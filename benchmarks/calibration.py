"""Calibrated probabilities of the defaults: what they cost beside the fit, and how far they are from the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import Classes, Floats, default_sets, read, unused_sets
from benchmarks.measure import cpu_timed, warm_up
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, KNNGraph

LABELS, BINS = 50, 10
#: Constants were chosen on draws 0 to 59 and 200 to 209; the number of columns was lowered after a run on these.
FIRST_DRAW, DRAWS = 300, 10
#: Sets with several classes, where ERR's defaults are sharp.
SEVERAL_CLASSES = ("ssl_coil", "usps", "pendigits", "mnist")


def run(options: Options, report: Report) -> None:
    warm_up()
    first = FIRST_DRAW + options.first_seed
    draws = range(first, first + (1 if options.quick else options.seeds or DRAWS))
    sets = [(data.name, data.X, data.y) for data in [*default_sets(options.data), *unused_sets(options.data)]]
    if options.data is not None:
        sets += [several_classes(options.data, name) for name in SEVERAL_CLASSES]
    rows: list[Row] = []
    for name, X, y in sets:
        report.progress(name)
        graph = KNNGraph().fit(X)
        if not rows:
            # The first calibration of a process compiles.
            calibrated(graph, y, draws[0])
        found = np.mean([calibrated(graph, y, seed) for seed in draws], axis=0)
        columns = ("fit CPU s", "with calibration / without", "error %", "calibration error %")
        rows.append({"set": name, "points": len(y), **dict(zip(columns, map(float, found), strict=True))})
    report.table(f"{LABELS} random labels, means of draws {draws[0]} to {draws[-1]}", rows)
    errors = [float(str(row["calibration error %"])) for row in rows]
    report.note(f"Calibration error: {np.mean(errors):.1f} % on average, {max(errors):.1f} % at most.")


def several_classes(folder: Path, name: str) -> tuple[str, Any, Classes]:
    data = read(folder, name)
    return f"{name}, {data.y.max() + 1} classes", data.X, data.y


def calibrated(graph: KNNGraph, y: Classes, seed: int) -> tuple[float, float, float, float]:
    rng, few = np.random.default_rng(seed), np.full(len(y), -1)
    while len(np.unique(few)) <= y.max() + 1:
        few[:] = -1
        labelled = rng.choice(len(y), LABELS, replace=False)
        few[labelled] = y[labelled]
    classifier = ERRClassifier()
    seconds, _ = cpu_timed(lambda: classifier.fit(graph, few))
    more, _ = cpu_timed(lambda: classifier.calibration_)
    unlabelled = few < 0
    wrong = np.mean(classifier.transduction_[unlabelled] != y[unlabelled])
    error = calibration_error(classifier.label_distributions_[unlabelled], y[unlabelled])
    return seconds, (seconds + more) / seconds, 100 * float(wrong), 100 * error


def calibration_error(probabilities: Floats, y: Classes) -> float:
    """The expected calibration error of the most probable class: |how sure − how often right|, over equal bins."""
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == y
    where = np.minimum((sure * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(where, sure, BINS) - np.bincount(where, right, BINS)).sum() / len(y))
