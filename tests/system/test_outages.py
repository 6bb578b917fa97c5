"""The database or the store of arrays is away for some seconds: everything waits, nothing ends."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from homophily_service import queue
from homophily_service._pb import job_pb2, model_pb2

from .conftest import S3, MakeCluster, Postgres
from .harness import PATIENCE, Client, Cluster, clouds, code, eventually, fit_request, points

SECONDS_AWAY = 5.0
SECONDS_BETWEEN_JOBS = 0.1


def test_everything_goes_on_after_postgres_was_away(make_cluster: MakeCluster, postgres: Postgres) -> None:
    cluster = make_cluster(database_url=postgres.new_database(), max_attempts=20)
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
                busy = len(cluster.queue.page("default"))
                eventually("there is load", lambda: len(cluster.queue.page("default")) > busy + 3)  # noqa: B023
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
        assert cluster.ended(name).state == queue.SUCCEEDED
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
    assert cluster.job(name).state == queue.RUNNING
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
    assert cluster.ended(name).state == queue.SUCCEEDED
    return client.job(name).fit.model.name
