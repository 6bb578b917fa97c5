"""The client: against a fake that injects faults, and against the real server."""

from __future__ import annotations

import doctest
import hashlib
import json
import pickle
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from numpy.testing import assert_array_equal
from scipy import sparse

from homophily_service._pb import dataset_pb2, job_pb2, model_pb2
from homophily_service._pb import homophily_service_pb2_grpc as services
from homophily_service.arrays import Limits, from_points, parts_of, to_tensor
from homophily_service.client import (
    AlreadyExists,
    Client,
    ClientError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    JobCancelled,
    JobFailed,
    JobHandle,
    JobState,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Violation,
    datasets,
    embeddings,
    handle,
    labels,
    parameters,
    points,
)
from homophily_service.client import client as client_module
from homophily_service.client.labels import to_labels
from homophily_service.client.parameters import graph_message, solver_message, to_dict
from homophily_service.client.points import Points
from homophily_service.store.database import Database
from homophily_service.tokens import Tokens

LIMITS = Limits(points=10**9, dimensions=10**9, bytes=10**12)
MIB = 1 << 20


# -- points --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "sent"),
    [
        ("f4", "f4"),
        ("f8", "f8"),
        (">f8", "f8"),
        ("f2", "f4"),
        ("?", "f4"),
        ("i1", "f4"),
        ("u2", "f4"),
        ("i4", "f8"),
        ("i8", "f8"),
        ("O", "f8"),
    ],
)
def test_points_are_sent_in_the_type_that_holds_them(dtype: str, sent: str) -> None:
    X = np.array([[1, 0], [0, 1], [1, 1]]).astype(dtype)
    received = from_points(Points(X).message(), LIMITS, "points")
    assert received.dtype == np.dtype(sent)
    assert_array_equal(received, X.astype(sent))


@pytest.mark.parametrize("X", [np.array([["1", "2"]]), np.array([[1j]]), sparse.csr_array(np.array([[1j]]))])
def test_points_that_are_not_real_numbers_are_refused(X: Any) -> None:
    with pytest.raises(TypeError, match="real numbers"):
        Points(X)


@pytest.mark.parametrize("X", [np.zeros(3), np.zeros((2, 2, 2)), sparse.coo_array(np.ones(3))])
def test_points_must_have_two_dimensions(X: Any) -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        Points(X)


def test_sparse_points_are_sorted_and_added_up_without_touching_the_users() -> None:
    given = sparse.csr_array((np.array([1, 2, 3], dtype=np.int8), np.array([2, 0, 2]), np.array([0, 3, 3])), (2, 4))
    before = given.indices.copy()
    received: Any = from_points(Points(given).message(), LIMITS, "points")
    assert_array_equal(received.toarray(), [[2, 0, 4, 0], [0, 0, 0, 0]])
    assert_array_equal(received.indices, [0, 2])
    assert_array_equal(given.indices, before)


@pytest.mark.parametrize("kind", ["dense", "fortran", "strided", "wide", "memmap", "csr", "coo", "dataframe", "empty"])
@pytest.mark.parametrize("step", [7, 64, 10**6])
def test_bytes_read_piece_by_piece_are_those_of_the_whole(kind: str, step: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(23, 5))
    X: Any = whole
    if kind == "fortran":
        X = np.asfortranarray(whole)
    elif kind == "strided":
        X = np.repeat(whole, 2, axis=0)[::2]
    elif kind == "wide":
        X = rng.integers(0, 9, (2, 300))
    elif kind == "memmap":
        np.save(tmp_path / "x.npy", whole)
        X = np.load(tmp_path / "x.npy", mmap_mode="r")
    elif kind in ("csr", "coo"):
        X = sparse.random_array((23, 9), density=0.3, rng=0, format=kind)
    elif kind == "dataframe":
        X = pd.DataFrame({"a": [1, 2, 3], "b": [True, False, True], "c": [0.5, 1.5, 2.5]})
    elif kind == "empty":
        X = sparse.csr_array((3, 4))
    points = Points(X)
    pieces = [points.read(start, min(start + step, points.bytes)) for start in range(0, points.bytes, step)]
    message = points.message()
    expected = message.dense.data or (
        message.csr.values.data + message.csr.column_indices.data + message.csr.row_starts.data
    )
    assert b"".join(pieces) == expected
    assert sum(part.bytes for part in parts_of(points.shape_message(), LIMITS, "shape")) == points.bytes


