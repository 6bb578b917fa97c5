"""The queue: jobs with leases in SQL.

A worker claims a job and gets a token; it writes only while the job still has that token. A job whose lease was not
renewed in time is queued again, behind others of its priority, and claimed under a new token. So completion is exactly
once, computing is not.

Whose job is next is decided in :mod:`homophily_service.storage.fair_share`.

    QUEUED ──claim──▶ RUNNING ──finish──▶ SUCCEEDED
       ▲                 │  ├──fail─────▶ FAILED
       ├──release, lost──┤  └──cancelled▶ CANCELLED         (a queued job is cancelled at once)
       └─────WAITING◀────┘  wait_for: until the jobs that it has queued itself have ended
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    delete,
    exc,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)

from homophily_client.names import JobName
from homophily_service.contract.errors import AlreadyExists, FailedPrecondition, LimitExceeded, NotFound
from homophily_service.storage.database import Database, now, page_of
from homophily_service.storage.fair_share import ORDER, MaxRunning, note_turn, places, projects_in_turn
from homophily_service.storage.fair_share import QUEUED as QUEUED
from homophily_service.storage.fair_share import RUNNING as RUNNING
from homophily_service.storage.quotas import count_alone, count_job
from homophily_service.storage.records import JobRecord
from homophily_service.storage.tables import events, jobs

WAITING = "waiting"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
FINAL = (SUCCEEDED, FAILED, CANCELLED)
WORKER_LOST = "cancelled after its worker was lost"
_parents = jobs.alias()
#: The columns of a JobRecord.
RECORD = [
    *(jobs.c[one.name] for one in fields(JobRecord) if one.name in jobs.c),
    select(_parents.c.id).where(_parents.c.number == jobs.c.parent).scalar_subquery().label("parent_id"),
]
_NO_LEASE: dict[str, None] = {"token": None, "worker": None, "lease_until": None}
_UNCLAIMED = _NO_LEASE | {"progress": None}
# Few enough for other writers not to wait long.
FORGET_AT_ONCE = 500
# A job whose process was lost waits before its next attempt: four times as long each time.
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 300.0
# How often a job is given back for the same reason before that counts as an attempt: a job that takes longer than its
# workers are given to stop would start for ever.
FREE_RETURNS = 10
# Reports of progress that are kept of a job: of more, every second one is forgotten, but for the newest.
MOST_REPORTS, NEWEST_REPORTS = 400, 100


class LeaseLost(Exception):
    """Somebody else has the job now, or it has ended: stop computing, write nothing."""


class NewJob(NamedTuple):
    """A job to be queued. ``request_id`` may be empty."""

    name: JobName
    kind: str
    request: bytes
    request_id: str = ""
    priority: int = 0
    max_attempts: int = 3
    time_limit: float = 3600.0
    # The call that asks for it, for logs and traces.
    origin: str = ""
    trace: str = ""
    # Of the dataset, model or embedding that it was submitted for.
    source_digest: str = ""


class Lease(NamedTuple):
    """A claimed job: what it is, and the token to write with."""

    name: JobName
    number: int
    kind: str
    request: bytes
    attempt: int
    max_attempts: int
    time_limit: float
    token: str
    origin: str = ""
    trace: str = ""
    source_digest: str = ""


class Event(NamedTuple):
    """Something that happened to a job."""

    sequence: int
    time: float
    state: str
    attempt: int
    progress: bytes | None
    message: str


class Queue:
    """Jobs of all projects. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # -- for the API ---------------------------------------------------------------------------------------------

    def submit(self, job: NewJob, max_queued: int, max_per_day: int | None = None) -> JobRecord:
        """Queue a job. The same request_id with the same request is the job that is there already.

        AlreadyExists if the request_id came with another request; LimitExceeded if too many of the project's jobs
        wait, or too many were asked for today.
        """
        digest = _digest(job)
        try:
            with self.database.write() as connection:
                found = self._by_request_id(connection, job, digest)
                if found is not None:
                    return found
                count_alone(connection, job.name.project)
                _check_room(connection, job.name.project, max_queued)
                if max_per_day is not None:
                    count_job(connection, job.name.project, max_per_day)
                return _insert(connection, job, digest)
        except exc.IntegrityError:
            # Two calls with one request_id at a time, on Postgres: the other one was first.
            with self.database.read() as connection:
                found = self._by_request_id(connection, job, digest)
            if found is None:
                raise AlreadyExists(f"{job.name} exists") from None
            return found

    def _by_request_id(self, connection: Connection, job: NewJob, digest: str) -> JobRecord | None:
        if not job.request_id:
            return None
        mine = and_(jobs.c.project == job.name.project, jobs.c.request_id == job.request_id)
        found = connection.execute(select(*RECORD, jobs.c.request_digest).where(mine)).one_or_none()
        if found is None:
            return None
        record = JobRecord.of(found)
        if found.request_digest != digest:
            raise AlreadyExists(
                f"request_id {job.request_id!r} was used for another request, {record.name}",
                reason="REQUEST_ID_CONFLICT",
            )
        return record

    def check_room(self, project: str, max_queued: int) -> None:
        """LimitExceeded if too many of the project's jobs wait; :meth:`submit` has the last word."""
        with self.database.read() as connection:
            _check_room(connection, project, max_queued)

    def knows_request(self, project: str, request_id: str) -> bool:
        """Whether a job was asked for with this request_id."""
        mine = and_(jobs.c.project == project, jobs.c.request_id == request_id)
        with self.database.read() as connection:
            return bool(connection.scalar(select(exists().where(mine))))

    def get(self, name: JobName) -> JobRecord:
        """The job, or NotFound."""
        with self.database.read() as connection:
            return _get(connection, name)

    def placed(self, names: Collection[JobName]) -> dict[JobName, tuple[JobRecord, int]]:
        """Those that exist, and how many jobs will be started before each (0 unless it is queued)."""
        keys = [(name.project, name.id) for name in names]
        query = select(*RECORD).where(tuple_(jobs.c.project, jobs.c.id).in_(keys))
        with self.database.read() as connection:
            records = list(map(JobRecord.of, connection.execute(query)))
            found = places(connection, [job.number for job in records if job.state == QUEUED])
        return {job.name: (job, found.get(job.number, 0)) for job in records}

    def page(
        self, project: str, *, states: Collection[str] = (), kind: str = "", before: int | None = None, limit: int = 100
    ) -> tuple[list[tuple[JobRecord, int]], bool]:
        """Jobs of a project, newest first, with a number below ``before``; with their places, as in :meth:`placed`.

        At most ``limit`` of them, fewer if their results are large; and whether there are more.
        """
        matches = [jobs.c.project == project]
        if states:
            matches.append(jobs.c.state.in_(states))
        if kind:
            matches.append(jobs.c.kind == kind)
        if before is not None:
            matches.append(jobs.c.number < before)
        with self.database.read() as connection:
            numbers, has_more = page_of(connection, jobs.c.number, jobs.c.outcome, matches, limit)
            query = select(*RECORD).where(jobs.c.number.in_(numbers)).order_by(jobs.c.number.desc())
            records = list(map(JobRecord.of, connection.execute(query)))
            found = places(connection, [job.number for job in records if job.state == QUEUED])
        return [(job, found.get(job.number, 0)) for job in records], has_more

    def events_after(self, number: int, sequence: int) -> list[Event]:
        """The events of a job that come after one of them."""
        columns = (events.c[field] for field in Event._fields)
        query = select(*columns).where(events.c.job == number, events.c.sequence > sequence).order_by(events.c.sequence)
        with self.database.read() as connection:
            return [Event(*row) for row in connection.execute(query)]

    def versions(self, numbers: Collection[int]) -> dict[int, tuple[int, str]]:
        """Last event and state of some jobs; those that were deleted are missing."""
        query = select(jobs.c.number, jobs.c.last_sequence, jobs.c.state).where(jobs.c.number.in_(numbers))
        with self.database.read() as connection:
            return {number: (sequence, state) for number, sequence, state in connection.execute(query)}

    def cancel(self, name: JobName) -> JobRecord:
        """Cancel a job at once that nobody works on; ask for it if it runs; leave an ended one as it is."""
        with self.database.write() as connection:
            job = _get(connection, name, lock=True)
            if job.state in (QUEUED, WAITING):
                _change(connection, job.number, CANCELLED, "cancelled while it was waiting", cancel_requested=True)
            elif job.state == RUNNING and _is_lost(connection, job.number):
                _change(connection, job.number, CANCELLED, WORKER_LOST, cancel_requested=True)
            elif job.state == RUNNING:
                connection.execute(update(jobs).where(jobs.c.number == job.number).values(cancel_requested=True))
        # One by one, after their parent: who ends a child holds it, and then wants the parent.
        for child in self.children(name):
            if child.state not in FINAL:
                self.cancel(child.name)
        return self.get(name)

    def children(self, name: JobName) -> list[JobRecord]:
        """The jobs that a job has queued itself, oldest first."""
        parent = select(jobs.c.number).where(jobs.c.project == name.project, jobs.c.id == name.id).scalar_subquery()
        with self.database.read() as connection:
            query = select(*RECORD).where(jobs.c.parent == parent).order_by(jobs.c.number)
            return list(map(JobRecord.of, connection.execute(query)))

    def delete(self, name: JobName) -> None:
        """Forget a job that has ended."""
        with self.database.write() as connection:
            job = _get(connection, name, lock=True)
            if job.state not in FINAL:
                raise FailedPrecondition(f"{name} is {job.state}: cancel it first", reason="JOB_NOT_ENDED")
            connection.execute(delete(jobs).where(jobs.c.number == job.number))

    def depths(self) -> list[tuple[str, str, int]]:
        """Jobs by state and kind."""
        query = select(jobs.c.state, jobs.c.kind, func.count()).group_by(jobs.c.state, jobs.c.kind)
        with self.database.read() as connection:
            return [(state, kind, count) for state, kind, count in connection.execute(query)]

    def take_back(self, late_seconds: float, poison: bytes) -> int:
        """Queue jobs again whose lease ran out so long ago, or end them as in :meth:`claim`; returns how many.

        Where every worker is busy, nobody claims, and they would be shown as running.
        """
        lost = select(jobs).where(jobs.c.state == RUNNING, jobs.c.lease_until < now() - late_seconds)
        with self.database.read() as connection:
            if not connection.scalar(select(lost.exists())):
                return 0
        with self.database.write() as connection:
            return _take_back(connection, lost, poison)

    def forget_ended(self, older_than_seconds: float, *, untracked: bool = True) -> int:
        """Delete records of jobs that ended so long ago, ``untracked`` ones only if told to; returns how many."""
        old = select(jobs.c.number).where(jobs.c.finished < now() - older_than_seconds).limit(FORGET_AT_ONCE)
        if not untracked:
            old = old.where(~jobs.c.untracked)
        forgotten = 0
        while True:
            with self.database.write() as connection:
                some = connection.execute(delete(jobs).where(jobs.c.number.in_(old))).rowcount
            forgotten += some
            if some < FORGET_AT_ONCE:
                return forgotten

    # -- for workers ---------------------------------------------------------------------------------------------

    def claim(
        self,
        worker: str,
        kinds: Collection[str],
        lease_seconds: float,
        poison: bytes,
        max_running: MaxRunning = lambda _: None,
    ) -> Lease | None:
        """The next job of these kinds, or None; ``max_running`` says how many of a project may run at a time.

        Jobs whose lease ran out are queued again. Those that were to be cancelled or were started too often end here,
        with ``poison`` as their error.
        """
        lost, ready, any_of_both = _claimable(tuple(kinds))
        # Looking takes no lock: only when there is something does a writer start.
        with self.database.read() as connection:
            if not connection.scalar(any_of_both):
                return None
            if not connection.scalar(select(lost.exists())) and not projects_in_turn(connection, ready, max_running):
                return None
        with self.database.write(durable=False) as connection:
            _take_back(connection, lost, poison)
            job = _next(connection, ready, poison, max_running)
            if job is None:
                return None
            token = secrets.token_hex(16)
            _change(
                connection,
                job.number,
                RUNNING,
                "",
                attempt=job.attempt + 1,
                token=token,
                worker=worker,
                lease_until=now() + lease_seconds,
                started=now(),
                progress=None,
            )
            note_turn(connection, job.project)
        name = JobName(job.project, job.id)
        came = job.origin or "", job.trace or "", job.source_digest or ""
        attempts = job.attempt + 1, job.max_attempts
        return Lease(name, job.number, job.kind, job.request, *attempts, job.time_limit, token, *came)

    def renew(self, lease: Lease, lease_seconds: float) -> bool:
        """Hold the lease on; True if the job is to be cancelled."""
        with self.database.write(durable=False) as connection:
            changed = connection.execute(
                update(jobs)
                .where(_mine(lease))
                .values(lease_until=now() + lease_seconds)
                .returning(jobs.c.cancel_requested)
            ).one_or_none()
        if changed is None:
            raise LeaseLost(lease.name)
        return bool(changed.cancel_requested)

    def report(self, lease: Lease, progress: bytes) -> None:
        """Tell how far the job is."""
        with self.database.write(durable=False) as connection:
            sequence = _change(connection, lease, RUNNING, "", progress=progress)
            if sequence % NEWEST_REPORTS == 0:
                _forget_reports(connection, lease.number)

    def finish(self, lease: Lease, outcome: bytes, publish: Callable[[Connection], None] | None = None) -> None:
        """End with a result; ``publish`` writes what the result names, in the same transaction."""
        with self.database.write() as connection:
            _change(connection, lease, SUCCEEDED, "", outcome=outcome)
            if publish is not None:
                publish(connection)

    def fail(self, lease: Lease, error: bytes, message: str) -> None:
        """End with an error."""
        with self.database.write() as connection:
            _change(connection, lease, FAILED, message, outcome=error)

    def cancelled(self, lease: Lease) -> None:
        """End as asked for."""
        with self.database.write() as connection:
            _change(connection, lease, CANCELLED, "cancelled while it was running")

    def release(self, lease: Lease, message: str, *, charged: bool) -> None:
        """Give the job back, or end it if it is to be cancelled.

        An attempt that is not ``charged`` does not count, and the job keeps its place; otherwise it waits a while, and
        then behind others of its priority. After ``FREE_RETURNS`` with the same message every attempt is charged.
        """
        with self.database.write() as connection:
            if connection.scalar(select(jobs.c.cancel_requested).where(_mine(lease)).with_for_update()):
                _change(connection, lease, CANCELLED, "cancelled when it was given back")
                return
            charged = charged or _returns(connection, lease.number, message) >= FREE_RETURNS
            later = {"not_before": now() + _backoff(lease.attempt)} if charged else {"attempt": lease.attempt - 1}
            _change(connection, lease, QUEUED, message, **later, **_UNCLAIMED)

    def get_request(self, number: int) -> bytes:
        """What was asked for."""
        with self.database.read() as connection:
            return bytes(connection.scalars(select(jobs.c.request).where(jobs.c.number == number)).one())

    def waited(self, lease: Lease) -> float:
        """Seconds since the job was asked for, or was last given back."""
        since = select(now() - func.max(events.c.time)).where(events.c.job == lease.number, events.c.state == QUEUED)
        with self.database.read() as connection:
            return float(connection.scalar(since) or 0.0)

    def first_started(self, name: JobName) -> float:
        """When the first attempt began."""
        with self.database.read() as connection:
            return float(connection.scalars(_first_started(_get(connection, name).number)).one())

    def parent_seconds(self, name: JobName) -> float:
        """Seconds since the first attempt began of the job that has queued this one."""
        with self.database.read() as connection:
            mine = and_(jobs.c.project == name.project, jobs.c.id == name.id)
            parent = connection.scalars(select(jobs.c.parent).where(mine)).one()
            began = _first_started(parent).scalar_subquery()
            return float(connection.scalars(select(now() - began)).one())

    def wait_for(
        self,
        lease: Lease,
        children: Sequence[NewJob],
        message: str,
        max_queued: int | None = None,
        max_per_day: int | None = None,
    ) -> None:
        """Let the job wait until these have ended. Those that an earlier attempt has queued already are not new.

        They count towards the project's limits. Of more than may wait at a time, the first are queued, at least one:
        the job asks for the others when it goes on. LimitExceeded if the project may have no more of them today.
        """
        project = lease.name.project
        with self.database.write() as connection:
            count_alone(connection, project)
            held = select(jobs.c.cancel_requested, jobs.c.priority).where(_mine(lease)).with_for_update()
            mine = connection.execute(held).one_or_none()
            if mine is None:
                raise LeaseLost(lease.name)
            if mine.cancel_requested:
                _change(connection, lease, CANCELLED, "cancelled while it was running")
                return
            known = set(connection.scalars(select(jobs.c.id).where(jobs.c.parent == lease.number)))
            new = [child for child in children if child.name.id not in known]
            if max_queued is not None:
                new = new[: max(1, max_queued - _waiting(connection, project))]
            for child in new:
                if max_per_day is not None:
                    count_job(connection, project, max_per_day)
                _insert(connection, child._replace(priority=mine.priority), _digest(child), lease.number)
            _change(connection, lease, WAITING, message, attempt=lease.attempt - 1, **_NO_LEASE)
            _wake(connection, lease.number, "")


