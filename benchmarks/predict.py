"""Classes of new points: points a second, by model and by how many are asked for at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.data import draw_labels
from benchmarks.measure import forget_peak, peak_memory, timed, typical_seconds
from benchmarks.report import Cell, Options, Report, Row
from homophily import ERRClassifier, IRRClassifier

STORED = 1_297
BATCHES = (1, 100, 1_000, 10_000)
BAR = 5_000
MODELS: dict[str, Callable[[], IRRClassifier | ERRClassifier]] = {
    "IRR": lambda: IRRClassifier(),
    "ERR p = 1": lambda: ERRClassifier(power=1),
    "ERR p = 2": lambda: ERRClassifier(power=2),
    "ERR p = 2, one-vs-rest": lambda: ERRClassifier(power=2, multiclass="one-vs-rest"),
}


def run(options: Options, report: Report) -> None:
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    stored, held_out = order[:STORED], order[STORED:]
    few = draw_labels(y[stored], 100, seed=0)
    # New points for large batches: held-out digits with noise, so that none is a stored point.
    many = X[rng.choice(held_out, BATCHES[-1])] + rng.normal(scale=0.5, size=(BATCHES[-1], X.shape[1]))
    rows: list[Row] = []
    for name, make in MODELS.items():
        report.progress(name)
        forget_peak()
        model = make().fit(X[stored], few)
        first, _ = timed(lambda: model.predict(many[:1]))  # noqa: B023
        row: dict[str, Cell] = {"model": name, "new points: error %": 0.0, "first call s": first}
        for size in BATCHES[:-1] if options.quick else BATCHES:
            seconds = typical_seconds(lambda: model.predict(many[:size]), budget=0.5)  # noqa: B023
            row[f"points/s by {size:,}"] = size / seconds
        row["new points: error %"] = 100 * float(np.mean(model.predict(X[held_out]) != y[held_out]))
        rows.append(row | {"peak MiB": peak_memory()})
    report.table(f"Digits, {STORED:,} stored points, 100 labels (bar: {BAR:,} points a second)", rows)
