"""Databases and stores for real processes, and their logs in the report of a test that failed."""

from __future__ import annotations

import logging
import secrets
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.request import Request, urlopen

import pytest
from sqlalchemy import create_engine, make_url, text
from werkzeug.serving import make_server

from .harness import Cluster, free_port

with warnings.catch_warnings():
    # It wants XDG_RUNTIME_DIR, and says so while it is imported.
    warnings.simplefilter("ignore")
    import pgserver

LOG_LINES = 30


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for log in sorted(folder.glob("*.log")):
            report.sections.append((log.name, "\n".join(log.read_text().splitlines()[-LOG_LINES:])))
    return report


class Postgres:
    """A server of our own that can be stopped and started."""

    def __init__(self) -> None:
        # Not below pytest's folder, which is root's alone: as root, Postgres runs as another user.
        self._server = pgserver.get_server(mkdtemp(prefix="homophily-postgres-"), cleanup_mode="delete")

    def new_database(self) -> str:
        """The URL of an empty database."""
        url = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        name = f"test_{secrets.token_hex(8)}"
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return url.set(database=name).render_as_string(hide_password=False)

    def stop(self, how: str) -> None:
        """Stop: «fast» ends connections in order, «immediate» is a crash."""
        self._pg_ctl("-m", how, "stop")

    def start(self) -> None:
        """Start again; also from a standstill, this is what Postgres calls a restart with the options it had."""
        self._pg_ctl("-l", str(self._server.log), "restart")

    def close(self) -> None:
        self.stop("immediate")
        self._server.cleanup()

    def _pg_ctl(self, *arguments: str) -> None:
        # Not with pgserver's function: to become another user it forks, which gRPC's threads do not survive.
        user = self._server.system_user
        program = Path(pgserver.__file__).parent / "pginstall/bin/pg_ctl"
        become = [] if user is None else ["runuser", "-u", user, "--"]
        command = [*become, str(program), "-D", str(self._server.pgdata), "-w", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


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
    """A bucket on loopback that can be stopped, and has everything when it is started again."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app  # takes a second

        self._app = DomainDispatcherApplication(create_backend_app)
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.url = f"s3://homophily-test/{secrets.token_hex(8)}"

    def start(self) -> None:
        self._server = make_server("127.0.0.1", self._port, self._app, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An empty place in a bucket, found by the AWS_* variables that processes of a test inherit."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    bucket = S3()
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