@pytest.mark.parametrize("is_sparse", [False, True])
def test_batches_cover_all_rows_and_stay_below_the_limit(is_sparse: bool) -> None:
    X: Any = np.random.default_rng(0).normal(size=(100, 7))
    X[3] = 0
    X = sparse.csr_array(X) if is_sparse else X
    points = Points(X)
    ranges = list(points.batches(700, 30))
    assert [start for start, _ in ranges] == [0, *[stop for _, stop in ranges[:-1]]]
    assert ranges[-1][1] == 100
    parts = [points.message(start, stop) for start, stop in ranges]
    assert max(part.ByteSize() for part in parts) < 800
    received = [from_points(part, LIMITS, "points") for part in parts]
    stacked = sparse.vstack(received).toarray() if is_sparse else np.concatenate(received)  # type: ignore[arg-type]
    assert_array_equal(stacked, X.toarray() if is_sparse else X)


def test_rows_larger_than_the_limit_go_one_by_one() -> None:
    assert list(Points(np.zeros((3, 100))).batches(10, 10)) == [(0, 1), (1, 2), (2, 3)]


# -- labels and parameters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "points", "classes", "length"),
    [
        ([-1, 3, -1, 0], [1, 3], [3, 0], 4),
        (np.array([-1.0, 3.0, np.nan, 0.0]), [1, 3], [3, 0], 4),
        (np.array([[2], [-1]]), [0], [2], 2),
        (np.array([True, False]), [0, 1], [1, 0], 2),
        ([True, None, False], [0, 2], [1, 0], 3),
        (["cat", "", None, -1, float("nan"), "dog"], [0, 5], ["cat", "dog"], 6),
        (np.array(["cat", "", "dog"]), [0, 2], ["cat", "dog"], 3),
        (pd.Series(["cat", None, pd.NA, "dog"], index=[5, 6, 7, 8]), [0, 3], ["cat", "dog"], 4),
        (pd.Series([1, None, -1, 2], dtype="Int64"), [0, 3], [1, 2], 4),
        (pd.Series(["a", None, "b"], dtype="category"), [0, 2], ["a", "b"], 3),
        ((1, -1), [0], [1], 2),
        ({7: -1, 2: 1}, [7, 2], [-1, 1], None),
        ({np.int64(7): np.str_("cat")}, [7], ["cat"], None),
        (([4, 5], ["cat", "dog"]), [4, 5], ["cat", "dog"], None),
        ((np.array([4, 5]), np.array([-1, 1])), [4, 5], [-1, 1], None),
        (None, [], [], None),
        ({}, [], [], None),
    ],
)
def test_labels_are_read_as_scikit_learn_writes_them(
    y: Any, points: list[int], classes: list[Any], length: int | None
) -> None:
    given = to_labels(y)
    kind = given.message.classes.WhichOneof("kind")
    assert list(given.message.points) == points
    assert list(getattr(given.message.classes, kind).values if kind else []) == classes
    assert given.length == length


@pytest.mark.parametrize(
    "y",
    [
        ["cat", 1],
        [0.5, 1.0],
        [np.inf, 1.0],
        {0: None},
        {0: "cat", 1: 2},
        {0.5: 1},
        ([1, 2], [0]),
        np.zeros((3, 2)),
        [b"cat"],
    ],
)
def test_labels_that_cannot_be_sent_are_refused_here(y: Any) -> None:
    with pytest.raises(ValueError, match=r"must|classes"):
        to_labels(y)


def test_parameters_come_back_by_the_cores_names() -> None:
    graph = {"n_neighbors": 5, "metric": "cosine", "weights": "self-tuning", "sigma_x": 0.5, "symmetrize": "max"}
    solver = {
        "method": "irr",
        "tol": 1e-8,
        "normalized": False,
        "multiclass": "one-vs-rest",
        "class_prior": [0.25, 0.75],
    }
    assert to_dict(graph_message(**graph, exponent=None)) == graph
    for space in ("input", "principal", "whitened"):
        assert to_dict(graph_message(space=space)) == {"space": space}
    assert to_dict(graph_message(n_directions=np.int64(20))) == {"n_directions": 20}
    assert to_dict(solver_message(**solver, power=None)) == solver
    assert to_dict(solver_message(class_prior="estimate", power=np.int64(2))) == {"class_prior": "estimate", "power": 2}
    with pytest.raises(ValueError, match=r"metric must be one of 'euclidean', 'cosine'. Got 'manhattan'"):
        graph_message(metric="manhattan")


