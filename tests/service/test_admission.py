"""What calls may take of the API: nothing before their token is known, and then no more than their project's share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from homophily_client._pb import dataset_pb2, job_pb2
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub
from homophily_service.api.admission import LOOPBACK
from homophily_service.api.budgets import Budget

from .serving import MIB, PATIENCE, Project, Service, eventually, open_stores, refusal_of, running, start, with_token

FIT = "/homophily.v1.HomophilyService/Fit"
POINTS = np.zeros((50, 2))
LABELS = {0: "a", 1: "b"}


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_a_holder_gets_its_share_and_others_the_rest() -> None:
    budget = Budget(10, 4)
    assert budget.take("a", 3)
    assert not budget.take("a", 2)
    assert budget.take("b", 4)
    assert budget.take("c", 3)
    assert not budget.take("d", 1)
    budget.give("b", 4)
    assert budget.take("d", 1)
    assert dict(budget.taken) == {"a": 3, "c": 3, "d": 1}


def test_those_who_wait_are_served_in_turn_and_do_not_hold_others_up() -> None:
    async def scenario() -> list[str]:
        budget, served = Budget(10, 4), []

        async def wait(name: str, holder: str, amount: int) -> None:
            assert await budget.wait(holder, amount, 60.0)
            served.append(name)

        assert budget.take("a", 4)
        waiting = [asyncio.create_task(wait(f"a{number}", "a", 2)) for number in range(3)]
        await asyncio.sleep(0.01)
        await wait("b", "b", 4)
        budget.give("a", 4)
        await asyncio.sleep(0.01)
        assert served == ["b", "a0", "a1"]
        budget.give("a", 2)
        await asyncio.gather(*waiting)
        return served

    assert asyncio.run(scenario()) == ["b", "a0", "a1", "a2"]


def test_one_who_gives_up_waiting_takes_nothing() -> None:
    async def scenario() -> None:
        budget = Budget(2, 2)
        assert budget.take("a", 2)
        assert not await budget.wait("a", 1, 0.01)
        waiting = asyncio.create_task(budget.wait("a", 1, 60.0))
        await asyncio.sleep(0.01)
        waiting.cancel()
        # Served and cancelled at once: what it was given goes back.
        budget.give("a", 2)
        await asyncio.gather(waiting, return_exceptions=True)
        assert budget.taken.total() == 0
        assert budget.take("b", 2)

    asyncio.run(scenario())


def test_what_is_given_in_the_moment_of_a_time_out_is_not_lost() -> None:
    """It stayed taken for good, and the project's share shrank."""

    async def scenario() -> None:
        budget = Budget(1, 1)
        for _ in range(200):
            assert budget.take("a", 1)
            waiting = asyncio.create_task(budget.wait("a", 1, 0.001))
            # Let it begin: then what it waits for comes right after its time is up, in the same round of the loop.
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.001, budget.give, "a", 1)
            if await waiting:
                budget.give("a", 1)
            await asyncio.sleep(0.001)
            assert budget.taken.total() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("peer", "is_near"),
    [
        ("ipv4:127.0.0.1:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("ipv6:[::1]:4711", True),
        ("unix:/run/x", True),
        ("ipv4:10.0.0.127:4711", False),
        ("ipv6:%5Bfe80::1%5D:4711", False),
    ],
)
def test_probes_of_this_machine_are_told_from_strangers(peer: str, is_near: bool) -> None:
    """Strangers who ask for health must not use up what probes need."""
    assert bool(LOOPBACK.match(peer)) == is_near


# -- the API -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with little room: a project may have 10 calls and two messages under way."""
    settings = {"workers": 0, "predictors": 0, "auth": "tokens", "max_calls": 80, "max_bytes_in_flight": 64 * MIB}
    with running(tmp_path_factory.mktemp("admission"), **settings) as service:
        yield service


def tenant(service: Service) -> Project:
    """A project with a token of its own."""
    project = service.project()
    stub = HomophilyServiceStub(with_token(service.channel(), service.token(project.id)))
    return Project(stub, project.id)


def open_call(service: Service, project: str, method: str = FIT) -> tuple[Any, threading.Event]:
    """A call whose message does not come until the event is set."""
    send = threading.Event()

    def messages() -> Iterator[bytes]:
        send.wait(PATIENCE)
        yield b""

    channel = with_token(service.channel(), service.token(project))
    return channel.stream_unary(method).future(messages(), timeout=PATIENCE), send


