"""The tables of ``speed``, ``scaling`` and ``mnist`` with the CPU and a GPU side by side; without one, an estimate.

What is estimated is marked so: bytes and operations are counted, times follow from a device's data sheet, and nothing
of it has been measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil, log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data import Classes, DataSet, Floats, draw_labels, error_percent, helices, mnist, usps
from benchmarks.measure import timed, traced_fit, typical_seconds, warm_up
from benchmarks.report import Options, Report, Row
from benchmarks.scaling import CROWDED
from homophily import DeviceUnavailableError, ERRClassifier, IRRClassifier, KNNGraph, relationship_energy
from homophily.backend import BackendName, CupyBackend, get_backend
from homophily.linear import apply_power
from homophily.relationship import make_engine

BACKENDS: tuple[BackendName, BackendName] = ("numpy", "cupy")
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
QUICK_SIZES = (1_000, 2_000)
STEPS = 50
PLAIN: dict[str, Any] = {"precondition": False, "tol": 0.0, "max_iter": STEPS}
LABELS = 300


class Device(NamedTuple):
    """A data sheet: bytes a second of memory, operations a second in float64 without tensor cores."""

    name: str
    bandwidth: float
    operations: float


DEVICES = (Device("A100 (SXM, 40 GB)", 1.555e12, 9.7e12), Device("H100 (SXM)", 3.35e12, 34e12))
LAUNCH_SECONDS = 5e-6


class Work(NamedTuple):
    """What a pass does, counted from the kernels: bytes from memory, operations, kernels launched."""

    name: str
    edges: int
    bytes: float
    operations: float
    launches: int
    cpu_seconds: float | None


def run(options: Options, report: Report) -> None:
    data = mnist(options.data, 3_000 if options.quick else 60_000)
    warm_up()
    report.progress("graph")
    graph = KNNGraph().fit(data.X)
    few = draw_labels(data.y, LABELS, seed=0)
    report.table(
        f"ESTIMATE, not measured: {data.name}, u = {len(few):,}, from the devices' data sheets", estimate(graph, few)
    )
    report.note(
        "Estimated ms: the larger of bytes over bandwidth and operations over peak, and 5 µs for each kernel launched. "
        "Real kernels reach a half to a tenth of such bounds. CPU ms are measured here."
    )
    try:
        backend = get_backend("cupy")
    except DeviceUnavailableError as error:
        report.note(f"No GPU, so nothing was measured on one. {error}")
        return
    assert isinstance(backend, CupyBackend)
    report.note(f"CUDA device {backend.device}, {backend.free_memory() / 2**30:.1f} GiB free.")
    small = usps(options.data, 300 if options.quick else 1500)
    report.table(f"speed: {small.name}, two classes, {STEPS} plain CG steps of full ERR", list(speed(small)))
    sizes = [size for size in (QUICK_SIZES if options.quick else SIZES) if size <= options.max_points]
    report.table("scaling: two classes on curves in space, p = 1", [row for size in sizes for row in scaling(size)])
    report.table(f"mnist: {data.name}, {LABELS} labels", list(labelled(data, few)))


def estimate(graph: KNNGraph, few: Classes) -> list[Row]:
    """Each kind of work with its bytes and operations an edge, and the times they would take."""
    rows: list[Row] = []
    for work in (*passes(graph, few), tiles(graph)):
        row: dict[str, Any] = {
            "work": work.name,
            "edges": work.edges,
            "bytes an edge": work.bytes / work.edges,
            "operations an edge": work.operations / work.edges,
            "operations a byte": work.operations / work.bytes,
            "CPU ms": None if work.cpu_seconds is None else 1e3 * work.cpu_seconds,
        }
        for device in DEVICES:
            bound = max(work.bytes / device.bandwidth, work.operations / device.operations)
            row[f"{device.name}: ms (estimate)"] = 1e3 * (bound + work.launches * LAUNCH_SECONDS)
        rows.append(row)
    return rows


def passes(graph: KNNGraph, few: Classes) -> Iterator[Work]:
    """One energy and gradient in one dimension, and one product of block conjugate gradients, for p = 1 and 2."""
    F = IRRClassifier(power=2).fit(graph, few).solution_
    sigma_f = 2.0 * ERRClassifier.SIGMA_F
    u = len(F)
    # Modes for the box that the engine sets up: a fifth of the spread, and a bit, on either side.
    digits = sqrt(log(1e13))
    modes = ceil(digits * sqrt(2) / pi * (1.4 * np.ptp(F) / sigma_f + 0.5 + digits / sqrt(2))) + 1
    chunks = -(-modes // 8)
    for power in (1, 2):
        G = graph.laplacian(power)
        engine = make_engine(G, F, sigma_f, engine="chebyshev")[1]
        yield Work(
            f"energy and gradient, n = 1, p = {power}, {8 * chunks} modes",
            (G.nnz - u) // 2,
            # An entry's index and weight once a chunk; what it reads of the other point comes out of the cache. Points:
            # value, phases and gradient, read and written.
            chunks * (12.0 * G.nnz + 120.0 * u),
            # Distance, exponential (about 30) and the first phases, then 20 operations a mode, an entry.
            chunks * (50.0 + 20.0 * 8) * G.nnz + chunks * 8 * 20.0 * u,
            10 + 7 * chunks,
            typical_seconds(partial(engine, F)),
        )
    L = graph.laplacian()
    for power in (1, 2):
        yield Work(
            f"iteration of conjugate gradients, p = {power}",
            (L.nnz - u) // 2,
            power * (12.0 * L.nnz + 16.0 * u) + 14 * 8.0 * u,
            power * 2.0 * L.nnz + 14.0 * u,
            power + 16,
            typical_seconds(partial(apply_power, L, power, F)),
        )


def tiles(graph: KNNGraph) -> Work:
    """One energy and gradient over all pairs, for ten classes."""
    L, u, n = graph.laplacian(), graph.n_points, 10
    pairs = float(u) ** 2
    return Work(
        "energy and gradient over tiles, n = 10, p = 1",
        (L.nnz - u) // 2,
        # A tile is written and read five times; a row of L reads the rows of the tile that it names, half of them from
        # memory.
        pairs * (6 * 8.0 + 4.0 * L.nnz / u),
        pairs * (3.0 * n + 30.0 + 2.0 * L.nnz / u + 8.0 * n + 6.0),
        12 * -(-u // 1024),
        None,
    )


def speed(data: DataSet) -> Iterator[Row]:
    graph, few = KNNGraph(metric=data.metric).fit(data.X), draw_labels(data.y, 50, seed=0)
    for power in (1, 2):
        yield from side_by_side(
            f"p = {power}", graph, few, IRRClassifier(power=power).fit(graph, few).solution_, power=power, **PLAIN
        )


def scaling(points: int) -> Iterator[Row]:
    X, y = helices(points)
    few = draw_labels(y, points // 100, seed=0)
    graphs = {}
    for backend in BACKENDS:
        seconds, graphs[backend] = timed(lambda: KNNGraph(backend=backend).fit(X))  # noqa: B023
        yield {"points": points, "what": "graph", "backend": backend, "seconds": seconds}
    graph = graphs["numpy"]
    start = {}
    for backend in BACKENDS:
        fit = partial(IRRClassifier(power=1, backend=backend).fit, graph, few)
        seconds, start[backend] = timed(fit)
        yield {"points": points, "what": "IRR", "backend": backend, "seconds": seconds}
    F = start["numpy"].solution_
    for row in side_by_side(f"{STEPS} ERR steps", graph, few, F, power=1, **PLAIN):
        yield {"points": points, **row}
    for name, across in (("crowded map", CROWDED), ("spread map", points**0.5)):
        flat = flattened(X, across)
        for backend in BACKENDS:
            evaluate = partial(relationship_energy, flat, graph.laplacian(), sigma_f=1.0, backend=backend)
            yield {"points": points, "what": name, "backend": backend, "seconds": typical_seconds(evaluate)}


def flattened(X: Floats, across: float) -> Floats:
    """The curves in the plane, ``across`` σ_f wide and noisy by one σ_f."""
    F = X[:, :2] * (across / np.ptp(X[:, :2]))
    return np.ascontiguousarray(F + np.random.default_rng(0).normal(size=F.shape))


def labelled(data: DataSet, few: Classes) -> Iterator[Row]:
    graphs = {}
    for backend in BACKENDS:
        seconds, graphs[backend] = timed(lambda: KNNGraph(backend=backend).fit(data.X))  # noqa: B023
        yield {"what": "graph", "backend": backend, "seconds": seconds}
    graph = graphs["numpy"]
    for power in (1, 2):
        for kind, settings in ((IRRClassifier, {}), (ERRClassifier, {}), (ERRClassifier, PLAIN)):
            name = f"{kind.__name__[:3]} p = {power}{', plain 50 steps' if settings else ''}"
            for backend in BACKENDS:
                classifier = kind(power=power, backend=backend, **settings)
                seconds, _ = timed(lambda: classifier.fit(graph, few))  # noqa: B023
                error = error_percent(classifier.transduction_, data.y, few)
                yield {"what": name, "backend": backend, "seconds": seconds, "error %": error}


def side_by_side(what: str, graph: KNNGraph, few: Classes, start: Floats, **settings: Any) -> Iterator[Row]:
    """The same steps of ERR from the same start on both; how far apart their energies end."""
    energies = []
    for backend in BACKENDS:
        trace = traced_fit(ERRClassifier(backend=backend, **settings), graph, few, init=start)
        energies.append(trace[-1].energy)
        yield {
            "what": what,
            "backend": backend,
            "seconds": trace[-1].seconds,
            "evaluations": trace[-1].evaluations,
            "ms an evaluation": 1e3 * trace[-1].seconds / max(1, trace[-1].evaluations - 1),
            "energy": f"{trace[-1].energy:.10g}",
            "apart": abs(energies[-1] / energies[0] - 1),
        }
