"""Rows of jobs in the database, and the statements by which they change."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from homophily_client.names import JobName
from homophily_service.contract.errors import LimitExceeded, NotFound
from homophily_service.contract.states import CANCELLED, FAILED, FINAL, QUEUED, RUNNING, WAITING
from homophily_service.storage.database import now
from homophily_service.storage.fair_share import ORDER, MaxRunning, projects_in_turn
from homophily_service.storage.quotas import release_upload, reservation_of
from homophily_service.storage.records import JobRecord, Lease, LeaseLost, NewJob
from homophily_service.storage.tables import events, jobs

WORKER_LOST = "cancelled after its worker was lost"
_parents = jobs.alias()
#: The columns of a JobRecord.
RECORD = [
    *(jobs.c[one.name] for one in fields(JobRecord) if one.name in jobs.c),
    select(_parents.c.id).where(_parents.c.number == jobs.c.parent).scalar_subquery().label("parent_id"),
]
NO_LEASE: dict[str, None] = {"token": None, "worker": None, "lease_until": None}
UNCLAIMED = NO_LEASE | {"progress": None}
# A job whose process was lost waits before its next attempt: four times as long each time.
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 300.0


def request_digest(job: NewJob) -> str:
    """A digest by which a repeated request is recognised."""
    return hashlib.sha256(job.kind.encode() + b"\0" + job.request).hexdigest()


def insert_job(connection: Connection, job: NewJob, digest: str, parent: int | None = None) -> JobRecord:
    """Write a new job and its first event."""
    number = connection.scalar(
        insert(jobs)
        .values(
            project=job.name.project,
            id=job.name.id,
            kind=job.kind,
            state=QUEUED,
            priority=job.priority,
            request=job.request,
            request_id=job.request_id or None,
            request_digest=digest,
            attempt=0,
            max_attempts=job.max_attempts,
            time_limit=job.time_limit,
            cancel_requested=False,
            created=now(),
            not_before=now(),
            last_sequence=1,
            parent=parent,
            untracked=True,
            origin=job.origin or None,
            trace=job.trace or None,
            source_digest=job.source_digest or None,
            source=job.source or None,
        )
        .returning(jobs.c.number)
    )
    assert number is not None
    _write_event(connection, number, 1, QUEUED, 0, None, "")
    return JobRecord.of(connection.execute(select(*RECORD).where(jobs.c.number == number)).one())


def first_started(number: int) -> Select[Any]:
    """When the first attempt of a job began."""
    return select(func.min(events.c.time)).where(events.c.job == number, events.c.state == RUNNING)


def wake(connection: Connection, parent: int, message: str) -> None:
    """Note on a waiting job that one of its jobs has ended; queue it again after the last one."""
    waiting = select(jobs.c.number).where(jobs.c.number == parent, jobs.c.state == WAITING).with_for_update()
    if connection.scalar(waiting) is None:
        return
    # With the parent locked: if two jobs end at once, the second sees the first.
    counts = select(func.count(), func.count().filter(jobs.c.state.in_(FINAL))).where(jobs.c.parent == parent)
    all_of_them, ended = connection.execute(counts).one()
    if ended == all_of_them:
        change(connection, parent, QUEUED, "the jobs that it waited for have ended")
    elif message:
        change(connection, parent, WAITING, f"{message} ({ended} of {all_of_them})")


def get_job(connection: Connection, name: JobName, *, lock: bool = False) -> JobRecord:
    """A job, locked if asked for, or NotFound."""
    query = select(*RECORD).where(jobs.c.project == name.project, jobs.c.id == name.id)
    found = connection.execute(query.with_for_update(of=jobs) if lock else query).one_or_none()
    if found is None:
        raise NotFound(f"{name} does not exist")
    return JobRecord.of(found)


def is_lost(connection: Connection, number: int) -> bool:
    """Whether the lease of a running job has run out."""
    return bool(connection.scalar(select(jobs.c.lease_until < now()).where(jobs.c.number == number)))


@lru_cache
def claimable(kinds: tuple[str, ...]) -> tuple[Select[Any], Select[Any], Select[Any]]:
    """Queries for lost jobs, for jobs that may start, and for either; cached, as idle workers poll often."""
    known = select(jobs).where(jobs.c.kind.in_(kinds))
    lost = known.where(jobs.c.state == RUNNING, jobs.c.lease_until < now())
    ready = known.where(jobs.c.state == QUEUED, jobs.c.not_before <= now())
    return lost, ready, select(or_(lost.exists(), ready.exists()))


def first_candidate(connection: Connection, candidates: Select[Any]) -> Row[Any] | None:
    """The first candidate, locked; workers that claim at the same time get the next ones."""
    in_turn = candidates.order_by(*ORDER).limit(1)
    return connection.execute(in_turn.with_for_update(skip_locked=True)).one_or_none()


def next_job(connection: Connection, ready: Select[Any], poison: bytes, max_running: MaxRunning) -> Row[Any] | None:
    """The next job, locked. Jobs that must not be started again are ended."""
    for project in projects_in_turn(connection, ready, max_running):
        if connection.dialect.name == "postgresql" and max_running(project) is not None:
            # Two workers that claim at the same time do not see each other's job running.
            try_lock = text("SELECT pg_try_advisory_xact_lock(hashtextextended('claim ' || :project, 0))")
            if not connection.scalar(try_lock, {"project": project}):
                continue
            if project not in projects_in_turn(connection, ready.where(jobs.c.project == project), max_running):
                continue
        while (job := first_candidate(connection, ready.where(jobs.c.project == project))) is not None:
            if not end_if_not_startable(connection, job, poison):
                return job
    return None


def requeue_lost(connection: Connection, lost: Select[Any], poison: bytes) -> int:
    """Queue lost jobs again, behind others, or end them; returns how many there were."""
    taken = 0
    while (job := first_candidate(connection, lost)) is not None:
        if not end_if_not_startable(connection, job, poison):
            later = now() + backoff(job.attempt)
            change(connection, job.number, QUEUED, "queued again: its worker was lost", not_before=later, **UNCLAIMED)
        taken += 1
    return taken


def backoff(attempt: int) -> float:
    """Seconds before the next attempt, after ``attempt`` attempts were lost."""
    return float(min(LONGEST_BACKOFF, FIRST_BACKOFF * 4.0 ** (min(attempt, 10) - 1)))


def check_room(connection: Connection, project: str, max_queued: int) -> None:
    """LimitExceeded if too many of a project's jobs wait."""
    waiting = count_waiting(connection, project)
    if waiting >= max_queued:
        raise LimitExceeded(
            f"{waiting} jobs of project {project} are waiting, the limit is {max_queued}",
            reason="QUEUE_FULL",
            retry_seconds=5.0,
        )


