"""Plain against preconditioned conjugate gradients: the energy that a number of evaluations buys."""

from __future__ import annotations

from pathlib import Path

from benchmarks.data import draw_labels, mnist, usps
from benchmarks.measure import Moment, PlainERR, moment_below, traced_fit, warm_up
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, KNNGraph

MARKS = (10, 20, 40, 80)
MOST_STEPS = 60
Traces = dict[str, dict[str, list[Moment]]]


def run(options: Options, report: Report) -> None:
    warm_up()
    problems = [(usps(options.data, 300 if options.quick else 1500), 50)]
    if options.data is not None:
        problems.append((mnist(options.data, 3_000 if options.quick else 60_000), 300))
    traces: Traces = {}
    rows: list[Row] = []
    for data, labels in problems:
        report.progress(f"graph of {data.name}")
        graph, few = KNNGraph(metric=data.metric).fit(data.X), draw_labels(data.y, labels, seed=0)
        for power in (1, 2):
            title = f"{data.name}, p = {power}"
            report.progress(title)
            traces[title] = {
                form: traced_fit(kind(power=power, tol=0, max_iter=MOST_STEPS), graph, few)
                for form, kind in (("plain", PlainERR), ("preconditioned", ERRClassifier))
            }
            rows += summarise(title, traces[title])
    report.table("Energy above the lowest found, relative to the start's, after so many evaluations", rows)
    plot(traces, report.picture("optimizer.png"))


def summarise(title: str, forms: dict[str, list[Moment]]) -> list[Row]:
    """One row a form; its last columns tell when it first came as low as the plain form did in the end."""
    lowest = min(trace[-1].energy for trace in forms.values())
    start = forms["plain"][0].energy - lowest
    rows: list[Row] = []
    for form, trace in forms.items():
        even = moment_below(trace, forms["plain"][-1].energy)
        marks = {f"{mark}": (_energy_at(trace, mark) - lowest) / start for mark in MARKS}
        rows.append(
            {
                "problem": title,
                "CG": form,
                **marks,
                "plain's end: evaluations": even.evaluations if even else None,
                "plain's end: seconds": even.seconds if even else None,
            }
        )
    return rows


def plot(traces: Traces, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(traces), 4), layout="constrained")
    for axes, (title, forms) in zip(figure.subplots(1, len(traces)), traces.items(), strict=True):
        lowest = min(trace[-1].energy for trace in forms.values())
        start = forms["plain"][0].energy - lowest
        for form, trace in forms.items():
            above = [(moment.energy - lowest) / start for moment in trace]
            axes.semilogy([moment.evaluations for moment in trace], above, label=form)
        axes.set(title=title, xlabel="evaluations", ylabel="energy above the lowest, relative to the start's")
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _energy_at(trace: list[Moment], evaluations: int) -> float:
    return min(moment.energy for moment in trace if moment.evaluations <= evaluations)
