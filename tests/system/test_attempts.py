"""A job that kills whoever computes it fails in the end; one that no worker knows waits for one that does."""

from __future__ import annotations

import signal

from homophily_service import queue
from homophily_service._pb import job_pb2

from .conftest import MakeCluster
from .harness import endless_fit, eventually, signal_to


def test_a_poison_job_fails_after_its_attempts(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.serve(workers=1)
    client = cluster.client()
    name = client.submit("Fit", endless_fit(options=job_pb2.JobOptions(max_attempts=3)))
    for attempt in (1, 2, 3):
        eventually(f"attempt {attempt} runs", lambda: cluster.is_running_job(name, attempt))  # noqa: B023
        (child,) = cluster.children()
        signal_to(child, signal.SIGKILL)
    cluster.ended(name)
    job = client.job(name)
    assert (job.state, job.attempt, job.error.reason) == (job_pb2.JOB_STATE_FAILED, 3, "TOO_MANY_ATTEMPTS")
    cluster.has_one_end(name)
    assert cluster.ended(cluster.submit()).state == queue.SUCCEEDED
    assert cluster.exceptions() == []


def test_a_job_of_an_unknown_kind_stays_queued_and_in_nobodys_way(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    unknown = cluster.submit("of-a-later-release", priority=100)
    cluster.worker()
    assert [cluster.ended(cluster.submit()).state for _ in range(3)] == [queue.SUCCEEDED] * 3
    job = cluster.job(unknown)
    assert (job.state, job.attempt, job.last_sequence) == (queue.QUEUED, 0, 1)
