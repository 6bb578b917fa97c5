"""`homophily health --worker`: alive is who goes its rounds, ready who can compute too, not who merely answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from typer.testing import CliRunner

from homophily_service.cli.commands import app
from homophily_service.cli.store import READY, SILENT

Answering = Callable[[str], str]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Starts an endpoint that answers with a text; returns its address."""
    servers = []

    def start(text: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def code(endpoint: str, *more: str) -> int:
    return CliRunner().invoke(app, ["health", "--worker", endpoint, *more]).exit_code


def test_a_worker_that_goes_its_rounds_and_can_compute_is_well(answering: Answering) -> None:
    assert code(answering(f"# HELP {SILENT} x\n{SILENT} 0.4\n{READY} 1.0\n")) == 0


def test_a_worker_that_cannot_compute_is_alive_and_not_ready(answering: Answering) -> None:
    endpoint = answering(f"{SILENT} 0.4\n{READY} 0.0\n")
    assert code(endpoint) == 1
    assert code(endpoint, "--alive") == 0


def test_a_worker_that_has_stood_still_is_not(answering: Answering) -> None:
    endpoint = answering(f"{SILENT} 61.0\n{READY} 1.0\n")
    assert code(endpoint) == code(endpoint, "--alive") == 1
    assert code(endpoint, "--silence", "120") == 0


def test_something_that_is_no_worker_is_not(answering: Answering) -> None:
    endpoint = answering("homophily_jobs 3\n")
    assert code(endpoint) == code(endpoint, "--alive") == 1


def test_nobody_there_is_told_apart() -> None:
    assert code("127.0.0.1:1") not in (0, 1)


def test_the_metrics_are_those_that_workers_have() -> None:
    from types import SimpleNamespace
    from typing import Any, cast

    from homophily_service.worker.metrics import WorkerMetrics

    worker = cast(Any, SimpleNamespace(beat=0.0, busy=False, is_ready=True))
    assert {SILENT, READY} <= {metric.name for metric in WorkerMetrics(worker).collect()}
