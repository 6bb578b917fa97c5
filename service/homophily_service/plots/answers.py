"""How good the answers are: confusion matrices, reliability of probabilities, and clarity of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client.results import Evaluation, ReliabilityBin
from homophily_service.plots.canvas import (
    FAINT,
    GREY,
    INK,
    MARK,
    colours,
    count_axis,
    counted,
    headline,
    new_figure,
    percent,
    tidy,
    to_png,
    words,
)

Floats = NDArray[np.float64]

# The most classes with room for numbers in the cells, for two numbers each, and for a row of their own.
_NUMBERED, _SHARED, _RIDGES = 26, 12, 12
_LISTED_CONFUSIONS = 12
_BLUE, _ORANGE = colours(2)


def confusion_matrix(evaluation: Evaluation, classes: Sequence[str], kind: str, about: str) -> bytes:
    """Points by true class and answer: counts, and shares of the true class."""
    counts = np.array(evaluation.confusion, dtype=np.int64)
    number = len(classes)
    totals = counts.sum(axis=1)
    shares = counts / np.maximum(totals, 1)[:, None]
    is_large = number > _SHARED
    side = float(np.clip(2.6 + 0.42 * number, 4.4, 8.2 if is_large else 7.6))
    figure = new_figure(side + (3.2 if is_large else 1.2), side + 0.3)
    axis = figure.add_subplot()
    from matplotlib.colors import PowerNorm

    # The root makes small shares visible; the more cells, the smaller the shares.
    norm = PowerNorm(0.35 if is_large else 0.5, 0.0, 1.0)
    image = axis.imshow(shares, cmap="Blues", norm=norm, aspect="equal")
    letters = 14 if number <= 40 else 10
    size = float(np.clip(260 / number, 4.2, 9))
    names = [words(name, letters) for name in classes]
    axis.set_xticks(range(number), names, rotation=90 if max(map(len, names)) > 2 or number > 20 else 0, fontsize=size)
    rows = [f"{name}  ({total:,})" for name, total in zip(names, totals.tolist(), strict=True)]
    axis.set_yticks(range(number), rows if number <= 40 else names, fontsize=size)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    if number <= 40:
        axis.set_xticks(np.arange(number + 1) - 0.5, minor=True)
        axis.set_yticks(np.arange(number + 1) - 0.5, minor=True)
        axis.grid(which="minor", color="white", linewidth=1)
        axis.tick_params(which="minor", length=0)
    axis.set_xlabel("answer", size=9)
    axis.set_ylabel("true class (labels)" if number <= 40 else "true class", size=9)
    if number <= _NUMBERED:
        for row, column in zip(*np.nonzero(counts), strict=True):
            text = f"{counts[row, column]:,}"
            if number <= _SHARED:
                text += f"\n{percent(shares[row, column])}"
            colour = "white" if shares[row, column] > 0.35 else INK
            small = float(np.clip(90 / number, 5.5, 9))
            axis.text(column, row, text, ha="center", va="center", fontsize=small, color=colour)
    bar = figure.colorbar(image, ax=axis, shrink=0.6, pad=0.02)
    bar.set_label("share of the true class", size=9)
    bar.set_ticks([0, 0.01, 0.05, 0.2, 0.5, 1.0], labels=["0", "1 %", "5 %", "20 %", "50 %", "100 %"], fontsize=8)
    bar.outline.set_visible(False)
    if is_large:
        _list_confusions(figure, counts, names)
    unknown = evaluation.points - int(counts.sum())
    note = f" · {counted(unknown, 'label')} of other classes not shown" if unknown > 0 else ""
    headline(figure, f"Answers and {kind} labels", f"{about}{note}")
    return to_png(figure)


def _list_confusions(figure: Any, counts: NDArray[np.int64], names: Sequence[str]) -> None:
    """The most frequent confusions, which are hard to find in a large matrix."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_LISTED_CONFUSIONS]
    found = [(wrong.flat[place], *divmod(int(place), len(names))) for place in order if wrong.flat[place]]
    lines = [f"{count:,} ×  {names[true]} → {names[answer]}" for count, true, answer in found] or ["none"]
    text = "Most often confused\n(true class → answer)\n\n" + "\n".join(lines)
    # The layout makes room for a legend, so the text is the title of an empty one.
    legend = figure.legend([], [], title=text, loc="outside right center", frameon=False, title_fontsize=8)
    legend.get_title().set(color=INK, linespacing=1.5)


# -- probabilities -----------------------------------------------------------------------------------------------------


