"""The marks that tell the tracker what to send, over every database; and whose turn it is to send."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, insert

from homophily_client.names import JobName, new_id
from homophily_service.api import server
from homophily_service.contract.errors import FailedPrecondition
from homophily_service.contract.kinds import KINDS
from homophily_service.runtime.settings import Settings
from homophily_service.storage.database import Database
from homophily_service.storage.outbox import MOST_ATTEMPTS, LeaderLock, Outbox
from homophily_service.storage.queue import Queue
from homophily_service.storage.records import NewJob
from homophily_service.storage.tables import runs_to_end
from homophily_service.tracking.place import Place
from homophily_service.tracking.tracker import Tracker, run_tracker

from .serving import PATIENCE, eventually

POISON = b""


def queued(database: Database, kind: str = "fit") -> JobName:
    name = JobName("default", new_id())
    Queue(database).submit(NewJob(name, kind, b""), 100)
    return name


def waiting(database: Database) -> list[Row[Any]]:
    outbox = Outbox(database)
    outbox.clear_irrelevant([kind.name for kind in KINDS.values() if kind.is_tracked])
    return list(outbox.waiting(100))


def test_only_jobs_that_were_started_wait_to_be_sent(database: Database) -> None:
    queued(database)
    queued(database, "trial")
    assert waiting(database) == []
    lease = Queue(database).claim("worker", ["fit"], 60.0, POISON)
    assert lease is not None
    assert [row.number for row in waiting(database)] == [lease.number]


def test_what_happens_while_a_job_is_sent_is_sent_afterwards(database: Database) -> None:
    queue, outbox = Queue(database), Outbox(database)
    name = queued(database)
    lease = queue.claim("worker", ["fit"], 60.0, POISON)
    assert lease is not None
    (job,) = waiting(database)
    outbox.note_run(job.number, "run", "http://somewhere/run")
    queue.report(lease, b"")
    outbox.sent(job.number, job.last_sequence)
    (job,) = waiting(database)
    assert (job.tracking_run, job.tracking_url) == ("run", "http://somewhere/run")
    outbox.sent(job.number, job.last_sequence)
    assert waiting(database) == []
    queue.finish(lease, b"")
    assert [row.state for row in waiting(database)] == ["succeeded"]
    assert queue.get(name).tracking_run == "run"


def test_a_job_that_waits_again_stays_known(database: Database) -> None:
    queue, outbox = Queue(database), Outbox(database)
    queued(database)
    lease = queue.claim("worker", ["fit"], 60.0, POISON)
    assert lease is not None
    outbox.note_run(lease.number, "run", None)
    queue.release(lease, "given back", charged=True)
    # It has a run, which shall know of it.
    assert [row.state for row in waiting(database)] == ["queued"]


def test_only_a_run_that_has_not_ended_is_left_by_a_deleted_job(database: Database) -> None:
    queue, outbox = Queue(database), Outbox(database)
    for is_sent in (True, False):
        name = queued(database)
        lease = queue.claim("worker", ["fit"], 60.0, POISON)
        assert lease is not None
        assert outbox.note_run(lease.number, f"run {is_sent}", None)
        queue.finish(lease, b"")
        if is_sent:
            outbox.sent(lease.number, queue.get(name).last_sequence)
        queue.delete(name)
        assert not outbox.note_run(lease.number, "another", None)
    [left] = outbox.runs_to_end(10)
    assert (left.run, left.state) == ("run False", "succeeded")
    assert left.finished > 0
    outbox.run_ended(left.run)
    assert outbox.runs_to_end(10) == []


def test_runs_in_the_data_directory_are_where_the_ui_shows_them(tmp_path: Path) -> None:
    embedded = Place.of(Settings(data_dir=tmp_path))
    assert embedded.run_url("1", "abc") == "http://127.0.0.1:5000/#/experiments/1/runs/abc"
    behind = Place.of(Settings(data_dir=tmp_path, tracking_url="https://runs.example/"))
    assert behind.run_url("1", "abc") == "https://runs.example/#/experiments/1/runs/abc"


def test_one_tracker_has_the_turn_until_it_is_gone(database: Database) -> None:
    other = Database(database.url)
    with LeaderLock(database) as mine:
        assert mine.is_held()
        assert mine.is_held()
        theirs = LeaderLock(other)
        assert not theirs.is_held()
    assert theirs.is_held()
    theirs.close()
    other.close()


class Deadly:
    """A sender that the process dies of, or that MLflow or the memory fails."""

    def __init__(self, failure: BaseException | None) -> None:
        self.failure, self.sent = failure, 0

    def send(self, job: Row[Any]) -> None:  # noqa: ARG002
        self.sent += 1
        if self.failure is not None:
            raise self.failure

    def end(self, _: object) -> None:
        self.send(None)  # type: ignore[arg-type]

    def answers(self) -> bool:
        return True


class Killed(BaseException):
    """As good as kill -9: nothing of ours runs after it."""


@pytest.mark.parametrize("failure", [Killed(), MemoryError()])
def test_a_job_that_the_tracker_dies_of_is_given_up(database: Database, tmp_path: Path, failure: BaseException) -> None:
    """It was tried for ever, and everybody waited behind it."""
    queued(database)
    assert Queue(database).claim("worker", ["fit"], 60.0, POISON) is not None
    settings = Settings(data_dir=tmp_path, database_url=database.url)
    sender = Deadly(failure)
    for _ in range(MOST_ATTEMPTS + 2):
        tracker = Tracker(settings)
        tracker._sender = sender  # type: ignore[assignment]
        with suppress(Killed):
            tracker.round()
        tracker.lock.close()
        tracker.stores.close()
    assert sender.sent == MOST_ATTEMPTS
    assert waiting(database) == []


def test_a_job_that_mlflow_refuses_is_not_given_up(database: Database, tmp_path: Path) -> None:
    queued(database)
    assert Queue(database).claim("worker", ["fit"], 60.0, POISON) is not None
    tracker = Tracker(Settings(data_dir=tmp_path, database_url=database.url))
    tracker._sender = sender = Deadly(ValueError("no"))  # type: ignore[assignment]
    for _ in range(MOST_ATTEMPTS + 2):
        tracker._refused.clear()
        tracker.round()
    assert sender.sent == MOST_ATTEMPTS + 2
    [job] = waiting(database)
    assert job.tracking_attempts == 0
    sender.failure = None
    tracker._refused.clear()
    assert tracker.round() == 1
    tracker.lock.close()
    tracker.stores.close()


def test_runs_of_deleted_jobs_wait_for_an_mlflow_that_is_down(database: Database, tmp_path: Path) -> None:
    with database.write() as connection:
        connection.execute(insert(runs_to_end).values(run="run", state="failed", finished=1.0))
    tracker = Tracker(Settings(data_dir=tmp_path, database_url=database.url))
    tracker._sender = sender = Deadly(OSError("down"))  # type: ignore[assignment]
    assert tracker.round() == 0
    assert len(tracker.outbox.runs_to_end(10)) == 1
    sender.failure = None
    tracker.round()
    assert tracker.outbox.runs_to_end(10) == []
    tracker.lock.close()
    tracker.stores.close()


def test_a_tracker_of_its_own_sends_runs_and_stops_when_told(database_url: str, tmp_path: Path) -> None:
    url = f"database_url={database_url}"
    command = [Path(sys.executable).with_name("homophily"), "tracker", "--data-dir", tmp_path / "own", "--set", url]
    database = Database(database_url)
    queue, name = Queue(database), queued(database)
    lease = queue.claim("worker", ["fit"], 60.0, POISON)
    assert lease is not None
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            eventually(lambda: queue.get(name).tracking_run, seconds=PATIENCE)
        finally:
            process.terminate()
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
    database.close()


@pytest.mark.parametrize("beside", [True, False])
def test_the_api_starts_a_tracker_unless_there_is_one_elsewhere(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    async def keep_running(module: str, *_: object) -> None:
        started.append(module)

    monkeypatch.setattr(server, "keep_running", keep_running)
    settings = Settings(data_dir=tmp_path, port=0, workers=0, predictors=0, tracker=beside)
    asyncio.run(server.serve(settings, lambda _: signal.raise_signal(signal.SIGTERM)))
    assert started == (["homophily_service.tracking.tracker"] if beside else [])


def test_a_tracker_that_has_nothing_to_track_says_so(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="nothing to track"):
        run_tracker(Settings(data_dir=tmp_path, tracking=False))
