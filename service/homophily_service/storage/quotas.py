"""Quotas of projects: jobs per day, unfinished uploads, stored bytes. The queue limits how many jobs may wait."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select, text, update

from homophily_service.contract.errors import LimitExceeded
from homophily_service.storage.database import Database, now
from homophily_service.storage.tables import graphs, resources, uploads, usage

DAY = 86400.0


def lock_quota(connection: Connection, project: str) -> None:
    """Serialise the counting of a project until this transaction ends; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:project, 0))"), {"project": project})


def count_job(connection: Connection, project: str, most: int) -> None:
    """Add a job to today's count, or LimitExceeded. The caller has called :func:`lock_quota`."""
    time = float(connection.scalar(select(now())) or 0.0)
    day = int(time // DAY)
    today = (usage.c.project == project) & (usage.c.day == day)
    submitted = connection.scalar(select(usage.c.jobs).where(today))
    if (submitted or 0) >= most:
        raise LimitExceeded(
            f"project {project} has submitted {submitted} jobs today (UTC), the limit max_jobs_per_day is {most}",
            reason="JOBS_PER_DAY",
            retry_seconds=(day + 1) * DAY - time,
        )
    if submitted is None:
        connection.execute(insert(usage).values(project=project, day=day, jobs=1))
    else:
        connection.execute(update(usage).where(today).values(jobs=submitted + 1))


def forget_days(database: Database) -> None:
    """Delete the counts of all days but the last two."""
    with database.write() as connection:
        connection.execute(delete(usage).where(usage.c.day < now() / DAY - 2.0))


def stored_bytes(connection: Connection, project: str, upload_id: str = "") -> int:
    """Bytes of a project's datasets, models, embeddings and graphs, and those reserved by all uploads but this one."""
    sums = [
        select(func.sum(resources.c.bytes)).where(resources.c.project == project),
        select(func.sum(graphs.c.bytes)).where(graphs.c.project == project),
        select(func.sum(uploads.c.bytes)).where(uploads.c.project == project, uploads.c.id != upload_id),
    ]
    return sum(int(connection.scalar(one) or 0) for one in sums)


def check_bytes(connection: Connection, project: str, more: int, most: int | None, upload_id: str = "") -> None:
    """LimitExceeded if ``more`` bytes would exceed the project's limit; with none, if the limit is reached already.

    Bytes that an upload has reserved are not counted twice if its ``upload_id`` is given.
    """
    if most is None:
        return
    stored = stored_bytes(connection, project, upload_id)
    if stored + more > most or (more == 0 and stored >= most):
        raise LimitExceeded(
            f"project {project} has {stored} bytes stored{f' and would get {more} more' if more else ''}, "
            f"the limit max_project_bytes is {most}: delete datasets, models or embeddings, or wait for unused graphs "
            "and broken uploads to be removed",
            reason="PROJECT_FULL",
        )


def reserve_upload(
    connection: Connection, project: str, upload_id: str, size: int, most_bytes: int | None, most_uploads: int
) -> None:
    """Reserve the bytes of an upload, once; LimitExceeded if the project may not have them.

    The caller has called :func:`lock_quota`.
    """
    check_bytes(connection, project, size, most_bytes, upload_id)
    this_upload = (uploads.c.project == project) & (uploads.c.id == upload_id)
    if connection.execute(update(uploads).where(this_upload).values(bytes=size, last_used=now())).rowcount:
        return
    unfinished = int(connection.scalar(select(func.count()).where(uploads.c.project == project)) or 0)
    if unfinished >= most_uploads:
        raise LimitExceeded(
            f"project {project} has {unfinished} unfinished uploads, the limit max_uploads is {most_uploads}: "
            "finish them, or wait until they expire",
            reason="TOO_MANY_UPLOADS",
        )
    connection.execute(insert(uploads).values(project=project, id=upload_id, bytes=size, last_used=now()))


def reservation_of(job_id: str) -> str:
    """The id under which a job reserves bytes, until it ends; no upload can have it."""
    return f"job/{job_id}"


def release_upload(connection: Connection, project: str, upload_id: str) -> None:
    """Stop counting an upload: it is finished or abandoned."""
    connection.execute(delete(uploads).where(uploads.c.project == project, uploads.c.id == upload_id))


def forget_uploads(database: Database, older_than_seconds: float) -> None:
    """Stop counting uploads that have been idle for longer, on any machine."""
    with database.write() as connection:
        connection.execute(delete(uploads).where(uploads.c.last_used < now() - older_than_seconds))
