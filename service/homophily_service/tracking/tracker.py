"""The tracker: a process that keeps the jobs' runs in MLflow up to date, beside the API or by `homophily tracker`.

It may be killed at any moment, and is killed when the service stops: what it has not sent is still marked in the
database, and may be sent again. Nobody waits for it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from homophily_service.contract.errors import FailedPrecondition, Unavailable
from homophily_service.contract.kinds import KINDS
from homophily_service.runtime.logs import job_name, start_logging
from homophily_service.runtime.processes import begin, limit_memory
from homophily_service.runtime.settings import Settings, has_mlflow
from homophily_service.runtime.start import imports
from homophily_service.storage.outbox import MOST_ATTEMPTS, LeaderLock, Outbox
from homophily_service.storage.stores import Stores
from homophily_service.tracking.follow import follow
from homophily_service.tracking.place import Place, connect

if TYPE_CHECKING:
    from homophily_service.tracking.sender import Sender

_log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
AT_ONCE = 100
# Seconds to wait for an MLflow that does not answer, at first and at most; and at most for a job that it refuses.
FIRST_PAUSE, LONGEST_PAUSE, LONGEST_REFUSAL = 0.5, 10.0, 600.0
# Behind all processes that answer calls.
NICENESS = 5


class Tracker:
    """Looks for jobs whose runs are behind, and sends what is missing."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.stores = settings, Stores.open(settings)
        self.outbox, self.lock = Outbox(self.stores.database), LeaderLock(self.stores.database)
        self._sender: Sender | None = None
        self._pause = 0.0
        # Jobs that this process has begun to send and not finished.
        self._begun: set[int] = set()
        # Jobs that MLflow refuses although it answers: how often, and when to try again.
        self._refused: dict[int, tuple[int, float]] = {}
        # When to look next whether an alias has moved.
        self._look_at = 0.0
        self._told: dict[str, str] = {}

    def run(self) -> None:
        """Run until killed."""
        is_migrated = False
        while True:
            try:
                if not is_migrated:
                    self.stores.database.check_is_new_enough()
                    is_migrated = True
                self.round()
            except Unavailable as error:
                _log.warning("waiting for the database: %s", error.message)
                self._pause = LONGEST_PAUSE / 5
            except Exception:
                _log.exception("internal error while tracking, trying again")
                self._pause = LONGEST_PAUSE
            time.sleep(self._pause or POLL_SECONDS)

    def round(self) -> int:
        """Send what there is to send; returns how many jobs were brought up to date."""
        if not self.lock.is_held():
            return 0
        self.outbox.clear_irrelevant([kind.name for kind in KINDS.values() if kind.is_tracked])
        if not self._end_runs():
            return 0
        self._follow_aliases()
        now, done = time.monotonic(), 0
        jobs = self.outbox.waiting(AT_ONCE + len(self._refused))
        self._refused = {job.number: self._refused[job.number] for job in jobs if job.number in self._refused}
        for job in jobs:
            if job.number in self._refused and self._refused[job.number][1] > now:
                continue
            job_name.set(f"projects/{job.project}/jobs/{job.id}")
            if job.tracking_attempts >= MOST_ATTEMPTS:
                _log.error("the run is given up: the tracker was lost %d times while sending it", job.tracking_attempts)
                self.outbox.give_up(job.number)
                continue
            try:
                sender = self._connected()
                self._begin(job.number)
                sender.send(job)
                self._reset_attempts(job.number)
            except Unavailable:
                raise
            except Exception as error:
                if isinstance(error, MemoryError):
                    # It counts as lost: the next attempt is counted again.
                    self._begun.discard(job.number)
                else:
                    self._reset_attempts(job.number)
                if not self._note_failure(job.number, error):
                    return done
            else:
                self._refused.pop(job.number, None)
                self._pause = 0.0
                done += 1
            finally:
                job_name.set("")
        return done

    def _end_runs(self) -> bool:
        """End the runs of deleted jobs; False if MLflow does not answer."""
        for deleted in self.outbox.runs_to_end(AT_ONCE):
            try:
                self._connected().end(deleted)
            except Exception as error:
                self._note_silence(error)
                return False
            self.outbox.run_ended(deleted.run)
            self._pause = 0.0
        return True

    def _follow_aliases(self) -> None:
        """Import the models of aliases that have moved, if it is time to look."""
        if not self.settings.follow_aliases or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self.settings.follow_seconds
        try:
            follow(self._connected().client, self.settings, self.stores, self._told)
        except Unavailable:
            raise
        except Exception as error:
            _log.warning(
                "aliases cannot be followed, next try in %g s: %s", self.settings.follow_seconds, self._short(error)
            )

    def _begin(self, number: int) -> None:
        """Count the attempt, once per process: the count grows only if the process is lost."""
        if number not in self._begun:
            self.outbox.begin(number)
            self._begun.add(number)

    def _reset_attempts(self, number: int) -> None:
        self.outbox.reset_attempts(number)
        self._begun.discard(number)

    def _connected(self) -> Sender:
        if self._sender is None:
            # Connect late: MLflow takes seconds and a few hundred megabytes, which an idle service does not need.
            with imports():
                client = connect(self.settings)
                from homophily_service.tracking.sender import Sender

            self._sender = Sender(client, self.settings, self.stores, self.lock.is_held)
        return self._sender

    def _note_failure(self, number: int, error: Exception) -> bool:
        """Log a failure and plan the next try; False if the cause is MLflow, not the job."""
        if self._sender is None or not self._sender.answers():
            self._note_silence(error)
            return False
        refusals = self._refused.get(number, (0, 0.0))[0] + 1
        pause = min(LONGEST_REFUSAL, FIRST_PAUSE * 2.0**refusals)
        self._refused[number] = (refusals, time.monotonic() + pause)
        # The first time with the traceback.
        _log.warning("the run is behind, next try in %g s: %s", pause, self._short(error), exc_info=refusals == 1)
        return True

    def _note_silence(self, error: Exception) -> None:
        """Log that MLflow does not answer, and wait longer each time."""
        self._pause = min(LONGEST_PAUSE, 2 * self._pause or FIRST_PAUSE)
        _log.warning("MLflow does not answer, next try in %g s: %s", self._pause, self._short(error))

    def _short(self, error: Exception) -> str:
        """The sentence of an error, without secrets."""
        place = Place.of(self.settings)
        return " ".join(str(error).split())[:300].replace(place.uri, place.shown)


def main() -> None:
    """Start as a process of `homophily serve`."""
    connection, settings = begin()
    start_logging(settings.log_level)
    # MLflow prints, and the server's output may be a pipe that nobody reads.
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if has_mlflow():
        _track(settings)
    _log.info("tracking is off: MLflow is not installed (pip install 'homophily[tracking]')")
    # Wait until the server ends; it would restart this process.
    connection.poll(None)


def run_tracker(settings: Settings) -> None:
    """A tracker as a process of its own, until SIGTERM or SIGINT."""
    if not (settings.tracking and has_mlflow()):
        raise FailedPrecondition("there is nothing to track: `tracking` is off, or MLflow is not installed")
    for number in (signal.SIGTERM, signal.SIGINT):
        # Exit at once: nothing is lost. Without a handler, the first process of a container would ignore SIGTERM.
        signal.signal(number, lambda *_: os._exit(0))
    _track(settings)


def _track(settings: Settings) -> None:
    os.nice(NICENESS)
    limit_memory(settings.tracking_memory_bytes)
    _log.info("tracking every job as a run in %s", Place.of(settings).shown)
    Tracker(settings).run()
