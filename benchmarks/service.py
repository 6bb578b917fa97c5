"""What the service adds to the core: upload, submit, predict, queue, memory; all on loopback with real processes.

Clients share the cores with the service, so they are as light as Python allows: uvloop, requests made beforehand, and
gRPC's older transport, which takes a fifth less of their time. The service runs with gRPC's defaults. Predictions are
asked for by gRPC's Python clients, and by lighter ones of our own, which leave the cores to the service.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import uvloop

from benchmarks.data import draw_labels, mnist, usps
from benchmarks.light_client import LightClient
from benchmarks.measure import timed
from benchmarks.report import Options, Report
from homophily import ERRClassifier, KNNGraph
from homophily_client import Client
from homophily_client._pb import homophily_service_pb2_grpc, job_pb2, model_pb2, points_pb2
from homophily_client.labels import to_labels
from homophily_client.names import JobName, new_id
from homophily_client.tensors import to_tensor
from homophily_service.contract.kinds import FIT
from homophily_service.runtime.processes import keep_freed_memory
from homophily_service.storage.database import Database
from homophily_service.storage.queue import FINAL, NewJob, Queue

CLIENTS = 8
PREDICT = "/homophily.v1.HomophilyService/Predict"
POLLING_CLIENTS = 100


class Service(NamedTuple):
    """A running service."""

    target: str
    folder: Path
    pid: int


def run(options: Options, report: Report) -> None:
    quick = options.quick
    # What was imported is not to be looked through again and again while clients wait.
    gc.freeze()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as service, Client(service.target) as client:
        report.progress("warming up")
        data = usps(options.data)
        few = draw_labels(data.y, 50, seed=0)
        dataset = client.upload(data.X, name="usps")
        model = client.fit(dataset, few).result()
        upload(client, report, 10_000 if quick else 60_000)
        submit(client, data.X, few, dataset, report, 3 if quick else 10)
        report.progress(f"Predict from {CLIENTS} clients")
        uvloop.run(predict(service.target, model.name, data.X, report, 50 if quick else 2000))
        small_fits(service, client, report, 100 if quick else 500)
        report.progress(f"GetJob from {POLLING_CLIENTS} clients on a full queue")
        full_queue(service, report, 5 if quick else 20)
        memory(service, client, dataset, few, report, 50 if quick else 1000)
        cold_load(client, options, report)


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Service]:
    """`homophily serve` as a process, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    # Runs are sent by a process beside it, whose work is not what is measured here.
    given = {"tracking": False, "audit_file": folder / "audit.jsonl", **settings}
    environment |= {f"HOMOPHILY_{name.upper()}": str(value) for name, value in given.items()}
    command = [sys.executable, "-m", "homophily_service", "serve", "--port", str(port), "--data-dir", str(folder)]
    process = subprocess.Popen([*command, "--log-level", "warning"], env=environment, stdout=subprocess.DEVNULL)
    target = f"127.0.0.1:{port}"
    try:
        health = [sys.executable, "-m", "homophily_service", "health", "--target", target, "--timeout", "60"]
        subprocess.run(health, check=True, stdout=subprocess.DEVNULL)
        yield Service(target, folder, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def upload(client: Client, report: Report, rows: int) -> None:
    X = np.random.default_rng(0).normal(size=(rows, 784)).astype(np.float32)
    seconds = []
    for place in range(3):
        report.progress(f"upload {place + 1} of 3")
        spent, dataset = timed(lambda: client.upload(X))
        seconds.append(spent)
        client.delete_dataset(dataset)
    size = X.nbytes / 1e6
    report.note(
        f"Upload of {size:.0f} MB, stored and checked: {size / min(seconds):.0f} MB/s at best, "
        f"{size / float(np.median(seconds)):.0f} MB/s in the median of 3 (bar: 300)."
    )


def submit(client: Client, X: Any, few: Any, dataset: Any, report: Report, repeats: int) -> None:
    report.progress("submit to result")
    graph = KNNGraph().fit(X)
    ERRClassifier().fit(graph, few)
    core = float(np.median([timed(lambda: ERRClassifier().fit(graph, few))[0] for _ in range(repeats)]))
    job = float(
        np.median([timed(lambda: client.fit(dataset, few, job={"wait": 30.0}).result())[0] for _ in range(repeats)])
    )
    report.note(
        f"ERR fit of {len(few)} points on a known graph: {1e3 * core:.0f} ms in the core, {1e3 * job:.0f} ms from "
        f"submit to result: {1e3 * (job - core):.0f} ms more (bar: 500)."
    )


async def predict(target: str, model: str, X: Any, report: Report, calls: int) -> None:
    def request(number: int) -> model_pb2.PredictRequest:
        point = np.asarray(X[number][None], dtype=np.float64) + 0.01
        return model_pb2.PredictRequest(name=model, points=points_pb2.Points(dense=to_tensor(point)))

    # Made before: what is measured is the service.
    requests = [request(number) for number in range(len(X))]

    async def ask(stub: Any, number: int) -> None:
        await stub.Predict(requests[number % len(requests)])

    await _from_many(target, 1, 20, ask)
    alone = await _from_many(target, 1, calls, ask)
    together = await _from_many(target, CLIENTS, calls, ask)
    light = await asyncio.gather(*(_from_light_client(target, requests[client:], calls) for client in range(CLIENTS)))
    report.table(
        "Predict of one point, milliseconds",
        [
            _latencies("1 client of gRPC's", alone),
            _latencies(f"{CLIENTS} clients of gRPC's at once", together),
            _latencies(
                f"{CLIENTS} light clients at once (bar: p50 5, p99 20)", [spent for one in light for spent in one]
            ),
        ],
    )


async def _from_light_client(target: str, requests: list[model_pb2.PredictRequest], calls: int) -> list[float]:
    """Seconds of each call."""
    client = await LightClient.connect(target, PREDICT)
    messages = [request.SerializeToString() for request in requests[:calls]]
    seconds = []
    for number in range(calls):
        began = time.perf_counter()
        answer = await client.call(messages[number % len(messages)])
        seconds.append(time.perf_counter() - began)
        assert len(model_pb2.PredictResponse.FromString(answer).class_indices) == 1
    client.close()
    return seconds


def small_fits(service: Service, client: Client, report: Report, count: int) -> None:
    """The smallest fits, by the one worker of the service, on SQLite: what a job costs beside its computing."""
    report.progress(f"{count} smallest fits")
    queue = Queue(Database(f"sqlite:///{service.folder / 'homophily.db'}"))
    dataset = client.upload(np.arange(20.0).reshape(10, 2))
    solver = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR, power=1)
    request = job_pb2.FitRequest(dataset=dataset.name, labels=to_labels({0: 0, 9: 1}).message, solver=solver)
    began = time.perf_counter()
    names = [JobName(client.project, new_id()) for _ in range(count)]
    for name in names:
        queue.submit(NewJob(name, FIT.name, request.SerializeToString()), max_queued=count)
    submitted = time.perf_counter() - began
    while queue.get(names[-1]).state not in FINAL:
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    report.note(
        f"Smallest fits, on SQLite: {count / seconds:.0f} per second, {count / submitted:.0f} submits per second."
    )
    queue.database.close()


