"""The connection to SQLite or Postgres: transactions, the database's clock, migrations.

Times are the database's, as seconds since 1970: machines' clocks differ, and a lease must not depend on whose is right.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import URL, Connection, Engine, Float, Table, create_engine, event, exc, func, make_url, select, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from homophily_service.contract.errors import FailedPrecondition, Unavailable

# Alembic is imported where it is used: processes that compute do not migrate, and start sooner without it.
if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

BUSY_SECONDS = 30.0
# How long to wait for a server that does not answer at all, not even with a refusal.
_SILENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_FROZEN_SECONDS = 10
# Bytes in a page of a list: the message stays below gRPC's usual limit of 4 MiB.
PAGE_BYTES = 2 << 20
# Any number will do, as long as nothing else in the database uses it.
_MIGRATION_LOCK = 0x686F6D6F
# Postgres' error code.
_INSUFFICIENT_PRIVILEGE = "42501"


class now(FunctionElement[float]):
    """The database's clock, in seconds since 1970."""

    type = Float(53)
    inherit_cache = True


@compiles(now, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _postgres_now(*_: Any, **__: Any) -> str:
    # When the statement began; unlike clock_timestamp() it is constant within it, so indexes can be searched by it.
    return "extract(epoch from statement_timestamp())::float8"


def time_of(connection: Connection) -> float:
    """The database's time, on an open connection."""
    return float(connection.scalar(select(now())) or 0.0)


class Database:
    """One engine, used by any thread."""

    def __init__(self, url: str, busy_seconds: float = BUSY_SECONDS) -> None:
        self.url = url
        self.engine = _engine(url, busy_seconds)

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction that may write; on SQLite it has the database to itself.

        One that is not ``durable`` survives the end of any process, but SQLite does not wait for the disk: a power cut
        may undo it, and then all later ones too.
        """
        with (
            _outages_reported(),
            self.engine.connect() as connection,
            connection.execution_options(durable=durable).begin(),
        ):
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Statements that only read, each seeing what was committed before it."""
        with _outages_reported(), self.engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                yield connection.execution_options(only_reads=True)
            else:
                yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def time(self) -> float:
        """The database's time."""
        with self.read() as connection:
            return time_of(connection)

    def ping(self) -> None:
        """Raise Unavailable if the database does not answer."""
        with self.read() as connection:
            connection.execute(text("SELECT 1"))

    @property
    def is_embedded(self) -> bool:
        """Whether it is a file of one machine, rather than a server that others use as well."""
        return self.engine.dialect.name == "sqlite"

    def migrate(self) -> None:
        """Bring the tables up to this version; several processes may try at once."""
        from alembic import command
        from alembic.util import CommandError

        if self.is_embedded and self.engine.url.database:
            Path(self.engine.url.database).parent.mkdir(parents=True, exist_ok=True)
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            config = _alembic()
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                # The only possible cause: the tables have a version that this program does not know.
                raise FailedPrecondition(f"the database is of another version than this program: {error}") from error
            except exc.ProgrammingError as error:
                if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
                    raise
                advice = "migrate with the database_url of the role that owns the tables"
                raise FailedPrecondition(f"this role may not change tables ({error.orig}): {advice}") from error

    def check_version(self) -> None:
        """Raise FailedPrecondition if the tables are not of this version."""
        found, needed, is_older = self._versions()
        if found != needed:
            advice = "run `homophily migrate`" if is_older else "they are of another version"
            raise FailedPrecondition(f"the database has schema {found}, this program needs {needed}: {advice}")

    def check_is_new_enough(self) -> None:
        """Raise Unavailable while the tables are of an older version: they are about to be migrated.

        Newer ones are fine: columns that a migration adds have defaults, so programs of the version before still work.
        """
        found, needed, is_older = self._versions()
        if is_older:
            raise Unavailable(
                f"the database has schema {found}, this program needs {needed}: migrate it first (`homophily migrate`)"
            )

    def _versions(self) -> tuple[str | None, str | None, bool]:
        """The version of the tables, the one that this program needs, and whether the first is an older one."""
        script = _scripts()
        found, needed = self._revision(), script.get_current_head()
        older = {revision.revision for revision in script.walk_revisions()} - {needed}
        return found, needed, found is None or found in older

    def _revision(self) -> str | None:
        """The version of the tables; None if there are none. Looking does not create SQLite's file."""
        from alembic.runtime.migration import MigrationContext

        path = self.engine.url.database
        if self.is_embedded and path and not Path(path).exists():
            return None
        with self.read() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def close(self) -> None:
        """Close idle connections."""
        self.engine.dispose()


class Page(NamedTuple):
    """A part of a list: at most ``limit`` rows made at some time, after a row of the list."""

    limit: int = 100
    #: The number of the last row of the page before.
    last: int | None = None
    oldest_first: bool = False
    #: Seconds since 1970, the second one excluded.
    created_after: float | None = None
    created_before: float | None = None

    def order(self, table: Table) -> Any:
        """The order of the list."""
        return table.c.number if self.oldest_first else table.c.number.desc()

    def matches(self, table: Table) -> list[Any]:
        """The conditions of the page."""
        number, created = table.c.number, table.c.created
        found = []
        if self.last is not None:
            found.append(number > self.last if self.oldest_first else number < self.last)
        if self.created_after is not None:
            found.append(created >= self.created_after)
        if self.created_before is not None:
            found.append(created < self.created_before)
        return found


#: The newest rows.
FIRST_PAGE = Page()


def page_of(
    connection: Connection, table: Table, body: Any, matches: Sequence[Any], page: Page
) -> tuple[list[int], bool]:
    """The numbers of a page's rows, and whether there are more. There are fewer if their bodies are large."""
    wanted = select(table.c.number, func.coalesce(func.length(body), 0)).where(*matches, *page.matches(table))
    numbers: list[int] = []
    total, limit = 0, page.limit
    for found, size in connection.execute(wanted.order_by(page.order(table)).limit(limit + 1)):
        total += size
        if numbers and (len(numbers) == limit or total > PAGE_BYTES):
            return numbers, True
        numbers.append(found)
    return numbers, False


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_alembic())


