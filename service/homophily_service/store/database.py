"""The connection to SQLite or Postgres: transactions, the database's clock, migrations.

Times are the database's, as seconds since 1970: machines' clocks differ, and a lease must not depend on whose is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, Float, create_engine, event, exc, make_url, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from homophily_service.errors import FailedPrecondition, Unavailable

BUSY_SECONDS = 30.0
# Any number will do, as long as nothing else in the database uses it.
_MIGRATION_LOCK = 0x686F6D6F


class now(FunctionElement[float]):
    """The database's clock, in seconds since 1970."""

    type = Float(53)
    inherit_cache = True


@compiles(now, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _postgres_now(*_: Any, **__: Any) -> str:
    return "extract(epoch from clock_timestamp())::float8"


class Database:
    """One engine, used by any thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write; on SQLite it has the database to itself."""
        with _outages_told(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Statements that only read, each seeing what was committed before it."""
        with _outages_told(), self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def ping(self) -> None:
        """Raise Unavailable if the database does not answer."""
        with self.read() as connection:
            connection.execute(text("SELECT 1"))

    def migrate(self) -> None:
        """Bring the tables up to this version; several processes may try at once."""
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            config = _alembic()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def check_version(self) -> None:
        """Raise FailedPrecondition if the tables are not of this version."""
        expected = ScriptDirectory.from_config(_alembic()).get_current_head()
        with self.read() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
        if found != expected:
            raise FailedPrecondition(f"the database has schema {found}, this program needs {expected}")

    def close(self) -> None:
        """Close idle connections."""
        self.engine.dispose()


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return create_engine(
            parsed, pool_pre_ping=True, pool_size=8, max_overflow=8, connect_args={"connect_timeout": 5}
        )
    if parsed.get_backend_name() != "sqlite":
        raise ValueError(f"database_url must be of sqlite or postgresql+psycopg; got {parsed.get_backend_name()}")
    if parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS}, pool_size=8, max_overflow=8)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        # The driver's own transactions start late and as readers; ours are begun below.
        connection.isolation_level = None
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that starts as a reader cannot become a writer while another writes.
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@contextmanager
def _outages_told() -> Iterator[None]:
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise Unavailable(f"the database does not answer: {_first_line(error)}", retry_seconds=1.0) from error
    except exc.DBAPIError as error:
        if error.connection_invalidated:
            raise Unavailable("the connection to the database was lost", retry_seconds=1.0) from error
        raise


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).split("\n", 1)[0][:200]
