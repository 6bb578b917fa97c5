"""Fixtures that several tests of the service share."""

from __future__ import annotations

import logging
import secrets
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from homophily_service.runtime.settings import Settings, load_settings

from .commands import run  # noqa: F401
from .databases import (  # noqa: F401
    backend,
    database,
    database_url,
    empty_url,
    postgres_tables,
    sqlite_template,
)
from .serving import Project, Service, closed_channels, running


@pytest.fixture(autouse=True)
def closed_after_the_test() -> Iterator[None]:
    """No test leaves a connection open."""
    with closed_channels():
        yield


@pytest.fixture(autouse=True, scope="module")
def closed_after_the_module() -> Iterator[None]:
    """Nor do the fixtures of a module."""
    with closed_channels():
        yield


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on a free port of loopback, with one bucket.

    S3 decides a conditional put atomically. Moto checks first and writes later, so that two such puts may both succeed;
    here they wait for each other.
    """
    from moto.server import ThreadedMotoServer  # takes a second, which tests without S3 need not wait for

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    moto, conditional_put = server._server.app, threading.Lock()

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with conditional_put if "HTTP_IF_NONE_MATCH" in environ else nullcontext():
            return moto(environ, start_response)

    server._server.app = app
    host, port = server.get_host_and_port()
    with urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/homophily-test", method="PUT")):
        pass
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in the bucket, reachable by the environment's AWS_* variables."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return f"s3://homophily-test/{secrets.token_hex(8)}"


@pytest.fixture(params=["folder", "s3"])
def blobs_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where arrays are stored: a folder, then a bucket."""
    return str(tmp_path / "blobs") if request.param == "folder" else str(request.getfixturevalue("s3_url"))


@pytest.fixture
def settings(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> Settings:  # noqa: F811
    """Settings of stores on one machine, then of shared stores: each database and each kind of store once."""
    embedded = database_url.startswith("sqlite")
    blobs_url = str(tmp_path / "blobs") if embedded else request.getfixturevalue("s3_url")
    return load_settings(data_dir=tmp_path, database_url=database_url, blobs_url=blobs_url, tracking=False)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with a worker and a predictor; each test uses a project of its own."""
    with running(tmp_path_factory.mktemp("service"), metrics_port=0) as service:
        yield service


@pytest.fixture
def project(service: Service) -> Project:
    """A project that nobody else uses."""
    return service.project()


@pytest.fixture(scope="session")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server without workers, so that jobs stay queued, and with tokens."""
    settings = {"workers": 0, "predictors": 0, "auth": "tokens", "max_queued_jobs": 5, "job_memory_bytes": 4 << 30}
    settings["reflection"] = False
    # Deep in a folder of its own, so that a test can look for files that should not be there.
    with running(tmp_path_factory.mktemp("idle") / "a" / "b" / "data", **settings) as service:
        yield service


@pytest.fixture
def idle_project(idle: Service) -> Project:
    """A project whose jobs stay queued."""
    return idle.project(idle.token("*"))
