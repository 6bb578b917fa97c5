"""Does more optimisation hurt the map? Error, violated links and energy against evaluations, for three forms of ERR."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.embedding import measure
from benchmarks.link_sets import SMALL, Problem, draw, one_nn_error, problem
from benchmarks.report import Options, Report, Row
from homophily import ERREmbedding
from homophily.links import Links
from homophily.map_energy import violated_links
from homophily.optimize import State

PAPER = {"repulsion": 1.0, "closure": False, "link_edges": 0.0, "link_loss": "squared", "continuation": 1.0}


class Moment(NamedTuple):
    """What the map is like after some evaluations."""

    evaluations: int
    energy: float
    error: float
    violated: float


def run(options: Options, report: Report) -> None:
    one = problem(options.data, "iris" if options.quick else "usps")
    links = draw(one.y, 100, 0)
    steps = 30 if options.quick else 200
    forms: dict[str, dict[str, Any]] = {
        "paper's": {**PAPER, "data_weight": 1.0 / len(one.y), "lambda2": 1.0, "lambda3": 10.0, "sigma_f": 0.55},
        "paper's, α = 1": {**PAPER, "data_weight": 1.0, "lambda2": 1.0, "lambda3": 10.0, "sigma_f": 0.55},
        "default": {},
        "default, narrow at once": {"continuation": 1.0},
    }
    traces = {}
    for name, parameters in forms.items():
        report.progress(f"{one.name}: {name}")
        traces[name] = trace(one, links, parameters, steps)
    rows: list[Row] = []
    for name, moments in traces.items():
        lowest = min(moment.error for moment in moments)
        end = moments[-1]
        rows.append(
            {
                "form": name,
                "evaluations": end.evaluations,
                "least error": lowest,
                "error at the end": end.error,
                "violated at the end, %": end.violated,
                "energy at the end": end.energy,
            }
        )
    report.table(f"{one.name}, 100 links, {steps} steps with each width", rows)
    plot(traces, report.picture("scatter.png"))
    tails(options, report)


def tails(options: Options, report: Report) -> None:
    """Far links under a function that is flat there, and under one with a heavier tail, with nothing else to help."""
    alone = {"closure": False, "link_edges": 0.0, "continuation": 1.0, "sigma_f": 0.5, "lambda3": 10.0}
    rows: list[Row] = []
    for name in ("iris",) if options.quick else SMALL:
        report.progress(f"tails on {name}")
        one = problem(options.data, name)
        row: Row = {"set": name}
        for loss in ("squared", "log"):
            for relationship in ("gaussian", "cauchy"):
                form = {**alone, "link_loss": loss, "relationship": relationship}
                error, must, _, _ = np.mean([measure(one, 250, seed, form) for seed in range(3)], axis=0)
                row = {**row, f"{relationship}, {loss}": f"{must:.1f} ({error:.1f})"}
        rows.append(row)
    report.table("Violated must-links, in brackets the 1-NN error, percent: 250 links, no closure, no edges", rows)


def trace(one: Problem, links: Links, parameters: dict[str, Any], steps: int) -> list[Moment]:
    """A moment for every tenth step."""
    moments: list[Moment] = []
    embedding = ERREmbedding(max_iter=steps, tol=0.0, **parameters)

    def look(state: State) -> None:
        if state.iteration % 10 == 0:
            broken = violated_links(state.x, links, embedding.sigma_f)
            error = one_nn_error(state.x, one.y)
            moments.append(Moment(state.n_evaluations, state.energy, error, 100.0 * len(broken) / len(links)))

    embedding.callback = look
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        embedding.fit(one.graph, must_link=links.must, cannot_link=links.cannot)
    return moments


def plot(traces: dict[str, list[Moment]], path: Path) -> None:
    """Three panels, a line for each form."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name, moments in traces.items():
        evaluations = [moment.evaluations for moment in moments]
        panels[0].plot(evaluations, [moment.error for moment in moments], label=name)
        panels[1].plot(evaluations, [moment.violated for moment in moments], label=name)
        start = moments[0].energy
        panels[2].plot(evaluations, [moment.energy / start for moment in moments], label=name)
    for panel, title in zip(panels, ("1-NN error, %", "violated links, %", "energy / start"), strict=True):
        panel.set_xlabel("evaluations")
        panel.set_title(title)
    panels[0].set_ylim(0, 40)
    panels[2].set_yscale("log")
    panels[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
