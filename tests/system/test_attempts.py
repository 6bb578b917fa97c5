"""A job that kills whoever computes it fails in the end; one that no worker knows waits for one that does."""

from __future__ import annotations

import signal

from homophily_client._pb import job_pb2
from homophily_client.names import JobName
from homophily_service.storage import queue
from homophily_service.storage.queue import NewJob

from .conftest import MakeCluster
from .harness import endless_fit, eventually, signal_to


def test_a_poison_job_fails_after_its_attempts_and_an_unknown_kind_waits(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.worker()
    unknown = JobName("default", "unknown")
    cluster.queue.submit(NewJob(unknown, "of-a-later-release", b"", priority=100), 10)
    poison = cluster.submit_fit(endless_fit(), max_attempts=2)
    for attempt in (1, 2):
        eventually(f"attempt {attempt} runs", lambda: cluster.is_running_job(poison, attempt))  # noqa: B023
        (child,) = cluster.children()
        signal_to(child, signal.SIGKILL)
    job = cluster.ended(poison)
    error = job_pb2.JobError.FromString(job.outcome)
    assert (job.state, job.attempt, error.reason) == (queue.FAILED, 2, "TOO_MANY_ATTEMPTS")
    cluster.has_one_end(poison)
    assert cluster.ended(cluster.submit()).state == queue.SUCCEEDED

    job = cluster.job(unknown)
    assert (job.state, job.attempt, job.last_sequence) == (queue.QUEUED, 0, 1)
    assert cluster.exceptions() == []
