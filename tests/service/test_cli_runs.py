"""Links to runs: shown only where a page is served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from homophily_client import Job
from homophily_client._pb import job_pb2
from homophily_service.cli.runs import ANSWER_SECONDS, run_link
from homophily_service.cli.show import print_job
from homophily_service.runtime.settings import Settings
from homophily_service.tracking.place import Place

RUN = "0123abcd"


def tracked_job(pages: str) -> Job:
    message = job_pb2.Job(
        name="projects/p/jobs/j", tracking_run=RUN, tracking_url=f"{pages}/#/experiments/1/runs/{RUN}"
    )
    for time_ in (message.create_time, message.time_limit):
        time_.seconds = 1
    return Job.from_message(message)


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A web server with one answer for everything; a 404 for runs other than ours."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_ours = self.path == f"/api/2.0/mlflow/runs/get?run_id={RUN}"
            self.send_response(status if is_ours else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "is_linked"), [(200, True), (401, True), (403, False), (404, False), (500, False)])
def test_a_run_is_linked_where_its_page_is_served(status: int, is_linked: bool) -> None:
    with answering(status) as pages:
        job = tracked_job(pages)
        assert run_link(job) == (job.tracking_url if is_linked else "")


def test_a_run_is_not_linked_where_nothing_listens(capfd: pytest.CaptureFixture[str]) -> None:
    """http://127.0.0.1:5000 was printed whether or not `homophily ui` was running."""
    job = tracked_job("http://127.0.0.1:1")
    assert run_link(job) == ""
    print_job(job)
    out = capfd.readouterr().out
    assert RUN in out
    assert "http://" not in out


def test_an_address_that_never_answers_delays_a_command_by_a_second() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        assert run_link(tracked_job(f"http://127.0.0.1:{silent.getsockname()[1]}")) == ""
        assert time.monotonic() - began < ANSWER_SECONDS + 1.0


@pytest.mark.parametrize("pages", ["", "file:///etc", "sqlite:////tmp/mlflow.db"])
def test_only_web_pages_are_linked(pages: str) -> None:
    assert run_link(tracked_job(pages)) == ""


def test_the_link_is_the_route_of_a_run_in_mlflows_pages(tmp_path: Path) -> None:
    import mlflow

    scripts = Path(mlflow.__file__).parent / "server" / "js" / "build" / "static" / "js"
    if not scripts.is_dir():
        pytest.skip("this MLflow has no pages")
    url = Place.of(Settings(data_dir=tmp_path)).run_url(":experimentId", ":runUuid")
    assert url is not None
    pages, route = url.split("#")
    assert pages == "http://127.0.0.1:5000/"
    assert any(f'"{route}"' in script.read_text() for script in scripts.glob("*.js"))
