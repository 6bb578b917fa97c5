"""Machines that share a database, a bucket and an MLflow server, and nothing else, while they are killed at random."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import select

from homophily_client._pb import embedding_pb2, job_pb2, model_pb2
from homophily_service.contract import states
from homophily_service.storage.tables import graphs

from ..service.databases import Postgres
from ..service.mlflow_server import MlflowServer
from .conftest import S3, MakeCluster
from .harness import Client, Cluster, Process, clouds, embed_request, eventually, fit_request, free_port, labels

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:mlflow", "ignore::FutureWarning:mlflow")

SEED = 8
DATASETS, CLIENTS, WORKERS = 3, 4, 3
KINDS = ("fit", "transduce", "embed", "search", "fit on new points", "cancelled fit")
TRIALS = 3
# Runs are sent behind everything that computes: on a busy machine that takes long.
TRACKING_PATIENCE = 1800.0


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path / "mlflow")
    server.start()
    yield server
    server.stop()


class Machines:
    """Two machines with an API, three with a worker, each with a folder of its own."""

    def __init__(self, cluster: Cluster, mlflow: MlflowServer) -> None:
        self.cluster, self.ports = cluster, (cluster.port, free_port())
        self.tracking = {"tracking": True, "tracking_uri": mlflow.url}
        self.workers = [self.start_worker(place) for place in range(WORKERS)]
        self.apis = [self.start_api(place) for place in range(2)]

    def start_worker(self, place: int) -> Process:
        return self.cluster.worker(data_dir=self.cluster.folder / f"worker-machine-{place}")

    def start_api(self, place: int) -> Process:
        folder = self.cluster.folder / f"api-machine-{place}"
        return self.cluster.serve(port=self.ports[place], data_dir=folder, **self.tracking)

    def kill(self, rng: random.Random, victim: str) -> None:
        """As a machine that loses its power, and is started again."""
        if victim == "api":
            self.apis[1].kill()
            self.apis[1] = self.start_api(1)
        else:
            place = rng.randrange(WORKERS)
            self.workers[place].kill()
            self.workers[place] = self.start_worker(place)


class Asked(NamedTuple):
    """A job that an API has promised to have done."""

    name: str
    kind: str


def test_machines_that_share_only_stores_do_each_job_once_while_they_are_killed(
    make_cluster: MakeCluster, postgres: Postgres, s3: S3, mlflow: MlflowServer, long: bool
) -> None:
    count, kills = (200, 40) if long else (10, 3)
    # So many attempts that every job can succeed, however often it is hit.
    attempts = {"max_attempts": 100, "max_job_attempts": 100}
    cluster = make_cluster(database_url=postgres.new_database(), blobs_url=s3.url, **attempts)
    machines, rng = Machines(cluster, mlflow), random.Random(SEED)
    clients = [cluster.client(machines.ports[number % 2]) for number in range(CLIENTS)]

    # The graphs of three datasets, each built once, before anything is killed.
    first = [Asked(clients[seed].submit("Fit", fit_request(seed)), "fit") for seed in range(DATASETS)]
    for job in first:
        cluster.ended(job.name)
    built = {clients[0].job(job.name).fit.model.graph.digest for job in first}
    assert len(built) == DATASETS

    with ThreadPoolExecutor(CLIENTS) as pool:
        share = (count - DATASETS) // CLIENTS + 1
        asking = [pool.submit(jobs_in_a_row, client, seed, share) for seed, client in enumerate(clients)]
        for number, victim in enumerate(victims(rng, kills)):
            enough = DATASETS + number * count // (kills + 1)
            eventually("jobs end between kills", lambda: ended(cluster) >= enough, 300.0)  # noqa: B023
            # The random point.
            time.sleep(rng.uniform(0.0, 0.5))
            machines.kill(rng, victim)
        asked = [*first, *(job for one in asking for job in one.result())]

    assert len(asked) >= count
    made = [check_end(cluster, clients[:2], *job) for job in asked]
    check_graphs(cluster, [one for one in made if one is not None], built)
    check_runs(cluster, mlflow, [job.name for job in asked])
    assert all(process.is_running for process in (*machines.apis, *machines.workers))
    assert cluster.exceptions() == []


def victims(rng: random.Random, count: int) -> list[str]:
    """Whom to kill, in any order, the API once in five times."""
    chosen = (["worker", "worker", "api", "worker", "worker"] * count)[:count]
    rng.shuffle(chosen)
    return chosen


def ended(cluster: Cluster) -> int:
    counted = cluster.queue.depths()
    return sum(count for state, kind, count in counted if state in states.FINAL and kind != "trial")


def jobs_in_a_row(client: Client, seed: int, count: int) -> list[Asked]:
    """Ask for one job after the other, of all kinds, and watch each until it ends."""
    rng = random.Random(seed)
    asked: list[Asked] = []
    models: list[str] = []
    kinds: list[str] = []
    while len(asked) < count:
        kinds = kinds or rng.sample(KINDS, len(KINDS))
        kind = kinds.pop()
        if kind == "transduce" and models:
            _, y = clouds(0)
            request = job_pb2.TransduceRequest(model=models[-1], labels=labels(y, [rng.randrange(30, len(y))]))
            name = client.submit("Transduce", request)
        elif kind == "embed":
            name = client.submit("Embed", embed_request(rng.randrange(DATASETS)))
        else:
            points = rng.randrange(DATASETS, 10**6) if kind == "fit on new points" else rng.randrange(DATASETS)
            search = model_pb2.SearchParameters(trials=TRIALS, spread=True) if kind == "search" else None
            name = client.submit("Fit", fit_request(points, search=search))
        if kind == "cancelled fit":
            client.call("CancelJob", job_pb2.CancelJobRequest(name=name))
        asked.append(Asked(name, kind))
        events = list(client.watch(name))
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        job = client.job(name)
        if job.HasField("fit"):
            models.append(job.fit.model.name)
    return asked


def check_end(cluster: Cluster, clients: list[Client], name: str, kind: str) -> Any:
    """A job has ended once, and either API answers the same bytes; returns the model or map that it has made."""
    cluster.has_one_end(name)
    here, there = (client.job(name) for client in clients)
    for job in (here, there):
        # What its run is called may be written down between the two answers.
        job.ClearField("tracking_run")
        job.ClearField("tracking_url")
        job.ClearField("tracking_complete")
    assert here.SerializeToString(deterministic=True) == there.SerializeToString(deterministic=True)
    if kind == "cancelled fit" and here.state == job_pb2.JOB_STATE_CANCELLED:
        return None
    assert here.state == job_pb2.JOB_STATE_SUCCEEDED, here
    made = getattr(here, str(here.WhichOneof("outcome")))
    if here.HasField("embed"):
        request: Any = embedding_pb2.ReadEmbeddingRequest(name=made.embedding.name)
        stored = [streamed(client, "ReadEmbedding", request) for client in clients]
    else:
        request = model_pb2.ReadSolutionRequest(name=made.model.name)
        stored = [streamed(client, "ReadSolution", request) for client in clients]
    assert stored[0] == stored[1]
    assert len(stored[0]) > 0
    return made.embedding if here.HasField("embed") else made.model


def streamed(client: Client, method: str, request: Any) -> bytes:
    return b"".join(part.SerializeToString() for part in getattr(client.stub, method)(request, timeout=30.0))


def check_graphs(cluster: Cluster, made: list[Any], built: set[str]) -> None:
    """A graph that is published is never built again: others read it, whichever worker has built it."""
    with cluster.stores.database.read() as connection:
        published = {row.digest: row.created for row in connection.execute(select(graphs))}
    users: dict[str, set[str]] = defaultdict(set)
    for one in made:
        job = cluster.job(one.job)
        users[one.graph.digest].add(str(job.worker))
        # On the database's clock both. Who began before may have built it at the same time; the first is published.
        assert one.graph.reused or job.started <= published[one.graph.digest]
    assert set(published) == set(users)
    assert any(len(users[digest]) > 1 for digest in built), users
    for digest in built:
        (_,) = cluster.stores.blobs.list(f"graphs/{digest}")


def check_runs(cluster: Cluster, mlflow: MlflowServer, names: list[str]) -> None:
    """Each job has one run, which has ended as the job has; those of trials are below the run of their search."""
    eventually("all is tracked", lambda: not any(cluster.job(name).untracked for name in names), TRACKING_PATIENCE)
    runs = {name: mlflow.runs_of(name) for name in names}
    assert Counter(len(found) for found in runs.values()) == {1: len(names)}
    for name, (run,) in runs.items():
        job = cluster.job(name)
        assert run.info.run_id == job.tracking_run
        assert run.info.status == {states.SUCCEEDED: "FINISHED", states.CANCELLED: "KILLED"}[job.state]
        if job.kind == "fit" and job.state == states.SUCCEEDED:
            tried = job_pb2.FitResult.FromString(job.outcome).model.search.trials
            below = mlflow.runs(f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
            told = sorted(int(one.data.tags["homophily.trial"]) for one in below)
            assert told == sorted(trial.number for trial in tried)
