"""Real processes of the service, which the tests start, call, kill and freeze."""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2, points_pb2
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub
from homophily_client.names import DatasetName, JobName, new_id
from homophily_service.contract import states
from homophily_service.contract.arrays import parts_from_points, shape_of
from homophily_service.contract.kinds import FIT
from homophily_service.runtime.settings import Settings
from homophily_service.storage.database import Page
from homophily_service.storage.records import JobRecord, NewJob, ResourceRecord
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import publish_dataset

from ..service.serving import production_path
from . import procfs

LAUNCHER = Path(__file__).with_name("launch.py")
PROJECT = "projects/default"
LEASE_SECONDS = 3.0
# How long to wait for anything that is not itself measured: machines of continuous integration are slow.
PATIENCE = 120.0
# Twice as long as a writer waits for SQLite, so that errors come from the service, not from the client's deadline.
CALL_SECONDS = 60.0
T = TypeVar("T")


def eventually(what: str, ask: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Ask until the answer is true, and return it; the test fails if that takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.05)
    pytest.fail(f"not within {seconds:g} s: {what}")


# -- processes


class Process:
    """A process that a test started, in its own working directory; ``within`` is a command that executes it."""

    def __init__(
        self, role: str, environment: dict[str, str], log: Path, cwd: Path, within: Sequence[str] = ()
    ) -> None:
        self.role, self.log = role, log
        command = [*within, sys.executable, str(LAUNCHER), role, str(os.getpid())]
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self.pid = self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """Kill it, as when a machine runs out of memory or is lost."""
        self._popen.kill()
        self._popen.wait()

    def terminate(self) -> None:
        self._popen.send_signal(signal.SIGTERM)

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Wait for the end."""
        return self._popen.wait(seconds)


class Cluster:
    """A database, a store of arrays, and the processes on them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.tag = secrets.token_hex(8)
        self.port = free_port()
        self.options = {
            "data_dir": folder / "data",
            "lease_seconds": LEASE_SECONDS,
            "predictors": 0,
            "workers": 0,
            "threads": 1,
            "tracking": False,
            **settings,
        }
        self.stores = Stores.open(Settings(**self.options))
        self.stores.database.migrate()
        self.queue = self.stores.queue
        self._processes: list[Process] = []
        self._clients: list[Client] = []

    # -- processes

    def worker(self, within: Sequence[str] = (), **settings: Any) -> Process:
        """Start a worker; its child is warm some seconds later."""
        return self._start("worker", settings, within)

    def serve(self, within: Sequence[str] = (), **settings: Any) -> Process:
        """Start an API, with the workers of the settings; returns when it answers."""
        process = self._start("serve", {"port": self.port, **settings}, within)
        port = settings.get("port", self.port)
        eventually(f"{process.log} listens", lambda: not process.is_running or listens(port))
        assert process.is_running, process.log.read_text()
        return process

    def _start(self, role: str, settings: dict[str, Any], within: Sequence[str] = ()) -> Process:
        """Start a process in its data folder, where it finds nothing of this repository, as on another machine."""
        settings = {**self.options, **settings}
        cwd = Path(settings["data_dir"])
        cwd.mkdir(exist_ok=True)
        options = {f"HOMOPHILY_{name.upper()}": str(value) for name, value in settings.items()}
        environment = {**os.environ, **options, procfs.TAG: self.tag}
        if options["HOMOPHILY_TRACKING"] == "False":
            environment["PYTHONPATH"] = production_path()
        process = Process(role, environment, self.folder / f"{role}-{len(self._processes)}.log", cwd, within)
        self._processes.append(process)
        return process

    def running(self, module: str = "") -> list[int]:
        """Processes of this test whose command contains ``module``; all of them if it is empty."""
        return [pid for pid, command in procfs.belonging(self.tag).items() if module in command]

    def children(self) -> list[int]:
        """The processes that compute."""
        return self.running("worker.child")

    def child_of(self, worker: Process) -> int:
        """The process that computes for a worker."""

        def found() -> int | None:
            return next((pid for pid in self.children() if procfs.parent(pid) == worker.pid), None)

        return eventually(f"{worker.log} has a child", found) or 0

    def nothing_runs(self, seconds: float = PATIENCE) -> None:
        """Wait until all processes of this test are gone."""
        eventually("all processes are gone", lambda: not self.running(), seconds)

    def exceptions(self) -> list[str]:
        """Lines of the logs with a traceback, and lines that are not from our loggers."""
        return [line for log in sorted(self.folder.glob("*.log")) for line in log.read_text().splitlines() if odd(line)]

    def logged(self, process: Process, words: str) -> bool:
        """Whether a process has logged these words."""
        return words in process.log.read_text()

    def close(self) -> None:
        """End everything."""
        for client in self._clients:
            client.close()
        for pid in self.running():
            signal_to(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
        self.stores.close()

    # -- queries

    def client(self, port: int | None = None) -> Client:
        """A client of the API."""
        client = Client(port or self.port)
        self._clients.append(client)
        return client

    def submit(self, **options: Any) -> JobName:
        """Queue a very short job, without the API."""
        solver = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR, power=1)
        return self.submit_fit(fit_request(0, 20, 2, solver=solver), **options)

    def submit_fit(self, request: job_pb2.FitRequest, **options: Any) -> JobName:
        """Queue a fit without the API, with its points as a dataset."""
        tensor = request.inline.dense
        X = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
        name, start = DatasetName("default", new_id()), dataset_pb2.UploadStart(shape=shape_of(X))
        digest = hashlib.sha256(tensor.data).digest()
        publish_dataset(self.stores, name, start, digest, X.nbytes, arrays=parts_from_points(X))
        request.dataset = str(name)
        job = JobName("default", new_id())
        self.queue.submit(NewJob(job, FIT.name, request.SerializeToString(), **options), 10**9)
        return job

    def job(self, name: JobName | str) -> JobRecord:
        """A job's record."""
        return self.queue.get(name if isinstance(name, JobName) else JobName.parse(name, "name"))

    def jobs(self, project: str = "default") -> list[JobRecord]:
        """The records of all jobs of a project."""
        placed = _all_pages(lambda before: self.queue.page(project, Page(last=before)), lambda one: one[0])
        return [row for row, _ in placed]

    def resources(self, collection: str) -> list[ResourceRecord]:
        """The records of all datasets, models or embeddings."""
        catalog = self.stores.catalog
        return _all_pages(lambda before: catalog.page(collection, "default", Page(last=before)), lambda row: row)

    def is_running_job(self, name: JobName | str, attempt: int = 1) -> bool:
        """Whether a worker runs this attempt at the job."""
        job = self.job(name)
        return job.state == states.RUNNING and job.attempt == attempt

    def ended(self, name: JobName | str, seconds: float = PATIENCE) -> JobRecord:
        """A job's record after its end."""
        return eventually(f"{name} ends", lambda: (job := self.job(name)).state in states.FINAL and job, seconds)

    def has_one_end(self, name: JobName | str) -> None:
        """Check a job's events: numbered without gaps, with exactly one end, which is the last event."""
        job = self.job(name)
        history = self.queue.events_after(job.number, 0)
        assert [event.sequence for event in history] == list(range(1, job.last_sequence + 1)), history
        assert [event.state in states.FINAL for event in history] == [False] * (len(history) - 1) + [True], history
        assert history[-1].state == job.state