@pytest.mark.parametrize("kind", [ClientError, InvalidArgument, DeadlineExceeded, JobFailed])
def test_errors_can_be_pickled(kind: type[ClientError]) -> None:
    error = kind("no", code=grpc.StatusCode.DATA_LOSS, reason="R", violations=(Violation("f", "d"),), request_id="x")
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert (type(again), str(again)) == (kind, "no")


def test_the_client_does_not_import_the_server_or_the_core() -> None:
    script = "import sys, homophily_service.client; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"homophily", "sqlalchemy", "pydantic", "faiss", "sklearn", "pandas", "mlflow", "numba", "obstore", "typer"}
    assert heavy.isdisjoint(loaded)
    ours = {name for name in loaded if name.startswith("homophily_service.") and name.count(".") == 1}
    assert ours == {f"homophily_service.{name}" for name in ("_pb", "arrays", "client", "errors", "names")}


# -- a fake that injects faults --------------------------------------------------------------------------------------


class Fake(services.HomophilyServiceServicer):
    """Just enough of a server, and a list of faults: each call takes the next one of its method."""

    def __init__(self) -> None:
        self.faults: dict[str, list[Any]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, str]] = []
        self.jobs: dict[str, job_pb2.Job] = {}
        self.events: list[job_pb2.JobEvent] = []
        self.received = b""
        self.start: dataset_pb2.UploadStart | None = None
        self.dataset: dataset_pb2.Dataset | None = None

    def fault(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append((method, request))
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
        waiting = self.faults.get(method)
        return waiting.pop(0) if waiting else None

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)

    def UploadDataset(
        self, request_iterator: Iterator[dataset_pb2.UploadDatasetRequest], context: Any
    ) -> dataset_pb2.UploadDatasetResponse:
        first = next(request_iterator).start
        fault = self.fault("UploadDataset", first, context)
        assert self.start in (None, first)
        self.start = first
        for number, request in enumerate(request_iterator):
            if isinstance(fault, int) and number == fault:
                abort(context, grpc.StatusCode.UNAVAILABLE)
            if request.WhichOneof("part") == "end":
                break
            if request.chunk.offset != len(self.received):
                abort(context, grpc.StatusCode.FAILED_PRECONDITION, reason="WRONG_OFFSET")
            self.received += request.chunk.data
        else:
            abort(context, grpc.StatusCode.INVALID_ARGUMENT)
        assert request.end.sha256 == hashlib.sha256(self.received).digest()
        self.dataset = dataset_pb2.Dataset(
            name=f"{first.parent}/datasets/{first.dataset_id}", shape=first.shape, sha256=request.end.sha256
        )
        if fault == "lost":
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return dataset_pb2.UploadDatasetResponse(dataset=self.dataset)

    def GetUpload(self, request: dataset_pb2.GetUploadRequest, context: Any) -> dataset_pb2.GetUploadResponse:
        lie = self.fault("GetUpload", request, context)
        if self.start is None or self.start.upload_id != request.upload_id:
            abort(context, grpc.StatusCode.NOT_FOUND)
        return dataset_pb2.GetUploadResponse(received_bytes=len(self.received) if lie is None else lie)

    def Fit(self, request: job_pb2.FitRequest, context: Any) -> job_pb2.FitResponse:
        fault = self.fault("Fit", request, context)
        if fault == "full":
            abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry=0.2)
        key = request.options.request_id
        job = job_pb2.Job(name=f"projects/default/jobs/j{len(self.jobs)}", state=job_pb2.JOB_STATE_QUEUED)
        job = self.jobs.setdefault(key, job)
        if fault == "lost":
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return job_pb2.FitResponse(job=job)

    def WaitJob(self, request: job_pb2.WaitJobRequest, context: Any) -> job_pb2.WaitJobResponse:
        answer = self.fault("WaitJob", request, context)
        if answer is None:
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return job_pb2.WaitJobResponse(job=answer)

    def WatchJob(self, request: job_pb2.WatchJobRequest, context: Any) -> Iterator[job_pb2.WatchJobResponse]:
        breaks_after = self.fault("WatchJob", request, context)
        for event in self.events:
            if event.sequence > request.after_sequence:
                yield job_pb2.WatchJobResponse(event=event)
            if event.sequence == breaks_after:
                abort(context, grpc.StatusCode.UNAVAILABLE)
        if breaks_after == "silently":
            return
        job = job_pb2.Job(name=request.name, state=job_pb2.JOB_STATE_CANCELLED)
        yield job_pb2.WatchJobResponse(job=job)

    def DeleteJob(self, request: job_pb2.DeleteJobRequest, context: Any) -> job_pb2.DeleteJobResponse:
        fault = self.fault("DeleteJob", request, context)
        found = [key for key, job in self.jobs.items() if job.name == request.name]
        if not found:
            abort(context, grpc.StatusCode.NOT_FOUND)
        del self.jobs[found[0]]
        if fault == "lost":
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return job_pb2.DeleteJobResponse()

    def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> model_pb2.GetModelResponse:
        if self.fault("GetModel", request, context) == "mangled":
            # Details that contradict the status, as a proxy may make them.
            context.set_trailing_metadata((("grpc-status-details-bin", b"\xff"),))
            context.abort(grpc.StatusCode.DATA_LOSS, "bits were lost")
        classes = model_pb2.ClassValues(strings=model_pb2.StringValues(values=["cat", "dog"]))
        return model_pb2.GetModelResponse(model=model_pb2.Model(name=request.name, points=10, classes=classes))

    def ReadSolution(
        self, request: model_pb2.ReadSolutionRequest, context: Any
    ) -> Iterator[model_pb2.ReadSolutionResponse]:
        breaks_at = self.fault("ReadSolution", request, context)
        for start in range(request.start, 10, 3):
            if start == breaks_at:
                abort(context, grpc.StatusCode.UNAVAILABLE)
            count = min(3, 10 - start)
            rows = np.arange(start, start + count)
            tensors = [to_tensor((rows % 2).astype(np.int32)), to_tensor(rows[:, None] * 0.5)]
            yield model_pb2.ReadSolutionResponse(start=start, count=count, tensors=tensors)

    def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:
        self.fault("ListModels", request, context)
        page = int(request.page_token or 0)
        models = [model_pb2.Model(name=f"projects/default/models/m{page}")]
        return model_pb2.ListModelsResponse(models=models, next_page_token=str(page + 1) if page < 2 else "")


