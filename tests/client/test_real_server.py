"""The client against the real server."""

from __future__ import annotations

import doctest
import hashlib
import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

import homophily_client
from homophily_client import (
    AlreadyExists,
    Client,
    FailedPrecondition,
    InvalidArgument,
    JobFailed,
    JobHandle,
    JobState,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    labels,
    parameters,
    points,
    words,
)
from homophily_service.storage.database import Database
from homophily_service.storage.tokens import Tokens

SERVE = """
import json, sys
from homophily_service.runtime.start import imports

with imports():
    from homophily_service.api.server import run_server
    from homophily_service.runtime.settings import load_settings

settings = load_settings(**json.loads(sys.argv[1]))
run_server(settings, lambda server: print(server.port, flush=True))
"""


class RealServer:
    """A server on a port and a folder that outlive it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.token = folder, 0, ""
        self.process: subprocess.Popen[str] | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, **settings: Any) -> None:
        given = {"data_dir": str(self.folder), "port": self.port, "threads": 1, "tracking": False, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, json.dumps(given)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    server = RealServer(tmp_path_factory.mktemp("server"))
    server.start(auth="tokens")
    database = Database(f"sqlite:///{server.folder / 'homophily.db'}")
    _, server.token = Tokens(database).create("default", "")
    database.close()
    yield server
    assert server.process is not None
    ended = server.process.poll()
    server.stop()
    assert ended is None, f"the server had ended by itself, with code {ended}"


@pytest.fixture
def remote(real: RealServer) -> Iterator[Client]:
    with Client(real.target, token=real.token) as client:
        yield client


def two_blobs(points: int, dtype: str = "f8") -> tuple[Any, Any]:
    """Points of two classes, and their classes."""
    y = np.arange(points) % 2
    X = np.random.default_rng(0).normal(10.0 * y[:, None] - 5.0, 1.0, (points, 4))
    return X.astype(dtype), y


def test_a_sharpened_model_answers_with_its_own_classes(remote: Client) -> None:
    X, y = two_blobs(200)
    model = remote.fit(X, {0: 0, 1: 1}, solver={"method": "irr", "sharpen": True}, calibrate=True).result()
    solution = remote.read_solution(model)
    assert_array_equal(solution.labels, y)
    answers = remote.predict(model, X, probabilities=True)
    assert_array_equal(answers.labels, solution.labels)
    assert_array_equal(np.argmax(answers.probabilities, axis=1), y)
    better = remote.transduce(model, {2: 0, 3: 1}).result()
    assert_array_equal(remote.predict(better, X, probabilities=False).labels, y)


def test_a_model_shows_its_class_shares_and_how_sure_they_are(remote: Client) -> None:
    X, y = two_blobs(200)
    model = remote.fit(X, {0: 0, 1: 1}).result()
    for position, one in enumerate(model.class_shares):
        assert one.share == pytest.approx(np.mean(y == position), abs=0.05)
        assert one.low <= np.mean(y == position) <= one.high
    rare = remote.fit(X, {0: 0, 1: 1}, solver={"class_prior": [(0.0, 0.2), (0.0, 1.0)]}).result()
    assert rare.solver_parameters["class_prior"] == [(0.0, 0.2), (0.0, 1.0)]
    assert np.mean(remote.read_solution(rare).labels == 0) < 0.3


@pytest.fixture(scope="module")
def model(real: RealServer) -> str:
    X, y = two_blobs(400)
    with Client(real.target, token=real.token) as client:
        job = client.fit(X, {0: "left", 1: "right"}, calibrate=True, model_id="blobs", validation=_words(y))
        return job.result(120).name


def _words(y: Any) -> Any:
    return np.array(["left", "right"])[y]


@pytest.mark.parametrize("kind", ["dense", "float32", "sparse", "dataframe"])
def test_uploaded_points_are_fitted_and_read_back(remote: Client, kind: str) -> None:
    X, y = two_blobs(300, "f4" if kind == "float32" else "f8")
    given: Any = {"sparse": sparse.coo_array, "dataframe": pd.DataFrame}.get(kind, np.asarray)(X)
    dataset = remote.upload(given, description=kind)
    assert (dataset.points, dataset.dimensions, dataset.is_sparse) == (300, 4, kind == "sparse")
    assert remote.get_dataset(dataset.name.rpartition("/")[2]) == dataset
    labels = np.where(np.arange(300) < 10, y, -1)
    job = remote.fit(
        dataset, labels, graph={"n_neighbors": 8, "metric": "euclidean"}, solver={"max_iter": 5}, validation=y
    )
    found = job.result(120)
    assert (found.dataset, found.labelled, found.classes, found.error_rate) == (dataset.name, 10, (0, 1), 0.0)
    assert found.graph_parameters["n_neighbors"] == 8
    solution = remote.read_solution(found, ("labels", "values", "scores"))
    assert_array_equal(solution.labels, y)
    assert solution.values is not None
    assert solution.values.shape == (300, 1)
    remote.delete_dataset(dataset)
    with pytest.raises(NotFound):
        remote.get_dataset(dataset)


def test_events_of_a_real_job_come_in_order(remote: Client) -> None:
    X, _ = two_blobs(200)
    job = remote.fit(X, {0: 3, 1: 4}, solver={"method": "irr"})
    events = list(job.watch())
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (events[0].state, events[-1].state) == ("queued", "succeeded")
    assert {"graph", "solve"} <= {event.progress.phase for event in events if event.progress is not None}
    assert list(job.watch(after=events[-1].sequence)) == []
    assert job.info.model == remote.get_model(job.result())


def test_new_points_are_answered_in_several_calls(remote: Client, model: str) -> None:
    X, y = two_blobs(25_000)
    prediction = remote.predict(model, X, probabilities=True)
    assert_array_equal(prediction.labels, _words(y))
    assert prediction.probabilities is not None
    assert_array_equal(prediction.classes[prediction.probabilities.argmax(axis=1)], prediction.labels)
    few = remote.predict(model, X[:7])
    assert_array_equal(few.scores, prediction.scores[:7])
    assert few.probabilities is None


def test_probabilities_of_a_models_own_points(remote: Client, model: str) -> None:
    solution = remote.read_solution(model, ["probabilities"])
    assert solution.labels is None
    assert solution.probabilities is not None
    assert_array_equal(solution.probabilities.sum(axis=1).round(9), 1.0)


def test_changed_labels_make_a_model_of_their_own(remote: Client, model: str) -> None:
    job = remote.transduce(model, {2: "left", 3: "right"}, validation=_words(two_blobs(400)[1]))
    changed = job.result(120)
    assert (changed.parent_model, changed.labelled, changed.error_rate) == (model, 4, 0.0)
    assert (changed.graph.reused, job.info.changed_points) == (True, 0)
    every_point = np.where(np.arange(400) < 6, _words(two_blobs(400)[1]), "")
    more = remote.transduce(changed, every_point, job={"wait": 60.0}).result(60)
    assert more.labelled == 6
    assert remote.transduce(more, withdrawn=[0, 1, 2]).result(120).labelled == 3


def test_refusals_name_the_field(remote: Client, model: str) -> None:
    X, _ = two_blobs(50)
    with pytest.raises(InvalidArgument) as caught:
        remote.fit(X, {0: 1, 99: 2})
    assert caught.value.violations[0].field == "labels.points[1]"
    assert caught.value.reason == "INVALID_FIELD"
    assert len(caught.value.request_id) == 32
    with pytest.raises(InvalidArgument, match="finite"):
        remote.upload(np.array([[1.0, np.nan]]))
    with pytest.raises(FailedPrecondition) as late:
        remote.predict(remote.fit(X, {0: 1, 1: 2}).result(120), X, probabilities=True)
    assert late.value.reason == "NOT_CALIBRATED"
    with pytest.raises(InvalidArgument, match="at least 1 point"):
        remote.predict(model, np.empty((0, 4)))
    with pytest.raises(JobFailed) as failed:
        remote.transduce(model, withdrawn=[0]).result(120)
    assert failed.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.violations[0].field == "labels"


def test_same_request_id_is_the_same_job_and_another_request_is_refused(remote: Client) -> None:
    X, _ = two_blobs(60)
    first = remote.fit(X, {0: 1, 1: 2}, job={"request_id": "once"})
    assert remote.fit(X, {0: 1, 1: 2}, job={"request_id": "once"}).name == first.name
    with pytest.raises(AlreadyExists):
        remote.fit(X, {0: 1, 1: 3}, job={"request_id": "once"})


def test_jobs_are_listed_found_and_forgotten(remote: Client) -> None:
    X, _ = two_blobs(60)
    job: JobHandle[Any] = remote.fit(X, {0: 1, 1: 2})
    job.result(120)
    assert job.name in {one.name for one in remote.list_jobs(states=["succeeded"], kind="fit")}
    assert job.name not in {one.name for one in remote.list_jobs(states=[JobState.QUEUED, "failed"])}
    again = remote.job(job.name.rpartition("/")[2])
    assert again.cancel().state == JobState.SUCCEEDED
    assert pickle.loads(pickle.dumps(again.info)) == job.info
    again.delete()
    with pytest.raises(NotFound):
        job.refresh()


def test_threads_share_a_client(remote: Client, model: str) -> None:
    X, y = two_blobs(100)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: remote.predict(model, X).labels, range(32)))
    for answer in answers:
        assert_array_equal(answer, _words(y))


@pytest.mark.parametrize("module", [homophily_client, labels, parameters, points, words], ids=lambda one: one.__name__)
def test_examples_in_the_docs_run(real: RealServer, module: Any) -> None:
    runner = doctest.DocTestRunner()
    found = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert found
    for test in found:
        for example in test.examples:
            example.source = example.source.replace('"localhost:50051"', f'"{real.target}", token="{real.token}"')
        test.globs["client"] = None
        runner.run(test, clear_globs=False)
        if test.globs["client"] is not None:
            test.globs["client"].close()
    assert runner.summarize().failed == 0


def test_other_projects_and_wrong_tokens_are_told_apart(real: RealServer, model: str) -> None:
    with Client(real.target) as stranger, pytest.raises(Unauthenticated, match="token"):
        stranger.get_model(model)
    with Client(real.target, token=real.token, project="other") as client:
        assert client.get_model(model).name == model
        with pytest.raises(PermissionDenied):
            client.get_model("blobs")


def test_upload_watch_and_result_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    server = RealServer(tmp_path)
    settings = {"predictors": 0, "shutdown_grace": 0.5}
    # Without workers the job waits for the restart.
    server.start(workers=0, **settings)
    X, _ = two_blobs(200_000)
    restarted: list[int] = []

    def restart_halfway(sent: int, total: int) -> None:
        if sent > total // 2 and not restarted:
            restarted.append(sent)
            server.stop(signal.SIGKILL)
            server.start(workers=0, **settings)

    try:
        # A loaded machine takes its time to start a server.
        with Client(server.target, patience=300.0) as client:
            dataset = client.upload(X, progress=restart_halfway)
            assert restarted
            assert dataset.sha256 == hashlib.sha256(X.tobytes()).hexdigest()
            job = client.fit(X[:300], {0: 1, 1: 2})
            with ThreadPoolExecutor(1) as pool:
                result = pool.submit(job.result, 300)
                sequences = []
                for event in job.watch():
                    sequences.append(event.sequence)
                    if event.sequence == 1:
                        server.stop(signal.SIGTERM)
                        server.start(**settings)
                assert result.result().points == 300
            assert sequences == list(range(1, len(sequences) + 1))
            assert job.state == "succeeded"
    finally:
        server.stop()
