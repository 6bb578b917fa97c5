"""Databases and stores for real processes, and their logs in the report of a test that failed."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pytest
from werkzeug.serving import make_server

from .harness import PATIENCE, Cluster, eventually, free_port

LOG_LINES = 300


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        report.sections.append(("whole logs", str(folder)))
        for log in sorted(folder.glob("*.log")):
            report.sections.append((log.name, "\n".join(log.read_text().splitlines()[-LOG_LINES:])))
    return report


class Postgres:
    """A server of our own that can be stopped and started. It ends with the thread that starts it."""

    def __init__(self) -> None:
        # A wheel that brings the programs; what it does when it is imported is not needed.
        wheel = importlib.util.find_spec("pgserver")
        assert wheel is not None
        assert wheel.origin is not None
        self._programs = Path(wheel.origin).parent / "pginstall" / "bin"
        # Not below pytest's folder, which no other user may enter: Postgres refuses to run as root.
        self.folder = Path(mkdtemp(prefix="homophily-postgres-"))
        self._names = (f"test{number}" for number in itertools.count())
        if os.geteuid() == 0:
            os.chown(self.folder, pwd.getpwnam("nobody").pw_uid, -1)
        initdb = self._command("initdb", "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8")
        subprocess.run(initdb, check=True, cwd=self.folder, stdout=subprocess.DEVNULL)
        self.start()

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = next(self._names)
        self._execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = self._command("postgres", "-c", "listen_addresses=", "-c", f"unix_socket_directories={self.folder}")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        eventually("Postgres answers", self._answers)

    def stop(self, how: str) -> None:
        """Stop: «fast» ends sessions in order, «immediate» is a crash."""
        self._process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])
        self._process.wait(PATIENCE)

    def close(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder)

    def _command(self, program: str, *arguments: str) -> list[str]:
        # By another program, as becoming another user by ourselves means to fork, which gRPC's threads do not survive.
        become = ["--reuid=nobody", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", *become, "--pdeathsig=QUIT", str(self._programs / program), "-D", "data", *arguments]

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
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Clusters with any settings, without a process at first; SQLite and a folder unless told otherwise."""
    clusters: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        clusters.append(Cluster(tmp_path, **settings))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database_options(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings for SQLite, then for Postgres."""
    if request.param == "sqlite":
        return {}
    return {"database_url": request.getfixturevalue("postgres").new_database()}


class S3:
    """A bucket that can be stopped, and has everything when it is started again."""

    def __init__(self, host: str) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app  # takes a second

        self._app = DomainDispatcherApplication(create_backend_app)
        self._host, self._port = host, free_port()
        self.endpoint = f"http://{host}:{self._port}"
        self.url = f"s3://homophily-test/{secrets.token_hex(8)}"

    def start(self) -> None:
        self._server = make_server(self._host, self._port, self._app, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def s3_host() -> str:
    """Where the bucket is."""
    return "127.0.0.1"


@pytest.fixture
def s3(s3_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An empty place in a bucket, found by the AWS_* variables that processes of a test inherit."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    bucket = S3(s3_host)
    bucket.start()
    with urlopen(Request(f"{bucket.endpoint}/homophily-test", method="PUT")):
        pass
    for name, value in {
        "AWS_ENDPOINT_URL": bucket.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    yield bucket
    bucket.stop()