def abort(context: Any, code: grpc.StatusCode, reason: str = "", retry: float | None = None) -> None:
    """End a call as the server does."""
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=reason)] if reason else []
    if retry is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=Duration(nanos=int(retry * 1e9))))
    packed = []
    for detail in details:
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    number: int = code.value[0]
    context.abort_with_status(rpc_status.to_status(status_pb2.Status(code=number, message="no", details=packed)))


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def fake_port(fake: Fake) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(4))
    services.add_HomophilyServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


@pytest.fixture
def client(fake_port: int) -> Iterator[Client]:
    with Client(f"127.0.0.1:{fake_port}", token="secret", patience=3.0) as client:
        yield client


@contextmanager
def slow_proxy(port: int, delay: float) -> Iterator[int]:
    """A port that takes connections at once, and passes their bytes on to another port after a delay."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            time.sleep(delay)
            with socket.create_connection(("127.0.0.1", port)) as server:
                upwards = threading.Thread(target=copy, args=(self.request, server))
                upwards.start()
                copy(server, self.request)
                upwards.join()

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy.server_address[1]
        finally:
            proxy.shutdown()
            thread.join()


def test_every_call_carries_the_token_and_an_id_of_its_own(client: Client, fake: Fake) -> None:
    list(client.list_models())
    assert {metadata["authorization"] for metadata in fake.metadata} == {"Bearer secret"}
    assert len({metadata["x-request-id"] for metadata in fake.metadata}) == 3


def test_lists_go_over_all_pages(client: Client) -> None:
    assert [model.name.rsplit("/")[-1] for model in client.list_models()] == ["m0", "m1", "m2"]


@pytest.mark.parametrize("faults", [[0], [2], [2, 0, 1], ["lost"], [1, "lost"]])
def test_broken_upload_goes_on_where_it_stopped(client: Client, fake: Fake, faults: list[Any]) -> None:
    fake.faults["UploadDataset"] = list(faults)
    X = np.random.default_rng(0).normal(size=(5 * MIB // 80 + 1, 10))
    dataset = client.upload(X, name="digits")
    assert fake.received == X.tobytes()
    assert dataset.sha256 == hashlib.sha256(X.tobytes()).hexdigest()
    assert fake.count("UploadDataset") == len(faults) + 1
    assert len({request.upload_id for method, request in fake.calls if method == "UploadDataset"}) == 1


def test_upload_asks_again_when_an_earlier_connection_was_still_writing(client: Client, fake: Fake) -> None:
    fake.faults["UploadDataset"] = [2]
    fake.faults["GetUpload"] = [MIB]
    X = np.ones((3 * MIB // 8, 1))
    client.upload(X)
    assert fake.received == X.tobytes()
    assert fake.count("UploadDataset") == 3


def test_upload_is_given_up_when_it_never_gets_further(client: Client, fake: Fake) -> None:
    fake.faults["UploadDataset"] = [0] * 1000
    started = time.monotonic()
    with pytest.raises(Unavailable):
        client.upload(np.ones((10, 2)))
    assert time.monotonic() - started < 10
    assert 2 <= fake.count("UploadDataset") <= 20


def test_upload_tells_its_progress(client: Client) -> None:
    told: list[tuple[int, int]] = []
    X = np.ones((3 * MIB // 8 - 5, 1))
    client.upload(X, progress=lambda sent, total: told.append((sent, total)))
    assert told == [(MIB, X.nbytes), (2 * MIB, X.nbytes), (X.nbytes, X.nbytes)]


def test_upload_ends_with_what_the_callback_raises(client: Client) -> None:
    def stop(*_: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        client.upload(np.ones((3, 2)), progress=stop)


def test_large_points_are_uploaded_once_however_often_the_request_is_sent(client: Client, fake: Fake) -> None:
    X = np.ones((4 * MIB // 8, 1))
    for _ in range(2):
        client.fit(X, {0: 1, 1: 2}, request_id="mine")
    uploads = [request for method, request in fake.calls if method == "UploadDataset"]
    fits = [request for method, request in fake.calls if method == "Fit"]
    assert uploads[0] == uploads[1]
    assert fits[0] == fits[1]
    assert fits[0].WhichOneof("points") == "dataset"
    assert len(fake.received) == X.nbytes


def test_small_points_go_along_with_the_request(client: Client, fake: Fake) -> None:
    X = np.ones((3, 2), dtype=np.float32)
    client.fit(X, [0, -1, 1], sigma_f=0.5, validation={2: 1})
    [(_, request)] = fake.calls
    assert request.inline == Points(X).message()
    assert (request.parent, list(request.validation.points)) == ("projects/default", [2])
    assert request.solver.sigma_f == 0.5
    assert not request.solver.HasField("lambda2")


def test_lost_answer_to_a_fit_does_not_start_a_second_job(client: Client, fake: Fake) -> None:
    fake.faults["Fit"] = ["lost", "lost"]
    job = client.fit("digits", {0: 1, 1: 2})
    assert len(fake.jobs) == 1
    assert job.name == "projects/default/jobs/j0"
    assert len({metadata["x-request-id"] for metadata in fake.metadata}) == 1


def test_lost_answer_to_a_delete_is_no_error_but_deleting_nothing_is(client: Client, fake: Fake) -> None:
    job = client.fit("digits", {0: 1, 1: 2})
    fake.faults["DeleteJob"] = ["lost"]
    job.delete()
    assert fake.count("DeleteJob") == 2
    with pytest.raises(NotFound):
        job.delete()


def test_full_queue_is_waited_for_only_if_asked(client: Client, fake: Fake) -> None:
    fake.faults["Fit"] = ["full", "full", "full"]
    with pytest.raises(LimitExceeded) as caught:
        client.fit("digits", {0: 1, 1: 2})
    assert (caught.value.reason, caught.value.retry_seconds) == ("QUEUE_FULL", 0.2)
    client.retry_full_queue = True
    client.fit("digits", {0: 1, 1: 2})
    assert fake.count("Fit") == 4


def test_watch_goes_on_after_breaks_without_repeating_or_missing_events(client: Client, fake: Fake) -> None:
    fake.events = [job_pb2.JobEvent(sequence=number, state=job_pb2.JOB_STATE_RUNNING) for number in range(1, 7)]
    fake.events[2].progress.phase = "solve"
    fake.faults["WatchJob"] = [2, 2, "silently", 6]
    job = client.fit("digits", {0: 1, 1: 2})
    events = list(job.watch())
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5, 6]
    assert (events[0].phase, events[2].phase, events[2].energy) == (None, "solve", None)
    known = [request.after_sequence for method, request in fake.calls if method == "WatchJob"]
    assert known == [0, 2, 2, 6, 6]
    assert job.state == JobState.CANCELLED == "cancelled"
    with pytest.raises(JobCancelled):
        job.result()


def test_result_waits_through_outages(client: Client, fake: Fake) -> None:
    job = client.fit("digits", {0: 1, 1: 2})
    running = job_pb2.Job(name=job.name, state=job_pb2.JOB_STATE_RUNNING)
    done = job_pb2.Job(name=job.name, state=job_pb2.JOB_STATE_SUCCEEDED)
    done.fit.model.name = "projects/default/models/m"
    fake.faults["WaitJob"] = [None, running, None, None, done]
    assert job.result().name == "projects/default/models/m"


def test_result_raises_the_jobs_error(client: Client, fake: Fake) -> None:
    job = client.fit("digits", {0: 1, 1: 2})
    failed = job_pb2.Job(name=job.name, state=job_pb2.JOB_STATE_FAILED)
    violation = job_pb2.JobFieldViolation(field="graph.n_neighbors", description="too many")
    failed.error.CopyFrom(job_pb2.JobError(code=3, reason="INVALID", message="bad", field_violations=[violation]))
    fake.faults["WaitJob"] = [failed]
    for _ in range(2):
        with pytest.raises(JobFailed, match="j0 failed: bad") as caught:
            job.result()
        assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.violations == (("graph.n_neighbors", "too many"),)
    assert fake.count("WaitJob") == 1


def test_result_times_out_also_while_the_server_is_away(client: Client, fake: Fake) -> None:
    job = client.fit("digits", {0: 1, 1: 2})
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"is queued after 0.5 s"):
        job.result(timeout=0.5)
    assert 0.4 < time.monotonic() - started < 2.0
    with pytest.raises(Unavailable):
        job.result(timeout=60)
    assert fake.count("WaitJob") < 40


def test_solution_is_read_on_after_breaks(client: Client, fake: Fake) -> None:
    fake.faults["ReadSolution"] = [3, 9]
    solution = client.read_solution("m", ("labels", "scores"))
    assert solution.labels is not None
    assert solution.scores is not None
    assert solution.labels.tolist() == ["cat", "dog"] * 5
    assert_array_equal(solution.scores, np.arange(10)[:, None] * 0.5)
    assert solution.values is None
    assert fake.count("ReadSolution") == 3


def test_mangled_details_leave_the_code(client: Client, fake: Fake) -> None:
    fake.faults["GetModel"] = ["mangled"]
    with pytest.raises(ClientError, match="bits were lost") as caught:
        client.get_model("m")
    assert caught.value.code == grpc.StatusCode.DATA_LOSS
    assert caught.value.request_id == fake.metadata[-1]["x-request-id"]


def test_labels_of_the_wrong_length_are_noticed_before_anything_is_sent(client: Client, fake: Fake) -> None:
    with pytest.raises(ValueError, match=r"y must have an entry for each of 3 points. Got 2"):
        client.fit(np.ones((3, 2)), [0, 1])
    with pytest.raises(ValueError, match=r"validation must have an entry for each of 10 points. Got 1"):
        client.transduce("m", {0: "cat"}, validation=["cat"])
    assert fake.count("Fit") == fake.count("Transduce") == 0


@pytest.mark.parametrize("name", ["", "UP", "projects/default/models/x", "projects/default/datasets/", "a" * 64])
def test_wrong_names_are_refused_here(client: Client, name: str) -> None:
    with pytest.raises(ValueError, match="dataset"):
        client.get_dataset(name)
    with pytest.raises(TypeError, match="must be a name"):
        client.get_dataset(7)  # type: ignore[arg-type]


def test_a_server_that_never_answered_is_given_up_soon() -> None:
    with Client("127.0.0.1:1", patience=1.0) as client, pytest.raises(Unavailable):
        client.get_model("m")
    with Client("127.0.0.1:1", patience=0.0) as client, pytest.raises(Unavailable):
        client.upload(np.ones((2, 2)))


def test_a_server_that_greets_a_new_connection_late_is_reached(fake_port: int) -> None:
    # Regression: grpc.min_reconnect_backoff_ms = 200 dropped every connection that was not ready within 200 ms.
    with slow_proxy(fake_port, delay=1.0) as port, Client(f"127.0.0.1:{port}", patience=3.0) as client:
        assert len(list(client.list_models())) == 3


# -- the real server -------------------------------------------------------------------------------------------------


SERVE = """
import json, sys
from homophily_service.api.server import run_server
from homophily_service.settings import load_settings

