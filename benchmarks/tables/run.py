"""Compute the cells of a table in several processes, and keep each as soon as it is done."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.tables.cells import Cell, Plan, Record, Records, Result, Store, missing

Compute = Callable[[Cell, Path | None], Result]
"""A cell's figures, from the cell and the folder of the data sets: a function of a module, for other processes."""

STAND_IN = "stand-in"
"""The folder of records that are of no real data."""

FAILED = "failed"
"""In a result instead of an error: why another package's method gave none."""


@dataclass(frozen=True)
class Options:
    """The command line's choices."""

    data: Path | None = None
    seeds: int | None = None
    jobs: int = 1
    quick: bool = False
    mlflow: str | None = None
    results: Path = Path(__file__).parents[1] / "results"

    @property
    def folder(self) -> Path:
        """Where records are kept; those of stand-ins are apart."""
        return self.results if self.data is not None else self.results / STAND_IN

    def store(self, table: str) -> Store:
        """The records of a table."""
        return Store(self.folder / f"{table}.jsonl")


class Outcome(NamedTuple):
    """How a run ended."""

    computed: int
    broken: int
    """Cells that raised an error: not kept, so that the next run tries them again."""
    stopped: bool = False


def run_cells(
    plan: Plan,
    compute: Compute,
    store: Store,
    options: Options,
    on_record: Callable[[Record], object] | None = None,
) -> Outcome:
    """Compute every cell of the plan that has no record, and the cells that the plan then has, until none is missing.

    Ctrl-C ends it at once: what is finished is kept.
    """
    records = store.read()
    broken: set[str] = set()
    computed = 0
    while wanted := [cell for cell in missing(plan(records), records) if cell.key not in broken]:
        progress = Progress(wanted, records, options.jobs)
        answers = _answers(wanted, compute, options)
        try:
            for cell, answer, seconds in answers:
                if isinstance(answer, str):
                    broken.add(cell.key)
                    progress.tell(cell, f"BROKEN\n{answer}", seconds)
                    continue
                record = store.append(cell, answer, seconds)
                records[cell.key] = record
                computed += 1
                progress.tell(cell, _summary(answer), seconds)
                if on_record is not None:
                    on_record(record)
        except KeyboardInterrupt:
            answers.close()
            print(f"\nStopped. {computed} cells are kept; the same command goes on from there.", file=sys.stderr)
            return Outcome(computed, len(broken), stopped=True)
    return Outcome(computed, len(broken))


def _answers(
    cells: list[Cell], compute: Compute, options: Options
) -> Generator[tuple[Cell, Result | str, float], None, None]:
    """Cells as they are done, with their result or what they raised; closed early, it ends the processes it began."""
    if options.jobs == 1 or len(cells) == 1:
        for cell in cells:
            yield cell, *answer(compute, cell, options.data)
        return
    from joblib.externals.loky import ProcessPoolExecutor

    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
    limits = dict.fromkeys(counts, threads)
    pool = ProcessPoolExecutor(options.jobs, env=limits, initializer=_ignore_interrupts)
    # No more are handed over than are computed at once, so that a stop finds nothing on its way.
    waiting = iter(cells)
    running: dict[Future[tuple[Result | str, float]], Cell] = {}

    def submit(count: int) -> None:
        with _interrupts_held():
            for cell in islice(waiting, count):
                running[pool.submit(answer, compute, cell, options.data)] = cell

    # Python 3.11's tracker lets Ctrl-C through again when it is begun, and the first process would begin it.
    resource_tracker.ensure_running()
    try:
        submit(options.jobs)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                submit(1)
                yield cell, *future.result()
    finally:
        if running:
            threading.excepthook = _unless_of_pool
        pool.shutdown(wait=True, kill_workers=bool(running))


def _unless_of_pool(failure: threading.ExceptHookArgs) -> None:
    """Report a thread's failure, unless it is loky's own, which may look for work that a stop has just dropped."""
    if failure.thread is None or "ExecutorManager" not in type(failure.thread).__name__:
        threading.__excepthook__(failure)


def answer(compute: Compute, cell: Cell, folder: Path | None) -> tuple[Result | str, float]:
    """The result of a cell, or what it raised, and the seconds of it all."""
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # Components without a label, steps that ran out: counted in the error like everything else.
            warnings.simplefilter("ignore")
            return compute(cell, folder), time.perf_counter() - began
    except Exception:
        return traceback.format_exc(), time.perf_counter() - began


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that begin meanwhile do not see Ctrl-C, which reaches all of a terminal: one of them is to answer it.

    Held back, not ignored, which would lose one that comes just then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupts() -> None:
    """The same for a process that is begun later, in place of one that ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _summary(result: Result) -> str:
    if FAILED in result:
        return f"{FAILED}: {result[FAILED]}"
    named = ("error", "best", "IRR", "ERR")
    return ", ".join(f"{name} {result[name]:.2f}" for name in named if result.get(name) is not None)


class Progress:
    """Says on the error stream how far a run is, and how long the rest may take."""

    def __init__(self, cells: list[Cell], records: Records, jobs: int) -> None:
        self.total, self.jobs = len(cells), jobs
        self.left = {cell.key: cell for cell in cells}
        self.taken: dict[tuple[str, ...], list[float]] = {}
        for record in records.values():
            self._learn(record.cell, record.seconds)
        self.began = time.perf_counter()

    def tell(self, cell: Cell, text: str, seconds: float) -> None:
        """A cell is done, and took so long."""
        now = time.perf_counter()
        self._learn(cell, seconds)
        self.left.pop(cell.key, None)
        done = self.total - len(self.left)
        left = f"about {clock(self.seconds_left())} left" if self.left else "done"
        print(f"[{done}/{self.total} {clock(now - self.began)}, {left}] {cell}: {text}", file=sys.stderr, flush=True)

    def seconds_left(self) -> float:
        """By the mean of cells of the same method and data, else of the same data, else of all."""
        return sum(self._expected(cell) for cell in self.left.values()) / self.jobs

    def _learn(self, cell: Cell, seconds: float) -> None:
        for kind in ((cell.data, cell.method), (cell.data,), ()):
            self.taken.setdefault(kind, []).append(seconds)

    def _expected(self, cell: Cell) -> float:
        for kind in ((cell.data, cell.method), (cell.data,), ()):
            if kind in self.taken:
                return fmean(self.taken[kind])
        return 0.0


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
