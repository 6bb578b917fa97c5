"""The worker: claims jobs, has a child process compute them, and holds the lease meanwhile.

It computes nothing itself, so its heartbeat never stops for a long computation. The child is killed when the job is
cancelled, runs out of time or is lost to another worker, and is otherwise used again.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from homophily_client._pb import job_pb2
from homophily_client.names import JobName
from homophily_service.contract.errors import DeviceFailed, LimitExceeded, ServiceError, TimeLimit, Unavailable
from homophily_service.contract.internal_pb2 import Answer, Waiting
from homophily_service.contract.job_errors import job_error, lost_too_often
from homophily_service.contract.kinds import KINDS, TRIAL
from homophily_service.contract.tasks import Task, encode_trial
from homophily_service.runtime import processes
from homophily_service.runtime.logs import about, start_logging
from homophily_service.runtime.settings import Settings
from homophily_service.runtime.telemetry import JobSpans, start_traces
from homophily_service.storage.records import Lease, LeaseLost, NewJob
from homophily_service.storage.stores import Stores

_log = logging.getLogger(__name__)

# How often a running job's lease is renewed and its cancellation looked for.
HEARTBEAT_SECONDS = 0.5
# How long to wait before trying again: a store that does not answer, or a child that could not start.
PAUSE_SECONDS = 1.0
# After this number of failures in a row, a device rests; meanwhile other workers take the jobs.
FAILURES_IN_A_ROW = 2
REST_SECONDS = 60.0
T = TypeVar("T")


class ChildLost(Exception):
    """The child process ended by itself."""


class Worker:
    """Runs until :meth:`stop` is called, in one thread: the kernel kills children with the thread that started them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stores = Stores.open(settings)
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        # Plain values rather than an Event: a signal handler must not wait for a lock that its own thread holds.
        self.stopping = False
        self.stop_at = float("inf")
        self.child: _Child | None = None
        # How often in a row a job has ended as its device failed, and until when the device rests.
        self.device_failures = 0
        self.rests_until = 0.0
        self.traces = start_traces(settings, "worker")
        self.spans: JobSpans | None = None
        # When it last looked for work, renewed its lease or tried to start a child: its age shows whether the worker
        # is alive.
        self.beat = time.monotonic()
        self.busy = False

    @property
    def is_ready(self) -> bool:
        """Whether there is a child that can compute; there is none if its device is missing."""
        return (child := self.child) is not None and bool(child.kinds)

    def stop(self) -> None:
        """Take no more jobs, and give the running one back when the grace time is over."""
        self.stop_at = min(self.stop_at, time.monotonic() + self.settings.shutdown_grace)
        self.stopping = True

    def run(self) -> None:
        """Claim and compute until stopped."""
        _log.info("worker %s started", self.name)
        try:
            # The API migrates the database, and may start later.
            self._through_outages(self.stores.database.check_is_new_enough)
            while (child := self._ready_child()) is not None:
                self.beat = time.monotonic()
                lease = self._through_outages(lambda: self._claim(child.kinds))
                if lease is None:
                    time.sleep(self.settings.poll_seconds)
                else:
                    lease = self._begin_spans(lease)
                    self.busy = True
                    about(lease)
                    self._work(lease, child)
                    about(None)
                    self.busy = False
        finally:
            if self.child is not None:
                self.child.kill()
            self.stores.close()
            _log.info("worker %s stopped", self.name)
            if self.traces is not None:
                self.traces.stop()

    def _claim(self, kinds: list[str]) -> Lease | None:
        # It may have been stopped during an outage.
        if self.stopping:
            return None
        settings = self.settings
        return self.stores.queue.claim(
            self.name, kinds, settings.lease_seconds, lost_too_often(), settings.max_running_of
        )

    def _begin_spans(self, lease: Lease) -> Lease:
        """Begin a job's spans, if its call was traced; spans of its own jobs are below its run."""
        if self.traces is None or not lease.trace:
            return lease
        waited = self._unless_outage(lambda: self.stores.queue.waited(lease)) or 0.0
        attributes: dict[str, str | int] = {
            "homophily.job": str(lease.name),
            "homophily.kind": lease.kind,
            "homophily.attempt": lease.attempt,
        }
        self.spans = JobSpans(self.traces, lease.trace, waited, attributes)
        return lease._replace(trace=self.spans.traceparent)

    def _end_spans(self, lease: Lease | None) -> None:
        """End a job's spans with its current state; without a lease, another worker has the job."""
        if self.spans is None:
            return
        states: dict[int, tuple[int, str]] = {}
        if lease is not None:
            states = self._unless_outage(lambda: self.stores.queue.versions([lease.number])) or {}
        self.spans.end("lost" if lease is None else states.get(lease.number, (0, "unknown"))[1])
        self.spans = None

    def _ready_child(self) -> _Child | None:
        """The warm child; None if the worker is stopped before there is one."""
        while not self.stopping:
            self.beat = time.monotonic()
            if self.beat < self.rests_until:
                time.sleep(min(PAUSE_SECONDS, self.rests_until - self.beat))
                continue
            if self.child is None or self.child.jobs >= self.settings.child_jobs:
                if self.child is not None:
                    self.child.kill()
                self.child = _Child(self.settings)
            try:
                if self.child.is_ready(0.2):
                    return self.child
            except ChildLost:
                _log.error("the child process ended by itself")
                self.child.kill()
                self.child = None
                time.sleep(PAUSE_SECONDS)
        return None

    def _work(self, lease: Lease, child: _Child) -> None:
        began = time.monotonic()
        try:
            end = self._follow(lease, child)
            self._through_outages(end)
            self._end_spans(lease)
        except LeaseLost:
            _log.warning("the lease is lost: another worker has the job, or it was ended")
            self._end_spans(None)
        _log.info("job ended after %.2f s", time.monotonic() - began)

    def _follow(self, lease: Lease, child: _Child) -> Callable[[], None]:
        """Watch the child compute; returns the function that records the outcome."""
        queue = self.stores.queue
        deadline = time.monotonic() + lease.time_limit
        beat = time.monotonic() + HEARTBEAT_SECONDS
        try:
            child.begin(_task(lease))
            _log.info("job started, attempt %d", lease.attempt)
            while True:
                answer = child.receive(max(0.0, min(beat, deadline, self.stop_at) - time.monotonic()))
                if answer is not None:
                    if answer.HasField("progress"):
                        self._report(lease, answer.progress)
                    else:
                        return self._end(lease, answer)
                now = self.beat = time.monotonic()
                if now >= beat:
                    beat = now + HEARTBEAT_SECONDS
                    if self._unless_outage(lambda: queue.renew(lease, self.settings.lease_seconds)):
                        self._drop_child()
                        return lambda: queue.cancelled(lease)
                if now >= deadline:
                    self._drop_child()
                    error = TimeLimit(f"the attempt took longer than its time limit of {lease.time_limit:g} s")
                    return lambda: queue.fail(lease, job_error(error).SerializeToString(), error.message)
                if now >= self.stop_at:
                    self._drop_child()
                    return lambda: queue.release(lease, "given back: its worker is stopping", charged=False)
        except LeaseLost:
            self._drop_child()
            raise
        except ChildLost:
            self._drop_child()
            _log.warning("the child process was lost")
            return lambda: queue.release(lease, "the process that computed it was lost", charged=True)

    def _report(self, lease: Lease, progress: job_pb2.Progress) -> None:
        self._unless_outage(lambda: self.stores.queue.report(lease, progress.SerializeToString()))
        if self.spans is not None:
            self.spans.enter(progress.phase)

    def _end(self, lease: Lease, answer: Answer) -> Callable[[], None]:
        """The function that records the outcome of a job that the child has finished."""
        if answer.error.reason == DeviceFailed.reason:
            self._note_failure()
        elif not answer.HasField("error"):
            self.device_failures = 0
        if answer.HasField("result"):
            return lambda: self._succeed(lease, answer.result)
        if answer.HasField("waiting"):
            return lambda: self._wait(lease, answer.waiting)
        error = answer.error
        if error.code == Unavailable.code.value[0] and lease.attempt < lease.max_attempts:
            return lambda: self._try_later(lease, error.message)
        return lambda: self.stores.queue.fail(lease, error.SerializeToString(), error.message)

    def _note_failure(self) -> None:
        """Start another child; without one, while its device rests, the worker is not ready."""
        self._drop_child()
        self.device_failures += 1
        if self.device_failures >= FAILURES_IN_A_ROW:
            _log.error("the device failed %d times in a row: no jobs for %g s", self.device_failures, REST_SECONDS)
            self.rests_until = time.monotonic() + REST_SECONDS

    def _succeed(self, lease: Lease, outcome: bytes) -> None:
        """Finish, and publish the model or the embedding in the same transaction."""
        kind = KINDS[lease.kind]
        made = kind.made(outcome)
        try:
            if made is None or kind.makes is None:
                self.stores.queue.finish(lease, outcome)
                return
            name, path = kind.makes.parse(made.name, "name"), _task(lease).result_path
            fitted = kind.fitted(outcome)
            graph, dataset = (None, None) if fitted is None else (fitted.graph.digest, fitted.dataset or None)
            self.stores.queue.finish(
                lease,
                outcome,
                lambda connection: self.stores.catalog.add(
                    connection,
                    name,
                    made.SerializeToString(),
                    path,
                    graph=graph,
                    dataset=dataset,
                    size=made.size_bytes,
                ),
            )
        except Unavailable:
            raise
        except ServiceError as error:
            # For example, a model_id that was taken meanwhile.
            self.stores.queue.fail(lease, job_error(error).SerializeToString(), error.message)

    def _wait(self, lease: Lease, waiting: Waiting) -> None:
        """Queue the jobs that the job has to wait for."""
        jobs = [
            NewJob(
                JobName(lease.name.project, trial.id),
                TRIAL.name,
                encode_trial(trial.request),
                max_attempts=self.settings.max_attempts,
                time_limit=lease.time_limit,
                origin=lease.origin,
                trace=lease.trace,
                source_digest=lease.source_digest,
            )
            for trial in waiting.trials
        ]
        limits = self.settings.limits_of(lease.name.project)
        try:
            self.stores.queue.wait_for(lease, jobs, waiting.message, limits.max_queued_jobs, limits.max_jobs_per_day)
        except LimitExceeded as error:
            self.stores.queue.fail(lease, job_error(error).SerializeToString(), error.message)

    def _try_later(self, lease: Lease, message: str) -> None:
        """Give back a job whose stores did not answer, after a pause in which they may recover."""
        time.sleep(PAUSE_SECONDS)
        self.stores.queue.release(lease, f"given back: {message}", charged=True)

    def _through_outages(self, write: Callable[[], T]) -> T | None:
        """Call a function, again until the database answers; None if the worker is stopped before."""
        pause = 0.1
        while True:
            self.beat = time.monotonic()
            try:
                return write()
            except Unavailable as error:
                _log.warning("waiting for the database: %s", error.message)
                if time.monotonic() >= self.stop_at:
                    return None
                time.sleep(pause)
                pause = min(2.0, 2 * pause)

    def _unless_outage(self, write: Callable[[], T]) -> T | None:
        """Call a function, or skip it if the database is down: the next heartbeat tries again."""
        try:
            return write()
        except Unavailable as error:
            _log.warning("the database is down: %s", error.message)
            return None

    def _drop_child(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child = None


def _task(lease: Lease) -> Task:
    return Task(lease.name, lease.kind, lease.request, lease.token, lease.origin, lease.trace, lease.source_digest)


class _Child:
    """The child process, and our end of its socket."""

    def __init__(self, settings: Settings) -> None:
        self.process, ours = processes.start(
            "homophily_service.worker.child", settings, processes.fair_threads(settings)
        )
        self.connection: Connection = Connection(ours.detach())
        # The kinds of job that it knows, once it is ready.
        self.kinds: list[str] = []
        self.jobs = 0

    def is_ready(self, wait: float) -> bool:
        if self.kinds:
            if self.process.poll() is not None:
                raise ChildLost
        elif (answer := self.receive(wait)) is not None and answer.HasField("ready"):
            self.kinds = list(answer.ready.kinds)
        return bool(self.kinds)

    def begin(self, task: Task) -> None:
        self.jobs += 1
        try:
            self.connection.send_bytes(task.encode())
        except OSError as error:
            raise ChildLost from error

    def receive(self, wait: float) -> Answer | None:
        """The next answer, or None after ``wait`` seconds."""
        try:
            return Answer.FromString(self.connection.recv_bytes()) if self.connection.poll(wait) else None
        except (EOFError, OSError) as error:
            raise ChildLost from error

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


def main() -> None:
    """A worker as a process of `homophily serve`: it drains when the server ends."""
    connection, settings = processes.begin(signal.SIGTERM)
    start_logging(settings.log_level)
    run_worker(settings)
    connection.close()


def run_worker(settings: Settings, started: Callable[[Worker], object] | None = None) -> None:
    """A worker as a process of its own: SIGTERM and SIGINT stop it; ``started`` is called before it works."""
    # Of a list of devices, which is for several workers, one worker has the first.
    worker = Worker(settings.of_worker(0))
    if started is not None:
        started(worker)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    worker.run()