def _digest(job: NewJob) -> str:
    return hashlib.sha256(job.kind.encode() + b"\0" + job.request).hexdigest()


def _insert(connection: Connection, job: NewJob, digest: str, parent: int | None = None) -> JobRecord:
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
        )
        .returning(jobs.c.number)
    )
    assert number is not None
    _write_event(connection, number, 1, QUEUED, 0, None, "")
    return JobRecord.of(connection.execute(select(*RECORD).where(jobs.c.number == number)).one())


def _first_started(number: int) -> Select[Any]:
    return select(func.min(events.c.time)).where(events.c.job == number, events.c.state == RUNNING)


def _wake(connection: Connection, parent: int, message: str) -> None:
    """Tell a waiting job that one of those it waits for has ended, and queue it again after the last one."""
    waiting = select(jobs.c.number).where(jobs.c.number == parent, jobs.c.state == WAITING).with_for_update()
    if connection.scalar(waiting) is None:
        return
    # With the parent locked: of two that end at once, the second sees the first.
    counts = select(func.count(), func.count().filter(jobs.c.state.in_(FINAL))).where(jobs.c.parent == parent)
    all_of_them, ended = connection.execute(counts).one()
    if ended == all_of_them:
        _change(connection, parent, QUEUED, "what it waited for has ended")
    elif message:
        _change(connection, parent, WAITING, f"{message} ({ended} of {all_of_them})")


