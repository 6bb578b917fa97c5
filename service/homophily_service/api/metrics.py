"""Metrics of the service on all machines, which the API reads from the database.

Every API reports the same values for jobs and stored data: take the maximum over them, not the sum. Counters and
histograms of jobs start with the process, like those of calls; each ended job is counted once, from its row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from homophily_service.contract.errors import Unavailable
from homophily_service.contract.kinds import KINDS
from homophily_service.contract.states import SUCCEEDED
from homophily_service.runtime.devices import Devices
from homophily_service.storage.database import Database
from homophily_service.storage.records import EndedJob
from homophily_service.storage.statistics import backlog, ended_after
from homophily_service.storage.stores import Stores

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
# A job may appear this long after its end time: its row is visible when the transaction ends.
LATE_SECONDS = 60.0


class ServiceMetrics(Collector):
    """Metrics that are read from the database when Prometheus asks."""

    def __init__(self, stores: Stores, *, tracks: bool = True) -> None:
        self.stores, self.ended, self.devices = stores, EndedJobs(stores.database), DeviceMetrics()
        self.tracks = tracks

    def collect(self) -> Iterable[Metric]:
        """The metrics; while the database is down, only that it is."""
        up = GaugeMetricFamily("homophily_database_up", "Whether the database answers")
        yield from self.devices.collect()
        try:
            known = list(self._of_database())
        except Unavailable:
            known = []
        up.add_metric([], float(bool(known)))
        yield up
        yield from known

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not ask the database."""
        return []

    def _of_database(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("homophily_jobs", "Jobs that are on record", labels=["state", "kind"])
        for state, kind, count in self.stores.queue.depths():
            jobs.add_metric([state, kind], count)
        yield jobs
        oldest, untracked, given_up = backlog(self.stores.database)
        yield GaugeMetricFamily("homophily_oldest_queued_seconds", "Age of the job that waits longest", value=oldest)
        # Without a tracker none of them is late; they stay marked until there is one.
        behind = untracked if self.tracks else 0
        yield GaugeMetricFamily("homophily_untracked_jobs", "Jobs whose runs in MLflow are behind", behind)
        yield GaugeMetricFamily("homophily_tracking_given_up_jobs", "Jobs whose runs are no longer sent", given_up)
        stored = GaugeMetricFamily("homophily_stored_bytes", "Bytes of what is recorded", labels=["collection"])
        for collection, size in self.stores.catalog.stored_bytes():
            stored.add_metric([collection], size)
        yield stored
        yield from self.ended.collect()


class EndedJobs:
    """Counts jobs that end from now on, on any machine."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._lock = threading.Lock()
        self._begin: float | None = None
        self._seen: dict[int, float] = {}
        self._last = 0.0
        more: dict[str, Any] = {"registry": None}
        self.jobs = Counter("homophily_jobs_ended_total", "Jobs that have ended", ["kind", "state"], **more)
        self.attempts = Counter("homophily_job_attempts_total", "Starts of jobs that have ended", ["kind"], **more)
        self.wait = Histogram(
            "homophily_job_wait_seconds", "From a job's request to its first start", ["kind"], buckets=SECONDS, **more
        )
        self.run = Histogram(
            "homophily_job_run_seconds", "A job's last attempt", ["kind", "state"], buckets=SECONDS, **more
        )
        self.evaluations = Counter(
            "homophily_energy_evaluations_total", "Evaluations of the energy by solvers", ["kind", "engine"], **more
        )
        self.solving = Counter("homophily_solve_seconds_total", "Seconds within solvers", ["kind", "engine"], **more)
        self.phases = Counter(
            "homophily_phase_seconds_total", "Seconds within the phases of jobs", ["kind", "phase"], **more
        )
        self.memory = Histogram(
            "homophily_job_peak_memory_bytes",
            "Most memory of the process that computed a job",
            ["kind"],
            buckets=[2.0**power for power in range(27, 40)],
            **more,
        )

    def collect(self) -> Iterator[Metric]:
        """Count the jobs that have ended since the last time, and return the metrics."""
        with self._lock:
            self._follow()
            for metric in (
                self.jobs,
                self.attempts,
                self.wait,
                self.run,
                self.evaluations,
                self.solving,
                self.phases,
                self.memory,
            ):
                yield from metric.collect()

    def begin(self) -> None:
        """Count from now on."""
        self._begin = self._last = self.database.time()

    def _follow(self) -> None:
        if self._begin is None:
            self.begin()
        assert self._begin is not None
        since = max(self._begin, self._last - LATE_SECONDS)
        after = (since, 0)
        while rows := ended_after(self.database, *after):
            for row in rows:
                if row.number not in self._seen:
                    self._seen[row.number] = row.finished
                    self._count(row)
            after = (rows[-1].finished, rows[-1].number)
            self._last = max(self._last, rows[-1].finished)
        oldest = self._last - LATE_SECONDS
        self._seen = {number: finished for number, finished in self._seen.items() if finished >= oldest}

    def _count(self, row: EndedJob) -> None:
        self.jobs.labels(row.kind, row.state).inc()
        self.attempts.labels(row.kind).inc(row.attempt)
        if row.first_started is not None:
            self.wait.labels(row.kind).observe(max(0.0, row.first_started - row.created))
            self.run.labels(row.kind, row.state).observe(max(0.0, row.finished - (row.started or row.finished)))
        kind = KINDS.get(row.kind)
        if kind is None or not kind.is_tracked or row.state != SUCCEEDED:
            return
        made = kind.fitted(row.outcome)
        assert made is not None
        engine = made.engine or "none"
        self.evaluations.labels(row.kind, engine).inc(made.evaluation_count)
        self.solving.labels(row.kind, engine).inc(made.seconds.get("solve", 0.0))
        for phase, seconds in made.seconds.items():
            self.phases.labels(row.kind, phase).inc(seconds)
        if made.peak_memory_bytes:
            self.memory.labels(row.kind).observe(made.peak_memory_bytes)


class DeviceMetrics(Collector):
    """The memory of this machine's devices, if it has any."""

    def __init__(self, devices: Devices | None = None) -> None:
        self.devices = devices or Devices()

    def collect(self) -> Iterable[Metric]:
        """Used and total bytes."""
        gauge = GaugeMetricFamily(
            "homophily_device_memory_bytes",
            "Memory of a device, in total and used by all processes",
            labels=["device", "kind"],
        )
        for found in self.devices.memory():
            gauge.add_metric([found.device, "used"], found.used)
            gauge.add_metric([found.device, "total"], found.total)
        if gauge.samples:
            yield gauge
