"""Databases and stores for real processes; the report of a failed test names their logs."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from werkzeug.serving import make_server

from .harness import Cluster, free_port

LOG_LINES = 300


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield
    arguments = getattr(item, "funcargs", {})
    shared = arguments.get("cluster")
    folder = arguments.get("tmp_path") if shared is None else shared.folder
    if report.failed and folder is not None:
        report.sections.append(("whole logs", str(folder)))
        for log in sorted(folder.glob("*.log")):
            report.sections.append((log.name, "\n".join(log.read_text().splitlines()[-LOG_LINES:])))
    return report


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Makes clusters with any settings, without processes at first; by default on SQLite and a folder."""
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
    """A bucket that can be stopped, and keeps its content."""

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
    """The host of the bucket."""
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