def count_waiting(connection: Connection, project: str) -> int:
    """How many of a project's jobs wait."""
    query = select(func.count()).where(jobs.c.project == project, jobs.c.state == QUEUED)
    return int(connection.scalar(query) or 0)


def end_if_not_startable(connection: Connection, job: Row[Any], poison: bytes) -> bool:
    """End a job that must not be started again; returns whether it was ended."""
    if job.cancel_requested:
        change(connection, job.number, CANCELLED, WORKER_LOST)
    elif job.attempt >= job.max_attempts:
        change(connection, job.number, FAILED, f"failed: its worker was lost {job.attempt} times", outcome=poison)
    else:
        return False
    return True


def held_by(lease: Lease) -> Any:
    """The condition that a lease still holds its job."""
    return and_(jobs.c.number == lease.number, jobs.c.token == lease.token, jobs.c.state == RUNNING)


def change(connection: Connection, target: int | Lease, state: str, message: str, **values: Any) -> int:
    """Update a job and write the event; returns the event's number. With a lease, only while it is valid."""
    which = held_by(target) if isinstance(target, Lease) else jobs.c.number == target
    ends: dict[str, Any] = {"finished": now(), "token": None, "lease_until": None} if state in FINAL else {}
    changed = connection.execute(
        update(jobs)
        .where(which)
        .values(state=state, last_sequence=jobs.c.last_sequence + 1, untracked=True, **ends, **values)
        .returning(jobs.c.number, jobs.c.last_sequence, jobs.c.attempt, jobs.c.parent, jobs.c.project, jobs.c.id)
    ).one_or_none()
    if changed is None:
        raise LeaseLost(target.name if isinstance(target, Lease) else target)
    progress = values.get("progress")
    _write_event(connection, changed.number, changed.last_sequence, state, changed.attempt, progress, message)
    if state in FINAL:
        release_upload(connection, changed.project, reservation_of(changed.id))
    if state in FINAL and changed.parent is not None:
        wake(connection, changed.parent, "one of its jobs has ended")
    return int(changed.last_sequence)


def _write_event(
    connection: Connection, job: int, sequence: int, state: str, attempt: int, progress: bytes | None, message: str
) -> None:
    connection.execute(
        insert(events).values(
            job=job,
            sequence=sequence,
            time=now(),
            state=state,
            attempt=attempt,
            progress=progress,
            # Postgres stores no NUL.
            message=message.replace("\0", "�"),
        )
    )
