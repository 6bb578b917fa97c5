"""kill -9 of any process at any moment: no acknowledged job is lost, and each ends once."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from sqlalchemy import select

from homophily_client._pb import job_pb2
from homophily_client.names import EmbeddingName, JobName, ModelName
from homophily_service.contract import states
from homophily_service.storage.database import now
from homophily_service.storage.tables import jobs

from .conftest import MakeCluster
from .harness import LEASE_SECONDS, Client, Cluster, clouds, embed_request, eventually, fit_request, labels, signal_to

SEED = 1
CLIENTS = 3
SECONDS_BETWEEN_JOBS = 0.2
N_POINTS = 200
# How long after its lease a job may still be shown as running.
MOST_LATE = 10.0


class Acknowledged(NamedTuple):
    """A job that the service has promised to do, and what the client saw of it."""

    name: str
    kind: str
    events: list[job_pb2.JobEvent]


def test_no_acknowledged_job_is_lost_by_kills(
    make_cluster: MakeCluster, database_options: dict[str, str], long: bool
) -> None:
    # So many attempts that every job can succeed, however often it is hit.
    cluster = make_cluster(max_attempts=100, max_job_attempts=100, **database_options)
    rng = random.Random(SEED)
    api, workers = cluster.serve(), [cluster.worker(), cluster.worker()]
    enough = threading.Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        try:
            clients = [pool.submit(jobs_in_a_row, cluster, cluster.client(), seed, enough) for seed in range(CLIENTS)]
            for victim in victims(rng, 200 if long else 3):
                before = jobs_succeeded(cluster)
                eventually(
                    "the service goes on after a kill, or a client has given up",
                    lambda: jobs_succeeded(cluster) > before or any(client.done() for client in clients),  # noqa: B023
                )
                for client in clients:
                    assert not client.done(), client.result()
                # The random point.
                time.sleep(rng.uniform(0.0, 0.5))
                if victim == "child":
                    signal_to(rng.choice(eventually("there is a child", cluster.children)), signal.SIGKILL)
                elif victim == "worker":
                    place = rng.randrange(len(workers))
                    workers[place].kill()
                    workers[place] = cluster.worker()
                else:
                    api.kill()
                    api = cluster.serve()
        finally:
            enough.set()
            last_kill = time.monotonic()
        eventually("nothing is open", lambda: nothing_is_open(cluster, last_kill))
        acknowledged = [job for client in clients for job in client.result()]

    check_each(cluster, acknowledged)
    assert all(process.is_running for process in (api, *workers))
    assert cluster.exceptions() == []


def victims(rng: random.Random, count: int) -> list[str]:
    """Whom to kill, in any order, the API less often than others."""
    chosen = (["child", "worker", "api", "worker", "child"] * count)[:count]
    rng.shuffle(chosen)
    return chosen


def jobs_in_a_row(cluster: Cluster, client: Client, seed: int, enough: threading.Event) -> list[Acknowledged]:
    """Ask for one job after the other, of all kinds, and watch each until it ends."""
    rng = random.Random(seed)
    acknowledged: list[Acknowledged] = []
    models: list[str] = []
    maps: list[str] = []
    while not enough.wait(SECONDS_BETWEEN_JOBS):
        kind = rng.choice(("fit", "fit", "fit on new points", "transduce", "embed", "small fit", "cancelled fit"))
        if kind == "small fit":
            name = str(cluster.submit())
        elif kind == "transduce" and models:
            _, y = clouds(0, N_POINTS)
            request = job_pb2.TransduceRequest(model=models[-1], labels=labels(y, [rng.randrange(30, N_POINTS)]))
            name = client.submit("Transduce", request)
        elif kind == "embed":
            name = client.submit("Embed", embed_request(rng.randrange(3), N_POINTS, rng.choice([*maps, ""])))
        else:
            points = rng.randrange(10**6) if kind == "fit on new points" else rng.randrange(3)
            name = client.submit("Fit", fit_request(points, N_POINTS))
        if kind == "cancelled fit":
            client.call("CancelJob", job_pb2.CancelJobRequest(name=name))
        acknowledged.append(Acknowledged(name, kind, list(client.watch(name))))
        job = client.job(name)
        if job.HasField("fit"):
            models.append(job.fit.model.name)
        if job.HasField("embed"):
            maps.append(job.embed.embedding.name)
    return acknowledged


def jobs_succeeded(cluster: Cluster) -> int:
    return sum(count for state, _, count in cluster.queue.depths() if state == states.SUCCEEDED)


def nothing_is_open(cluster: Cluster, last_kill: float) -> bool:
    """Whether every job has ended; until then, none is shown as running that nobody has run for long."""
    lost = select(jobs.c.id).where(jobs.c.state == states.RUNNING, jobs.c.lease_until < now() - MOST_LATE)
    with cluster.stores.database.read() as connection:
        stuck = connection.scalars(lost).all()
    assert not stuck or time.monotonic() < last_kill + LEASE_SECONDS + MOST_LATE, stuck
    return all(state in states.FINAL for state, _, _ in cluster.queue.depths())


def check_each(cluster: Cluster, acknowledged: list[Acknowledged]) -> None:
    """Every job is there, has ended once, and what its result names can be read."""
    client = cluster.client()
    models, maps = set(), set()
    for name, kind, events in acknowledged:
        cluster.has_one_end(name)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        job = client.job(name)
        ends = {job_pb2.JOB_STATE_SUCCEEDED}
        if kind == "cancelled fit":
            ends.add(job_pb2.JOB_STATE_CANCELLED)
        assert job.state in ends, job
        assert events[-1].state == job.state
        if job.HasField("fit") or job.HasField("transduce"):
            result = job.fit if job.HasField("fit") else job.transduce
            models.add(result.model.name)
            assert len(client.solution(result.model.name)) == N_POINTS
        if job.HasField("embed"):
            maps.add(job.embed.embedding.name)
            assert client.coordinates(job.embed.embedding.name).shape == (N_POINTS, 2)
    for kind, made in ((EmbeddingName, maps), (ModelName, models)):
        assert {str(kind("default", row.id)) for row in cluster.resources(kind.collection)} == made
    stored = [str(JobName(row.project, row.id)) for row in cluster.jobs()]
    assert sorted(job.name for job in acknowledged) == sorted(stored)
