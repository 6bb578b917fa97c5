"""Figures about all jobs, for metrics."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Select, func, select, tuple_

from homophily_service.contract.states import QUEUED, RUNNING
from homophily_service.storage.database import Database, now
from homophily_service.storage.outbox import MOST_ATTEMPTS
from homophily_service.storage.records import EndedJob
from homophily_service.storage.tables import events, jobs

# Each row includes the job's result, which may be large.
ROWS_AT_ONCE = 200


class Backlog(NamedTuple):
    """Jobs that wait."""

    #: Seconds that the oldest queued job has waited; 0 if there is none.
    oldest_queued: float
    #: Jobs with something that is not tracked yet, and jobs whose tracking was given up.
    untracked: int
    given_up: int


def backlog(database: Database) -> Backlog:
    """Jobs that wait now."""
    oldest = select(now() - func.min(jobs.c.created)).where(jobs.c.state == QUEUED)
    untracked = select(func.count()).where(jobs.c.untracked)
    given_up = select(func.count()).where(jobs.c.tracking_attempts >= MOST_ATTEMPTS)
    with database.read() as connection:
        behind, lost = (int(connection.scalar(query) or 0) for query in (untracked, given_up))
        return Backlog(float(connection.scalar(oldest) or 0.0), behind, lost)


def ended_after(database: Database, finished: float, number: int) -> list[EndedJob]:
    """Jobs that ended after the job of this time and number, in this order; a few hundred at most."""
    first = select(func.min(events.c.time)).where(events.c.job == jobs.c.number, events.c.state == RUNNING)
    names = ("number", "kind", "state", "created", "started", "finished", "attempt", "outcome")
    query: Select[Any] = (
        select(*[jobs.c[name] for name in names], first.scalar_subquery().label("first_started"))
        .where(jobs.c.finished >= finished, tuple_(jobs.c.finished, jobs.c.number) > (finished, number))
        .order_by(jobs.c.finished, jobs.c.number)
        .limit(ROWS_AT_ONCE)
    )
    with database.read() as connection:
        return list(map(EndedJob.of, connection.execute(query)))
