"""The README's table and first picture: scikit-learn's digits from 50 labels, by us and by what readers know.

Without ``--quick`` it writes the records that the README is checked against, `results/readme.jsonl`, and the picture.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.data import Classes, draw_labels, error_percent
from benchmarks.peers import graph_methods, spread_labels_knn
from benchmarks.report import RESULTS, Options, Report, Row
from homophily import ERRClassifier, IRRClassifier, KNNGraph

LABELS, DRAWS = 50, 10
RECORDS = RESULTS / "readme.jsonl"
PICTURE = Path(__file__).parent / "pictures" / "readme.png"
OURS = "ERR (this package)"
COLOURS = {OURS: "#e69f00", "IRR (this package)": "#f3cf80"}

Method = Callable[[Any, Classes, Classes], Classes]


def supervised(model: Any) -> Method:
    """A classifier that learns from the labelled points only."""

    def method(X: Any, few: Classes, _: Classes) -> Classes:
        return np.asarray(model.fit(X[few >= 0], few[few >= 0]).predict(X))

    return method


def methods() -> dict[str, Method]:
    """What is compared, the best known first; those that are not installed are left out."""
    found: dict[str, Method] = {
        "logistic regression": supervised(make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))),
        "random forest": supervised(RandomForestClassifier(500, random_state=0)),
        "1-nearest neighbour": supervised(KNeighborsClassifier(1)),
        "LabelSpreading": lambda X, few, _: spread_labels_knn(X, few),
    }
    try:
        from umap import UMAP

        found["UMAP, then 1-nearest neighbour"] = lambda X, few, _: supervised(KNeighborsClassifier(1))(
            UMAP(random_state=0, n_jobs=1).fit_transform(X), few, few
        )
    except ImportError:
        pass
    peers = graph_methods()
    if "graphlearning Poisson-MBO" in peers:
        found["Poisson-MBO"] = lambda X, few, y: peers["graphlearning Poisson-MBO"](KNNGraph().fit(X).W, few, y)
    found["IRR (this package)"] = lambda X, few, _: IRRClassifier().fit(X, few).transduction_
    found[OURS] = lambda X, few, _: ERRClassifier().fit(X, few).transduction_
    return found


def run(options: Options, report: Report) -> None:
    X, y = load_digits(return_X_y=True)
    draws = range(options.first_seed, options.first_seed + (options.seeds or (2 if options.quick else DRAWS)))
    errors: dict[str, list[float]] = {name: [] for name in methods()}
    for seed in draws:
        few = draw_labels(y, LABELS, seed)
        for name, method in methods().items():
            report.progress(f"draw {seed}, {name}")
            errors[name].append(error_percent(method(X, few, y), y, few))
    rows: list[Row] = [
        {"method": name, "error %": round(float(np.mean(found)), 1), "± over draws": round(float(np.std(found)), 1)}
        for name, found in errors.items()
    ]
    report.table(f"Digits, {LABELS} labels of {len(y)}, {len(draws)} draws: error on the unlabelled points", rows)
    if not options.quick:
        lines = [json.dumps({"method": name, "draws": list(draws), "errors": found}) for name, found in errors.items()]
        RECORDS.write_text("\n".join(lines) + "\n")
        draw(errors, X, y, draw_labels(y, LABELS, draws[0]))


def draw(errors: dict[str, list[float]], X: Any, y: Classes, few: Classes) -> None:
    """The 50 digits that have a label, and how often each method errs on the others."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.0, 1.45])
    left.suptitle(f"Given: {LABELS} labels for {len(y):,} digits", fontweight="bold")
    known = sorted(np.flatnonzero(few >= 0), key=lambda point: y[point])
    for axis, point in zip(left.subplots(5, 10).ravel(), known, strict=True):
        axis.imshow(X[point].reshape(8, 8), cmap="gray_r")
        axis.set_axis_off()
    right.suptitle(f"Wrong among the other {len(y) - LABELS:,}", fontweight="bold")
    axis = right.subplots()
    shown = sorted(errors, key=lambda name: -float(np.mean(errors[name])))
    means = [float(np.mean(errors[name])) for name in shown]
    bars = axis.barh(shown, means, color=[COLOURS.get(name, "#c9ced3") for name in shown])
    for label, mean in zip(axis.bar_label(bars, [f"{mean:.1f} %" for mean in means], padding=3), means, strict=True):
        label.set_fontweight("bold" if mean == min(means) else "normal")
    axis.set_xlim(0, 1.15 * max(means))
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.set_xticks([])
    axis.tick_params(axis="y", length=0)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
