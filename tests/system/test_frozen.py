"""A worker that is frozen past its lease, as a paused virtual machine is: what it says afterwards is not heard."""

from __future__ import annotations

import signal

from sqlalchemy import text

from homophily_client._pb.job_pb2 import FitResult
from homophily_client._pb.model_pb2 import Model
from homophily_client.names import ModelName
from homophily_service.contract import states
from homophily_service.contract.errors import Unavailable

from . import procfs
from .conftest import MakeCluster
from .harness import Cluster, Process, eventually, fit_request, signal_to

LOST = "the lease is lost"


def test_a_frozen_worker_cannot_write_over_the_one_that_took_its_job(
    make_cluster: MakeCluster, database_options: dict[str, str]
) -> None:
    cluster = make_cluster(**database_options)
    first = cluster.worker()
    cluster.ended(cluster.submit())

    # A job of next to no time.
    child = cluster.child_of(first)
    signal_to(child, signal.SIGSTOP)
    idle = cluster.submit()
    # Logged once the child has been sent the job: it could not answer otherwise.
    eventually("the first worker has the job", lambda: cluster.logged(first, str(idle)))
    freeze(cluster, first)
    second = cluster.worker()
    done = cluster.ended(idle)
    assert (done.state, done.attempt) == (states.SUCCEEDED, 2)
    silent = procfs.written(child)
    signal_to(child, signal.SIGCONT)
    eventually("the frozen worker's child answers", lambda: procfs.written(child) > silent)
    signal_to(first.pid, signal.SIGCONT)
    eventually("the frozen worker notices", lambda: cluster.logged(first, LOST))
    assert cluster.job(idle) == done
    cluster.has_one_end(idle)

    # The other way round, with a larger one.
    freeze(cluster, first)
    signal_to(child := cluster.child_of(second), signal.SIGSTOP)
    fit = cluster.submit_fit(fit_request(0))
    eventually("the second worker has the job", lambda: cluster.logged(second, str(fit)))
    freeze(cluster, second)
    signal_to(first.pid, signal.SIGCONT)
    done = cluster.ended(fit)
    assert (done.state, done.attempt) == (states.SUCCEEDED, 2)
    signal_to(child, signal.SIGCONT)
    signal_to(second.pid, signal.SIGCONT)
    eventually("the frozen worker notices", lambda: cluster.logged(second, LOST))
    assert cluster.job(fit) == done
    cluster.has_one_end(fit)
    made = FitResult.FromString(done.outcome).model
    (model,) = [one for one in cluster.resources(ModelName.collection) if str(fit).endswith(one.id)]
    assert Model.FromString(model.message) == made
    assert cluster.stores.blobs.read(model.blob).arrays

    # It works on as if nothing had happened.
    first.terminate()
    assert first.exit_code() == 0
    last = cluster.ended(cluster.submit())
    assert (last.state, last.attempt, second.is_running) == (states.SUCCEEDED, 1, True)
    assert cluster.exceptions() == []


def freeze(cluster: Cluster, worker: Process) -> None:
    """Stop a worker, but not inside a transaction: what it has locked would stay so, which is not what is tested."""

    def stopped_between_transactions() -> bool:
        signal_to(worker.pid, signal.SIGSTOP)
        try:
            with cluster.stores.database.write() as connection:
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT number FROM jobs FOR UPDATE NOWAIT"))
        except Unavailable:
            signal_to(worker.pid, signal.SIGCONT)
            return False
        return True

    eventually("the worker is frozen", stopped_between_transactions)
