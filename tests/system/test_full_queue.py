"""Many clients on a full queue: each is told when to come again, and those who only ask are answered."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from homophily_client._pb import job_pb2
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub

from .conftest import MakeCluster
from .harness import Client, code, fit_request

MOST_QUEUED = 10
ASKED = 10
# Those who wait for a job ask for it about so often.
SECONDS_BETWEEN_LOOKS = 0.25
LOOKS = 40
SLOWEST = 0.05


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
    if long:
        seconds = asyncio.run(looks(cluster.port, first, n_clients))
        assert np.percentile(seconds, 99) <= SLOWEST, np.percentile(seconds, [50, 90, 99, 100])
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


async def looks(port: int, job: str, n_clients: int) -> list[float]:
    """How long each look of many clients at a job took, each over a connection of its own at its own times."""

    async def look(number: int) -> list[float]:
        pauses = random.Random(number)
        seconds = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = HomophilyServiceStub(channel)
            await channel.channel_ready()
            for _ in range(LOOKS):
                await asyncio.sleep(pauses.uniform(0.0, 2 * SECONDS_BETWEEN_LOOKS))
                began = time.perf_counter()
                await stub.GetJob(job_pb2.GetJobRequest(name=job))
                seconds.append(time.perf_counter() - began)
        return seconds

    return [one for some in await asyncio.gather(*map(look, range(n_clients))) for one in some]
