"""Jobs beside a real MLflow server that is away, frozen or refuses: the jobs notice nothing, and nothing is lost.

The tracker is started by the tests rather than by the API, so that the same service is measured with and without it.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from homophily_client._pb import job_pb2, model_pb2
from homophily_service.runtime import processes
from homophily_service.runtime.settings import Settings

from ..service.mlflow_server import MlflowServer
from .conftest import MakeCluster
from .harness import Client, Cluster, endless_fit, eventually, fit_request, signal_to

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:mlflow", "ignore::FutureWarning:mlflow")

TRACKER = "homophily_service.tracking.tracker"
# What a job may take longer, whatever MLflow does.
ADDED_SECONDS = 1.0


class Tracker:
    """The process that sends runs, as the API would start it; the test may kill it."""

    def __init__(self, cluster: Cluster, mlflow: MlflowServer) -> None:
        self.settings = Settings(**cluster.options).model_copy(update={"tracking_uri": mlflow.url})
        self.start()

    def start(self) -> None:
        self.process, self._socket = processes.start(TRACKER, self.settings, 1)

    def end(self) -> None:
        """As kill -9."""
        self.process.kill()
        self.process.wait()
        self._socket.close()

    def stop_seconds(self) -> float:
        """How long it takes to end when it is told to."""
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(30)
        self._socket.close()
        return time.monotonic() - began


class Scene(NamedTuple):
    """A service without tracking, an MLflow server that is not started, and trackers between them."""

    cluster: Cluster
    mlflow: MlflowServer
    trackers: list[Tracker]

    def tracker(self) -> Tracker:
        """Start one, which gives a server up soon that does not answer."""
        self.trackers.append(Tracker(self.cluster, self.mlflow))
        return self.trackers[-1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("tracking")
    scene = Scene(Cluster(folder, workers=1), MlflowServer(folder / "mlflow"), [])
    try:
        scene.cluster.serve()
        yield scene
    finally:
        scene.mlflow.stop()
        scene.cluster.close()


@pytest.fixture
def scene(place: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    yield place
    while place.trackers:
        place.trackers.pop().end()


@contextmanager
def refusing(port: int) -> Iterator[None]:
    """Something that answers every call with an error."""

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Refusal)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Fits:
    """The same fit again and again: its results, and the seconds that the service took."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.names: list[str] = []
        self.results: list[model_pb2.Model] = []

    def seconds(self, count: int = 2, below: float = math.inf) -> float:
        """The least from being asked for to the end: other tests add to some fits, MLflow would add to all."""
        spent: list[float] = []
        while len(spent) < count or (min(spent) > below and len(spent) < 7):
            name = self.client.submit("Fit", fit_request(1, 500, 3))
            job = self.client.call("WaitJob", job_pb2.WaitJobRequest(name=name)).job
            assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.error
            spent.append((job.finish_time.ToNanoseconds() - job.create_time.ToNanoseconds()) / 1e9)
            self.names.append(name)
            self.results.append(job.fit.model)
        return min(spent)


def is_sent(cluster: Cluster, name: str) -> bool:
    return not cluster.job(name).untracked


def all_are_sent(cluster: Cluster, names: list[str]) -> None:
    eventually("all is sent", lambda: all(is_sent(cluster, name) for name in names), 300.0)


