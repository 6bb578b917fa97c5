"""The server itself: health, reflection, metrics, logs, pings, and how it stops and comes back."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from homophily_client import Client, ServerInfo
from homophily_client._pb import dataset_pb2, server_pb2
from homophily_client._pb import job_pb2 as pb
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub
from homophily_service.api.interceptors import TRANSIT_SECONDS, Observed
from homophily_service.api.server import SECONDS_BETWEEN_PINGS, _options, has_reflection
from homophily_service.runtime.settings import load_settings

from .serving import (
    PATIENCE,
    SERVICE,
    Project,
    Service,
    bytes_of,
    chunk,
    chunks,
    end,
    eventually,
    refusal,
    running,
    seconds,
    start,
)

X = np.random.default_rng(0).normal(size=(60, 3))
LABELS = {0: "a", 1: "b"}
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


# -- health, reflection, metrics, logs ---------------------------------------------------------------------------------


def test_health_knows_the_server_and_the_service_and_nothing_else(service: Service) -> None:
    assert service.health("") == service.health(SERVICE) == SERVING
    with pytest.raises(grpc.RpcError) as error:
        service.health("homophily.v2.Other")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_is_on_for_loopback_unless_the_setting_says_otherwise(service: Service, idle: Service) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(service.channel())
    [answer] = stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE)
    assert SERVICE in [one.name for one in answer.list_services_response.service]
    stub = reflection_pb2_grpc.ServerReflectionStub(idle.channel())
    with pytest.raises(grpc.RpcError) as error:
        list(stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE))
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"reflection": False}, False),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "reflection": True}, True),
    ],
)
def test_other_machines_see_reflection_only_if_the_setting_says_so(given: dict[str, Any], expected: bool) -> None:
    assert has_reflection(load_settings(**given)) is expected


def test_the_server_tells_its_version(service: Service, project: Project) -> None:
    info = project.stub.GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=PATIENCE)
    assert (info.version, info.api_version, info.tracking) == (version("homophily"), "v1", False)
    with Client(service.target) as client:
        assert client.server_info() == ServerInfo(info.version, "v1", False)


def test_metrics_count_jobs_and_calls(service: Service, project: Project) -> None:
    def metrics() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{service.metrics_port}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(homophily_\S+) (\S+)$", text, re.MULTILINE)}

    jobs = 'homophily_jobs{kind="fit",state="succeeded"}'
    ok = f'homophily_rpc_calls_total{{code="OK",method="/{SERVICE}/Fit"}}'
    wrong = f'homophily_rpc_calls_total{{code="NOT_FOUND",method="/{SERVICE}/GetJob"}}'
    timed = f'homophily_rpc_seconds_count{{code="NOT_FOUND",method="/{SERVICE}/GetJob"}}'
    before = metrics()
    project.model(X, LABELS)
    refusal(project.stub.GetJob, pb.GetJobRequest(name=f"{project.name}/jobs/none"))

    def counted() -> dict[str, float] | None:
        # The caller has its answer a moment before it is counted.
        found = metrics()
        return found if found.get(wrong, 0) > before.get(wrong, 0) else None

    after: dict[str, float] = eventually(counted)
    for name in (ok, wrong, timed):
        assert after[name] - before.get(name, 0) == 1
    # Jobs that other tests have asked for may end meanwhile.
    assert after[jobs] - before.get(jobs, 0) >= 1


def test_a_line_of_json_for_every_call_with_the_callers_id(service: Service, project: Project) -> None:
    def trailer(metadata: list[tuple[str, str]]) -> str:
        request = pb.ListJobsRequest(parent=project.name)
        _, call = project.stub.ListJobs.with_call(request, metadata=metadata, timeout=PATIENCE)
        return str(dict(call.trailing_metadata())["x-request-id"])

    mine = f"mine-{project.id}"
    assert trailer([("x-request-id", mine)]) == mine
    made = trailer([])
    assert re.fullmatch(r"[0-9a-f]{24}", made)
    assert re.fullmatch(r"[0-9a-f]{24}", trailer([("x-request-id", "x" * 129)]))
    wrong = refusal(project.stub.GetJob, pb.GetJobRequest(name="x"), metadata=[("x-request-id", f"{mine}-2")])
    assert wrong.trailer["x-request-id"] == f"{mine}-2"

    def logged(request_id: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((line for line in service.lines() if line.get("request_id") == request_id), None)

        return dict(eventually(found))

    line = logged(mine)
    assert (line["method"], line["code"], line["level"]) == (f"/{SERVICE}/ListJobs", "OK", "info")
    assert line["milliseconds"] > 0
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert line["time"].endswith("+00:00")
    assert logged(made)["code"] == "OK"
    assert logged(f"{mine}-2")["code"] == "INVALID_ARGUMENT"


def test_a_call_that_its_caller_left_is_not_logged_as_a_success(idle: Service, idle_project: Project) -> None:
    stub = idle_project.stub
    job = stub.Fit(idle_project.fit_request(X, LABELS)).job
    left, late = f"left-{idle_project.id}", f"late-{idle_project.id}"
    watch = stub.WatchJob(pb.WatchJobRequest(name=job.name), metadata=(("x-request-id", left),))
    next(watch)
    watch.cancel()
    with pytest.raises(grpc.RpcError):
        list(stub.WatchJob(pb.WatchJobRequest(name=job.name), metadata=(("x-request-id", late),), timeout=1.0))

    def logged(request_id: str) -> list[str]:
        return eventually(lambda: [line["code"] for line in idle.lines() if line.get("request_id") == request_id])

    assert logged(left) == ["CANCELLED"]
    # The server's own deadline, or the cancellation that the caller sends at its own: whichever comes first.
    assert logged(late) in (["DEADLINE_EXCEEDED"], ["CANCELLED"])


@pytest.mark.parametrize(
    ("deadline", "code"), [(None, "CANCELLED"), (60.0, "CANCELLED"), (TRANSIT_SECONDS, "DEADLINE_EXCEEDED")]
)
def test_a_call_that_is_left_at_its_deadline_is_one_whose_deadline_was_exceeded(
    deadline: float | None, code: str
) -> None:
    codes: list[str] = []

    async def left() -> None:
        context: Any = SimpleNamespace(time_remaining=lambda: deadline, code=lambda: None)
        with pytest.raises(asyncio.CancelledError):
            async with Observed(context, lambda code, _: codes.append(code)):
                raise asyncio.CancelledError

    asyncio.run(left())
    assert codes == [code]


# -- pings -------------------------------------------------------------------------------------------------------------


def pinging(milliseconds: int) -> list[tuple[str, Any]]:
    """A client that makes sure of its connection so often, also while nothing is sent."""
    return [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


@pytest.mark.parametrize(
    ("option", "survives"),
    [
        ("grpc.http2.min_ping_interval_without_data_ms", True),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", False),
    ],
)
def test_the_option_that_allows_pings_is_the_one_that_works(option: str, survives: bool) -> None:
    # The server's own options, with pings so much faster and so much less patience that seconds tell.
    known = dict(_options(load_settings()))
    assert known["grpc.http2.min_ping_interval_without_data_ms"] == 1000 * SECONDS_BETWEEN_PINGS == 5000
    del known["grpc.http2.min_ping_interval_without_data_ms"]
    options = known | {option: 100, "grpc.http2.max_ping_strikes": 1}

    async def waits(*_: Any) -> bytes:
        await asyncio.sleep(4.0 if survives else PATIENCE)
        return b"done"

    async def asked() -> bytes:
        server = grpc.aio.server(options=list(options.items()))
        handler = grpc.method_handlers_generic_handler("s", {"m": grpc.unary_unary_rpc_method_handler(waits)})
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=pinging(200)) as channel:
                return bytes(await channel.unary_unary("/s/m")(b""))
        finally:
            await server.stop(None)

    if survives:
        assert asyncio.run(asked()) == b"done"
    else:
        with pytest.raises(grpc.aio.AioRpcError, match="Too many pings"):
            asyncio.run(asked())


def test_a_client_that_pings_may_wait_as_long_as_it_likes(idle: Service, long: bool) -> None:
    every, waits = (30, 600) if long else (6, 7)
    token = idle.token("*")
    metadata = [("authorization", f"Bearer {token}")]
    project = Project(idle.project(token).stub, "pings")
    job = project.stub.Fit(project.fit_request(X, LABELS)).job
    stub = HomophilyServiceStub(idle.channel(*pinging(1000 * every)))
    watch = stub.WatchJob(pb.WatchJobRequest(name=job.name), metadata=metadata)
    assert next(watch).event.sequence == 1
    request = pb.WaitJobRequest(name=job.name, timeout=seconds(waits))
    assert stub.WaitJob(request, metadata=metadata).job.state == pb.JOB_STATE_QUEUED
    project.stub.CancelJob(pb.CancelJobRequest(name=job.name))
    assert next(watch).event.sequence == 2


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_what_a_stop_interrupts_goes_on_after_a_restart(tmp_path: Path) -> None:
    data = bytes_of(X)
    with running(tmp_path, workers=0, predictors=0) as service:
        project = service.project()
        job = project.stub.Fit(project.fit_request(X, LABELS)).job
        held = threading.Event()

        def unfinished() -> Iterator[dataset_pb2.UploadDatasetRequest]:
            yield from (start(project.name, X, "u"), chunk(0, data[:100]))
            held.wait(PATIENCE)

        calls: dict[str, Any] = {
            "upload": project.stub.UploadDataset.future(unfinished()),
            "wait": project.stub.WaitJob.future(pb.WaitJobRequest(name=job.name)),
            "asked": project.stub.Fit.future(
                project.fit_request(X, LABELS, options=pb.JobOptions(wait=seconds(50), request_id="r"))
            ),
        }
        watch = project.stub.WatchJob(pb.WatchJobRequest(name=job.name))
        assert next(watch).event.sequence == 1
        health = health_pb2_grpc.HealthStub(service.channel()).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(health).status == SERVING
        eventually(lambda: len(project.stub.ListJobs(pb.ListJobsRequest(parent=project.name)).jobs) == 2)
        eventually((tmp_path / "uploads" / project.id / "u" / "start.binpb").exists)
        service.terminate()
        assert next(health).status == NOT_SERVING
        errors = {name: call.exception(timeout=PATIENCE) for name, call in calls.items()}
        with pytest.raises(grpc.RpcError) as error:
            list(watch)
        errors["watch"] = error.value
        assert {name: one.code() for name, one in errors.items()} == dict.fromkeys(errors, UNAVAILABLE)
        held.set()
    assert not [line for line in service.lines() if line["level"] in ("warning", "error")]

    with running(tmp_path, predictors=0) as service:
        project = Project(service.project().stub, project.id)
        request = pb.WatchJobRequest(name=job.name, after_sequence=1)
        seen = list(project.stub.WatchJob(request, timeout=PATIENCE))
        assert [response.event.sequence for response in seen] == list(range(2, len(seen) + 2))
        assert seen[-1].job.state == pb.JOB_STATE_SUCCEEDED
        asked = project.stub.Fit(project.fit_request(X, LABELS, options=pb.JobOptions(request_id="r"))).job
        assert project.ended(asked).state == pb.JOB_STATE_SUCCEEDED
        assert len(project.stub.ListJobs(pb.ListJobsRequest(parent=project.name)).jobs) == 2
        uploaded = project.stub.GetUpload(dataset_pb2.GetUploadRequest(parent=project.name, upload_id="u"))
        assert (uploaded.received_bytes, uploaded.total_bytes) == (100, len(data))
        rest = [start(project.name, X, "u"), *chunks(data, begin=100), end(data)]
        assert project.stub.UploadDataset(iter(rest)).dataset.sha256 == hashlib.sha256(data).digest()
