"""Jobs whose tracking runs are behind: a mark in the database, set in the same transaction as the change.

The mark is cleared after the run has everything, and only if nothing has happened meanwhile. So nothing is ever lost,
but after a crash something may be sent twice: sending must be idempotent.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, delete, exc, make_url, or_, select, text, update

from homophily_service.contract import states
from homophily_service.storage.database import Database
from homophily_service.storage.job_rows import RECORD
from homophily_service.storage.records import JobRecord, RunToEnd
from homophily_service.storage.tables import jobs, runs_to_end

# A job is not sent again once the tracker has died this many times while sending it.
MOST_ATTEMPTS = 3
# Any number will do, as long as nothing else in the database uses it.
_LOCK = 0x686F6D74


class Outbox:
    """Jobs whose runs are behind."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def waiting(self, limit: int) -> list[JobRecord]:
        """Those that have been marked, oldest first."""
        query = select(*RECORD).where(jobs.c.untracked).order_by(jobs.c.number).limit(limit)
        with self.database.read() as connection:
            return list(map(JobRecord.of, connection.execute(query)))

    def clear_irrelevant(self, kinds: Collection[str]) -> int:
        """Clear the mark of jobs that have nothing to send: of other kinds, or not started yet."""
        idle = or_(jobs.c.kind.not_in(kinds), (jobs.c.state == states.QUEUED) & jobs.c.tracking_run.is_(None))
        with self.database.read() as connection:
            if connection.scalar(select(jobs.c.number).where(jobs.c.untracked, idle).limit(1)) is None:
                return 0
        with self.database.write(durable=False) as connection:
            return connection.execute(update(jobs).where(jobs.c.untracked, idle).values(untracked=False)).rowcount

    def note_run(self, number: int, run: str, url: str | None) -> bool:
        """Record which run is the job's; False if the job was deleted."""
        with self.database.write(durable=False) as connection:
            noted = update(jobs).where(jobs.c.number == number)
            return connection.execute(noted.values(tracking_run=run, tracking_url=url)).rowcount > 0

    def note_version(self, number: int, version: str) -> None:
        """Record where the job's model is registered."""
        with self.database.write(durable=False) as connection:
            connection.execute(update(jobs).where(jobs.c.number == number).values(registered_version=version))

    def runs_to_end(self, limit: int) -> list[RunToEnd]:
        """Runs of deleted jobs whose end has not been sent."""
        with self.database.read() as connection:
            return list(map(RunToEnd.of, connection.execute(select(runs_to_end).limit(limit))))

    def run_ended(self, run: str) -> None:
        """Forget a run of a deleted job: its end has been sent."""
        with self.database.write(durable=False) as connection:
            connection.execute(delete(runs_to_end).where(runs_to_end.c.run == run))

    def sent(self, number: int, sequence: int) -> None:
        """Clear the mark, unless something has happened after the event of this number."""
        with self.database.write(durable=False) as connection:
            unchanged = update(jobs).where(jobs.c.number == number, jobs.c.last_sequence == sequence)
            connection.execute(unchanged.values(untracked=False))

    def begin(self, number: int) -> None:
        """Count an attempt to send a job, before it is made: a process that dies during it could not."""
        self._count(number, jobs.c.tracking_attempts + 1)

    def reset_attempts(self, number: int) -> None:
        """Reset the count: the attempt has ended, with or without success, and the process is alive."""
        self._count(number, 0)

    def _count(self, number: int, attempts: Any) -> None:
        with self.database.write(durable=False) as connection:
            connection.execute(update(jobs).where(jobs.c.number == number).values(tracking_attempts=attempts))

    def give_up(self, number: int) -> None:
        """Clear the mark although the run is behind."""
        with self.database.write(durable=False) as connection:
            connection.execute(update(jobs).where(jobs.c.number == number).values(untracked=False))


class LeaderLock:
    """Only one tracker of a database works at a time; the lock ends with the process or the connection."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._connection: Connection | None = None
        self._file: int | None = None

    def is_held(self) -> bool:
        """Whether this process has the lock, taken now if it is free."""
        if self.database.engine.dialect.name == "sqlite":
            return self._has_file()
        try:
            return self._has_session()
        except exc.SQLAlchemyError:
            self.close()
            return False

    def _has_file(self) -> bool:
        if self._file is not None:
            return True
        name = make_url(self.database.url).database
        assert name is not None
        file = os.open(Path(f"{name}-tracker"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def _has_session(self) -> bool:
        """Whether the session has the lock: it keeps it for as long as it answers."""
        if self._connection is not None:
            self._connection.execute(text("SELECT 1"))
            return True
        connection = self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            if connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}):
                self._connection = connection
        finally:
            if self._connection is None:
                connection.close()
        return self._connection is not None

    def close(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            with suppress(exc.SQLAlchemyError):
                # Postgres notices the end of a session a little later.
                self._connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
                # Not back to the pool, where a session that could not unlock would keep the lock.
                self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