def reliability_diagram(bins: Sequence[ReliabilityBin], kind: str, about: str) -> bytes:
    """How often answers were right, by the probability that was given for them."""
    filled = sorted((one for one in bins if one.points), key=lambda one: one.confidence)
    confidence = np.array([one.confidence for one in filled])
    accuracy = np.array([one.accuracy for one in filled])
    points = np.array([one.points for one in filled], dtype=np.float64)
    figure = new_figure(6.2, 6.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (5, 4)), label="as sure as right", zorder=1)
    low, high = _interval(accuracy, points)
    top.vlines(confidence, low, high, color=_BLUE, linewidth=1.2, alpha=0.6, zorder=2, label="95 % interval")
    top.plot(confidence, accuracy, color=_BLUE, linewidth=1, alpha=0.5, zorder=2)
    sizes = 18 + 90 * points / points.max()
    top.scatter(confidence, accuracy, s=sizes, color=_BLUE, edgecolors="white", linewidths=0.8, zorder=3)
    top.set(xlim=(0, 1.02), ylim=(-0.02, 1.04))
    top.set_ylabel("share of right answers", size=9)
    top.legend(loc="upper left", fontsize=8, frameon=False, labelcolor=FAINT)
    gaps = np.diff(confidence)
    width = float(np.clip(0.8 * gaps.min(), 0.012, 0.08)) if gaps.size else 0.08
    bottom.bar(confidence, points, width=width, color=_BLUE, alpha=0.75)
    for place, count in zip(confidence, points.astype(int), strict=True):
        bottom.annotate(
            f"{count:,}",
            (place, count),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color=FAINT,
        )
    bottom.set_ylabel("points", size=9)
    bottom.margins(y=0.25)
    count_axis(bottom.yaxis)
    bottom.set_xlabel("confidence: mean of the largest probability of an answer", size=9)
    for axis in (top, bottom):
        tidy(axis)
    gap = float(np.average(np.abs(accuracy - confidence), weights=points))
    top.text(
        0.98,
        0.03,
        f"mean gap between confidence\nand right answers: {percent(gap)}",
        transform=top.transAxes,
        ha="right",
        fontsize=8,
        color=INK,
    )
    headline(figure, f"Probabilities and {kind} labels", about)
    return to_png(figure)


def _interval(share: Floats, count: Floats) -> tuple[Floats, Floats]:
    """Wilson's interval for a share of a number of answers."""
    z = 1.96
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


# -- scores ------------------------------------------------------------------------------------------------------------


def score_histogram(scores: Floats, answers: NDArray[np.integer[Any]], classes: Sequence[str], about: str) -> bytes:
    """How clear the decisions were, by class answered."""
    scores = scores.reshape(len(answers), -1)
    if scores.shape[1] == 1:
        return _two_classes(scores[:, 0], answers, classes, about)
    best = np.partition(scores, -2, axis=1)
    margins = best[:, -1] - best[:, -2]
    if len(classes) <= _RIDGES:
        return _ridges(margins, answers, classes, about)
    return _rows(margins, answers, classes, about)


def _edges(values: Floats) -> Floats:
    """Edges of the bins, finer for more points. Outliers count in the outermost bins."""
    number = int(np.clip(2 * np.sqrt(len(values)), 8, 60))
    low, high = float(values.min()), float(values.max())
    if len(values) > 1000:
        inner_low, inner_high = np.quantile(values, [0.001, 0.999])
        reach = 0.5 * (inner_high - inner_low)
        low, high = max(low, inner_low - reach), min(high, inner_high + reach)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, number + 1)


def _two_classes(scores: Floats, answers: NDArray[Any], classes: Sequence[str], about: str) -> bytes:
    figure = new_figure(7.5, 4.4)
    axis = figure.add_subplot()
    edges = _edges(scores)
    # 0 is an edge, so that no bar contains both classes.
    if edges[0] < 0 < edges[-1]:
        edges = edges - edges[np.argmin(np.abs(edges))]
        step = edges[1] - edges[0]
        edges = np.concatenate([[edges[0] - step], edges, [edges[-1] + step]])
    clipped = np.clip(scores, edges[0], edges[-1])
    kinds = [clipped[answers == place] for place in range(2)]
    labels = [f"{words(name, 24)} ({len(found):,})" for name, found in zip(classes, kinds, strict=True)]
    for place, found in enumerate(kinds):
        axis.hist(found, bins=edges, color=colours(2)[place], alpha=0.85, label=labels[place], lw=0)
        if len(scores) <= 60:
            axis.plot(found, np.zeros(len(found)), "|", color=INK, markersize=9, clip_on=False, zorder=4)
    axis.axvline(0, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label="decision")
    axis.set_xlabel(f"score (below 0: {words(classes[0], 24)}, above 0: {words(classes[1], 24)})", size=9)
    axis.set_ylabel("points", size=9)
    count_axis(axis.yaxis)
    tidy(axis, grid="y")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False, labelcolor=FAINT)
    headline(figure, "Scores by class answered", about)
    return to_png(figure)


