"""One search for parameters, its trials spread over one worker and over three, each with one thread.

Both try the same settings for the same seed and find the same best one; three are to be sooner. What they can gain is
at most the number of cores that are free, and of groups of trials that the search asks for at a time.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.data import draw_labels, helices
from benchmarks.measure import timed
from benchmarks.report import Options, Report
from benchmarks.service import serving
from homophily_client import Client, Search
from homophily_service.storage.database import Database
from homophily_service.storage.tables import jobs

WORKERS = (1, 3)
POINTS, TRIALS = 4_000, 16
QUICK_POINTS, QUICK_TRIALS = 1_000, 6


def run(options: Options, report: Report) -> None:
    points, trials = (QUICK_POINTS, QUICK_TRIALS) if options.quick else (POINTS, TRIALS)
    rows: list[dict[str, Any]] = []
    found = []
    for workers in WORKERS:
        seconds, search = searched(workers, points, trials, report)
        found.append(outcome(search))
        alone = sum(trial.seconds for trial in search.trials)
        rows.append({"workers": workers, "seconds": seconds, "of trials": alone, "best": search.best})
    report.table(f"A search of {trials} trials on {points:,} points, spread over workers of one thread each", rows)
    ratio = rows[0]["seconds"] / rows[1]["seconds"]
    cores = len(os.sched_getaffinity(0))
    report.note(f"Three workers are {ratio:.2f} times as fast as one; the ceiling here are {cores} cores.")
    if found[0] != found[1]:
        report.fail("the trials, or the best of them, are not the same")
    # Small ones take longer to be handed over than to be computed.
    if ratio <= 1.0 and not options.quick:
        report.fail("three workers are not faster than one")


def searched(workers: int, points: int, trials: int, report: Report) -> tuple[float, Search]:
    """Seconds from submit to result, and what was found."""
    X, y = helices(points)
    few = draw_labels(y, max(20, points // 100), seed=0)
    settings = {"workers": workers, "threads": 1, "predictors": 0}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), **settings) as service,
        Client(service.target) as client,
    ):
        report.progress(f"{workers} workers warm up")
        small, classes = helices(500, seed=1)
        while len(have_computed(Path(folder))) < workers:
            for job in [client.fit(small, draw_labels(classes, 20, seed=1)) for _ in range(2 * workers)]:
                job.result()
        dataset = client.upload(X)
        report.progress(f"{workers} workers search")
        search = {"trials": trials, "seed": 0, "spread": True}
        seconds, model = timed(lambda: client.fit(dataset, few, search=search).result(timeout=3600.0))
    assert model.search is not None
    return seconds, model.search


def have_computed(folder: Path) -> set[str]:
    """The workers that have ended a job."""
    database = Database(f"sqlite:///{folder / 'homophily.db'}")
    with database.read() as connection:
        found = set(connection.scalars(select(jobs.c.worker).where(jobs.c.finished.is_not(None))))
    database.close()
    return found


def outcome(search: Search) -> Any:
    """What must not depend on how many workers there were: the settings, their errors and scores, the best."""
    tried = [(one.number, one.stage, one.graph, one.solver) for one in search.trials]
    judged = [(one.error_rate, one.score, one.pruned) for one in search.trials]
    return tried, judged, search.best
