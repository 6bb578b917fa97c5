"""A job that shall not go on is gone within two seconds, with its memory, and its worker takes the next one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from homophily_client._pb import job_pb2
from homophily_service.contract import states

from .harness import PROJECT, Cluster, endless_fit, eventually, labels, points

SECONDS_TO_STOP = 2.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A service with one worker."""
    cluster = Cluster(tmp_path_factory.mktemp("cancel"))
    cluster.serve(workers=1)
    yield cluster
    cluster.close()


def test_a_fit_that_is_cancelled_or_out_of_time_stops_computing(cluster: Cluster) -> None:
    client = cluster.client()

    # Cancelled in the middle of the computation.
    name = client.submit("Fit", endless_fit(20_000))
    next(event for event in client.watch(name) if event.progress.phase == "solve")
    (child,) = cluster.children()
    client.call("CancelJob", job_pb2.CancelJobRequest(name=name))
    eventually("the process is gone", lambda: child not in cluster.running(), SECONDS_TO_STOP)
    assert cluster.ended(name).state == states.CANCELLED
    cluster.has_one_end(name)

    # Cancelled while the next process warms up: the job never starts.
    name = client.submit("Fit", endless_fit())
    job = client.call("CancelJob", job_pb2.CancelJobRequest(name=name)).job
    assert (job.state, job.attempt) == (job_pb2.JOB_STATE_CANCELLED, 0)
    assert cluster.ended(cluster.submit()).state == states.SUCCEEDED

    # Out of time.
    (child,) = cluster.children()
    limit = 2.0
    options = job_pb2.JobOptions(time_limit=Duration(seconds=int(limit)))
    job = cluster.ended(client.submit("Fit", endless_fit(options=options)))
    assert job.finished - job.started <= limit + SECONDS_TO_STOP
    assert child not in cluster.running()
    error = job_pb2.JobError.FromString(job.outcome)
    assert (job.state, error.reason) == (states.FAILED, "TIME_LIMIT")
    assert cluster.ended(cluster.submit()).state == states.SUCCEEDED
    assert len(cluster.children()) == 1
    assert cluster.exceptions() == []


def test_a_job_shows_how_far_its_neighbour_search_is_and_stops_in_the_middle_of_it(cluster: Cluster) -> None:
    client = cluster.client()

    # Directions of equal weight, which no search can leave out: half a minute on one core.
    X = np.random.default_rng(0).random((150_000, 32), dtype=np.float32)
    request = job_pb2.FitRequest(parent=PROJECT, inline=points(X), labels=labels(np.arange(len(X)) % 2, range(20)))
    name = str(cluster.submit_fit(request))
    shares = []
    for event in client.watch(name):
        if event.progress.phase == "graph":
            shares.append(event.progress.fraction)
        if len(set(shares)) == 3:
            break
    assert shares == sorted(shares)
    (child,) = cluster.children()
    client.call("CancelJob", job_pb2.CancelJobRequest(name=name))
    eventually("the process is gone", lambda: child not in cluster.running(), SECONDS_TO_STOP)
    assert cluster.ended(name).state == states.CANCELLED
    cluster.has_one_end(name)
    history = cluster.queue.events_after(cluster.job(name).number, 0)
    phases = {job_pb2.Progress.FromString(event.progress).phase for event in history if event.progress}
    assert phases <= {"", "load", "graph"}
    # The next job has a process.
    assert cluster.ended(cluster.submit()).state == states.SUCCEEDED
    assert cluster.exceptions() == []