settings = load_settings(**json.loads(sys.argv[1]))
run_server(settings, lambda server: print(server.port, flush=True))
"""


class RealServer:
    """A server on a port and a folder that outlive it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.token = folder, 0, ""
        self.process: subprocess.Popen[str] | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, **settings: Any) -> None:
        given = {"data_dir": str(self.folder), "port": self.port, "threads": 1, "tracking": False, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, json.dumps(given)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    server = RealServer(tmp_path_factory.mktemp("server"))
    server.start(auth="tokens")
    database = Database(f"sqlite:///{server.folder / 'homophily.db'}")
    _, server.token = Tokens(database).create("default", "")
    database.close()
    yield server
    assert server.process is not None
    ended = server.process.poll()
    server.stop()
    assert ended is None, f"the server had ended by itself, with code {ended}"


@pytest.fixture
def remote(real: RealServer) -> Iterator[Client]:
    with Client(real.target, token=real.token) as client:
        yield client


def two_blobs(points: int, dtype: str = "f8") -> tuple[Any, Any]:
    """Points of two classes, and their classes."""
    y = np.arange(points) % 2
    X = np.random.default_rng(0).normal(10.0 * y[:, None] - 5.0, 1.0, (points, 4))
    return X.astype(dtype), y


@pytest.fixture(scope="module")
def model(real: RealServer) -> str:
    X, y = two_blobs(400)
    with Client(real.target, token=real.token) as client:
        job = client.fit(X, {0: "left", 1: "right"}, calibrate=True, model_id="blobs", validation=_words(y))
        return job.result(120).name


def _words(y: Any) -> Any:
    return np.array(["left", "right"])[y]


@pytest.mark.parametrize("kind", ["dense", "float32", "sparse", "dataframe"])
def test_uploaded_points_are_fitted_and_read_back(remote: Client, kind: str) -> None:
    X, y = two_blobs(300, "f4" if kind == "float32" else "f8")
    given: Any = {"sparse": sparse.coo_array, "dataframe": pd.DataFrame}.get(kind, np.asarray)(X)
    dataset = remote.upload(given, description=kind)
    assert (dataset.points, dataset.dimensions, dataset.is_sparse) == (300, 4, kind == "sparse")
    assert remote.get_dataset(dataset.name.rpartition("/")[2]) == dataset
    labels = np.where(np.arange(300) < 10, y, -1)
    job = remote.fit(dataset, labels, n_neighbors=8, metric="euclidean", max_iter=5, validation=y)
    found = job.result(120)
    assert (found.dataset, found.labelled, found.classes, found.error_rate) == (dataset.name, 10, (0, 1), 0.0)
    assert found.graph_parameters["n_neighbors"] == 8
    solution = remote.read_solution(found, ("labels", "values", "scores"))
    assert_array_equal(solution.labels, y)
    assert solution.values is not None
    assert solution.values.shape == (300, 1)
    remote.delete_dataset(dataset)
    with pytest.raises(NotFound):
        remote.get_dataset(dataset)


def test_events_of_a_real_job_come_in_order(remote: Client) -> None:
    X, _ = two_blobs(200)
    job = remote.fit(X, {0: 3, 1: 4}, method="irr")
    events = list(job.watch())
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (events[0].state, events[-1].state) == ("queued", "succeeded")
    assert {"graph", "solve"} <= {event.phase for event in events}
    assert list(job.watch(after=events[-1].sequence)) == []
    assert job.info.model == remote.get_model(job.result())


def test_new_points_are_answered_in_several_calls(remote: Client, model: str) -> None:
    X, y = two_blobs(25_000)
    prediction = remote.predict(model, X, probabilities=True)
    assert_array_equal(prediction.labels, _words(y))
    assert prediction.probabilities is not None
    assert_array_equal(prediction.classes[prediction.probabilities.argmax(axis=1)], prediction.labels)
    few = remote.predict(model, X[:7])
    assert_array_equal(few.scores, prediction.scores[:7])
    assert few.probabilities is None


def test_probabilities_of_a_models_own_points(remote: Client, model: str) -> None:
    solution = remote.read_solution(model, ["probabilities"])
    assert solution.labels is None
    assert solution.probabilities is not None
    assert_array_equal(solution.probabilities.sum(axis=1).round(9), 1.0)


def test_changed_labels_make_a_model_of_their_own(remote: Client, model: str) -> None:
    job = remote.transduce(model, {2: "left", 3: "right"}, validation=_words(two_blobs(400)[1]))
    changed = job.result(120)
    assert (changed.parent_model, changed.labelled, changed.error_rate) == (model, 4, 0.0)
    assert (changed.graph.reused, job.info.changed_points) == (True, 0)
    every_point = np.where(np.arange(400) < 6, _words(two_blobs(400)[1]), "")
    more = remote.transduce(changed, every_point, wait=60.0).result(60)
    assert more.labelled == 6
    assert remote.transduce(more, withdrawn=[0, 1, 2]).result(120).labelled == 3


def test_refusals_name_the_field(remote: Client, model: str) -> None:
    X, _ = two_blobs(50)
    with pytest.raises(InvalidArgument) as caught:
        remote.fit(X, {0: 1, 99: 2})
    assert caught.value.violations[0].field == "labels.points[1]"
    assert caught.value.reason == "INVALID_FIELD"
    assert len(caught.value.request_id) == 32
    with pytest.raises(InvalidArgument, match="finite"):
        remote.upload(np.array([[1.0, np.nan]]))
    with pytest.raises(FailedPrecondition) as late:
        remote.predict(remote.fit(X, {0: 1, 1: 2}).result(120), X, probabilities=True)
    assert late.value.reason == "NOT_CALIBRATED"
    with pytest.raises(InvalidArgument, match="at least 1 point"):
        remote.predict(model, np.empty((0, 4)))
    with pytest.raises(JobFailed) as failed:
        remote.transduce(model, withdrawn=[0]).result(120)
    assert failed.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.violations[0].field == "labels"


def test_same_request_id_is_the_same_job_and_another_request_is_refused(remote: Client) -> None:
    X, _ = two_blobs(60)
    first = remote.fit(X, {0: 1, 1: 2}, request_id="once")
    assert remote.fit(X, {0: 1, 1: 2}, request_id="once").name == first.name
    with pytest.raises(AlreadyExists):
        remote.fit(X, {0: 1, 1: 3}, request_id="once")


def test_jobs_are_listed_found_and_forgotten(remote: Client) -> None:
    X, _ = two_blobs(60)
    job: JobHandle[Any] = remote.fit(X, {0: 1, 1: 2})
    job.result(120)
    assert job.name in {one.name for one in remote.list_jobs(states=["succeeded"], kind="fit")}
    assert job.name not in {one.name for one in remote.list_jobs(states=[JobState.QUEUED, "failed"])}
    again = remote.job(job.name.rpartition("/")[2])
    assert again.cancel().state == JobState.SUCCEEDED
    assert pickle.loads(pickle.dumps(again.info)) == job.info
    again.delete()
    with pytest.raises(NotFound):
        job.refresh()


def test_threads_share_a_client(remote: Client, model: str) -> None:
    X, y = two_blobs(100)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: remote.predict(model, X).labels, range(32)))
    for answer in answers:
        assert_array_equal(answer, _words(y))


