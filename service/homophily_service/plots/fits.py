"""How a fit went: the optimiser's steps, and the search for parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily_client.results import Search, Trace, Trial
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
)

Floats = NDArray[np.float64]

_BLUE, _ORANGE = colours(2)
# Longer curves are drawn without dots.
_DOTTED_STEPS = 80
_MAP = "viridis_r"
# A surface through fewer trials would be only a few triangles.
_LEAST_SURFACE = 6


def energy_curve(trace: Trace, about: str) -> bytes:
    """The energy and its gradient by step."""
    steps = np.array(trace.iterations, dtype=np.float64)
    energies = np.array(trace.energies)
    norms = np.array(trace.gradient_norms)
    figure = new_figure(7.5, 5.2 if norms.size else 3.6)
    rows = figure.subplots(2 if norms.size else 1, 1, sharex=True, squeeze=False)[:, 0]
    dot = "o" if len(steps) <= _DOTTED_STEPS else ""
    top = rows[0]
    top.plot(steps, energies, color=_BLUE, marker=dot, markersize=3, linewidth=1.5)
    top.set_ylabel("energy E")
    if energies.min() > 0 and energies.max() > 30 * energies.min():
        top.set_yscale("log")
    else:
        top.ticklabel_format(axis="y", useOffset=False)
    top.annotate(
        f"{energies[-1]:.5g}",
        (steps[-1], energies[-1]),
        xytext=(0, 6),
        textcoords="offset points",
        ha="right" if len(steps) > 1 else "center",
        fontsize=8,
        color=_BLUE,
    )
    if norms.size:
        # The logarithmic axis cannot show a gradient of 0.
        rows[1].plot(steps, np.where(norms > 0, norms, np.nan), color=_ORANGE, marker=dot, markersize=3, linewidth=1.5)
        if (norms > 0).any():
            rows[1].set_yscale("log")
        rows[1].set_ylabel("norm of the gradient ‖∇E‖,\nrelative to the start")
    rows[-1].set_xlabel("step of the optimiser (0: where it began)")
    count_axis(rows[-1].xaxis)
    if len(steps) == 1:
        rows[-1].set_xlim(steps[0] - 0.5, steps[0] + 0.5)
    for axis in rows:
        tidy(axis)
        axis.yaxis.label.set_size(9)
        axis.xaxis.label.set_size(9)
    figure.align_ylabels()
    work = [counted(int(steps[-1]), "step")]
    if trace.evaluations:
        work.append(counted(trace.evaluations[-1], "evaluation") + " of the energy")
    headline(figure, "Energy by step", f"{about} · {', '.join(work)}")
    return to_png(figure)


# -- search ------------------------------------------------------------------------------------------------------------


class _Parameter(NamedTuple):
    name: str
    meaning: str

    @property
    def symbol(self) -> str:
        return self.meaning.partition(",")[0]

    def of(self, trial: Trial) -> float | None:
        found = trial.graph.get(self.name, trial.solver.get(self.name))
        return None if found is None else float(found)


_HEADINGS = {1: "Search for the graph: error of IRR", 2: "Search for the relationships: error of ERR"}
_PARAMETERS = {
    1: (
        _Parameter("n_neighbors", "k, neighbours of each point"),
        _Parameter("lambda1", "λ1, weight of smooth values"),
    ),
    2: (
        _Parameter("sigma_f", "σ_f, width of the relationship function"),
        _Parameter("lambda2", "λ2, weight of smooth relationships"),
    ),
}
_ERROR = "wrong answers among held-out labels, %"


def error_surface(search: Search, stage: int, about: str) -> bytes | None:
    """The error of a stage's trials over its two parameters, the chosen trial marked; None if nothing was varied.

    If only one of the two was varied, the error along it.
    """
    tried = [trial for trial in search.trials if trial.stage == stage]
    judged = [trial for trial in tried if trial.error_rate is not None]
    varied = [one for one in _PARAMETERS[stage] if len({one.of(trial) for trial in judged}) > 1]
    judged = [trial for trial in judged if all((one.of(trial) or 0.0) > 0 for one in varied)]
    places = np.array([[one.of(trial) for one in varied] for trial in judged], dtype=np.float64)
    if not varied or not (np.ptp(places, axis=0) > 0).all():
        return None
    errors = np.array([100 * (trial.error_rate or 0.0) for trial in judged])
    figure = new_figure(7.5, 5.6)
    axis = figure.add_subplot()
    axis.set_xscale("log")
    axis.set_xlabel(varied[0].meaning, size=9)
    if len(varied) == 2:
        _draw_surface(figure, axis, places, errors)
        axis.set_ylabel(varied[1].meaning, size=9)
        spots = places
    else:
        _draw_line(axis, places[:, 0], errors)
        spots = np.column_stack([places, errors])
    given_up = np.array([trial.pruned for trial in judged])
    if given_up.any():
        axis.scatter(*spots[given_up].T, marker="x", s=26, c=INK, linewidths=0.8, zorder=4, label="given up")
    # The chosen trial is in the last stage; in other stages, mark the best one.
    chosen = [place for place, trial in enumerate(judged) if trial.number == search.best]
    best = chosen[0] if chosen else min(range(len(judged)), key=lambda one: _order(judged[one]))
    values = ", ".join(f"{one.symbol} = {value:.3g}" for one, value in zip(varied, places[best], strict=True))
    label = f"{'chosen' if chosen else 'lowest error here'}: {values}, {percent(errors[best] / 100)} wrong"
    axis.plot(*spots[best], "*", markersize=17, color=MARK, markeredgecolor="white", label=label, zorder=5)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, fontsize=8, frameon=False, labelcolor=FAINT)
    tidy(axis)
    for side, values_along in zip((axis.xaxis, axis.yaxis), places.T, strict=False):
        _log_axis(side, values_along)
    not_begun = sum(trial.error_rate is None for trial in tried)
    note = f", {not_begun:,} not begun" if not_begun else ""
    headline(figure, _HEADINGS[stage], f"{about} · {counted(len(judged), 'trial')}{note}")
    return to_png(figure)


def _order(trial: Trial) -> tuple[float, float, int]:
    return trial.error_rate or 0.0, trial.score or 0.0, trial.number


def _draw_surface(figure: Any, axis: Any, places: Floats, errors: Floats) -> None:
    from matplotlib.colors import Normalize

    norm = Normalize(errors.min(), max(errors.max(), errors.min() + 1.0))
    logs = np.log10(places)
    spots, lowest = _lowest(logs, errors)
    axis.set_yscale("log")
    between = _between(spots, lowest)
    if between is not None:
        levels = np.linspace(lowest.min(), lowest.max(), 13)
        axis.contourf(*between, levels=levels, cmap=_MAP, norm=norm, alpha=0.55)
    for limit, values in ((axis.set_xlim, logs[:, 0]), (axis.set_ylim, logs[:, 1])):
        room = 0.06 * float(np.ptp(values))
        limit(10 ** (values.min() - room), 10 ** (values.max() + room))
    # The best ones on top.
    order = np.argsort(-errors)
    dots = axis.scatter(
        *places[order].T, c=errors[order], cmap=_MAP, norm=norm, s=44, edgecolors=INK, linewidths=0.7, zorder=3
    )
    bar = figure.colorbar(dots, ax=axis, pad=0.02)
    bar.set_label(_ERROR, size=9)
    bar.ax.tick_params(labelsize="small")
    bar.outline.set_visible(False)


def _draw_line(axis: Any, places: Floats, errors: Floats) -> None:
    values, lowest = _lowest(places[:, None], errors)
    axis.plot(values[:, 0], lowest, color=GREY, linewidth=1.2, zorder=1)
    axis.scatter(places, errors, color=_BLUE, s=34, edgecolors="white", linewidths=0.8, zorder=3)
    axis.set_ylabel(_ERROR, size=9)


def _lowest(places: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Distinct places, each with the smallest error there: other parameters vary too."""
    spots, inverse = np.unique(places, axis=0, return_inverse=True)
    lowest = np.full(len(spots), np.inf)
    np.minimum.at(lowest, inverse.ravel(), errors)
    return spots, lowest


def _between(spots: Floats, errors: Floats) -> tuple[Floats, Floats, NDArray[Any]] | None:
    """A grid and the error on it, interpolated linearly between trials; None if these are few, equal or on a line."""
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import QhullError

    if len(spots) < _LEAST_SURFACE or errors.max() <= errors.min():
        return None
    low, spread = spots.min(axis=0), np.ptp(spots, axis=0)
    try:
        surface = LinearNDInterpolator((spots - low) / spread, errors)
    except QhullError:
        return None
    places = np.linspace(0.0, 1.0, 300)
    # Rounding errors must not leave the range of the trials.
    found = np.clip(surface(*np.meshgrid(places, places)), errors.min(), errors.max())
    return 10 ** (low[0] + spread[0] * places), 10 ** (low[1] + spread[1] * places), np.ma.masked_invalid(found)


def _log_axis(axis: Any, values: Floats) -> None:
    """Label an axis with plain numbers over less than two decades, else with powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    span = values.max() / values.min()
    if span < 100:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if span > 10 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
