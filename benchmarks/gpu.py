"""The tables of ``speed``, ``scaling`` and ``mnist`` with the CPU and a GPU side by side; without one, an estimate.

What is estimated is marked so: bytes and operations are counted, times follow from a device's data sheet, and nothing
of it has been measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil, log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data import Classes, DataSet, Floats, draw_labels, error_percent, helices, mnist, usps
from benchmarks.gpu_counts import POINTS, per_evaluation
from benchmarks.gpu_lanes import ESTIMATED_SIZES, Pass, one_and_several_lanes
from benchmarks.measure import PlainERR, forget_peak, peak_memory, timed, traced_fit, typical_seconds, warm_up
from benchmarks.report import Options, Report, Row
from benchmarks.scaling import CROWDED
from benchmarks.speed import overtake
from homophily import DeviceUnavailableError, ERRClassifier, IRRClassifier, KNNGraph, relationship_energy
from homophily.device.backend import CupyBackend, get_backend
from homophily.device.gpu.gauss import CHUNK, MIXED_ACCURACY
from homophily.device.gpu.optimize import DeviceCG
from homophily.estimators.classifiers import Start
from homophily.graph.computing import BackendName
from homophily.relationship.choose import make_engine
from homophily.solve.irr import solve_irr
from homophily.solve.nonlinear_cg import State

BACKENDS: dict[str, BackendName] = {"CPU": "numpy", "GPU": "cupy"}
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
QUICK_SIZES = (1_000, 2_000)
STEPS = 50
PLAIN: dict[str, Any] = {"kind": PlainERR, "tol": 0.0, "max_iter": STEPS}
LABELS = 300
RANK = 256


class Device(NamedTuple):
    """A data sheet: bytes a second of memory, operations a second in float64 without tensor cores."""

    name: str
    bandwidth: float
    operations: float


DEVICES = (Device("A100 (SXM, 40 GB)", 1.555e12, 9.7e12), Device("H100 (SXM)", 3.35e12, 34e12))
LAUNCH_SECONDS = 5e-6


class Card(NamedTuple):
    """A data sheet of a device whose float64 is slow: bytes, and operations in float32 and float64, a second."""

    name: str
    bandwidth: float
    single: float
    double: float


CARDS = (
    Card("T4", 320e9, 8.1e12, 8.1e12 / 32),
    Card("L4", 300e9, 30.3e12, 30.3e12 / 64),
    Card("RTX 4090", 1008e9, 82.6e12, 82.6e12 / 64),
)


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
        "Real kernels reach a half to a tenth of such bounds. CPU ms are measured here. The launcher's checks take at "
        "most 24 µs of the host a launch (measured with the stand-in's arrays, which are slower to ask than CuPy's): "
        "where kernels are shorter than that, the device waits for the host."
    )
    lanes = one_and_several_lanes(uneven(graph, few), DEVICES, LAUNCH_SECONDS)
    report.table("ESTIMATE, not measured: an evaluation with one thread per row, as it was, and with several", lanes)
    report.note(
        "Busy: the share of turns at which a thread of a warp has an entry of the matrix, counted on its rows. For a "
        f"million points the rows are taken to be like these. n = 10 is the low-rank form with {RANK} landmarks."
    )
    report.table("ESTIMATE, not measured: an evaluation in float64, and in mixed precision", precisions(graph, few))
    report.note(
        "Mixed precision (backend='cupy-mixed') computes the terms of an edge in float32, and needs fewer modes. For a "
        "million points the rows are taken to be like these."
    )
    report.table("Waits of the optimiser for the device, counted from the CPU's trials", waits(graph, few))
    counts(report)
    try:
        backend = get_backend("cupy")
    except DeviceUnavailableError as error:
        report.note(f"No GPU, so nothing was measured on one. {error}")
        return
    assert isinstance(backend, CupyBackend)
    report.note(f"CUDA device {backend.device}, {backend.free_memory() / 2**30:.1f} GiB free.")
    small = usps(options.data, 300 if options.quick else 1500)
    plain, better = speed(small)
    report.table(f"speed: {small.name}, two classes, {STEPS} plain CG steps of full ERR", plain)
    report.table(f"speed: preconditioned CG against those {STEPS} steps", better)
    sizes = [size for size in (QUICK_SIZES if options.quick else SIZES) if size <= options.max_points]
    fits, maps = zip(*map(scaling, sizes), strict=True)
    report.table(f"scaling: two classes on curves in space, {STEPS} plain CG steps, p = 1", fits)
    report.table(f"scaling: one energy and gradient of a map, over {CROWDED:g} σ_f and over √points σ_f", maps)
    draws = [draw_labels(data.y, LABELS, seed) for seed in range(options.seeds or (2 if options.quick else 5))]
    report.table(f"mnist: {data.name}, {LABELS} labels, {len(draws)} draws", list(labelled(graph, data.y, draws)))
    report.note("Peak MiB are of the process for the CPU, of the device for the GPU.")


def counts(report: Report) -> None:
    """What a step asks of a device."""
    if not shutil.which("g++"):
        report.note("Launches, waits and bytes were not counted: g++, which emulates the kernels, is not installed.")
        return
    report.table("Per evaluation of energy and gradient, counted without a GPU", per_evaluation())
    report.note(
        f"Counted on the tests' stand-in for CuPy at {POINTS} points. Launches of our kernels and operations of CuPy "
        "do not depend on the number of points, except over tiles (n = 10), of which there are points / 1024."
    )


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
    u, chunks = len(F), line_chunks(F, sigma_f, 1e-13)
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
            iteration_seconds(graph, few, power),
        )


def line_chunks(F: Floats, sigma_f: float, accuracy: float) -> int:
    """Passes over the modes for the box that the engine sets up: a fifth of the spread, and a bit, on either side."""
    digits = sqrt(log(1 / accuracy))
    modes = ceil(digits * sqrt(2) / pi * (1.4 * np.ptp(F) / sigma_f + 0.5 + digits / sqrt(2))) + 1
    return -(-modes // CHUNK)


def precisions(graph: KNNGraph, few: Classes) -> list[Row]:
    """Milliseconds of energy and gradient with one column, on devices whose float64 is slow."""
    F = IRRClassifier(power=2).fit(graph, few).solution_
    sigma_f, u = 2.0 * ERRClassifier.SIGMA_F, graph.n_points
    exact, mixed = (line_chunks(F, sigma_f, accuracy) for accuracy in (1e-13, MIXED_ACCURACY))
    rows: list[Row] = []
    for power in (1, 2):
        entries = graph.laplacian(power).nnz
        for points in ESTIMATED_SIZES:
            row: dict[str, Any] = {"work": f"n = 1, p = {power}", "points": points}
            for card in CARDS:
                # Operations as in `passes`; Kahan's sums take three more for each of a chunk's parts, and float64 is
                # left in the weight of an entry and in the angles of the points.
                double = exact * ((50.0 + 20.0 * CHUNK) * entries + 20.0 * CHUNK * u) / card.double
                single = mixed * ((50.0 + 26.0 * CHUNK) * entries + 20.0 * CHUNK * u) / card.single
                single += mixed * (entries + 40.0 * u) / card.double
                for name, chunks, place, arithmetic in (("float64", exact, 8, double), ("mixed", mixed, 4, single)):
                    moved = chunks * (12.0 * entries + 15.0 * place * u) / card.bandwidth
                    seconds = points / u * max(moved, arithmetic) + (10 + 7 * chunks) * LAUNCH_SECONDS
                    row[f"{card.name}, {name}: ms (estimate)"] = 1e3 * seconds
            rows.append(row)
    return rows


def uneven(graph: KNNGraph, few: Classes) -> Iterator[Pass]:
    """Energy and gradient of labels with one column and with ten, as passes over rows of unequal length."""
    works = {work.name: work for work in passes(graph, few)}
    for power in (1, 2):
        name = next(name for name in works if name.startswith("energy") and f"p = {power}" in name)
        work, L = works[name], graph.laplacian(power)
        yield Pass(f"n = 1, p = {power}", L, 1, work.bytes, work.operations, work.launches)
    L, u = graph.laplacian(), graph.n_points
    # C and GC are written once and read by four products; 30 operations an exponential.
    bytes_moved, operations = 8.0 * 6 * u * RANK, u * RANK * (60.0 + 8.0 * RANK) + 2.0 * L.nnz * RANK
    yield Pass("n = 10, p = 1", L, RANK, bytes_moved, operations, 40)


def iteration_seconds(graph: KNNGraph, few: Classes, power: int) -> float:
    """Seconds of an iteration of conjugate gradients on the CPU."""
    labels = (few >= 0).astype(np.float64)
    targets = (labels * (2.0 * few - 1.0))[:, None]
    seconds, found = timed(
        lambda: solve_irr(graph.laplacian(), labels, targets, 1e-2, power=power, method="cg", tolerance=1e-6)
    )
    return seconds / max(1, found.iterations)


def waits(graph: KNNGraph, few: Classes) -> list[Row]:
    """How often the optimiser would wait for a device, from the trials of the CPU, which are the same ones.

    The looks at the line search are counted, and the fetch of the result. Trials queued behind the last step are
    evaluations in vain.
    """
    rows: list[Row] = []
    for name, settings in (("default", {}), ("plain", PLAIN)):
        for power in (1, 2):
            seen: list[tuple[float, int, int]] = []

            def note(state: State | Start, seen: list[tuple[float, int, int]] = seen) -> None:
                if isinstance(state, State):
                    seen.append((state.gradient_norm, state.iteration, state.n_evaluations))

            classifier = make_err(power=power, callback=note, **settings).fit(graph, few)
            optimiser = DeviceCG(None, classifier.max_iter, classifier.tol)
            looks, in_vain = looks_of(optimiser, seen, classifier.n_evaluations_)
            steps = max(1, classifier.n_iter_)
            rows.append(
                {
                    "steps": f"{name}, p = {power}",
                    "number": classifier.n_iter_,
                    "trials a step": (classifier.n_evaluations_ - 1) / steps,
                    "waits a step": (looks + 1) / steps,
                    "evaluations in vain": in_vain,
                }
            )
    return rows


def looks_of(optimiser: DeviceCG, seen: list[tuple[float, int, int]], evaluations: int) -> tuple[int, int]:
    """The looks of a search that was seen so on the CPU (norm, iteration, evaluations), and its trials in vain."""
    looks, done, queued = 0, 1, optimiser.trials_ahead(1.0, 0, 0)
    while True:
        looks += 1
        done += queued
        if done >= evaluations:
            return looks, done - evaluations
        norm, iteration, _ = max((each for each in seen if each[2] <= done), key=lambda each: each[1])
        queued = optimiser.trials_ahead(norm, iteration, done)


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


def speed(data: DataSet) -> tuple[list[Row], list[Row]]:
    """The plain steps for both powers, and preconditioned ones against them."""
    graph, few = KNNGraph(metric=data.metric).fit(data.X), draw_labels(data.y, 50, seed=0)
    plain: list[Row] = []
    better: list[Row] = []
    for power in (1, 2):
        start = IRRClassifier(power=power).fit(graph, few).solution_
        plain.append({"p": power, **both(lambda name: steps(graph, few, start, name, power=power, **PLAIN))})  # noqa: B023
        better.append({"p": power, **both(lambda name: overtake(graph, few, power, name))})  # noqa: B023
    return plain, better


def scaling(points: int) -> tuple[Row, Row]:
    """The parts of a fit, and one energy of maps, at one size."""
    X, y = helices(points)
    few = draw_labels(y, points // 100, seed=0)
    graph = KNNGraph().fit(X)
    edges = (graph.laplacian().nnz - points) // 2
    F = IRRClassifier(power=1).fit(graph, few).solution_

    def parts(name: BackendName) -> dict[str, Any]:
        graph_seconds, _ = timed(lambda: KNNGraph(backend=name).fit(X))
        irr_seconds, _ = timed(lambda: IRRClassifier(power=1, backend=name).fit(graph, few))
        plain = steps(graph, few, F, name, power=1, **PLAIN)
        better = traced_fit(ERRClassifier(power=1, backend=name), graph, few, init=F)
        return {
            "graph s": graph_seconds,
            "IRR s": irr_seconds,
            f"{STEPS} ERR steps s": plain.pop("seconds"),
            **plain,
            "preconditioned, to tolerance s": better[-1].seconds,
        }

    def maps(name: BackendName) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for shape, across in (("crowded", CROWDED), ("spread", points**0.5)):
            flat = flattened(X, across)
            seconds = typical_seconds(partial(relationship_energy, flat, graph.laplacian(), sigma_f=1.0, backend=name))
            row |= {f"{shape} ms": 1e3 * seconds, f"{shape}: ns an edge": 1e9 * seconds / edges}
        return row

    return {"points": points, "edges": edges, **both(parts)}, {"points": points, "edges": edges, **both(maps)}


def flattened(X: Floats, across: float) -> Floats:
    """The curves in the plane, ``across`` σ_f wide and noisy by one σ_f."""
    F = X[:, :2] * (across / np.ptp(X[:, :2]))
    return np.ascontiguousarray(F + np.random.default_rng(0).normal(size=F.shape))


def labelled(graph: KNNGraph, y: Classes, draws: list[Classes]) -> Iterator[Row]:
    """IRR and ERR over draws of labels."""
    for power in (1, 2):
        yield {"method": f"IRR p = {power}", **both(lambda name: over(irr, graph, y, draws, name, power=power))}  # noqa: B023
        for kind, settings in (("", {}), (", plain 50 steps", PLAIN)):
            fit = partial(over, err, graph, y, draws, power=power, **settings)
            yield {"method": f"ERR p = {power}{kind}", **both(lambda name: fit(backend=name))}  # noqa: B023


def over(
    fit: Callable[..., tuple[Classes, float | None, int | None]],
    graph: KNNGraph,
    y: Classes,
    draws: list[Classes],
    backend: BackendName,
    **settings: Any,
) -> dict[str, Any]:
    """The means over draws, with the columns of ``mnist``."""
    runs = [timed(lambda: fit(graph, few, backend=backend, **settings)) for few in draws]  # noqa: B023
    errors = [error_percent(found[0], y, few) for (_, found), few in zip(runs, draws, strict=True)]
    seconds, evaluations = zip(*(found[1:] for _, found in runs), strict=True)
    return {
        "error %": float(np.mean(errors)),
        "± standard error": float(np.std(errors, ddof=1) / sqrt(len(errors))) if len(errors) > 1 else None,
        "seconds": float(np.mean([each for each, _ in runs])),
        "steps s": None if seconds[0] is None else float(np.mean(seconds)),
        "evaluations": None if evaluations[0] is None else float(np.mean(evaluations)),
    }


def make_err(kind: type[ERRClassifier] = ERRClassifier, **settings: Any) -> ERRClassifier:
    return kind(sharpen=False, **settings)


def irr(graph: KNNGraph, few: Classes, **settings: Any) -> tuple[Classes, None, None]:
    return IRRClassifier(**settings).fit(graph, few).transduction_, None, None


def err(graph: KNNGraph, few: Classes, **settings: Any) -> tuple[Classes, float, int]:
    classifier = make_err(**settings)
    trace = traced_fit(classifier, graph, few)
    return classifier.transduction_, trace[-1].seconds, trace[-1].evaluations


def steps(graph: KNNGraph, few: Classes, start: Floats, backend: BackendName, **settings: Any) -> dict[str, Any]:
    """Steps of ERR from a start."""
    trace = traced_fit(make_err(backend=backend, **settings), graph, few, init=start)
    return {
        "seconds": trace[-1].seconds,
        "evaluations": trace[-1].evaluations,
        "ms an evaluation": 1e3 * trace[-1].seconds / max(1, trace[-1].evaluations - 1),
        "energy": f"{trace[-1].energy:.10g}",
    }


def both(measure: Callable[[BackendName], Mapping[str, Any]]) -> dict[str, Any]:
    """What is measured on the CPU beside the same on the GPU, with the most memory of the process or of the device."""
    found = {}
    for short, name in BACKENDS.items():
        forget_peak()
        # One job around all: the memory that CuPy takes from the device stays taken until it ends.
        with get_backend(name).job() as backend:
            row = measure(name)
            if isinstance(backend, CupyBackend):
                peak = backend.xp.get_default_memory_pool().total_bytes() / 2**20
            else:
                peak = peak_memory()
        found[short] = {**row, "peak MiB": peak}
    return {f"{short}: {column}": row[column] for column in found["CPU"] for short, row in found.items()}