@pytest.mark.parametrize(
    "module",
    [client_module, datasets, embeddings, handle, labels, parameters, points],
    ids=lambda module: module.__name__,
)
def test_examples_in_the_docs_run(real: RealServer, module: Any) -> None:
    runner = doctest.DocTestRunner()
    found = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert found
    for test in found:
        for example in test.examples:
            example.source = example.source.replace('"localhost:50051"', f'"{real.target}", token="{real.token}"')
        test.globs["client"] = None
        runner.run(test, clear_globs=False)
        if test.globs["client"] is not None:
            test.globs["client"].close()
    assert runner.summarize().failed == 0


def test_other_projects_and_wrong_tokens_are_told_apart(real: RealServer, model: str) -> None:
    with Client(real.target) as stranger, pytest.raises(Unauthenticated, match="token"):
        stranger.get_model(model)
    with Client(real.target, token=real.token, project="other") as client:
        assert client.get_model(model).name == model
        with pytest.raises(PermissionDenied):
            client.get_model("blobs")


def test_upload_watch_and_result_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    server = RealServer(tmp_path)
    settings = {"predictors": 0, "shutdown_grace": 0.5}
    # Without workers the job waits for the restart.
    server.start(workers=0, **settings)
    X, _ = two_blobs(200_000)
    restarted: list[int] = []

    def restart_halfway(sent: int, total: int) -> None:
        if sent > total // 2 and not restarted:
            restarted.append(sent)
            server.stop(signal.SIGKILL)
            server.start(workers=0, **settings)

    try:
        # A loaded machine takes its time to start a server.
        with Client(server.target, patience=300.0) as client:
            dataset = client.upload(X, progress=restart_halfway)
            assert restarted
            assert dataset.sha256 == hashlib.sha256(X.tobytes()).hexdigest()
            job = client.fit(X[:300], {0: 1, 1: 2})
            with ThreadPoolExecutor(1) as pool:
                result = pool.submit(job.result, 300)
                sequences = []
                for event in job.watch():
                    sequences.append(event.sequence)
                    if event.sequence == 1:
                        server.stop(signal.SIGTERM)
                        server.start(**settings)
                assert result.result().points == 300
            assert sequences == list(range(1, len(sequences) + 1))
            assert job.state == "succeeded"
    finally:
        server.stop()
