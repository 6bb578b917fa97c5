"""Transactions, outages and migrations, on SQLite and on Postgres."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import exc, func, insert, inspect, make_url, select, text

from homophily_client.names import JobName, new_id
from homophily_service.contract.errors import FailedPrecondition, Unavailable
from homophily_service.storage import database as database_module
from homophily_service.storage.database import Database, now
from homophily_service.storage.queue import Queue
from homophily_service.storage.records import NewJob
from homophily_service.storage.tables import graphs, metadata
from homophily_service.storage.tokens import Tokens

from .databases import Postgres
from .together import eventually, in_processes, in_threads

GRAPH = {"digest": "0" * 64, "blob": "b", "created": 1.0, "last_used": 1.0}


def count(database: Database) -> int:
    with database.read() as connection:
        return connection.scalar(select(func.count()).select_from(graphs)) or 0


# -- transactions ------------------------------------------------------------------------------------------------------


def test_what_is_written_is_seen_by_others_when_the_transaction_ends(database: Database) -> None:
    with database.write() as connection:
        connection.execute(insert(graphs).values(GRAPH))
        assert count(database) == 0
    assert count(database) == 1


def test_an_error_takes_all_of_the_transaction_back(database: Database) -> None:
    with suppress(KeyError), database.write() as connection:
        connection.execute(insert(graphs).values(GRAPH))
        raise KeyError
    assert count(database) == 0


def test_what_is_wrong_with_a_statement_is_not_called_an_outage(database: Database) -> None:
    for statement, error in {
        "SELECT * FROM no_such_table": exc.DBAPIError,
        "SELEKT": exc.DBAPIError,
        "INSERT INTO graphs (digest) VALUES ('a')": exc.IntegrityError,
    }.items():
        with pytest.raises(error), database.write() as connection:
            connection.execute(text(statement))
    assert count(database) == 0


def test_each_read_sees_what_was_committed_before_it(database: Database) -> None:
    with database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(graphs)) == 0
        with database.write() as writer:
            writer.execute(insert(graphs).values(GRAPH))
        assert connection.scalar(select(func.count()).select_from(graphs)) == 1


def test_reading_and_writing_in_turn_uses_the_same_connections(database: Database) -> None:
    for number in range(20):
        with database.write() as connection:
            connection.execute(insert(graphs).values(GRAPH | {"digest": str(number)}))
        assert count(database) == number + 1
    assert database.engine.pool.status().startswith("Pool size: 8  Connections in pool: 1 ")


def test_the_clock_is_the_databases(database: Database) -> None:
    with database.read() as connection:
        first = connection.scalar(select(now()))
        assert first is not None
        assert abs(first - time.time()) < 60
        assert eventually(lambda: connection.scalar(select(now() > first)), 1.0)


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_sqlite_waits_for_the_disk_where_it_must(database: Database) -> None:
    full, normal = 2, 1
    with database.write() as connection:
        assert connection.scalar(text("PRAGMA synchronous")) == full
    with database.write(durable=False) as connection:
        assert connection.scalar(text("PRAGMA synchronous")) == normal
    with database.write() as connection:
        assert connection.scalar(text("PRAGMA synchronous")) == full
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_the_log_of_sqlite_does_not_grow_while_many_read(database: Database, tmp_path: Path) -> None:
    rows = select(func.count()).select_from(graphs)
    # At every moment one of two readers is between its statements. Did it keep a snapshot there, the log could never be
    # emptied. Threads would not do: one that the scheduler stops within a statement does keep a snapshot.
    with database.read() as first, database.read() as second:
        # 20 MB through a log that is emptied at 4 MB.
        for number in range(100):
            reader = (first, second)[number % 2]
            assert reader.scalar(rows) == number
            with database.write(durable=False) as connection:
                connection.execute(insert(graphs).values(GRAPH | {"digest": str(number), "blob": "b" * 200_000}))
    assert (tmp_path / "homophily.db-wal").stat().st_size < 6_000_000


def test_other_databases_are_refused() -> None:
    with pytest.raises(ValueError, match="must be of sqlite or postgresql"):
        Database("mysql://host/name")


# -- outages -----------------------------------------------------------------------------------------------------------


def uses(database: Database) -> list[Callable[[], object]]:
    queue, tokens = Queue(database), Tokens(database)
    return [
        database.ping,
        database.check_version,
        lambda: queue.submit(NewJob(JobName("default", new_id()), "fit", b"r"), 100),
        lambda: queue.claim("a worker", ["fit"], 60.0, b""),
        lambda: queue.get(JobName("default", queue.page("default")[0][0][0].id)),
        tokens.all,
    ]


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_a_server_that_was_stopped_is_used_again_when_it_is_back(database: Database, postgres: Postgres) -> None:
    for use in uses(database):
        use()
    # Many connections that do not know yet.
    in_threads(6, lambda _: database.ping())
    postgres.stop()
    try:
        for use in uses(database):
            with pytest.raises(Unavailable, match="the database does not answer") as caught:
                use()
            assert caught.value.retry_seconds == 1.0
            assert str(postgres.folder) not in caught.value.message
    finally:
        postgres.start()
    for use in uses(database):
        use()
    in_threads(6, lambda _: database.ping())


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_a_restart_that_nobody_noticed_is_no_outage(database: Database, postgres: Postgres) -> None:
    in_threads(6, lambda _: database.ping())
    postgres.stop()
    postgres.start()
    in_threads(6, lambda _: database.ping())


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_a_session_that_is_ended_within_a_transaction_has_written_nothing(database: Database) -> None:
    def write_and_be_ended() -> None:
        with database.write() as connection:
            connection.execute(insert(graphs).values(GRAPH))
            session = connection.scalar(text("SELECT pg_backend_pid()"))
            with database.read() as other:
                other.execute(text("SELECT pg_terminate_backend(:session, 5000)"), {"session": session})
            connection.execute(text("SELECT 1"))

    with pytest.raises(Unavailable, match="terminating connection"):
        write_and_be_ended()
    assert count(database) == 0


def test_a_server_that_is_not_there_is_told_without_its_address() -> None:
    database = Database("postgresql+psycopg://somebody:secret@127.0.0.1:1/nothing")
    with pytest.raises(Unavailable) as caught:
        database.ping()
    assert caught.value.message == "the database does not answer: Connection refused"


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_file_that_is_locked_for_too_long_is_told_and_used_again(database_url: str) -> None:
    database = Database(database_url, busy_seconds=0.1)
    queue = Queue(database)
    queue.submit(NewJob(JobName("default", "first"), "fit", b"r"), 100)
    lease = queue.claim("a worker", ["fit"], 60.0, b"")
    assert lease is not None
    locker = sqlite3.connect(str(make_url(database_url).database), isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    writes: list[Callable[[], object]] = [
        lambda: queue.submit(NewJob(JobName("default", "second"), "fit", b"r"), 100),
        lambda: queue.renew(lease, 60.0),
        lambda: queue.finish(lease, b""),
    ]
    for write in writes:
        with pytest.raises(Unavailable, match="the database does not answer: database is locked"):
            write()
        # Reading goes on.
        assert queue.get(lease.name).state == "running"
    locker.execute("ROLLBACK")
    locker.close()
    for write in writes:
        write()
    database.close()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_file_that_is_locked_for_a_moment_is_waited_for(database: Database) -> None:
    locker = sqlite3.connect(str(make_url(database.url).database), isolation_level=None, check_same_thread=False)
    locker.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.1, locker.execute, ["COMMIT"])
    release.start()
    with database.write() as connection:
        connection.execute(insert(graphs).values(GRAPH))
    release.join()
    locker.close()


def test_a_new_file_that_another_writes_to_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself refuses at once to change how such a file is written."""
    path = tmp_path / "homophily.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.1, other.execute, ["COMMIT"])
    release.start()
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    release.join()
    other.close()


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "homophily.db").mkdir()
    database = Database(f"sqlite:///{tmp_path / 'homophily.db'}", busy_seconds=0.1)
    with pytest.raises(Unavailable, match="unable to open database file"):
        database.ping()