def test_a_job_takes_as_long_and_ends_the_same_whatever_mlflow_does(scene: Scene) -> None:
    cluster, mlflow, _ = scene
    fits = Fits(cluster.client())
    fits.seconds(1)  # builds the graph
    alone = fits.seconds()
    most = alone + ADDED_SECONDS

    running = scene.tracker()
    with refusing(mlflow.port):
        refused = fits.seconds(below=most)
    assert cluster.job(fits.names[-1]).tracking_run is None
    mlflow.start()
    # Those from before there was a tracker among them.
    all_are_sent(cluster, fits.names)

    mlflow.freeze()
    frozen = fits.seconds(below=most)
    # It waits for the answer to something that may have been heard: the next one must find that, and not say it again.
    assert running.stop_seconds() < 2.0
    scene.tracker()
    mlflow.thaw()
    all_are_sent(cluster, fits.names)

    mlflow.stop()
    stopped = fits.seconds(below=most)
    mlflow.start()
    all_are_sent(cluster, fits.names)

    for how, seconds in (("refusing", refused), ("frozen", frozen), ("stopped", stopped)):
        assert seconds <= most, f"{how}: {seconds:.2f} s, without tracking {alone:.2f} s"
    assert len({model.energy for model in fits.results}) == 1
    assert len({cluster.client().solution(model.name).tobytes() for model in fits.results}) == 1
    runs = {name: mlflow.runs_of(name) for name in fits.names}
    assert [len(found) for found in runs.values()] == [1] * len(fits.names)
    for model, (run,) in zip(fits.results, runs.values(), strict=True):
        assert run.info.status == "FINISHED"
        assert mlflow.history(run, "energy") == list(zip(model.trace.iterations, model.trace.energies, strict=True))
        assert len(mlflow.history(run, "seconds.total")) == 1
        assert len(run.inputs.dataset_inputs) == 1
        assert cluster.job(model.job).tracking_run == run.info.run_id


def test_a_job_that_is_started_again_goes_on_with_its_run(scene: Scene) -> None:
    cluster, mlflow, _ = scene
    if not mlflow.is_running:
        mlflow.start()
    client = cluster.client()
    first = scene.tracker()
    name = client.submit("Fit", endless_fit())

    def measured(least: int) -> Any:
        (run,) = mlflow.runs_of(name) or (None,)
        # MLflow writes the measures of a batch before its parameters.
        is_described = run is not None and run.data.params
        return run if is_described and len(mlflow.history(run, "energy")) >= least else None

    run = eventually("the run shows how far the job is", lambda: measured(2), 300.0)
    assert run.info.status == "RUNNING"
    assert run.data.params["solver.max_iter"] == "100000"
    assert client.job(name).tracking_run == run.info.run_id
    (child,) = cluster.children()
    signal_to(child, signal.SIGKILL)
    # Nor does it matter that the tracker forgets what it knew.
    first.end()
    scene.tracker()
    eventually("the job runs again", lambda: cluster.is_running_job(name, attempt=2))
    eventually(
        "the run knows of it",
        lambda: mlflow.runs_of(name)[0].data.tags["homophily.attempt"] == "2",
    )
    client.call("CancelJob", job_pb2.CancelJobRequest(name=name))
    eventually("the run has ended", lambda: mlflow.runs_of(name)[0].info.status == "KILLED")
    (again,) = mlflow.runs_of(name)
    assert again.info.run_id == run.info.run_id
    steps = [step for step, _ in mlflow.history(again, "energy")]
    assert len(steps) == len(set(steps))


def test_one_command_keeps_runs_and_another_shows_them(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(workers=1, tracking=True, tracking_models="all")
    process = cluster.serve()
    client = cluster.client()
    request = fit_request(1)
    request.registration.name = "clouds"
    name = client.submit("Fit", request)
    plain = client.submit("Fit", fit_request(2))
    for one in (name, plain):
        eventually("the job is tracked", lambda one=one: is_sent(cluster, one) and cluster.job(one).tracking_run)
    assert cluster.exceptions() == []
    process.terminate()
    assert process.exit_code() == 0
    cluster.nothing_runs()

    pages = MlflowServer(tmp_path / "pages")
    pages.run(["homophily_service", "ui", f"--data-dir={cluster.options['data_dir']}", f"--port={pages.port}"])
    try:
        (run,) = pages.runs_of(name)
        assert run.info.status == "FINISHED"
        assert run.info.run_id == cluster.job(name).tracking_run
        pictures = [one.path for one in pages.client.list_artifacts(run.info.run_id, "pictures")]
        assert "pictures/energy.png" in pictures
        assert pages.client.get_model_version("default.clouds", "1").run_id == run.info.run_id
        assert len(pages.runs_of(plain)[0].outputs.model_outputs) == 1
    finally:
        pages.stop()
