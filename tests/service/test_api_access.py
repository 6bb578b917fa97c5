"""Who gets in: tokens and their projects, asked for before anything is looked up; and where the server listens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from homophily_client._pb import dataset_pb2, job_pb2
from homophily_service.api.server import Server
from homophily_service.contract.errors import FailedPrecondition
from homophily_service.runtime.settings import load_settings

from .serving import DESCRIPTOR, PATIENCE, SERVICE, Project, Service, eventually, open_stores, refusal

COLLECTIONS = {"Dataset": "datasets", "Job": "jobs", "Embedding": "embeddings"}


def request_about(project: str, method: Any) -> Message:
    """A message of a method that names something of a project, which does not exist there."""
    request = GetMessageClass(method.input_type)()
    if method.client_streaming:
        request.start.parent = project
        return request
    fields = {field.name for field in method.input_type.fields}
    if "parent" in fields:
        request.parent = project
    elif fields:
        collection = next((name for word, name in COLLECTIONS.items() if word in method.name), "models")
        field = next(name for name in ("name", "model", "dataset") if name in fields)
        setattr(request, field, f"{project}/{'datasets' if field == 'dataset' else collection}/none")
    return request


def asked(project: Project, method: Any, about: str) -> Any:
    request = request_about(about, method)
    return refusal(getattr(project.stub, method.name), iter([request]) if method.client_streaming else request)


@pytest.fixture(scope="module")
def secret(idle: Service) -> str:
    return idle.token("mine")


@pytest.mark.parametrize("method", list(DESCRIPTOR.methods), ids=lambda method: method.name)
def test_every_call_asks_for_a_token_and_then_for_the_project(idle: Service, secret: str, method: Any) -> None:
    assert asked(idle.project(), method, "projects/mine").code is grpc.StatusCode.UNAUTHENTICATED
    assert asked(idle.project("hph_wrong"), method, "projects/mine").code is grpc.StatusCode.UNAUTHENTICATED
    if not method.input_type.fields:
        # It is about no project: every token will do.
        getattr(idle.project(secret).stub, method.name)(request_about("", method), timeout=PATIENCE)
        return
    answer = asked(idle.project(secret), method, "projects/theirs")
    # Whether the thing is there, which it is not, is not for others to know.
    assert (answer.code, answer.reason) == (grpc.StatusCode.PERMISSION_DENIED, "OTHER_PROJECT")
    if "theirs" in answer.message:
        assert "gives no access to project theirs" in answer.message


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer  {}", "Bearer {} x"])
def test_a_header_is_a_bearer_token_or_none(idle: Service, secret: str, header: str) -> None:
    metadata = [("authorization", header.format(secret))]
    request = dataset_pb2.ListDatasetsRequest(parent="projects/mine")
    answer = refusal(idle.project().stub.ListDatasets, request, metadata=metadata)
    assert (answer.code, answer.reason) == (grpc.StatusCode.UNAUTHENTICATED, "NO_VALID_TOKEN")
    assert secret not in answer.message


def test_bytes_that_are_no_message_say_nothing_to_strangers(idle: Service) -> None:
    with pytest.raises(grpc.RpcError) as error:
        idle.channel().unary_unary(f"/{SERVICE}/GetJob")(b"\xff", timeout=PATIENCE)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_opens_its_project_and_one_for_all_opens_every(idle: Service, secret: str) -> None:
    for token, names in ((secret, ["mine"]), (idle.token("*"), ["mine", "theirs"])):
        for name in names:
            request = dataset_pb2.ListDatasetsRequest(parent=f"projects/{name}")
            assert list(idle.project(token).stub.ListDatasets(request, timeout=PATIENCE).datasets) == []
    lower = dataset_pb2.ListDatasetsRequest(parent="projects/mine")
    idle.project().stub.ListDatasets(lower, metadata=[("authorization", f"bearer {secret}")], timeout=PATIENCE)


def test_a_revoked_token_soon_stops_working(idle: Service) -> None:
    stores = open_stores(idle)
    identifier, token = stores.tokens.create("revoked")
    project = idle.project(token)
    request = job_pb2.ListJobsRequest(parent="projects/revoked")
    project.stub.ListJobs(request, timeout=PATIENCE)
    stores.tokens.revoke(identifier)
    stores.close()

    def refused() -> bool:
        try:
            project.stub.ListJobs(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
        return False

    eventually(refused, seconds=10.0)


def test_health_needs_no_token(idle: Service) -> None:
    assert idle.health("") == idle.health(SERVICE) == health_pb2.HealthCheckResponse.SERVING


# -- where it listens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "8.8.8.8", "", "no-such-host.invalid"])
def test_nobody_listens_beyond_loopback_without_credentials(tmp_path: Path, host: str) -> None:
    with pytest.raises(FailedPrecondition, match="allow_insecure_bind"):
        Server(load_settings(data_dir=tmp_path, host=host))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("host", "more"),
    [("127.0.0.1", {}), ("::1", {}), ("localhost", {}), ("0.0.0.0", {"auth": "tokens"}), ("::", {"auth": "tokens"})],
)
def test_loopback_and_tokens_are_credentials_enough(tmp_path: Path, host: str, more: dict[str, Any]) -> None:
    Server(load_settings(data_dir=tmp_path, host=host, **more)).stores.close()


def opened(data_dir: Path, **settings: Any) -> int:
    """The port of a server that is started and stopped."""

    async def start_and_stop() -> int:
        server = Server(load_settings(data_dir=data_dir, predictors=0, **settings))
        port = await server.start()
        await server.stop()
        return port

    return asyncio.run(start_and_stop())


def test_a_flag_opens_the_door(tmp_path: Path) -> None:
    assert opened(tmp_path, host="0.0.0.0", port=0, allow_insecure_bind=True)


def test_a_port_that_is_taken_is_not_shared(idle: Service, tmp_path: Path) -> None:
    port = int(idle.target.rpartition(":")[2])
    with pytest.raises(FailedPrecondition, match=f"cannot listen on 127.0.0.1 port {port}"):
        opened(tmp_path, port=port)