def memory(service: Service) -> int:
    """The most that the API's process has held, in bytes."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.parametrize("token", ["", "hph_wrong"])
def test_large_messages_of_strangers_take_no_memory(service: Service, token: str) -> None:
    """Messages were received before the token was looked at: 40 of 19 MiB took 1.1 GiB."""
    body = bytes(4 * MIB)
    channel = with_token(service.channel(("grpc.max_send_message_length", -1)), token)
    before = memory(service)
    for _ in range(3):
        calls = [channel.unary_unary(FIT).future(body, timeout=PATIENCE) for _ in range(40)]
        assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
    assert memory(service) - before < 60 * MIB


def test_messages_that_do_not_come_hold_up_only_their_own_project(service: Service) -> None:
    hostile, other = tenant(service), tenant(service)
    held = [open_call(service, hostile.id) for _ in range(2)]
    time.sleep(0.5)
    with pytest.raises(grpc.RpcError) as caught:
        hostile.stub.ListJobs(job_pb2.ListJobsRequest(parent=hostile.name), timeout=PATIENCE)
    answer = refusal_of(caught.value)
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_BYTES_IN_FLIGHT")
    assert answer.retry_seconds == 1.0
    other.stub.ListJobs(job_pb2.ListJobsRequest(parent=other.name), timeout=2.0)
    for call, send in held:
        send.set()
        assert call.exception().code() == grpc.StatusCode.INVALID_ARGUMENT
    hostile.stub.ListJobs(job_pb2.ListJobsRequest(parent=hostile.name), timeout=2.0)


def test_a_project_has_no_more_calls_under_way_than_its_share(service: Service) -> None:
    hostile, other = tenant(service), tenant(service)
    job = hostile.stub.Fit(hostile.fit_request(POINTS, LABELS)).job
    watches = [hostile.stub.WatchJob(job_pb2.WatchJobRequest(name=job.name), timeout=PATIENCE) for _ in range(10)]
    for watch in watches:
        next(watch)
    with pytest.raises(grpc.RpcError) as caught:
        hostile.stub.GetJob(job_pb2.GetJobRequest(name=job.name), timeout=PATIENCE)
    assert refusal_of(caught.value).reason == "TOO_MANY_CALLS"
    other.stub.ListJobs(job_pb2.ListJobsRequest(parent=other.name), timeout=2.0)
    for watch in watches:
        watch.cancel()

    def is_let_in() -> bool:
        try:
            return bool(hostile.stub.GetJob(job_pb2.GetJobRequest(name=job.name), timeout=PATIENCE).job.name)
        except grpc.RpcError:
            return False

    eventually(is_let_in)


# -- tokens that end while a call is under way -------------------------------------------------------------------------


def watch(project: Project) -> Any:
    job = project.stub.Fit(project.fit_request(POINTS, LABELS)).job
    call = project.stub.WatchJob(job_pb2.WatchJobRequest(name=job.name), timeout=PATIENCE)
    next(call)
    return call


def wait(project: Project) -> Any:
    job = project.stub.Fit(project.fit_request(POINTS, LABELS)).job
    return project.stub.WaitJob.future(job_pb2.WaitJobRequest(name=job.name), timeout=PATIENCE)


def upload(project: Project) -> Any:
    never = threading.Event()

    def messages() -> Iterator[dataset_pb2.UploadDatasetRequest]:
        yield start(project.name, POINTS)
        never.wait(PATIENCE)

    call = project.stub.UploadDataset.future(messages(), timeout=PATIENCE)
    call.add_done_callback(lambda _: never.set())
    return call


@pytest.mark.parametrize("begin", [watch, wait, upload])
@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_call_ends_soon_after_its_token(service: Service, begin: Callable[[Project], Any], end: str) -> None:
    """Streams outlived their tokens."""
    project = service.project()
    stores = open_stores(service)
    token, secret = stores.tokens.create(project.id, expires_seconds=1.5 if end == "expired" else None)
    call = begin(Project(HomophilyServiceStub(with_token(service.channel(), secret)), project.id))
    time.sleep(0.3)
    began = time.monotonic()
    if end == "revoked":
        stores.tokens.revoke(token)
    stores.close()
    assert call.code() == grpc.StatusCode.UNAUTHENTICATED
    assert time.monotonic() - began < (2.0 if end == "revoked" else 3.5)


def test_a_stream_that_nobody_reads_ends_with_its_token(service: Service) -> None:
    project = service.project()
    stores = open_stores(service)
    token, secret = stores.tokens.create(project.id)
    mine = Project(HomophilyServiceStub(with_token(service.channel(), secret)), project.id)
    job = mine.stub.Fit(mine.fit_request(POINTS, LABELS)).job
    call = mine.stub.WatchJob(job_pb2.WatchJobRequest(name=job.name), metadata=[("x-request-id", token)])
    time.sleep(0.3)
    stores.tokens.revoke(token)
    stores.close()

    def ended() -> list[str]:
        return [line["code"] for line in service.lines() if line.get("request_id") == token and "code" in line]

    # The client is told only after it has read what came before.
    assert set(eventually(ended, 2.0)) == {"UNAUTHENTICATED"}
    call.cancel()
