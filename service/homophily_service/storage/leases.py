"""The workers' side of the queue: jobs are claimed, held, reported on and ended under a lease."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence

from sqlalchemy import (
    Connection,
    and_,
    delete,
    func,
    select,
    update,
)

from homophily_client.names import JobName
from homophily_service.contract.states import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, WAITING
from homophily_service.storage.database import Database, now
from homophily_service.storage.fair_share import MaxRunning, projects_in_turn, record_start
from homophily_service.storage.job_rows import (
    NO_LEASE,
    UNCLAIMED,
    backoff,
    change,
    claimable,
    count_waiting,
    first_started,
    get_job,
    held_by,
    insert_job,
    next_job,
    request_digest,
    requeue_lost,
    wake,
)
from homophily_service.storage.quotas import count_job, lock_quota
from homophily_service.storage.records import Lease, LeaseLost, NewJob
from homophily_service.storage.tables import events, jobs

# How often a job may be given back for the same reason before that counts as an attempt: otherwise a job that takes
# longer than its workers live would be started for ever.
FREE_RETURNS = 10
# Progress reports that are kept of a job: beyond that, every second one is deleted, except for the newest.
MOST_REPORTS, NEWEST_REPORTS = 400, 100


class Leases:
    """What workers do with jobs. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database

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
        lost, ready, any_of_both = claimable(tuple(kinds))
        # Reading takes no lock: a transaction that writes is started only if there is a job.
        with self.database.read() as connection:
            if not connection.scalar(any_of_both):
                return None
            if not connection.scalar(select(lost.exists())) and not projects_in_turn(connection, ready, max_running):
                return None
        with self.database.write(durable=False) as connection:
            requeue_lost(connection, lost, poison)
            job = next_job(connection, ready, poison, max_running)
            if job is None:
                return None
            token = secrets.token_hex(16)
            change(
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
            record_start(connection, job.project)
        name = JobName(job.project, job.id)
        origin = job.origin or "", job.trace or "", job.source_digest or ""
        attempts = job.attempt + 1, job.max_attempts
        return Lease(name, job.number, job.kind, job.request, *attempts, job.time_limit, token, *origin)

    def renew(self, lease: Lease, lease_seconds: float) -> bool:
        """Renew the lease; True if the job is to be cancelled."""
        with self.database.write(durable=False) as connection:
            changed = connection.execute(
                update(jobs)
                .where(held_by(lease))
                .values(lease_until=now() + lease_seconds)
                .returning(jobs.c.cancel_requested)
            ).one_or_none()
        if changed is None:
            raise LeaseLost(lease.name)
        return bool(changed.cancel_requested)

    def report(self, lease: Lease, progress: bytes) -> None:
        """Record the progress of the job."""
        with self.database.write(durable=False) as connection:
            sequence = change(connection, lease, RUNNING, "", progress=progress)
            if sequence % NEWEST_REPORTS == 0:
                forget_reports(connection, lease.number)

    def finish(self, lease: Lease, outcome: bytes, publish: Callable[[Connection], None] | None = None) -> None:
        """End with a result; ``publish`` writes what the result names, in the same transaction."""
        with self.database.write() as connection:
            change(connection, lease, SUCCEEDED, "", outcome=outcome)
            if publish is not None:
                publish(connection)

    def fail(self, lease: Lease, error: bytes, message: str) -> None:
        """End with an error."""
        with self.database.write() as connection:
            change(connection, lease, FAILED, message, outcome=error)

    def cancelled(self, lease: Lease) -> None:
        """End the job as cancelled."""
        with self.database.write() as connection:
            change(connection, lease, CANCELLED, "cancelled while it was running")

    def release(self, lease: Lease, message: str, *, charged: bool) -> None:
        """Give the job back, or end it if it is to be cancelled.

        An attempt that is not ``charged`` does not count, and the job keeps its place; otherwise it waits a while, and
        then behind others of its priority. After ``FREE_RETURNS`` with the same message every attempt is charged.
        """
        with self.database.write() as connection:
            if connection.scalar(select(jobs.c.cancel_requested).where(held_by(lease)).with_for_update()):
                change(connection, lease, CANCELLED, "cancelled when it was given back")
                return
            charged = charged or count_returns(connection, lease.number, message) >= FREE_RETURNS
            later = {"not_before": now() + backoff(lease.attempt)} if charged else {"attempt": lease.attempt - 1}
            change(connection, lease, QUEUED, message, **later, **UNCLAIMED)

    def get_request(self, number: int) -> bytes:
        """The job's request."""
        with self.database.read() as connection:
            return bytes(connection.scalars(select(jobs.c.request).where(jobs.c.number == number)).one())

    def waited(self, lease: Lease) -> float:
        """Seconds since the job was submitted, or was last given back."""
        since = select(now() - func.max(events.c.time)).where(events.c.job == lease.number, events.c.state == QUEUED)
        with self.database.read() as connection:
            return float(connection.scalar(since) or 0.0)

    def first_started(self, name: JobName) -> float:
        """When the first attempt began."""
        with self.database.read() as connection:
            return float(connection.scalars(first_started(get_job(connection, name).number)).one())

    def parent_seconds(self, name: JobName) -> float:
        """Seconds since the first attempt at the parent job began."""
        with self.database.read() as connection:
            is_job = and_(jobs.c.project == name.project, jobs.c.id == name.id)
            parent = connection.scalars(select(jobs.c.parent).where(is_job)).one()
            began = first_started(parent).scalar_subquery()
            return float(connection.scalars(select(now() - began)).one())

    def wait_for(
        self,
        lease: Lease,
        children: Sequence[NewJob],
        message: str,
        max_queued: int | None = None,
        max_per_day: int | None = None,
    ) -> None:
        """Let the job wait until these have ended. Those that an earlier attempt queued are not queued again.

        They count towards the project's limits. If there are more than may wait at a time, the first are queued, at
        least one; the job asks for the others when it continues. LimitExceeded if the project may queue no more today.
        """
        project = lease.name.project
        with self.database.write() as connection:
            lock_quota(connection, project)
            held = select(jobs.c.cancel_requested, jobs.c.priority).where(held_by(lease)).with_for_update()
            job = connection.execute(held).one_or_none()
            if job is None:
                raise LeaseLost(lease.name)
            if job.cancel_requested:
                change(connection, lease, CANCELLED, "cancelled while it was running")
                return
            known = set(connection.scalars(select(jobs.c.id).where(jobs.c.parent == lease.number)))
            new = [child for child in children if child.name.id not in known]
            if max_queued is not None:
                new = new[: max(1, max_queued - count_waiting(connection, project))]
            for child in new:
                if max_per_day is not None:
                    count_job(connection, project, max_per_day)
                insert_job(connection, child._replace(priority=job.priority), request_digest(child), lease.number)
            change(connection, lease, WAITING, message, attempt=lease.attempt - 1, **NO_LEASE)
            wake(connection, lease.number, "")


def count_returns(connection: Connection, job: int, message: str) -> int:
    """How often a job was given back with this message."""
    same = and_(events.c.job == job, events.c.state == QUEUED, events.c.message == message)
    return int(connection.scalar(select(func.count()).where(same)) or 0)


def forget_reports(connection: Connection, job: int) -> None:
    """Delete every second progress report except the newest, if there are many."""
    reports = and_(events.c.job == job, events.c.progress.is_not(None))
    kept = connection.scalars(select(events.c.sequence).where(reports).order_by(events.c.sequence)).all()
    if len(kept) > MOST_REPORTS:
        forgotten = kept[1:-NEWEST_REPORTS:2]
        connection.execute(delete(events).where(events.c.job == job, events.c.sequence.in_(forgotten)))
