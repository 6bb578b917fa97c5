"""Many clients on a full queue: each is told when to come again, and those who only ask are answered."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from homophily_service._pb import job_pb2

from .conftest import MakeCluster
from .harness import Client, code, fit_request

MOST_QUEUED = 10
ASKED = 10


def test_a_full_queue_refuses_with_a_time_to_come_back_and_goes_on_answering(
    make_cluster: MakeCluster, long: bool
) -> None:
    cluster = make_cluster(max_queued_jobs=MOST_QUEUED)
    cluster.serve()
    request = fit_request(0)
    request.options.request_id = "first"
    first = cluster.client().submit("Fit", request)
    n_clients = 100 if long else 20
    together = threading.Barrier(n_clients)

    def press(client: Client) -> list[str]:
        together.wait(60.0)
        names = [submitted_or_refused(client) for _ in range(ASKED)]
        for _ in range(ASKED):
            assert client.job(first).state == job_pb2.JOB_STATE_QUEUED
        # Who has a job already is not refused.
        assert client.submit("Fit", request) == first
        return [name for name in names if name]

    with ThreadPoolExecutor(n_clients) as pool:
        names = [name for some in pool.map(press, [cluster.client() for _ in range(n_clients)]) for name in some]
    assert len({first, *names}) == len(names) + 1 == MOST_QUEUED
    assert cluster.exceptions() == []


def submitted_or_refused(client: Client) -> str:
    """A new job's name, or nothing if the queue is full."""
    try:
        return client.submit("Fit", fit_request(0))
    except grpc.RpcError as error:
        refusal = error
    assert code(refusal) == grpc.StatusCode.RESOURCE_EXHAUSTED
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    details = rpc_status.from_call(refusal).details
    assert any(detail.Unpack(info) for detail in details)
    assert info.reason == "QUEUE_FULL"
    assert any(detail.Unpack(retry) for detail in details)
    assert retry.retry_delay.ToSeconds() > 0
    return ""
