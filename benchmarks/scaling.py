"""How time and memory grow from ten thousand points to a million."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.data import Floats, draw_labels, helices
from benchmarks.measure import (
    PlainERR,
    forget_peak,
    growth,
    isolated,
    peak_memory,
    timed,
    traced_fit,
    typical_seconds,
    warm_up,
)
from benchmarks.report import Options, Report
from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.relationship.choose import make_engine

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
QUICK_SIZES = (2_000, 5_000, 10_000)
STEPS = 50
CROWDED = 20.0


class Cost(NamedTuple):
    """What one size takes, in seconds and MiB above the process's own."""

    points: int
    edges: int
    graph: float
    irr: float
    steps: float
    evaluations: int
    to_tolerance: float
    memory: float
    steps_memory: float
    peak: float
    crowded_map: float
    spread_map: float
    map_memory: float


def run(options: Options, report: Report) -> None:
    sizes = [size for size in (QUICK_SIZES if options.quick else SIZES) if size <= options.max_points]
    costs = []
    for size in sizes:
        report.progress(f"{size:,} points")
        costs.append(isolated(measure, size))
    report.table(
        f"Two classes on curves in space, k = 10, 1 % labelled, {STEPS} plain CG steps of full ERR, p = 1",
        [
            {
                "points": cost.points,
                "edges": cost.edges,
                "graph s": cost.graph,
                "IRR s": cost.irr,
                "50 ERR steps s": cost.steps,
                "evaluations": cost.evaluations,
                "ms an evaluation": 1e3 * cost.steps / (cost.evaluations - 1),
                "preconditioned, to tolerance s": cost.to_tolerance,
                "peak MiB": cost.peak,
                "above start MiB": cost.memory,
                "ERR above start MiB": cost.steps_memory,
            }
            for cost in costs
        ],
    )
    if len(costs) > 1:
        points = [float(cost.points) for cost in costs]
        report.note(
            f"Exponents: ERR steps {growth(points, [cost.steps for cost in costs]):.2f}, "
            f"an evaluation {growth(points, [cost.steps / (cost.evaluations - 1) for cost in costs]):.2f}, "
            f"memory {growth(points, [cost.memory for cost in costs]):.2f}, "
            f"graph {growth(points, [cost.graph for cost in costs]):.2f}, "
            f"IRR {growth(points, [cost.irr for cost in costs]):.2f}."
        )
        plot(costs, report.picture("scaling.png"))
    report.table(
        f"One energy and gradient of a map in the plane, over {CROWDED:g} σ_f and over √points σ_f",
        [
            {
                "points": cost.points,
                "edges": cost.edges,
                "crowded ms": 1e3 * cost.crowded_map,
                "crowded: ns an edge": 1e9 * cost.crowded_map / cost.edges,
                "spread ms": 1e3 * cost.spread_map,
                "spread: ns an edge": 1e9 * cost.spread_map / cost.edges,
                "above start MiB": cost.map_memory,
            }
            for cost in costs
        ],
    )
    if len(costs) > 1:
        edges = [float(cost.edges) for cost in costs]
        report.note(
            f"Exponents by edges: crowded {growth(edges, [cost.crowded_map for cost in costs]):.2f}, "
            f"spread {growth(edges, [cost.spread_map for cost in costs]):.2f}."
        )


def measure(points: int) -> Cost:
    """Runs in a process of its own."""
    warm_up()
    X, y = helices(points)
    few = draw_labels(y, points // 100, seed=0)
    forget_peak()
    own = peak_memory()
    graph_seconds, graph = timed(lambda: KNNGraph().fit(X))
    graph.laplacian()
    irr_seconds, irr = timed(lambda: IRRClassifier(power=1).fit(graph, few))
    start = irr.solution_
    start_peak = peak_memory()
    forget_peak()
    plain = PlainERR(power=1, tol=0, max_iter=STEPS)
    trace = traced_fit(plain, graph, few, init=start)
    steps_memory = peak_memory() - own
    better = traced_fit(ERRClassifier(power=1), graph, few, init=start)
    peak = max(start_peak, peak_memory())
    del irr, start
    forget_peak()
    before = peak_memory()
    crowded, spread = (map_seconds(X, graph, across) for across in (CROWDED, points**0.5))
    return Cost(
        points=points,
        edges=(graph.laplacian().nnz - points) // 2,
        graph=graph_seconds,
        irr=irr_seconds,
        steps=trace[-1].seconds,
        evaluations=trace[-1].evaluations,
        to_tolerance=better[-1].seconds,
        memory=peak - own,
        steps_memory=steps_memory,
        peak=peak,
        crowded_map=crowded,
        spread_map=spread,
        map_memory=peak_memory() - before,
    )


def map_seconds(X: Floats, graph: KNNGraph, across: float) -> float:
    """Seconds of an evaluation where the curves lie flat, ``across`` σ_f wide and noisy by one σ_f."""
    F = X[:, :2] * (across / np.ptp(X[:, :2]))
    F += np.random.default_rng(0).normal(size=F.shape)
    F = np.ascontiguousarray(F)
    _, engine = make_engine(graph.laplacian(), F, 1.0)
    return typical_seconds(lambda: engine(F))


def plot(costs: list[Cost], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    time, memory = figure.subplots(1, 2)
    points = [cost.points for cost in costs]
    for name, values in (
        ("graph", [cost.graph for cost in costs]),
        ("IRR", [cost.irr for cost in costs]),
        ("50 ERR steps", [cost.steps for cost in costs]),
        ("ERR, preconditioned, to tolerance", [cost.to_tolerance for cost in costs]),
    ):
        time.loglog(points, values, "o-", label=name)
    linear = [costs[0].steps * size / points[0] for size in points]
    time.loglog(points, linear, ":", color="gray", label="linear")
    memory.loglog(points, [cost.memory for cost in costs], "o-", label="whole run")
    memory.loglog(points, [cost.steps_memory for cost in costs], "o-", label="50 ERR steps")
    for axes, label in ((time, "seconds"), (memory, "MiB above the start")):
        axes.set(xlabel="points", ylabel=label)
        axes.legend(loc="upper left", fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