def _get(connection: Connection, name: JobName, *, lock: bool = False) -> JobRecord:
    query = select(*RECORD).where(jobs.c.project == name.project, jobs.c.id == name.id)
    found = connection.execute(query.with_for_update(of=jobs) if lock else query).one_or_none()
    if found is None:
        raise NotFound(f"{name} does not exist")
    return JobRecord.of(found)


def _is_lost(connection: Connection, number: int) -> bool:
    """Whether the lease of a running job has run out."""
    return bool(connection.scalar(select(jobs.c.lease_until < now()).where(jobs.c.number == number)))


@lru_cache
def _claimable(kinds: tuple[str, ...]) -> tuple[Select[Any], Select[Any], Select[Any]]:
    """Lost jobs, jobs that may start, and whether there is any: kept, as every idle worker asks 20 times a second."""
    known = select(jobs).where(jobs.c.kind.in_(kinds))
    lost = known.where(jobs.c.state == RUNNING, jobs.c.lease_until < now())
    ready = known.where(jobs.c.state == QUEUED, jobs.c.not_before <= now())
    return lost, ready, select(or_(lost.exists(), ready.exists()))


def _first(connection: Connection, candidates: Select[Any]) -> Row[Any] | None:
    """The one that goes first, locked; others that claim at the same time get the next ones."""
    in_turn = candidates.order_by(*ORDER).limit(1)
    return connection.execute(in_turn.with_for_update(skip_locked=True)).one_or_none()


