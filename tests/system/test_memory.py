"""Many jobs in a row do not fill the memory of any process."""

from __future__ import annotations

from homophily_client._pb import model_pb2
from homophily_service.contract import states

from . import procfs
from .conftest import MakeCluster
from .harness import Client, Cluster, clouds, fit_request, points

MOST_GROWTH = 100 << 20
BATCH = 10


def test_memory_stays_where_it_was_while_jobs_come_and_go(make_cluster: MakeCluster, long: bool) -> None:
    # The same processes from the first job to the last: a fresh one would hide what they gather.
    cluster = make_cluster(child_jobs=10_000)
    cluster.serve(workers=1, predictors=1)
    client = cluster.client()
    batches = (1000 if long else 100) // BATCH
    half = {}
    for batch in range(batches):
        if batch == batches // 2:
            half = memory(cluster)
        do_ten_jobs(cluster, client, batch)
    end = memory(cluster)
    assert end.keys() == half.keys()
    assert len(end) == 4
    growth = {command: size - half[command] for command, size in end.items()}
    assert max(growth.values()) <= MOST_GROWTH, growth
    assert cluster.exceptions() == []


def do_ten_jobs(cluster: Cluster, client: Client, batch: int) -> None:
    """Seven that do nothing, and three fits, whose models are then asked."""
    idle = [cluster.submit() for _ in range(7)]
    fits = [client.submit("Fit", fit_request(batch, 400)) for _ in range(3)]
    for name in [*idle, *fits]:
        assert cluster.ended(name).state == states.SUCCEEDED
    X, _ = clouds(batch, 400)
    for name in fits:
        model = client.job(name).fit.model.name
        assert len(client.solution(model)) == len(X)
        answer = client.call("Predict", model_pb2.PredictRequest(name=model, points=points(X)))
        assert len(answer.class_indices) == len(X)


def memory(cluster: Cluster) -> dict[str, int]:
    """Resident bytes by process."""
    return {f"{pid} {command}": procfs.resident(pid) for pid, command in procfs.belonging(cluster.tag).items()}
