"""The database or the store of arrays is away for some seconds, or full: what cannot wait is refused, nothing ends."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from homophily_client._pb import job_pb2, model_pb2
from homophily_service.contract import states

from ..service.databases import Postgres
from .conftest import S3, MakeCluster
from .harness import PATIENCE, Client, Cluster, clouds, code, eventually, fit_request, points

SECONDS_AWAY = 5.0
SECONDS_BETWEEN_JOBS = 0.1
SMALL_DISK = 16 << 20


def test_everything_goes_on_after_postgres_was_away(make_cluster: MakeCluster, postgres: Postgres) -> None:
    cluster = make_cluster(database_url=postgres.new_database(), max_attempts=20, max_job_attempts=20)
    cluster.serve(workers=1)
    client = cluster.client()
    first = client.submit("Fit", fit_request(0))
    cluster.ended(first)
    before = set(cluster.running())
    enough = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(fits_in_a_row, cluster.client(), seed, enough) for seed in range(3)]
        try:
            for how in ("fast", "immediate"):
                busy = len(cluster.queue.page("default")[0])
                eventually("there is load", lambda: len(cluster.queue.page("default")[0]) > busy + 3)  # noqa: B023
                postgres.stop(how)
                try:
                    answers_unavailable(client, first, SECONDS_AWAY)
                finally:
                    postgres.start()
                assert client.job(first).state == job_pb2.JOB_STATE_SUCCEEDED
        finally:
            enough.set()
        names = [name for client in clients for name in client.result()]
    for name in names:
        assert cluster.ended(name).state == states.SUCCEEDED
        cluster.has_one_end(name)
    assert set(cluster.running()) == before
    assert cluster.exceptions() == []


def answers_unavailable(client: Client, job: str, seconds: float) -> None:
    """Check for so long that the API says that it cannot say."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with pytest.raises(grpc.RpcError) as refused:
            client.stub.GetJob(job_pb2.GetJobRequest(name=job), timeout=PATIENCE)
        assert code(refused.value) == grpc.StatusCode.UNAVAILABLE
        time.sleep(0.1)


def fits_in_a_row(client: Client, seed: int, enough: threading.Event) -> list[str]:
    """Ask for one fit after the other, and wait for each; returns their names."""
    names = []
    while not enough.wait(SECONDS_BETWEEN_JOBS):
        names.append(client.submit("Fit", fit_request(seed)))
        assert list(client.watch(names[-1]))[-1].state == job_pb2.JOB_STATE_SUCCEEDED
    return names


def test_jobs_end_after_the_bucket_was_away(make_cluster: MakeCluster, s3: S3) -> None:
    cluster = make_cluster(blobs_url=s3.url)
    cluster.serve(workers=1, predictors=1)
    client = cluster.client()
    first = fitted(cluster, client, client.submit("Fit", fit_request(0)))
    before = set(cluster.running())

    s3.stop()
    name = client.submit("Fit", fit_request(0))
    eventually("a worker has the job", lambda: cluster.is_running_job(name))
    time.sleep(3.0)  # so long it is away
    # It runs, or was given back and waits for its next attempt.
    assert cluster.job(name).state not in states.FINAL
    s3.start()

    second = fitted(cluster, client, name)
    cluster.has_one_end(name)
    X, _ = clouds(0)
    for model in (first, second):
        assert len(client.solution(model)) == len(X)
        answer = client.call("Predict", model_pb2.PredictRequest(name=model, points=points(X[:20])))
        assert len(answer.class_indices) == 20
    assert set(cluster.running()) == before
    assert cluster.exceptions() == []


def fitted(cluster: Cluster, client: Client, name: str) -> str:
    """The model that a fit has made."""
    assert cluster.ended(name).state == states.SUCCEEDED
    return client.job(name).fit.model.name


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that soon is full."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a disk that is small enough to be filled")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_save_on_a_full_disk_fails_by_name_and_what_was_saved_still_answers(
    make_cluster: MakeCluster, small_disk: Path, tmp_path: Path
) -> None:
    cluster = make_cluster(data_dir=small_disk, database_url=f"sqlite:///{tmp_path}/jobs.db")
    cluster.serve(workers=1, predictors=1)
    client = cluster.client()
    request = fit_request(0)
    first = fitted(cluster, client, client.submit("Fit", request))
    X, _ = clouds(0)
    question = model_pb2.PredictRequest(name=first, points=points(X[:20]))
    answer = client.call("Predict", question)
    before = set(cluster.running())

    filler = small_disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    # In the job's save, and in the call that brings new points.
    request.ClearField("options")
    failed = cluster.ended(client.submit("Fit", request))
    error = job_pb2.JobError.FromString(failed.outcome)
    assert (failed.state, error.code) == (states.FAILED, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    assert "there is no space left" in error.message
    with pytest.raises(grpc.RpcError) as refused:
        client.submit("Fit", fit_request(1))
    assert code(refused.value) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.call("Predict", question) == answer
    assert len(client.solution(first)) == len(X)

    filler.unlink()
    assert len(client.solution(fitted(cluster, client, client.submit("Fit", fit_request(1))))) == len(X)
    assert client.call("Predict", question) == answer
    assert set(cluster.running()) == before
    assert cluster.exceptions() == []