def _next(connection: Connection, ready: Select[Any], poison: bytes, max_running: MaxRunning) -> Row[Any] | None:
    """The job whose turn it is, locked. Those that must not be started once more end."""
    for project in projects_in_turn(connection, ready, max_running):
        if connection.dialect.name == "postgresql" and max_running(project) is not None:
            # Of two that claim at the same time, neither sees the other's job run.
            alone = text("SELECT pg_try_advisory_xact_lock(hashtextextended('claim ' || :project, 0))")
            if not connection.scalar(alone, {"project": project}):
                continue
            if project not in projects_in_turn(connection, ready.where(jobs.c.project == project), max_running):
                continue
        while (job := _first(connection, ready.where(jobs.c.project == project))) is not None:
            if not _has_ended(connection, job, poison):
                return job
    return None


def _take_back(connection: Connection, lost: Select[Any], poison: bytes) -> int:
    """Queue lost jobs again, behind others, or end them; returns how many there were."""
    taken = 0
    while (job := _first(connection, lost)) is not None:
        if not _has_ended(connection, job, poison):
            later = now() + _backoff(job.attempt)
            _change(connection, job.number, QUEUED, "waits again: its worker was lost", not_before=later, **_UNCLAIMED)
        taken += 1
    return taken


def _backoff(attempt: int) -> float:
    return float(min(LONGEST_BACKOFF, FIRST_BACKOFF * 4.0 ** (min(attempt, 10) - 1)))


