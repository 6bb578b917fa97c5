"""Whose turn it is: the order in which queued jobs are started.

Projects take turns. The next job is one of the project with the fewest running jobs; of several such projects, of the
one whose last turn was longest ago. Priorities order the jobs within a project.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import Connection, Select, func, select
from sqlalchemy.dialects import postgresql, sqlite

from homophily_service.contract.states import QUEUED, RUNNING
from homophily_service.storage.database import now
from homophily_service.storage.tables import jobs, turns

_LAST_STARTED = func.coalesce(turns.c.last_started, 0.0)
# The order of a project's jobs.
ORDER = (jobs.c.priority.desc(), jobs.c.not_before, jobs.c.number)
# How many jobs of a project may run at a time; None for any number.
MaxRunning = Callable[[str], int | None]


def projects_in_turn(connection: Connection, ready: Select[Any], max_running: MaxRunning) -> list[str]:
    """The projects that may start one of these jobs: with the fewest running first, then by the last start."""
    waiting = ready.with_only_columns(jobs.c.project).distinct().subquery()
    running = (
        select(jobs.c.project, func.count().label("count"))
        .where(jobs.c.state == RUNNING)
        .group_by(jobs.c.project)
        .subquery()
    )
    count = func.coalesce(running.c.count, 0)
    query = (
        select(waiting.c.project, count)
        .outerjoin(running, running.c.project == waiting.c.project)
        .outerjoin(turns, turns.c.project == waiting.c.project)
        .order_by(count, _LAST_STARTED, waiting.c.project)
    )
    limits = ((project, already, max_running(project)) for project, already in connection.execute(query))
    return [project for project, already, most in limits if most is None or already < most]


def places(connection: Connection, queued: Collection[int]) -> dict[int, int]:
    """How many jobs will be started before each of these queued ones, by number."""
    if not queued:
        return {}
    own = func.row_number().over(partition_by=jobs.c.project, order_by=ORDER)
    of_projects = select(jobs.c.number, jobs.c.project, own.label("own")).where(jobs.c.state == QUEUED).subquery()
    place = func.row_number().over(order_by=(of_projects.c.own, _LAST_STARTED, of_projects.c.number)) - 1
    in_turn = (
        select(of_projects.c.number, place.label("place"))
        .outerjoin(turns, turns.c.project == of_projects.c.project)
        .subquery()
    )
    found = connection.execute(select(in_turn).where(in_turn.c.number.in_(queued)))
    return {row.number: row.place for row in found}


def record_start(connection: Connection, project: str) -> None:
    """Record that a job of the project was started."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    started = {"last_started": now()}
    noted = dialect.insert(turns).values(project=project, **started)
    connection.execute(noted.on_conflict_do_update(index_elements=[turns.c.project], set_=started))
