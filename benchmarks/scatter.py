"""Does more optimisation hurt the map? Error, violated links and energy against evaluations, for several forms of ERR.

And whether what keeps a map together helps classification too.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, diags_array

from benchmarks.data import Floats, default_sets, draw_labels, error_percent, unused_sets
from benchmarks.defaults import LABELS
from benchmarks.embedding import measure
from benchmarks.link_sets import SMALL, Problem, draw, one_nn_error, problem
from benchmarks.report import Options, Report, Row
from homophily import ERRClassifier, ERREmbedding, KNNGraph, LinkPenalty
from homophily.estimators.map_target import spread_target
from homophily.estimators.problem import Problem as LabelProblem
from homophily.relationship.choose import make_engine
from homophily.solve.lbfgs import LBFGS
from homophily.solve.map_energy import MapEnergy, violated_links
from homophily.solve.nonlinear_cg import State
from homophily.supervision.links import Links, close_links
from homophily_service.jobs.maps import make_embedding

PAPER = {"repulsion": 1.0, "closure": False, "link_edges": 0.0, "link_loss": "squared", "continuation": 1.0}

# Powers of Z that R is divided by; 0 would be the paper's form, 1 loses all spread.
BETAS = (0.25, 0.5, 0.75)


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
    for beta in (0.5,) if options.quick else BETAS:
        report.progress(f"{one.name}: R/Z^{beta:g}")
        traces[f"R/Z^{beta:g}"] = trace_quotient(one, links, beta, steps)
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
    classes(options, report)


class Quotient:
    """R/Z^β, times the Z^β where the search starts, so that λ2 weighs about as much: a push that tires as it succeeds.

    R = Z − A is the paper's regulariser, Z its diagonal part, which drives points apart.
    """

    def __init__(self, G: csr_array, F: Floats, sigma_f: float, beta: float) -> None:
        diagonal = csr_array(diags_array(G.diagonal()))
        self.edges, self.diagonal = (make_engine(part, F, sigma_f)[1] for part in (csr_array(G - diagonal), diagonal))
        self.beta = beta
        self.start = self.diagonal(F)[0]

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy and gradient."""
        (attraction, pull), (repulsion, push) = self.edges(F), self.diagonal(F)
        scale = (self.start / repulsion) ** self.beta
        energy = scale * (attraction + repulsion)
        return energy, scale * (pull + push) - self.beta * energy / repulsion * push


class QuotientClassifier(ERRClassifier):
    """ERR with R/Z^½ in place of R."""

    def _engine(self, problem: LabelProblem, F: Floats) -> tuple[str, Any, float]:
        G = problem.restricted(self.graph_.laplacian(self._power, self.normalized))
        return "quotient", Quotient(G, F, self._sigma_f(F.shape[1]), 0.5), float(G.shape[0])


def classes(options: Options, report: Report) -> None:
    """Whether what keeps a map together helps where labels hold the values: stopped early, and left to go on."""
    forms: dict[str, ERRClassifier] = {
        "paper's (repulsion 1)": ERRClassifier(repulsion=1.0),
        "the map's (repulsion 0.65, the default)": ERRClassifier(),
        "R/Z^0.5": QuotientClassifier(),
    }
    sets = [*default_sets(options.data)[:4], *unused_sets(options.data)[:2]][: 2 if options.quick else None]
    seeds = range(options.seeds or (2 if options.quick else 5))
    rows: list[Row] = []
    for data in sets:
        report.progress(f"classes of {data.name}")
        graph = KNNGraph(metric=data.metric).fit(data.X)
        row: Row = {"set": data.name}
        for name, classifier in forms.items():
            found = []
            for tolerance in (0.1, 1e-3):
                errors = []
                for seed in seeds:
                    few = draw_labels(data.y, LABELS, seed)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        answer = classifier.set_params(tol=tolerance, max_iter=500).fit(graph, few).transduction_
                    errors.append(error_percent(answer, data.y, few))
                found.append(float(np.mean(errors)))
            row = {**row, name: f"{found[0]:.2f} → {found[1]:.2f}"}
        rows.append(row)
    report.table(f"Classification error, percent: {LABELS} labels, {len(seeds)} draws, tol 0.1 → 0.001", rows)


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
    embedding = make_embedding(2, {**parameters, "max_iter": steps, "tol": 0.0}, len(links))

    def look(state: State) -> None:
        if state.iteration % 10 == 0:
            moments.append(moment(one, links, embedding.widths[-1], state))

    embedding.callback = look
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        embedding.fit(one.graph, must_link=links.must, cannot_link=links.cannot)
    return moments


def trace_quotient(one: Problem, links: Links, beta: float, steps: int) -> list[Moment]:
    """The same for a map like the default's, but with R/Z^β in place of a part of the repulsion."""
    default = ERREmbedding()
    penalty = LinkPenalty()
    target = spread_target(one.graph, links, penalty.edges, default.n_components, default.n_vectors)
    obeyed = close_links(links, len(one.y))
    moments: list[Moment] = []
    F, before = target, 0
    for sigma_f in default.widths:
        quotient = Quotient(one.graph.laplacian(), F, sigma_f, beta)
        energy = MapEnergy(target, default.data_weight, quotient, default.lambda2, obeyed, penalty.weight, sigma_f)

        def look(state: State, before: int = before) -> None:
            if state.iteration % 10 == 0:
                moments.append(moment(one, links, default.widths[-1], state, before))

        state = LBFGS(energy, steps, 0.0).run(F, look)
        F, before = state.x, before + state.n_evaluations
    return moments


def moment(one: Problem, links: Links, sigma_f: float, state: State, before: int = 0) -> Moment:
    """What the map is like now."""
    broken = violated_links(state.x, links, sigma_f)
    error = one_nn_error(state.x, one.y)
    return Moment(before + state.n_evaluations, state.energy, error, 100.0 * len(broken) / len(links))


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