def _alembic() -> Config:
    from alembic.config import Config

    config = Config()
    # The configuration's parser needs each % doubled.
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def _engine(url: str, busy_seconds: float) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return _postgres_engine(parsed)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite_engine(parsed, busy_seconds)
    raise ValueError(f"database_url must be of sqlite or postgresql+psycopg; got {parsed.get_backend_name()}")


def _postgres_engine(url: URL) -> Engine:
    engine = create_engine(url, pool_pre_ping=True, pool_size=8, max_overflow=8, connect_args=_SILENCE)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        # A process frozen within a transaction would keep its job's row locked, so that nobody could take the job over.
        connection.execute(f"SET idle_in_transaction_session_timeout = '{_FROZEN_SECONDS}s'")
        connection.commit()

    return engine


def _sqlite_engine(url: URL, busy_seconds: float) -> Engine:
    engine = create_engine(url, connect_args={"timeout": busy_seconds}, pool_size=8, max_overflow=8)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        # The driver's own transactions start late and as readers; ours are begun below.
        connection.isolation_level = None
        _use_wal(connection, busy_seconds)
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that starts as a reader cannot become a writer while another writes.
        options = connection.get_execution_options()
        if not options.get("only_reads"):
            connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if options.get('durable', True) else 'NORMAL'}")
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _use_wal(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Switch to WAL, with retries: the busy timeout does not apply if several processes open a new file at once."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def _outages_reported() -> Iterator[None]:
    try:
        yield
    except (exc.DBAPIError, exc.TimeoutError) as error:
        if not _is_outage(error):
            raise
        raise Unavailable(f"the database does not answer: {_short(error)}", retry_seconds=1.0) from error


def _is_outage(error: exc.DBAPIError | exc.TimeoutError) -> bool:
    if isinstance(error, exc.TimeoutError) or error.connection_invalidated:
        return True
    # SQLite reports invalid SQL as an operational error, too.
    is_mistake = getattr(error.orig, "sqlite_errorname", "") == "SQLITE_ERROR"
    return isinstance(error, exc.OperationalError | exc.InterfaceError) and not is_mistake


def _short(error: exc.DBAPIError | exc.TimeoutError) -> str:
    """The reason, without the internal addresses that precede it; the exception's cause has the full text."""
    if isinstance(error, exc.TimeoutError):
        return "all connections are in use"
    return str(error.orig).split("\n", 1)[0].rpartition(": ")[2].strip()[:200]