def _returns(connection: Connection, job: int, message: str) -> int:
    """How often a job was given back with this message."""
    same = and_(events.c.job == job, events.c.state == QUEUED, events.c.message == message)
    return int(connection.scalar(select(func.count()).where(same)) or 0)


def _check_room(connection: Connection, project: str, max_queued: int) -> None:
    waiting = _waiting(connection, project)
    if waiting >= max_queued:
        raise LimitExceeded(
            f"{waiting} jobs of project {project} are waiting, the limit is {max_queued}",
            reason="QUEUE_FULL",
            retry_seconds=5.0,
        )


def _waiting(connection: Connection, project: str) -> int:
    """How many of a project's jobs wait."""
    query = select(func.count()).where(jobs.c.project == project, jobs.c.state == QUEUED)
    return int(connection.scalar(query) or 0)


def _forget_reports(connection: Connection, job: int) -> None:
    """Forget every second report of progress, but for the newest, where there are many."""
    reports = and_(events.c.job == job, events.c.progress.is_not(None))
    kept = connection.scalars(select(events.c.sequence).where(reports).order_by(events.c.sequence)).all()
    if len(kept) > MOST_REPORTS:
        forgotten = kept[1:-NEWEST_REPORTS:2]
        connection.execute(delete(events).where(events.c.job == job, events.c.sequence.in_(forgotten)))


