"""Databases to test on: SQLite, and a Postgres server that lives as long as the tests."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from homophily_service.store.database import Database
from homophily_service.store.tables import metadata

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Postgres:
    """A server in a folder of its own, reached by a socket in it, without the care for the disk that takes time."""

    def __init__(self) -> None:
        # A wheel that brings the programs; what it does when it is imported is not needed.
        found = importlib.util.find_spec("pgserver")
        assert found is not None
        assert found.origin is not None
        self.programs = Path(found.origin).parent / "pginstall" / "bin"
        # Not in pytest's folder, which no other user may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="homophily-postgres-"))
        # Postgres refuses to run as root.
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user is not None:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)
        options = "-D data -U postgres --auth=trust --no-sync --locale=C --encoding=UTF8"
        subprocess.run(
            [self.programs / "initdb", *options.split()],
            cwd=self.folder,
            user=self.user,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.names = (f"test{number}" for number in itertools.count())
        self.start()

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"

    def execute(self, statement: str) -> None:
        with psycopg.connect(f"host={self.folder} user=postgres", autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = {"listen_addresses": "", "unix_socket_directories": self.folder, "max_connections": 200}
        careless = dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes"), "off")
        options = [word for name, value in (settings | careless).items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", "data", *options],
                cwd=self.folder,
                user=self.user,
                stdout=log,
                stderr=log,
                # A test run that is killed must not leave it behind.
                preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0),
            )
        while True:
            try:
                return self.execute("SELECT 1")
            except psycopg.OperationalError:
                if self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop as an administrator would: sessions are ended."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)

    def remove(self) -> None:
        """Stop for good."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A Postgres server."""
    server = Postgres()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_tables(postgres: Postgres) -> str:
    """The address of a database with our tables. It is used by one test after another, as a new one takes long."""
    postgres.execute("CREATE DATABASE ours")
    url = postgres.url("ours")
    database = Database(url)
    database.migrate()
    database.close()
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with our tables, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "ours.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    """Which database the test runs on: each in turn."""
    return str(request.param)


@pytest.fixture
def empty_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables."""
    if backend == "sqlite":
        return f"sqlite:///{tmp_path / 'homophily.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    name = next(server.names)
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name)


@pytest.fixture
def database_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with our tables, empty; they are not to be altered."""
    if backend == "sqlite":
        path = tmp_path / "homophily.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
    database = Database(request.getfixturevalue("postgres_tables"))
    with database.write() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
    database.close()
    return database.url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with our tables, empty."""
    database = Database(database_url)
    yield database
    database.close()
