"""``make demo``: label scikit-learn's digits from 50 labels, IRR against ERR; a table and a picture."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits

from homophily import ERRClassifier, IRRClassifier, KNNGraph

LABELS = 50
DRAWS = 5
METHODS: dict[str, Any] = {
    "IRR, p = 1": IRRClassifier(power=1),
    "IRR, p = 2": IRRClassifier(power=2),
    "ERR, p = 1": ERRClassifier(power=1),
    "ERR, p = 2": ERRClassifier(power=2),
}


def draw_labels(y: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """The labels of 50 points drawn at random, every class among them; −1 for the others."""
    rng = np.random.default_rng(seed)
    known = rng.choice(len(y), LABELS, replace=False)
    while len(np.unique(y[known])) < 10:
        known = rng.choice(len(y), LABELS, replace=False)
    few = np.full_like(y, -1)
    few[known] = y[known]
    return few


def main(picture: Path = Path("demo.png")) -> None:
    """Run the demonstration and write ``picture``."""
    X, y = load_digits(return_X_y=True)
    began = time.perf_counter()
    graph = KNNGraph().fit(X)
    print(f"{len(y)} digits, {LABELS} of them labelled, {DRAWS} draws of the labels")
    print(f"graph: {graph.W.nnz // 2} edges in {time.perf_counter() - began:.2f} s\n")
    print(f"{'method':<12}{'error on the unlabelled':>26}{'seconds a fit':>16}")
    errors: dict[str, list[float]] = {}
    for name, method in METHODS.items():
        method.fit(graph, draw_labels(y, 0))  # compiles the kernels, once per machine
        began = time.perf_counter()
        errors[name] = []
        for seed in range(DRAWS):
            few = draw_labels(y, seed)
            wrong = method.fit(graph, few).transduction_ != y
            errors[name].append(100 * float(wrong[few == -1].mean()))
            _show_progress(name, seed + 1)
        seconds = (time.perf_counter() - began) / DRAWS
        spread = f"{np.mean(errors[name]):.2f} ± {np.std(errors[name]) / np.sqrt(DRAWS - 1):.2f} %"
        print(f"\r{name:<12}{spread:>26}{seconds:>16.2f}")
    _draw(X, y, METHODS["ERR, p = 2"].fit(graph, draw_labels(y, 0)), errors, picture)
    print(f"\nThe picture is in {picture}.")


def _show_progress(name: str, done: int) -> None:
    if sys.stdout.isatty():
        print(f"\r{name:<12}{f'draw {done} of {DRAWS} …':>26}", end="", flush=True)


def _draw(
    X: np.ndarray[Any, Any], y: np.ndarray[Any, Any], fitted: ERRClassifier, errors: dict[str, list[float]], path: Path
) -> None:
    few = draw_labels(y, 0)
    given = sorted(np.flatnonzero(few >= 0).tolist(), key=lambda i: (y[i], i))
    wrong = np.flatnonzero((fitted.transduction_ != y) & (few < 0))
    mpl.use("agg")
    figure = plt.figure(figsize=(13, 4.6), layout="constrained")
    panels: Any = figure.subfigures(1, 3, width_ratios=[1.25, 1.0, 1.25])
    left, middle, right = panels
    _show_digits(left, X, given, [str(y[i]) for i in given], f"Given: {LABELS} labelled digits of {len(y)}")
    axis = middle.subplots()
    for place, (name, values) in enumerate(errors.items()):
        axis.bar(place, np.mean(values), color="tab:orange" if name.startswith("ERR") else "tab:gray", width=0.6)
        axis.plot([place] * len(values), values, "k.", alpha=0.6)
    axis.set_xticks(range(len(errors)), list(errors), rotation=20)
    axis.set_ylabel("error on the unlabelled points (%)")
    axis.set_title(f"Mean and {DRAWS} draws of labels")
    shown = wrong[:50].tolist()
    captions = [f"{fitted.transduction_[i]}, not {y[i]}" for i in shown]
    _show_digits(right, X, shown, captions, f"ERR, p = 2: {len(shown)} of its {len(wrong)} mistakes")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _show_digits(figure: Any, X: np.ndarray[Any, Any], points: list[int], captions: list[str], title: str) -> None:
    figure.suptitle(title)
    for axis in figure.subplots(5, 10).ravel():
        axis.set_axis_off()
    for axis, point, caption in zip(figure.axes, points, captions, strict=False):
        axis.imshow(X[point].reshape(8, 8), cmap="gray_r")
        axis.set_title(caption, fontsize=6, pad=1)


if __name__ == "__main__":
    main()
