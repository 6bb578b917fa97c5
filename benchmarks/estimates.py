"""What fits take, against what the service expects of them before it queues them."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import cpu_timed, forget_peak, isolated, peak_memory, warm_up
from benchmarks.report import Options, Report
from homophily import ERRClassifier, HomophilyWarning, IRRClassifier, KNNGraph
from homophily_service.jobs.estimates import Cost, fit_cost

MIB = 1 << 20


class Case(NamedTuple):
    """A fit of points around centres."""

    points: int
    columns: int = 20
    neighbours: int = 10
    power: int = 2
    classes: int = 2
    method: str = "err"


CASES = (
    Case(5_000),
    Case(20_000),
    Case(20_000, power=1),
    Case(20_000, power=3),
    Case(20_000, classes=10),
    Case(20_000, classes=100),
    Case(20_000, neighbours=50),
    Case(20_000, neighbours=50, method="irr"),
    Case(20_000, neighbours=200, power=1),
    Case(5_000, neighbours=200),
    Case(5_000, neighbours=1_000, power=1),
    Case(10_000, columns=500),
)
QUICK_CASES = (Case(3_000), Case(3_000, neighbours=50), Case(3_000, neighbours=200, power=1))


def run(options: Options, report: Report) -> None:
    rows: list[dict[str, Any]] = []
    for case in QUICK_CASES if options.quick else CASES:
        report.progress(str(case))
        taken, seconds = isolated(measure, case)
        expected = expectation(case)
        rows.append(
            {
                **case._asdict(),
                "MiB": taken,
                "expected MiB": expected.bytes / MIB,
                "ratio": expected.bytes / MIB / taken,
                "s": seconds,
                "expected s, at least": expected.seconds,
            }
        )
    report.table("Memory of the whole process, CPU seconds, and the service's estimates", rows)
    for row in rows:
        if not 0.8 <= row["ratio"] <= 3.0:
            report.fail(f"the estimate of memory is {row['ratio']:.1f} times that taken: {row}")
        if row["expected s, at least"] > max(1.0, row["s"]):
            report.fail(f"a fit ended before its estimate: {row}")


def expectation(case: Case) -> Cost:
    graph = {"n_neighbors": case.neighbours, "space": "input"}
    return fit_cost(
        case.points,
        case.points * case.columns,
        columns=case.columns,
        graph=graph,
        method=case.method,
        solver={"power": case.power},
        classes=case.classes,
    )


def measure(case: Case) -> tuple[float, float]:
    warnings.simplefilter("ignore", HomophilyWarning)
    warm_up()
    rng = np.random.default_rng(0)
    truth = rng.integers(0, case.classes, case.points)
    centres = 3 * rng.normal(size=(case.classes, case.columns))
    X = (centres[truth] + rng.normal(size=(case.points, case.columns))).astype(np.float32)
    y = np.full(case.points, -1)
    y[: 3 * case.classes] = np.arange(3 * case.classes) % case.classes
    forget_peak()

    def fit() -> None:
        graph = KNNGraph(n_neighbors=case.neighbours, n_jobs=1).fit(X)
        kind = ERRClassifier if case.method == "err" else IRRClassifier
        kind(power=case.power, n_jobs=1).fit(graph, y)

    seconds = cpu_timed(fit)[0]
    return peak_memory(), seconds
