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

from collections.abc import Collection

from sqlalchemy import (
    Connection,
    and_,
    delete,
    exc,
    exists,
    func,
    insert,
    select,
    tuple_,
    update,
)

from homophily_client.names import JobName
from homophily_service.contract.errors import AlreadyExists, FailedPrecondition
from homophily_service.contract.states import CANCELLED, FINAL, QUEUED, RUNNING, WAITING
from homophily_service.storage.database import FIRST_PAGE, Page, now, page_of
from homophily_service.storage.fair_share import places
from homophily_service.storage.job_rows import (
    RECORD,
    WORKER_LOST,
    change,
    check_room,
    get_job,
    insert_job,
    is_lost,
    request_digest,
    requeue_lost,
)
from homophily_service.storage.leases import Leases
from homophily_service.storage.quotas import count_job, lock_quota
from homophily_service.storage.records import Event, JobRecord, NewJob
from homophily_service.storage.tables import events, jobs, runs_to_end

# Few enough for other writers not to wait long.
FORGET_AT_ONCE = 500


class Queue(Leases):
    """Jobs of all projects. Every method is one transaction."""

    def submit(self, job: NewJob, max_queued: int, max_per_day: int | None = None) -> JobRecord:
        """Queue a job. The same request_id with the same request returns the existing job.

        AlreadyExists if the request_id came with another request; LimitExceeded if too many of the project's jobs
        wait, or too many were submitted today.
        """
        digest = request_digest(job)
        try:
            with self.database.write() as connection:
                found = self._by_request_id(connection, job, digest)
                if found is not None:
                    return found
                lock_quota(connection, job.name.project)
                check_room(connection, job.name.project, max_queued)
                if max_per_day is not None:
                    count_job(connection, job.name.project, max_per_day)
                return insert_job(connection, job, digest)
        except exc.IntegrityError:
            # On Postgres, two calls with one request_id may come at the same time: the other one was first.
            with self.database.read() as connection:
                found = self._by_request_id(connection, job, digest)
            if found is None:
                raise AlreadyExists(f"{job.name} exists") from None
            return found

    def _by_request_id(self, connection: Connection, job: NewJob, digest: str) -> JobRecord | None:
        if not job.request_id:
            return None
        same_request = and_(jobs.c.project == job.name.project, jobs.c.request_id == job.request_id)
        found = connection.execute(select(*RECORD, jobs.c.request_digest).where(same_request)).one_or_none()
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
        """LimitExceeded if too many of the project's jobs wait; :meth:`submit` checks again."""
        with self.database.read() as connection:
            check_room(connection, project, max_queued)

    def knows_request(self, project: str, request_id: str) -> bool:
        """Whether a job was submitted with this request_id."""
        same_request = and_(jobs.c.project == project, jobs.c.request_id == request_id)
        with self.database.read() as connection:
            return bool(connection.scalar(select(exists().where(same_request))))

    def get(self, name: JobName) -> JobRecord:
        """The job, or NotFound."""
        with self.database.read() as connection:
            return get_job(connection, name)

    def placed(self, names: Collection[JobName]) -> dict[JobName, tuple[JobRecord, int]]:
        """Those that exist, and how many jobs will be started before each (0 unless it is queued)."""
        keys = [(name.project, name.id) for name in names]
        query = select(*RECORD).where(tuple_(jobs.c.project, jobs.c.id).in_(keys))
        with self.database.read() as connection:
            records = list(map(JobRecord.of, connection.execute(query)))
            found = places(connection, [job.number for job in records if job.state == QUEUED])
        return {job.name: (job, found.get(job.number, 0)) for job in records}

    def page(
        self,
        project: str,
        page: Page = FIRST_PAGE,
        *,
        states: Collection[str] = (),
        kind: str = "",
        source: str = "",
    ) -> tuple[list[tuple[JobRecord, int]], bool]:
        """Jobs of a project with their places, as in :meth:`placed`, and whether there are more."""
        matches = [jobs.c.project == project]
        if states:
            matches.append(jobs.c.state.in_(states))
        if kind:
            matches.append(jobs.c.kind == kind)
        if source:
            matches.append(jobs.c.source == source)
        with self.database.read() as connection:
            numbers, has_more = page_of(connection, jobs, jobs.c.outcome, matches, page)
            query = select(*RECORD).where(jobs.c.number.in_(numbers)).order_by(page.order(jobs))
            records = list(map(JobRecord.of, connection.execute(query)))
            found = places(connection, [job.number for job in records if job.state == QUEUED])
        return [(job, found.get(job.number, 0)) for job in records], has_more

    def events_after(self, number: int, sequence: int) -> list[Event]:
        """The events of a job after this sequence number."""
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
        """Cancel a waiting job at once; request it for a running job; leave an ended one as it is."""
        with self.database.write() as connection:
            job = get_job(connection, name, lock=True)
            if job.state in (QUEUED, WAITING):
                change(connection, job.number, CANCELLED, "cancelled while it was waiting", cancel_requested=True)
            elif job.state == RUNNING and is_lost(connection, job.number):
                change(connection, job.number, CANCELLED, WORKER_LOST, cancel_requested=True)
            elif job.state == RUNNING:
                connection.execute(update(jobs).where(jobs.c.number == job.number).values(cancel_requested=True))
        # One by one, after the parent: ending a child locks the child first, then its parent.
        for child in self.children(name):
            if child.state not in FINAL:
                self.cancel(child.name)
        return self.get(name)

    def children(self, name: JobName) -> list[JobRecord]:
        """The jobs that a job queued itself, oldest first."""
        parent = select(jobs.c.number).where(jobs.c.project == name.project, jobs.c.id == name.id).scalar_subquery()
        with self.database.read() as connection:
            query = select(*RECORD).where(jobs.c.parent == parent).order_by(jobs.c.number)
            return list(map(JobRecord.of, connection.execute(query)))

    def delete(self, name: JobName) -> None:
        """Delete a job that has ended; the tracker will end its run, if it has not yet."""
        with self.database.write() as connection:
            job = get_job(connection, name, lock=True)
            if job.state not in FINAL:
                raise FailedPrecondition(f"{name} is {job.state}: cancel it first", reason="JOB_NOT_ENDED")
            if job.tracking_run is not None and job.untracked:
                end = {"run": job.tracking_run, "state": job.state, "finished": job.finished}
                connection.execute(insert(runs_to_end).values(end))
            connection.execute(delete(jobs).where(jobs.c.number == job.number))

    def depths(self) -> list[tuple[str, str, int]]:
        """Jobs by state and kind."""
        query = select(jobs.c.state, jobs.c.kind, func.count()).group_by(jobs.c.state, jobs.c.kind)
        with self.database.read() as connection:
            return [(state, kind, count) for state, kind, count in connection.execute(query)]

    def requeue_lost(self, late_seconds: float, poison: bytes) -> int:
        """Queue jobs again whose lease ran out ``late_seconds`` ago, or end them as in :meth:`claim`; returns how many.

        Busy workers claim nothing, so without this the jobs would still be shown as running.
        """
        lost = select(jobs).where(jobs.c.state == RUNNING, jobs.c.lease_until < now() - late_seconds)
        with self.database.read() as connection:
            if not connection.scalar(select(lost.exists())):
                return 0
        with self.database.write() as connection:
            return requeue_lost(connection, lost, poison)

    def forget_ended(self, older_than_seconds: float, *, untracked: bool = True) -> int:
        """Delete records of old ended jobs, ``untracked`` ones only if asked to; returns how many."""
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