def _has_ended(connection: Connection, job: Row[Any], poison: bytes) -> bool:
    """End a job that must not be started once more."""
    if job.cancel_requested:
        _change(connection, job.number, CANCELLED, WORKER_LOST)
    elif job.attempt >= job.max_attempts:
        _change(connection, job.number, FAILED, f"failed: its worker was lost {job.attempt} times", outcome=poison)
    else:
        return False
    return True


def _mine(lease: Lease) -> Any:
    return and_(jobs.c.number == lease.number, jobs.c.token == lease.token, jobs.c.state == RUNNING)


def _change(connection: Connection, target: int | Lease, state: str, message: str, **values: Any) -> int:
    """Update a job and write the event, whose number is the answer; with a lease, only while it holds."""
    which = _mine(target) if isinstance(target, Lease) else jobs.c.number == target
    ends: dict[str, Any] = {"finished": now(), "token": None, "lease_until": None} if state in FINAL else {}
    changed = connection.execute(
        update(jobs)
        .where(which)
        .values(state=state, last_sequence=jobs.c.last_sequence + 1, untracked=True, **ends, **values)
        .returning(jobs.c.number, jobs.c.last_sequence, jobs.c.attempt, jobs.c.parent)
    ).one_or_none()
    if changed is None:
        raise LeaseLost(target.name if isinstance(target, Lease) else target)
    progress = values.get("progress")
    _write_event(connection, changed.number, changed.last_sequence, state, changed.attempt, progress, message)
    if state in FINAL and changed.parent is not None:
        _wake(connection, changed.parent, "one of its jobs has ended")
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