def _counts(margins: Floats, answers: NDArray[Any], edges: Floats, number: int) -> NDArray[np.int64]:
    """Points by class (row) and bin (column)."""
    bins = np.clip(np.searchsorted(edges, margins, side="right") - 1, 0, len(edges) - 2)
    flat = np.bincount(answers * (len(edges) - 1) + bins, minlength=number * (len(edges) - 1))
    return flat.reshape(number, -1)


_MARGIN = "margin: the winning score less the second best (0: undecided)"


def _ridges(margins: Floats, answers: NDArray[Any], classes: Sequence[str], about: str) -> bytes:
    number = len(classes)
    figure = new_figure(7.5, 1.3 + 0.5 * number)
    axis = figure.add_subplot()
    edges = _edges(np.append(margins, 0.0))
    counts = _counts(margins, answers, edges, number)
    for place, row in enumerate(counts):
        base, colour = number - 1 - place, colours(number)[place]
        heights = 0.88 * row / max(1, row.max())
        axis.stairs(base + heights, edges, baseline=base, fill=True, color=colour, alpha=0.85, lw=0)
        axis.axhline(base, color="#d5dbe1", linewidth=0.7, zorder=0)
        found = margins[answers == place]
        if found.size:
            middle = float(np.median(found))
            axis.plot([middle, middle], [base, base + 0.88], color=INK, linewidth=1.3)
        if len(margins) <= 60:
            axis.plot(found, np.full(found.size, base), "|", color=INK, markersize=7, zorder=4)
    names = [f"{words(name, 20)}  ({row.sum():,})" for name, row in zip(classes, counts, strict=True)]
    axis.set_yticks(np.arange(number)[::-1] + 0.3, names)
    axis.set_ylim(-0.08, number)
    axis.set_ylabel("answer (points)", size=9)
    axis.set_xlabel(_MARGIN, size=9)
    tidy(axis, grid="x")
    axis.tick_params(axis="y", length=0)
    axis.axvline(0, color=MARK, linewidth=1, linestyle=(0, (4, 3)))
    headline(figure, "How clear the decisions were", f"{about} · line: median; each class to its own height")
    return to_png(figure)


def _rows(margins: Floats, answers: NDArray[Any], classes: Sequence[str], about: str) -> bytes:
    """One thin row per class, darker where it has more points."""
    number = len(classes)
    size = float(np.clip(300 / number, 4.2, 8))
    figure = new_figure(7.5, float(np.clip(1.4 + 0.085 * number, 5.2, 10.5)))
    axis = figure.add_subplot()
    edges = _edges(np.append(margins, 0.0))
    counts = _counts(margins, answers, edges, number)
    shares = 100 * counts / np.maximum(counts.sum(axis=1), 1)[:, None]
    extent = (edges[0], edges[-1], number - 0.5, -0.5)
    image = axis.imshow(shares, cmap="Blues", aspect="auto", extent=extent, interpolation="nearest")
    middles = [np.median(margins[answers == place]) if row.any() else np.nan for place, row in enumerate(counts)]
    axis.plot(middles, range(number), "|", color=MARK, markersize=size, label="median of the class")
    names = [f"{words(name, 12)} ({row.sum():,})" for name, row in zip(classes, counts, strict=True)]
    # Leave out some names if they would touch.
    every = int(np.ceil(number / 120))
    axis.set_yticks(range(0, number, every), names[::every], fontsize=size)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize="small")
    axis.set_xlabel(_MARGIN, size=9)
    axis.set_ylabel("answer (points)", size=9)
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axis, pad=0.02, shrink=0.5)
    bar.set_label("% of the class", size=9)
    bar.ax.tick_params(labelsize="small")
    bar.outline.set_visible(False)
    figure.legend(loc="outside lower center", fontsize=8, frameon=False, labelcolor=FAINT)
    headline(figure, "How clear the decisions were", about)
    return to_png(figure)