# -- migrations --------------------------------------------------------------------------------------------------------


def differences(database: Database) -> list[object]:
    with database.write() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, metadata))


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    """A database without tables."""
    database = Database(empty_url)
    yield database
    database.close()


def test_migrations_make_the_tables_that_the_code_knows(empty: Database) -> None:
    with pytest.raises(FailedPrecondition, match="the database has schema None, this program needs"):
        empty.check_version()
    empty.migrate()
    empty.check_version()
    assert differences(empty) == []


def test_migrations_make_the_indexes_that_the_code_knows(empty: Database, backend: str) -> None:
    """Alembic does not compare all of an index, such as its order."""

    def indexes() -> set[str]:
        query = {
            "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
            "postgres": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
        }
        with empty.read() as connection:
            lines = {str(line) for line in connection.scalars(text(query[backend]))}
        return {line for line in lines if "alembic" not in line}

    empty.migrate()
    migrated = indexes()
    with empty.write() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    assert migrated == indexes()


def test_migrating_twice_changes_nothing(database: Database) -> None:
    with database.write() as connection:
        connection.execute(insert(graphs).values(GRAPH))
    database.migrate()
    database.check_version()
    assert count(database) == 1


def test_threads_may_migrate_at_once(empty_url: str) -> None:
    def migrate(_: int) -> None:
        database = Database(empty_url)
        database.migrate()
        database.check_version()
        database.close()

    in_threads(8, migrate)


MIGRATE = """
from homophily_service.storage.database import Database

database = Database(sys.argv[1])
begin()
database.migrate()
database.check_version()
"""


def test_processes_may_migrate_at_once(empty_url: str) -> None:
    in_processes(2, MIGRATE, empty_url)


def test_migrations_can_be_undone(empty: Database) -> None:
    empty.migrate()
    with empty.write() as connection:
        config = database_module._alembic()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}
    empty.migrate()
    assert differences(empty) == []


@pytest.mark.parametrize("version", ["0000", "9999"])
def test_tables_of_another_version_are_refused(empty: Database, version: str) -> None:
    empty.migrate()
    with empty.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    with pytest.raises(FailedPrecondition, match=f"the database has schema {version}, this program needs 0"):
        empty.check_version()
    with pytest.raises(FailedPrecondition, match="the database is of another version than this program"):
        empty.migrate()
