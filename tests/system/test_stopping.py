"""SIGTERM drains; after kill -9 of a parent nothing of it remains."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import pytest

from homophily_client._pb import job_pb2, model_pb2
from homophily_client.names import JobName
from homophily_service.contract.frames import frame
from homophily_service.contract.internal_pb2 import PredictCall
from homophily_service.contract.tasks import Task
from homophily_service.runtime import processes
from homophily_service.runtime.settings import Settings
from homophily_service.storage import queue
from homophily_service.storage.stores import Stores

from . import procfs
from .conftest import MakeCluster
from .harness import PATIENCE, Cluster, code, eventually, signal_to


def running_job(cluster: Cluster, **options: int) -> tuple[JobName, int]:
    """A job that runs until the process that computes it, which is stopped, is woken."""
    cluster.ended(cluster.submit())
    (child,) = cluster.children()
    signal_to(child, signal.SIGSTOP)
    name = cluster.submit(**options)
    eventually("the job runs", lambda: cluster.is_running_job(name))
    return name, child


def test_a_worker_told_to_stop_gives_a_long_job_back_for_free_and_finishes_a_short_one(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster()
    worker = cluster.worker(shutdown_grace=0.5)
    name, _ = running_job(cluster, max_attempts=1)
    worker.terminate()
    assert worker.exit_code() == 0
    cluster.nothing_runs()
    assert (cluster.job(name).state, cluster.job(name).attempt) == (queue.QUEUED, 0)

    worker = cluster.worker(shutdown_grace=PATIENCE)
    assert (cluster.ended(name).state, cluster.job(name).attempt) == (queue.SUCCEEDED, 1)
    cluster.has_one_end(name)
    name, child = running_job(cluster)
    left = cluster.submit()
    worker.terminate()
    signal_to(child, signal.SIGCONT)
    assert worker.exit_code() == 0
    cluster.nothing_runs()
    assert (cluster.job(name).state, cluster.job(name).attempt) == (queue.SUCCEEDED, 1)
    assert cluster.job(left).state == queue.QUEUED
    assert cluster.exceptions() == []


def test_a_server_told_to_stop_lets_jobs_finish_and_sends_waiting_clients_away(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(shutdown_grace=PATIENCE)
    server = cluster.serve(workers=1)
    name, child = running_job(cluster)
    watching = cluster.client().stub.WatchJob(job_pb2.WatchJobRequest(name=str(name)), timeout=PATIENCE)
    assert [next(watching).event.sequence for _ in range(2)] == [1, 2]
    server.terminate()
    with pytest.raises(grpc.RpcError) as sent_away:
        next(watching)
    assert code(sent_away.value) == grpc.StatusCode.UNAVAILABLE
    signal_to(child, signal.SIGCONT)
    assert server.exit_code() == 0
    cluster.nothing_runs()
    assert cluster.job(name).state == queue.SUCCEEDED
    assert cluster.exceptions() == []


def test_nothing_remains_of_a_killed_server_and_its_job_is_given_back(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(shutdown_grace=1.0)
    server = cluster.serve(workers=1, predictors=1)
    # A worker that is killed before it has read its settings is started again.
    (starting,) = eventually("a worker starts", lambda: cluster.running("worker.supervisor"))
    signal_to(starting, signal.SIGKILL)
    name, _ = running_job(cluster)
    assert len(cluster.running()) == 4
    server.kill()
    cluster.nothing_runs()
    assert (cluster.job(name).state, cluster.job(name).attempt) == (queue.QUEUED, 0)


FIT_ON_NOTHING = job_pb2.FitRequest(dataset="projects/default/datasets/none").SerializeToString()
TASK = Task(JobName("default", "job"), "fit", FIT_ON_NOTHING, "token").encode()
QUESTION = frame(
    PredictCall(number=1, path="models/default/none/none", graph="none", request=model_pb2.PredictRequest())
)


@pytest.mark.parametrize("has_answered", [True, False])
@pytest.mark.parametrize(("who", "asked"), [("worker.child", TASK), ("predictor.process", QUESTION)])
def test_who_computes_ends_without_a_word_when_its_answer_is_not_heard(
    who: str, asked: bytes, has_answered: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # A kill -9 of the parent as it looks from below, a moment before the signal: its end of the socket is closed.
    settings = Settings(data_dir=tmp_path, workers=0)
    stores = Stores.open(settings)
    stores.database.migrate()
    stores.close()
    process, ours = processes.start(f"homophily_service.{who}", settings, 1)
    with ours:
        assert ours.recv(1000)  # it is ready
        silent = procfs.written(process.pid)
        if not has_answered:
            process.send_signal(signal.SIGSTOP)
        if who == "predictor.process":
            ours.sendall(asked)
        else:
            with Connection(os.dup(ours.fileno())) as connection:
                connection.send_bytes(asked)
        if has_answered:
            eventually("it answers", lambda: procfs.written(process.pid) > silent)
    process.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE) == 0
    assert capfd.readouterr().err == ""