def _all_pages(page: Callable[[int | None], tuple[Sequence[Any], bool]], row: Callable[[Any], Any]) -> list[Any]:
    found: list[Any] = []
    has_more = True
    while has_more:
        some, has_more = page(row(found[-1]).number if found else None)
        found += some
    return found


def odd(line: str) -> bool:
    """Whether a line of a log reports an exception, or is not from our loggers.

    A kill may cut a line, and the next one is then appended to it: such a line is judged by its words.
    """
    try:
        return "exception" in json.loads(line)
    except ValueError:
        return bool(line.strip()) and (not line.startswith('{"time": ') or '"exception": ' in line)


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    """A free port outside of the system's own range, so that it is still free after a kill."""
    for port in random.Random(secrets.token_bytes()).sample(range(15_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    pytest.fail("no port is free")


def listens(port: int) -> bool:
    """Whether a port accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


# -- calls


class Client:
    """Stubs, and calls that wait for a server that is down."""

    def __init__(self, port: int) -> None:
        options = [
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
            # Each client has a connection of its own.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self.stub = HomophilyServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Any, seconds: float = PATIENCE) -> Any:
        """Make a call, again while it is UNAVAILABLE; other errors are raised."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return getattr(self.stub, method)(request, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                if code(error) != grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def submit(self, method: str, request: Any) -> str:
        """Submit a job until it is acknowledged; returns its name."""
        if not request.options.request_id:
            request.options.request_id = new_id()
        return str(self.call(method, request).job.name)

    def job(self, name: str) -> job_pb2.Job:
        return self.call("GetJob", job_pb2.GetJobRequest(name=name)).job

    def watch(self, name: str) -> Iterator[job_pb2.JobEvent]:
        """All events of a job, however often the connection breaks."""
        sequence, ended = 0, False
        # The longest time between two events: a killed worker is back within it.
        deadline = time.monotonic() + 2 * PATIENCE
        while not ended:
            try:
                request = job_pb2.WatchJobRequest(name=name, after_sequence=sequence)
                with cancelled(self.stub.WatchJob(request, timeout=2 * PATIENCE)) as answers:
                    for answer in answers:
                        deadline = time.monotonic() + 2 * PATIENCE
                        if answer.HasField("event"):
                            sequence = answer.event.sequence
                            yield answer.event
                        ended = answer.HasField("job")
            except grpc.RpcError as error:
                if code(error) != grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def solution(self, model: str) -> NDArray[Any]:
        """The classes of a model's points, as positions."""
        parts = self.stub.ReadSolution(model_pb2.ReadSolutionRequest(name=model), timeout=CALL_SECONDS)
        return np.concatenate([np.frombuffer(part.tensors[0].data, "<i4") for part in parts])

    def coordinates(self, embedding: str) -> NDArray[Any]:
        """The map of an embedding."""
        parts = self.stub.ReadEmbedding(embedding_pb2.ReadEmbeddingRequest(name=embedding), timeout=CALL_SECONDS)
        return np.concatenate([np.frombuffer(part.rows.data, "<f8").reshape(part.rows.shape) for part in parts])


@contextmanager
def cancelled(call: Any) -> Iterator[Any]:
    """Cancel a stream on exit."""
    try:
        yield call
    finally:
        call.cancel()


def code(error: grpc.RpcError) -> grpc.StatusCode:
    """The code of an error, which gRPC's types do not declare."""
    assert isinstance(error, grpc.Call)
    return error.code()


# -- data


def clouds(seed: int, n_points: int = 200, n_classes: int = 2) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Points around a centre for each class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_points) % n_classes
    return (6.0 * rng.normal(size=(n_classes, 4))[y] + rng.normal(size=(n_points, 4))).astype(np.float32), y


def points(X: NDArray[np.float32]) -> points_pb2.Points:
    """Points inside a message."""
    tensor = points_pb2.Tensor(data_type=points_pb2.DATA_TYPE_FLOAT32, shape=X.shape, data=X.tobytes())
    return points_pb2.Points(dense=tensor)


def labels(y: NDArray[np.int64], some: Sequence[int]) -> model_pb2.Labels:
    """The classes of some points."""
    classes = model_pb2.ClassValues(integers=model_pb2.IntegerValues(values=y[list(some)].tolist()))
    return model_pb2.Labels(points=some, classes=classes)


def fit_request(seed: int, n_points: int = 200, n_classes: int = 2, **fields: Any) -> job_pb2.FitRequest:
    """A fit that takes a fraction of a second; the same seed gives the same dataset and graph."""
    X, y = clouds(seed, n_points, n_classes)
    # Smooth relationships have steps and energies to look at.
    fields.setdefault("solver", model_pb2.SolverParameters(sharpen=False))
    return job_pb2.FitRequest(parent=PROJECT, inline=points(X), labels=labels(y, range(10 * n_classes)), **fields)


def embed_request(seed: int, n_points: int = 200, earlier: str = "") -> job_pb2.EmbedRequest:
    """A map that takes a fraction of a second, of points or continuing an earlier map."""
    X, _ = clouds(seed, n_points)
    source: dict[str, Any] = {"embedding": earlier} if earlier else {"inline": points(X)}
    links = embedding_pb2.Links(
        must=[embedding_pb2.Link(first=0, second=2 + 2 * seed)], cannot=[embedding_pb2.Link(first=0, second=1)]
    )
    few = embedding_pb2.EmbeddingParameters(max_iter=5)
    return job_pb2.EmbedRequest(parent=PROJECT, links=links, solver=few, n_clusters=2, **source)


def endless_fit(n_points: int = 3_000, **fields: Any) -> job_pb2.FitRequest:
    """A fit that takes far longer than any test."""
    solver = model_pb2.SolverParameters(tolerance=0.0, max_iter=100_000)
    return fit_request(0, n_points, 10, solver=solver, **fields)
