"""Time, memory and processes: how the benchmarks measure, not what."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from joblib.externals.loky import ProcessPoolExecutor

from homophily import ERRClassifier, IRRClassifier
from homophily.estimators.classifiers import Start
from homophily.solve.nonlinear_cg import State

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_STATUS = Path("/proc/self/status")
_forgotten: list[float] = []


class PlainERR(ERRClassifier):
    """ERR by nonlinear conjugate gradients without a preconditioner, as the paper has it."""

    preconditioned = False


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of one call, and what it returned."""
    began = perf_counter()
    result = function()
    return perf_counter() - began, result


def cpu_timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """CPU seconds of one call, those of all threads together: other work on the machine hardly changes them."""
    began = process_time()
    result = function()
    return process_time() - began, result


def typical_seconds(function: Callable[[], object], *, budget: float = 1.0, least: int = 3) -> float:
    """Median seconds of a call that is repeated for about ``budget`` seconds, after one call to warm up."""
    function()
    seconds = [timed(function)[0] for _ in range(least)]
    while sum(seconds) < budget:
        seconds.append(timed(function)[0])
    return median(seconds)


def peak_memory() -> float:
    """MiB this process has held at most, since it began or since :func:`forget_peak`."""
    # ru_maxrss would count what the parent held when it started this process; the kernel's own mark does not.
    marks = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM")] if _STATUS.exists() else []
    kibibytes = int(marks[0].split()[1]) if marks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes / 1024


def forget_peak() -> None:
    """Let :func:`peak_memory` count from what is held now, where the kernel allows it."""
    _forgotten.append(peak_memory())
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def highest_memory() -> float:
    """MiB this process has held at most in its life."""
    return max(peak_memory(), *_forgotten, 0.0)


def isolated(function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Call a module's function in a fresh process, whose memory is its own."""
    # Python's own does not start from a process that loky began, as those of the tables are.
    with ProcessPoolExecutor(1) as pool:
        result: Result = pool.submit(function, *args, **kwargs).result()
        return result


class Moment(NamedTuple):
    """The optimiser after a step."""

    seconds: float
    evaluations: int
    energy: float


def traced_fit(
    classifier: ERRClassifier, X: Any, y: Any, init: Any = None, clock: Callable[[], float] = perf_counter
) -> list[Moment]:
    """Fit, and tell the moments from the first evaluation (0 seconds) to the end of the fit."""
    trace: list[Moment] = []
    began = 0.0

    def note(state: State | Start) -> None:
        nonlocal began
        if isinstance(state, Start):
            return
        began = began or clock()
        trace.append(Moment(clock() - began, state.n_evaluations, state.energy))

    classifier.set_params(callback=note).fit(X, y, init=init)
    # A step that ends the search is not shown to the callback.
    if trace[-1].evaluations < classifier.n_evaluations_:
        trace.append(Moment(clock() - began, classifier.n_evaluations_, classifier.energy_))
    return trace


def moment_below(trace: list[Moment], energy: float) -> Moment | None:
    """The first moment with at most this energy."""
    return next((moment for moment in trace if moment.energy <= energy), None)


def warm_up() -> None:
    """Load every compiled kernel of a two-class fit, so that no timing contains it."""
    X = np.random.default_rng(0).normal(size=(400, 3))
    y = np.full(400, -1)
    y[:20] = X[:20, 0] > 0
    for power in (1, 2):
        IRRClassifier(power=power).fit(X, y)
        ERRClassifier(power=power, max_iter=2, tol=0.0).fit(X, y)


def growth(sizes: list[float], values: list[float]) -> float:
    """The exponent b of values ≈ a·sizes^b, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
