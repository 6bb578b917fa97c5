"""A real server for tests: a separate process, called over gRPC and stopped by SIGTERM; and messages to send to it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily_client._pb import dataset_pb2, embedding_pb2, homophily_service_pb2, job_pb2, model_pb2, points_pb2
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub
from homophily_service.runtime.settings import Settings, load_settings
from homophily_service.storage.stores import Stores

DESCRIPTOR = homophily_service_pb2.DESCRIPTOR.services_by_name["HomophilyService"]
SERVICE = DESCRIPTOR.full_name
# On the path of processes, it hides the packages of the extra `tracking`; they start sooner without it.
PRODUCTION = Path(__file__).parents[1] / "system" / "production"
# Nothing here takes this long unless it hangs.
PATIENCE = 180.0
MIB = 1 << 20

PROGRAM = """
import json
from homophily_service.runtime.start import imports

with imports():
    from homophily_service.api.server import run_server
    from homophily_service.runtime.logs import start_logging
    from homophily_service.runtime.settings import load_settings

settings = load_settings()
start_logging(settings.log_level)

def started(server):
    print(json.dumps([server.port, server.metrics_port]), flush=True)

run_server(settings, started)
"""
# Small and quick, for machines that run several tests at once.
_SETTINGS = {"port": 0, "threads": 1, "poll_seconds": 0.1, "shutdown_grace": 2.0, "tracking": False}


_channels: list[grpc.Channel] = []


@contextmanager
def closed_channels() -> Iterator[None]:
    """Close the connections that are opened within."""
    before = len(_channels)
    yield
    while len(_channels) > before:
        _channels.pop().close()


@dataclass
class Service:
    """A server, and how to reach it."""

    process: subprocess.Popen[str]
    target: str
    metrics_port: int | None
    settings: Settings
    log: Path
    children: dict[int, str] | None = None
    credentials: grpc.ChannelCredentials | None = None

    def channel(self, *options: tuple[str, Any], credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
        """A connection of its own, closed by `closed_channels`."""
        shown, alone = credentials or self.credentials, [("grpc.use_local_subchannel_pool", 1), *options]
        if shown is None:
            channel = grpc.insecure_channel(self.target, options=alone)
        else:
            channel = grpc.secure_channel(self.target, shown, options=alone)
        _channels.append(channel)
        return channel

    def project(self, token: str = "") -> Project:
        """A project that nobody else uses."""
        return Project(HomophilyServiceStub(with_token(self.channel(), token)), f"t-{secrets.token_hex(6)}")

    def token(self, project: str) -> str:
        """A new token's secret."""
        stores = open_stores(self)
        secret = stores.tokens.create(project)[1]
        stores.close()
        return secret

    def health(self, name: str) -> int:
        """The answer of the standard health service."""
        with self.channel() as channel:
            request = health_pb2.HealthCheckRequest(service=name)
            return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE).status)

    def descendants(self) -> dict[int, str]:
        """The server's processes by number, with their command lines."""
        return descendants(self.process.pid)

    def lines(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def terminate(self) -> None:
        """Send SIGTERM, as an operator would."""
        self.children = self.descendants()
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop it, unless it is stopping already; all its processes must have ended then."""
        if self.children is None:
            self.terminate()
        code = self.process.wait(PATIENCE)
        assert code == 0, f"ended with {code}:\n{self.log.read_text()[-4000:]}"
        children = self.children or {}
        eventually(lambda: not [pid for pid, command in children.items() if _command(pid) == command])


def production_path() -> str:
    """PYTHONPATH of processes without the packages of `tracking`; they import the same checkout as the tests."""
    return os.pathsep.join(filter(None, [str(PRODUCTION), os.environ.get("PYTHONPATH")]))


@contextmanager
def running(
    data_dir: Path, credentials: grpc.ChannelCredentials | None = None, *, program: str = PROGRAM, **settings: Any
) -> Iterator[Service]:
    """A server on a free port, ready on entry and stopped on exit."""
    given = _SETTINGS | settings | {"data_dir": data_dir}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMOPHILY_")}
    environment |= {
        f"HOMOPHILY_{name.upper()}": json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in given.items()
    }
    if not given["tracking"]:
        environment["PYTHONPATH"] = production_path()
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / f"log-{secrets.token_hex(4)}"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        with process.stdout as stdout:
            line = stdout.readline()
        assert line, f"the server did not start:\n{log.read_text()[-4000:]}"
        port, metrics_port = json.loads(line)
        service = Service(
            process, f"127.0.0.1:{port}", metrics_port, load_settings(**given), log, credentials=credentials
        )
        eventually(lambda: _is_ready(service), pause=0.1)
        yield service
        service.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _is_ready(service: Service) -> bool:
    try:
        return service.health(SERVICE) == health_pb2.HealthCheckResponse.SERVING
    except grpc.RpcError:
        return False


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE, pause: float = 0.01) -> Any:
    """Wait until a condition is true; returns its value. ``pause`` is longer for conditions that take long to ask."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found or time.monotonic() > end:
            assert found, f"was not true within {seconds:g} s"
            return found
        time.sleep(pause)


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, by number, with their command lines."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return {child: _command(child) for child in found}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


# -- messages ----------------------------------------------------------------------------------------------------------

TYPES = {
    "float32": points_pb2.DATA_TYPE_FLOAT32,
    "float64": points_pb2.DATA_TYPE_FLOAT64,
    "int32": points_pb2.DATA_TYPE_INT32,
    "int64": points_pb2.DATA_TYPE_INT64,
}
Matrix = NDArray[Any] | csr_array


def tensor(array: NDArray[Any]) -> points_pb2.Tensor:
    """An array as a message; a second implementation, so that the service's own is not tested against itself."""
    return points_pb2.Tensor(data_type=TYPES[array.dtype.name], shape=array.shape, data=array.tobytes())


def array_of(message: points_pb2.Tensor) -> NDArray[Any]:
    """The array in a message."""
    name = next(name for name, number in TYPES.items() if number == message.data_type)
    return np.frombuffer(message.data, name).reshape(message.shape)


def inline(points: Matrix) -> points_pb2.Points:
    """Points inside a message."""
    if not isinstance(points, csr_array):
        return points_pb2.Points(dense=tensor(points))
    return points_pb2.Points(
        csr=points_pb2.CsrMatrix(
            columns=points.shape[1],
            values=tensor(points.data),
            column_indices=tensor(points.indices),
            row_starts=tensor(points.indptr),
        )
    )


def shape_of(points: Matrix) -> points_pb2.PointsShape:
    """The shape of points, for the start of an upload."""
    rows, columns = points.shape
    data_type = TYPES[points.dtype.name]
    if not isinstance(points, csr_array):
        return points_pb2.PointsShape(dense=points_pb2.DenseShape(rows=rows, columns=columns, data_type=data_type))
    index_type = TYPES[points.indices.dtype.name]
    return points_pb2.PointsShape(
        csr=points_pb2.CsrShape(
            rows=rows, columns=columns, values=points.nnz, data_type=data_type, index_type=index_type
        )
    )


def bytes_of(points: Matrix) -> bytes:
    """The bytes of points, as they are uploaded."""
    if not isinstance(points, csr_array):
        return points.tobytes()
    return points.data.tobytes() + points.indices.tobytes() + points.indptr.tobytes()


def labels_of(classes: Mapping[int, Any], weights: Iterable[float] = ()) -> model_pb2.Labels:
    """Labels by point."""
    values = list(classes.values())
    if all(isinstance(value, str) for value in values):
        kind = model_pb2.ClassValues(strings=model_pb2.StringValues(values=values))
    else:
        kind = model_pb2.ClassValues(integers=model_pb2.IntegerValues(values=values))
    return model_pb2.Labels(points=list(classes), classes=kind, weights=weights)


def links_of(must: Iterable[tuple[int, int]] = (), cannot: Iterable[tuple[int, int]] = ()) -> embedding_pb2.Links:
    """Links by pairs."""
    pairs = ([embedding_pb2.Link(first=first, second=second) for first, second in kind] for kind in (must, cannot))
    return embedding_pb2.Links(**dict(zip(("must", "cannot"), pairs, strict=True)))


def values_of(classes: model_pb2.ClassValues) -> list[Any]:
    """Classes as Python's values."""
    return list(getattr(classes, str(classes.WhichOneof("kind"))).values)


def seconds(length: float) -> Duration:
    """A length of time."""
    return Duration(seconds=int(length), nanos=int(length % 1 * 1e9))


def start(project: str, points: Matrix, upload_id: str = "", **more: Any) -> dataset_pb2.UploadDatasetRequest:
    """The first message of an upload."""
    described = dataset_pb2.UploadStart(parent=project, upload_id=upload_id, shape=shape_of(points), **more)
    return dataset_pb2.UploadDatasetRequest(start=described)


def chunk(offset: int, data: bytes) -> dataset_pb2.UploadDatasetRequest:
    """Some bytes of an upload."""
    return dataset_pb2.UploadDatasetRequest(chunk=dataset_pb2.UploadChunk(offset=offset, data=data))


def chunks(data: bytes, size: int = MIB, begin: int = 0) -> Iterator[dataset_pb2.UploadDatasetRequest]:
    """Chunks of all bytes from ``begin`` on."""
    for offset in range(begin, len(data), size):
        yield chunk(offset, data[offset : offset + size])


def end(data: bytes) -> dataset_pb2.UploadDatasetRequest:
    """The last message of an upload."""
    return dataset_pb2.UploadDatasetRequest(end=dataset_pb2.UploadEnd(sha256=hashlib.sha256(data).digest()))


# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Project:
    """Calls to a server about one project."""

    stub: HomophilyServiceStub
    id: str

    @property
    def name(self) -> str:
        return f"projects/{self.id}"

    def upload(self, points: Matrix, upload_id: str = "", **more: Any) -> dataset_pb2.Dataset:
        """A new dataset."""
        data = bytes_of(points)
        messages = [start(self.name, points, upload_id, **more), *chunks(data), end(data)]
        return self.stub.UploadDataset(iter(messages), timeout=PATIENCE).dataset

    def fit(self, points: Matrix | str, labels: Mapping[int, Any] | model_pb2.Labels, **more: Any) -> job_pb2.Job:
        """Submit a fit, and wait for it."""
        return self.ended(self.stub.Fit(self.fit_request(points, labels, **more), timeout=PATIENCE).job)

    def fit_request(
        self, points: Matrix | str, labels: Mapping[int, Any] | model_pb2.Labels, **more: Any
    ) -> job_pb2.FitRequest:
        """The request of a fit."""
        source = {"dataset": points} if isinstance(points, str) else {"inline": inline(points)}
        known = labels if isinstance(labels, model_pb2.Labels) else labels_of(labels)
        return job_pb2.FitRequest(parent=self.name, labels=known, **source, **more)

    def transduce(self, model: str, labels: Mapping[int, Any], **more: Any) -> job_pb2.Job:
        """Submit a transduction, and wait for it."""
        request = job_pb2.TransduceRequest(model=model, labels=labels_of(labels) if labels else None, **more)
        return self.ended(self.stub.Transduce(request, timeout=PATIENCE).job)

    def embed_request(
        self,
        points: Matrix | str,
        must: Iterable[tuple[int, int]] = (),
        cannot: Iterable[tuple[int, int]] = (),
        **more: Any,
    ) -> job_pb2.EmbedRequest:
        """The request of a map; a name is that of a dataset, a model or an embedding."""
        if isinstance(points, str):
            source: dict[str, Any] = {points.split("/")[2].removesuffix("s"): points}
        else:
            source = {"inline": inline(points)}
        return job_pb2.EmbedRequest(parent=self.name, links=links_of(must, cannot), **source, **more)

    def embed(self, points: Matrix | str, *links: Iterable[tuple[int, int]], **more: Any) -> embedding_pb2.Embedding:
        """A new embedding."""
        request = self.embed_request(points, *links, **more)
        job = self.ended(self.stub.Embed(request, timeout=PATIENCE).job)
        assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.error
        return job.embed.embedding

    def embedding(self, name: str, field: embedding_pb2.EmbeddingField.ValueType, **more: Any) -> NDArray[Any]:
        """An array of an embedding, joined from its ranges."""
        request = embedding_pb2.ReadEmbeddingRequest(name=name, field=field, **more)
        parts, expected = [], request.start
        for response in self.stub.ReadEmbedding(request, timeout=PATIENCE):
            assert response.start == expected
            parts.append(array_of(response.rows))
            assert len(parts[-1]) == response.count
            expected += response.count
        return np.concatenate(parts)

    def ended(self, job: job_pb2.Job) -> job_pb2.Job:
        """The job when it has ended."""
        job = self.stub.WaitJob(job_pb2.WaitJobRequest(name=job.name), timeout=PATIENCE).job
        assert job.HasField("finish_time"), job
        return job

    def model(self, points: Matrix | str, labels: Mapping[int, Any], **more: Any) -> model_pb2.Model:
        """A new model."""
        job = self.fit(points, labels, **more)
        assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.error
        return job.fit.model

    def predict(self, model: str, points: Matrix, **more: Any) -> model_pb2.PredictResponse:
        """Answers for new points."""
        request = model_pb2.PredictRequest(name=model, points=inline(points), **more)
        return self.stub.Predict(request, timeout=PATIENCE)

    def solution(self, model: str, *fields: model_pb2.SolutionField.ValueType, **more: Any) -> list[NDArray[Any]]:
        """Answers for a model's own points, joined from their ranges."""
        request = model_pb2.ReadSolutionRequest(name=model, fields=fields, **more)
        parts, expected = [], request.start
        for response in self.stub.ReadSolution(request, timeout=PATIENCE):
            assert response.start == expected
            expected += response.count
            parts.append([array_of(one) for one in response.tensors])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def classes(self, model: model_pb2.Model) -> list[Any]:
        """The class of each of a model's own points."""
        known = values_of(model.classes)
        return [known[index] for index in self.solution(model.name)[0]]


class _Token(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor):
    def __init__(self, token: str) -> None:
        self.token = token

    def _intercepted(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self.token}")]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = _intercepted


def with_token(channel: grpc.Channel, token: str) -> grpc.Channel:
    """A channel whose calls carry a token, if there is one."""
    return grpc.intercept_channel(channel, _Token(token)) if token else channel


@dataclass(frozen=True)
class Refusal:
    """The error of a refused call."""

    code: grpc.StatusCode
    message: str
    reason: str
    fields: list[str]
    retry_seconds: float | None
    trailer: dict[str, Any]


def refusal(call: Callable[..., Any], *arguments: Any, **more: Any) -> Refusal:
    """The error of a call that must fail, which must have the details that every error of the service has."""
    try:
        answer = call(*arguments, **{"timeout": PATIENCE, **more})
        if not hasattr(answer, "DESCRIPTOR"):
            list(answer)
    except grpc.RpcError as error:
        return refusal_of(error)
    raise AssertionError(f"was not refused: {answer}")


def refusal_of(error: Any) -> Refusal:
    """The same for an error that was caught."""
    trailer = dict(error.trailing_metadata() or ())
    status = rpc_status.from_call(error)
    assert status is not None, f"{error.code()} without details: {error.details()}"
    found: dict[str, Any] = {}
    for packed in status.details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            if packed.Is(kind.DESCRIPTOR):
                found[kind.DESCRIPTOR.name] = kind.FromString(packed.value)
    assert found["ErrorInfo"].domain == "homophily"
    assert trailer["x-request-id"]
    assert _bytes_on_the_wire(error) < 4096
    retry = found.get("RetryInfo")
    return Refusal(
        error.code(),
        error.details(),
        found["ErrorInfo"].reason,
        [violation.field for violation in found["BadRequest"].field_violations] if "BadRequest" in found else [],
        None if retry is None else retry.retry_delay.ToNanoseconds() / 1e9,
        trailer,
    )


def _bytes_on_the_wire(error: Any) -> int:
    """The size of the trailer: binary values are sent in base64, and three bytes for each byte that is not ASCII."""
    size = len("grpc-message") + len(quote(error.details(), safe=string.printable.replace("%", "")))
    for key, value in error.trailing_metadata():
        size += len(key) + (len(base64.b64encode(value)) if key.endswith("-bin") else len(value))
    return size


def open_stores(service: Service) -> Stores:
    """Open the server's stores in this process."""
    return Stores.open(service.settings)
