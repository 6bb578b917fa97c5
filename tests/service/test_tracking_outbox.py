"""The marks that tell the tracker what to send, over every database; and whose turn it is to send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Row

from homophily_service.names import JobName, new_id
from homophily_service.queue import NewJob, Queue
from homophily_service.settings import Settings
from homophily_service.store.database import Database
from homophily_service.tracking.outbox import Outbox, Turn
from homophily_service.tracking.place import Place
from homophily_service.tracking.records import KINDS

POISON = b""


def queued(database: Database, kind: str = "fit") -> JobName:
    name = JobName("default", new_id())
    Queue(database).submit(NewJob(name, kind, b""), 100)
    return name


def waiting(database: Database) -> list[Row[Any]]:
    outbox = Outbox(database)
    outbox.pass_over(KINDS)
    return list(outbox.waiting(100))


def test_only_jobs_that_were_started_wait_to_be_sent(database: Database) -> None:
    queued(database)
    queued(database, "noop")
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


def test_runs_in_the_data_directory_are_where_the_ui_shows_them(tmp_path: Path) -> None:
    embedded = Place.of(Settings(data_dir=tmp_path))
    assert embedded.run_url("1", "abc") == "http://127.0.0.1:5000/#/experiments/1/runs/abc"
    behind = Place.of(Settings(data_dir=tmp_path, tracking_url="https://runs.example/"))
    assert behind.run_url("1", "abc") == "https://runs.example/#/experiments/1/runs/abc"


def test_one_tracker_has_the_turn_until_it_is_gone(database: Database) -> None:
    other = Database(database.url)
    with Turn(database) as mine:
        assert mine.is_mine()
        assert mine.is_mine()
        theirs = Turn(other)
        assert not theirs.is_mine()
    assert theirs.is_mine()
    theirs.close()
    other.close()