def full_queue(service: Service, report: Report, calls: int) -> None:
    """GetJob while 1,000 jobs wait; the worker cannot take them, as it does not know their kind."""
    queue = Queue(Database(f"sqlite:///{service.folder / 'homophily.db'}"))
    names = [JobName("full", new_id()) for _ in range(1000)]
    for name in names:
        queue.submit(NewJob(name, "unknown", b""), max_queued=1000)

    async def ask(stub: Any, number: int) -> None:
        await stub.GetJob(job_pb2.GetJobRequest(name=str(names[number * 7 % len(names)])))

    async def ask_now_and_then(stub: Any, number: int) -> float:
        await asyncio.sleep(0.5 * float(np.random.default_rng(number).random()))
        began = time.perf_counter()
        await ask(stub, number)
        return time.perf_counter() - began

    polling = uvloop.run(_from_many(service.target, POLLING_CLIENTS, calls, ask_now_and_then))
    busy = uvloop.run(_from_many(service.target, POLLING_CLIENTS, calls, ask))
    report.table(
        "GetJob with 1,000 jobs waiting, milliseconds",
        [
            _latencies(f"{POLLING_CLIENTS} clients, each asking 4 times a second (bar: p99 50)", polling),
            _latencies(f"{POLLING_CLIENTS} clients without a pause", busy),
        ],
    )
    for name in names:
        queue.cancel(name)
        queue.delete(name)
    queue.database.close()


def memory(service: Service, client: Client, dataset: Any, few: Any, report: Report, count: int) -> None:
    report.progress(f"{count} fits in a row")
    marks = []
    for place in range(count):
        model = client.fit(dataset, few, solver={"method": "irr"}, job={"wait": 30.0}).result()
        client.delete_model(model)
        if place in (count // 10, count // 2, count - 1):
            marks.append(resident(service.pid))
    shown = " → ".join(f"{mark:.0f}" for mark in marks)
    report.note(f"Memory of the API process over {count} fits (after a tenth, half, all): {shown} MiB.")


def cold_load(client: Client, options: Options, report: Report) -> None:
    """The first prediction of a large model, with its arrays read and checked, against the second."""
    data = mnist(options.data, 5_000 if options.quick else 60_000)
    report.progress(f"cold load of a model of {data.X.shape[0]} × {data.X.shape[1]} points")
    few = draw_labels(data.y, 300, seed=0)
    model = client.fit(client.upload(np.asarray(data.X, dtype=np.float32)), few, solver={"power": 1}).result()
    point = np.asarray(data.X[:1], dtype=np.float32) + 1.0
    first, _ = timed(lambda: client.predict(model, point))
    rest = [timed(lambda: client.predict(model, point))[0] for _ in range(20)]
    report.note(
        f"Model of {data.X.shape[0]:,} × {data.X.shape[1]} points: first prediction {first:.2f} s, "
        f"then {1e3 * float(np.median(rest)):.1f} ms."
    )


def resident(pid: int) -> float:
    """MiB that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


async def _from_many(
    target: str, clients: int, calls: int, ask: Callable[[Any, int], Awaitable[float | None]]
) -> list[float]:
    """Seconds of each call, from so many clients with a connection of their own."""

    async def one(client: int) -> list[float]:
        # Without this, gRPC shares one connection between channels of a process.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stub: Any = homophily_service_pb2_grpc.HomophilyServiceStub(channel)
            seconds = []
            for number in range(calls):
                began = time.perf_counter()
                own = await ask(stub, client * calls + number)
                seconds.append(time.perf_counter() - began if own is None else own)
            return seconds

    return [spent for spents in await asyncio.gather(*(one(client) for client in range(clients))) for spent in spents]


def _latencies(name: str, seconds: list[float]) -> dict[str, Any]:
    p50, p99 = 1e3 * np.percentile(seconds, [50, 99])
    return {"what": name, "calls": len(seconds), "p50": float(p50), "p99": float(p99), "most": 1e3 * max(seconds)}
