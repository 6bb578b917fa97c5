"""Databases to test on: SQLite, and a Postgres server that lives as long as the tests."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from homophily_service.storage.database import Database
from homophily_service.storage.tables import metadata

from .serving import PATIENCE, eventually


class Postgres:
    """A server in a folder of its own, reached by a socket in it. It ends with the thread that starts it.

    It does not sync to disk: a crash of the machine would lose data, a crash of the server does not.
    """

    SETTINGS: ClassVar[dict[str, Any]] = {
        "listen_addresses": "",
        "max_connections": 200,
        "fsync": "off",
        "full_page_writes": "off",
    }

    def __init__(self) -> None:
        # A wheel that contains the programs; it need not be imported.
        wheel = importlib.util.find_spec("pgserver")
        assert wheel is not None
        assert wheel.origin is not None
        packages = Path(wheel.origin).parents[1]
        # Not below pytest's folder, which no other user may enter: Postgres refuses to run as root.
        self.folder = Path(tempfile.mkdtemp(prefix="homophily-postgres-"))
        self._names = (f"test{number}" for number in itertools.count())
        if os.geteuid() == 0:
            os.chown(self.folder, pwd.getpwnam("nobody").pw_uid, -1)
            if not all(folder.stat().st_mode & stat.S_IXOTH for folder in packages.parents):
                # A checkout that no other user may enter, as in root's home. Libraries are found by relative paths.
                for part in ("pgserver/pginstall", "pgserver.libs"):
                    shutil.copytree(packages / part, self.folder / "packages" / part)
                packages = self.folder / "packages"
        self.programs = packages / "pgserver" / "pginstall" / "bin"
        options = "-U postgres --auth=trust --no-sync --locale=C --encoding=UTF8"
        initdb = self._command("initdb", *options.split())
        subprocess.run(initdb, check=True, cwd=self.folder, stdout=subprocess.DEVNULL)
        self.start()

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = next(self._names)
        self._execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = {"unix_socket_directories": self.folder} | self.SETTINGS
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", *options), cwd=self.folder, stdout=log, stderr=log
            )
        eventually(self._answers)

    def stop(self, how: str = "fast") -> None:
        """Stop: "fast" closes sessions properly, "immediate" is a crash."""
        self._process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])
        self._process.wait(PATIENCE)

    def close(self) -> None:
        """Stop for good."""
        self.stop("immediate")
        shutil.rmtree(self.folder)

    def _command(self, program: str, *arguments: str) -> list[str]:
        # By another program: changing the user ourselves would need a fork, which gRPC's threads do not survive.
        become = ["--reuid=nobody", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", *become, "--pdeathsig=QUIT", str(self.programs / program), "-D", "data", *arguments]

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            self._execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _execute(self, statement: str) -> None:
        with psycopg.connect(f"host={self.folder} user=postgres", autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def postgres_tables(postgres: Postgres) -> str:
    """The address of a database with our tables. Tests use it one after another, as a new one takes long."""
    url = postgres.new_database()
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
    """The database of the test: each in turn."""
    return str(request.param)


@pytest.fixture
def empty_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables."""
    if backend == "sqlite":
        return f"sqlite:///{tmp_path / 'homophily.db'}"
    return str(request.getfixturevalue("postgres").new_database())


@pytest.fixture
def database_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with our tables, empty; tests must not alter them."""
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
