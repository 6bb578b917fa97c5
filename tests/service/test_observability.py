"""What operators see: metrics of all machines, logs that follow a job, traces from the client to the solver."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import promql_parser
import pytest
import yaml
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from homophily_client import Client
from homophily_client._pb import homophily_service_pb2 as service_pb2
from homophily_client._pb import job_pb2
from homophily_client.names import JobName, new_id
from homophily_service.api.metrics import LATE_SECONDS, EndedJobs, ServiceMetrics
from homophily_service.contract.errors import FailedPrecondition
from homophily_service.contract.states import FINAL, QUEUED, RUNNING, WAITING
from homophily_service.runtime.devices import Devices
from homophily_service.runtime.settings import load_settings
from homophily_service.runtime.telemetry import STOP_SECONDS, Traces, is_traceparent, start_traces
from homophily_service.storage.database import Database
from homophily_service.storage.queue import Queue
from homophily_service.storage.records import NewJob
from homophily_service.storage.stores import Stores
from homophily_service.worker.metrics import WorkerMetrics
from homophily_service.worker.supervisor import Worker

from .databases import Postgres
from .serving import PATIENCE, Service, eventually, open_stores, running

HOMOPHILY = Path(sys.executable).with_name("homophily")
DEPLOY = Path(__file__).parents[2] / "deploy" / "observability"
X = np.concatenate([np.random.default_rng(0).normal(place, 1.0, (30, 3)) for place in (-3.0, 3.0)])
Y = np.full(60, -1)
Y[[0, 59]] = 0, 1
# What labels Prometheus itself adds.
ADDED = {"instance", "le"}


# -- what stands in for the outside world ------------------------------------------------------------------------------


@dataclass
class Collector:
    """Receives spans as OTLP over HTTP."""

    url: str
    spans: list[Any] = field(default_factory=list)

    def named(self, name: str, trace_id: str) -> Any:
        """The span of a trace with this name, when it is there."""

        def found() -> Any:
            mine = [span for span in self.spans if span.trace_id.hex() == trace_id and span.name == name]
            return mine[0] if mine else None

        return eventually(found, seconds=30.0)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            for resource in trace_service_pb2.ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found.spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


NVML = """
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
  if ((long)handle < 4) return 3;  /* these cannot be divided */
  *current = *pending = 1;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **handle) {
  if (index % 2) return 6;  /* there is none of this number */
  if (index > 2) return 6;
  *handle = (void *)(long)(10 + index);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
  long number = (long)handle;
  if (number == 2) return 15;  /* this one is lost */
  memory->total = 80ull << 30; memory->used = (unsigned long long)number << 30; memory->free = 0;
  return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that answers as NVIDIA's would of four devices, one lost and one divided."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["g++", "-x", "c", "-", "-shared", "-fPIC", "-o", library], input=NVML.encode(), check=True, capture_output=True
    )
    return folder


@pytest.fixture(scope="module")
def watched(collector: Collector, driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server that tells all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(driver))
        with running(tmp_path_factory.mktemp("watched"), metrics_port=0, traces_url=collector.url) as service:
            yield service


def samples(service: Service) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.metrics_port}/metrics", timeout=PATIENCE) as answer:
        return parsed(answer.read().decode())


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("homophily_")
    }


def value(found: dict[tuple[str, tuple[tuple[str, str], ...]], float], name: str, **labels: str) -> float:
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


@dataclass
class Fitted:
    """A fit that was traced, and what was measured around it."""

    trace_id: str
    client_span: str
    job: str
    request_id: str
    model: Any
    before: dict[Any, float]
    after: dict[Any, float]


@pytest.fixture(scope="module")
def fitted(watched: Service) -> Iterator[Fitted]:
    """A model that a program with OpenTelemetry has asked for, and two predictions of it."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    before = samples(watched)
    with pytest.MonkeyPatch.context() as patch:
        # The one of the whole process can be set only once, and is not ours.
        patch.setattr(trace, "get_tracer", provider.get_tracer)
        with Client(watched.target) as client:
            handle = client.fit(X, Y, solver={"sharpen": False})
            model = handle.result(timeout=PATIENCE)
            for _ in range(2):
                client.predict(model, X[:2])
    stores = open_stores(watched)
    trace_id = stores.queue.get(JobName.parse(handle.name, "job")).trace.split("-")[1]
    stores.close()
    # On a machine that is slow enough, the client may have had to ask twice.
    calls = {f"{span.context.trace_id:032x}": span for span in memory.get_finished_spans() if span.context is not None}
    asked = calls[trace_id]
    assert asked.name == "homophily.v1.HomophilyService/Fit"
    assert asked.kind is trace.SpanKind.CLIENT
    assert asked.attributes is not None
    assert asked.attributes["rpc.grpc.status_code"] == "OK"
    assert asked.context is not None
    span = f"{asked.context.span_id:016x}"
    line = eventually(lambda: next((one for one in watched.lines() if one.get("trace_id") == trace_id), None))
    yield Fitted(trace_id, span, handle.name, line["request_id"], model, before, samples(watched))
    provider.shutdown()


# -- traces and logs ---------------------------------------------------------------------------------------------------


def test_a_trace_leads_from_the_client_to_the_phases_of_the_core(fitted: Fitted, collector: Collector) -> None:
    def parent_of(span: Any) -> str:
        return str(span.parent_span_id.hex())

    call = collector.named("homophily.v1.HomophilyService/Fit", fitted.trace_id)
    assert parent_of(call) == fitted.client_span
    wait, run = (collector.named(name, fitted.trace_id) for name in ("job wait", "job run"))
    assert parent_of(wait) == parent_of(run) == call.span_id.hex()
    told = {one.key: one.value for one in run.attributes}
    assert told["homophily.job"].string_value == fitted.job
    assert told["homophily.outcome"].string_value == "succeeded"
    assert told["homophily.attempt"].int_value == 1
    phases = [collector.named(f"phase {name}", fitted.trace_id) for name in ("load", "graph", "solve", "save")]
    for phase in phases:
        assert parent_of(phase) == run.span_id.hex()
    times = [time for phase in phases for time in (phase.start_time_unix_nano, phase.end_time_unix_nano)]
    assert times == sorted(times)
    assert wait.start_time_unix_nano <= wait.end_time_unix_nano <= run.start_time_unix_nano + 1e7
    assert run.start_time_unix_nano <= times[0]
    assert times[-1] <= run.end_time_unix_nano


def test_log_lines_of_the_call_and_of_the_worker_carry_the_same_ids(fitted: Fitted, watched: Service) -> None:
    def found() -> list[dict[str, Any]]:
        return [line for line in watched.lines() if line.get("trace_id") == fitted.trace_id]

    lines = eventually(lambda: [line for line in found() if line["message"].startswith("job ended after")] and found())
    assert {line["request_id"] for line in lines} == {fitted.request_id}
    assert {line["logger"] for line in lines} >= {
        "homophily.audit",
        "homophily_service.api.interceptors",
        "homophily_service.worker.supervisor",
    }
    at_work = [line for line in lines if line["logger"].endswith("supervisor")]
    assert {line["job"] for line in at_work} == {fitted.job}
    # The worker's lines are of the job's run, the others of the call.
    assert {line["span_id"] for line in at_work}.isdisjoint(line["span_id"] for line in lines if line not in at_work)


def test_a_callers_traceparent_is_in_the_log_also_where_nothing_is_traced(idle: Service) -> None:
    request = job_pb2.ListJobsRequest(parent="projects/mine")
    stub = idle.project(idle.token("*")).stub
    good = f"00-{'ab' * 16}-{'cd' * 8}-01"
    for number, header in enumerate((good, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "nonsense", good.upper())):
        mine = f"traced-{number}"
        stub.ListJobs(request, metadata=[("traceparent", header), ("x-request-id", mine)], timeout=PATIENCE)
        line = eventually(lambda mine=mine: [one for one in idle.lines() if one.get("request_id") == mine])[0]
        assert line.get("trace_id") == ("ab" * 16 if header == good else None)
        assert is_traceparent(header) == (header == good)


def test_nothing_of_opentelemetry_is_loaded_where_nothing_is_traced() -> None:
    program = """
import sys
import homophily_service.api.server, homophily_service.worker.supervisor, homophily_client
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_traces_without_the_extra_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    settings = load_settings(data_dir=tmp_path, traces_url="http://127.0.0.1:1/v1/traces")
    with pytest.raises(FailedPrecondition, match="the extra otel is not installed"):
        start_traces(settings, "test")
    assert start_traces(load_settings(data_dir=tmp_path), "test") is None


def test_a_collector_that_never_answers_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        traces = Traces(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", 1.0, "test")
        began = time.monotonic()
        for _ in range(3000):
            traces.start("lost").end("for good")
        made = time.monotonic()
        assert made - began < 5.0
        traces.stop()
        assert time.monotonic() - made < STOP_SECONDS + 1.0


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_the_endpoint_tells_of_jobs_wherever_they_ran(fitted: Fitted) -> None:
    def grown(name: str, **labels: str) -> float:
        return value(fitted.after, name, **labels) - value(fitted.before, name, **labels)

    model = fitted.model
    assert grown("homophily_jobs_ended_total", kind="fit", state="succeeded") == 1
    assert grown("homophily_job_attempts_total", kind="fit") == 1
    assert grown("homophily_job_wait_seconds_count", kind="fit") == 1
    assert grown("homophily_job_run_seconds_count", kind="fit", state="succeeded") == 1
    assert 0.0 < grown("homophily_job_run_seconds_sum", kind="fit", state="succeeded") < PATIENCE
    engine = model.engine or "none"
    assert grown("homophily_energy_evaluations_total", kind="fit", engine=engine) == model.evaluations > 0
    assert grown("homophily_solve_seconds_total", kind="fit", engine=engine) == pytest.approx(model.seconds["solve"])
    for phase, seconds in model.seconds.items():
        assert grown("homophily_phase_seconds_total", kind="fit", phase=phase) == pytest.approx(seconds)
    assert grown("homophily_job_peak_memory_bytes_count", kind="fit") == 1
    # The first prediction loads the model, the second finds it.
    assert grown("homophily_predictor_models_total", result="miss") == 1
    assert grown("homophily_predictor_models_total", result="hit") == 1


@pytest.mark.usefixtures("fitted")
def test_the_endpoint_tells_what_is_stored_and_what_waits(watched: Service) -> None:
    found = samples(watched)
    assert value(found, "homophily_stored_bytes", collection="datasets") == X.nbytes
    assert value(found, "homophily_stored_bytes", collection="models") > 0
    assert value(found, "homophily_stored_bytes", collection="graphs") > X.nbytes
    assert value(found, "homophily_database_up") == 1
    assert value(found, "homophily_oldest_queued_seconds") == 0
    # Nothing is tracked here, so nothing waits for a tracker.
    assert value(found, "homophily_untracked_jobs") == 0
    assert value(found, "homophily_device_memory_bytes", device="0", kind="used") == 1 << 30
    assert value(found, "homophily_device_memory_bytes", device="2", kind="total") == 80 << 30
    assert value(found, "homophily_device_memory_bytes", device="3:2", kind="used") == 12 << 30
    for absent in ("1", "3", "3:1"):
        assert ("homophily_device_memory_bytes", (("device", absent), ("kind", "used"))) not in found


def test_memory_is_reported_of_devices_that_answer_and_of_none_without_driver_or_library(
    driver: Path, tmp_path: Path
) -> None:
    program = "from homophily_service.runtime.devices import Devices; print([one.device for one in Devices().memory()])"
    (tmp_path / "pynvml.py").write_text("raise ModuleNotFoundError('No module named pynvml', name='pynvml')")
    for variables, expected in (
        ({"LD_LIBRARY_PATH": str(driver)}, "['0', '2', '3:0', '3:2']"),
        ({"LD_LIBRARY_PATH": str(tmp_path)}, "[]"),
        ({"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(tmp_path)}, "[]"),
    ):
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, env=os.environ | variables, check=True, capture_output=True, text=True)
        assert ended.stdout.strip() == expected


def ended(queue: Queue, outcome: bytes = b"") -> None:
    """Have a job come and go."""
    queue.submit(NewJob(JobName("p", new_id()), "fit", b""), 100)
    lease = queue.claim("a worker", ["fit"], 60.0, b"")
    assert lease is not None
    queue.finish(lease, outcome)


def counted(jobs: EndedJobs) -> float:
    return sum(
        sample.value
        for metric in jobs.collect()
        for sample in metric.samples
        if sample.name == "homophily_jobs_ended_total"
    )


def test_every_ended_job_is_counted_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from homophily_service.storage import statistics
    from homophily_service.storage.tables import jobs as table

    monkeypatch.setattr(statistics, "ROWS_AT_ONCE", 2)
    queue, jobs = Queue(database), EndedJobs(database)
    ended(queue)
    time.sleep(0.005)
    jobs.begin()
    assert counted(jobs) == 0
    for more, total in ((5, 5), (1, 6)):
        for _ in range(more):
            ended(queue)
        assert counted(jobs) == total
        assert counted(jobs) == total
    # One whose transaction ended late: its time is before that of others that were counted already.
    ended(queue)
    with database.write() as connection:
        last = connection.execute(table.select().order_by(table.c.number.desc())).first()
        assert last is not None
        connection.execute(
            table.update().where(table.c.number == last.number).values(finished=table.c.finished - 0.001)
        )
    assert counted(jobs) == 7
    assert len(jobs._seen) == 7
    jobs._last += LATE_SECONDS + 10.0
    assert counted(jobs) == 7
    assert jobs._seen == {}


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_without_the_database_the_endpoint_still_answers(
    database: Database, postgres: Postgres, tmp_path: Path
) -> None:
    settings = load_settings(data_dir=tmp_path, database_url=database.url)
    stores = Stores.open(settings)
    metrics = ServiceMetrics(stores)
    registry = CollectorRegistry()
    registry.register(metrics)
    assert value(parsed(generate_latest(registry).decode()), "homophily_database_up") == 1
    postgres.stop()
    try:
        found = parsed(generate_latest(registry).decode())
    finally:
        postgres.start()
    assert found == {("homophily_database_up", ()): 0.0}
    assert value(parsed(generate_latest(registry).decode()), "homophily_database_up") == 1
    stores.close()


# -- the dashboard and the alerts --------------------------------------------------------------------------------------


def expressions() -> dict[str, str]:
    """Everything that Prometheus is asked for, by what it is for."""
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    found = {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]}
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    return found | {rule["alert"]: rule["expr"] for rule in rules}


def selected(expression: Any) -> Iterator[Any]:
    """The selectors in an expression: a metric, and what its labels are to be."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    elif isinstance(expression, promql_parser.MatrixSelector):
        yield expression.vector_selector
    else:
        inner = [getattr(expression, name, None) for name in ("lhs", "rhs", "expr")]
        for part in [*inner, *getattr(expression, "args", [])]:
            if part is not None:
                yield from selected(part)


def used(expression: Any) -> Iterator[tuple[str, set[str]]]:
    """The metrics in an expression, each with the labels that it must have."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield str(expression.name), {matcher.name for matcher in expression.matchers.matchers}
        return
    if isinstance(expression, promql_parser.MatrixSelector):
        yield from used(expression.vector_selector)
        return
    more: set[str] = set()
    if isinstance(expression, promql_parser.AggregateExpr) and expression.modifier is not None:
        more = set(expression.modifier.labels)
    inner = [getattr(expression, name, None) for name in ("lhs", "rhs", "expr")] + list(getattr(expression, "args", []))
    for part in inner:
        if part is not None:
            for name, labels in used(part):
                yield name, labels | more


@pytest.fixture(scope="module")
def told(fitted: Fitted, watched: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The metrics of the API and of a worker, with their labels."""
    assert fitted.after
    worker = Worker(load_settings(data_dir=tmp_path_factory.mktemp("worker")))
    registry = CollectorRegistry()
    registry.register(WorkerMetrics(worker))
    found = samples(watched) | parsed(generate_latest(registry).decode())
    worker.stores.close()
    names: dict[str, set[str]] = {}
    for name, labels in found:
        names.setdefault(name, set()).update(label for label, _ in labels)
    return names


@pytest.mark.parametrize("purpose", list(expressions()))
def test_dashboard_and_alerts_ask_for_what_is_told(told: dict[str, set[str]], purpose: str) -> None:
    text = expressions()[purpose].replace("$__rate_interval", "5m")
    asked = list(used(promql_parser.parse(text)))
    assert asked
    for name, labels in asked:
        assert name in told, f"nothing tells {name}"
        assert labels <= told[name] | ADDED, f"{name} has no {labels - told[name]}"


@pytest.fixture(scope="module")
def values(fitted: Fitted, watched: Service) -> dict[str, set[str]]:
    """The words of which values of labels are made: those that are told, and those that the code can tell."""
    assert fitted.after
    methods = service_pb2.DESCRIPTOR.services_by_name["HomophilyService"].methods_by_name
    found = {
        "state": {QUEUED, RUNNING, WAITING, *FINAL},
        "code": {code.name for code in grpc.StatusCode},
        "method": set(methods),
    }
    for _, labels in samples(watched):
        for label, word in labels:
            found.setdefault(label, set()).update(re.findall(r"\w+", word))
    return found


@pytest.mark.parametrize("purpose", list(expressions()))
def test_dashboard_and_alerts_ask_for_values_that_there_are(values: dict[str, set[str]], purpose: str) -> None:
    text = expressions()[purpose].replace("$__rate_interval", "5m")
    for selector in selected(promql_parser.parse(text)):
        for matcher in selector.matchers.matchers:
            unknown = set(re.findall(r"\w+", matcher.value)) - values[matcher.name]
            assert not unknown, f"{matcher.name} of {selector.name} is never {unknown}"


def test_a_misspelt_value_would_be_found(values: dict[str, set[str]]) -> None:
    (selector,) = selected(promql_parser.parse('sum(rate(homophily_jobs{state="runing"}[5m]))'))
    assert [matcher.value in values[matcher.name] for matcher in selector.matchers.matchers] == [False]


def test_everything_that_is_told_is_on_the_dashboard(told: dict[str, set[str]]) -> None:
    shown = {name for text in expressions().values() for name in re.findall(r"homophily_\w+", text)}
    families = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in told} - {"homophily_rpc_calls"}
    families = {re.sub(r"_total$", "", name) for name in families}
    missing = {name for name in families if not any(one.startswith(name) for one in shown)}
    assert missing == set()


# -- a worker on a machine of its own ----------------------------------------------------------------------------------


class WorkerAlone:
    """A worker's process, its log and its endpoint."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.log = folder / "log"
        settings = {"data_dir": folder, "threads": 1, "metrics_port": 0, "shutdown_grace": 2, **settings}
        environment = os.environ | {f"HOMOPHILY_{name.upper()}": str(value) for name, value in settings.items()}
        with self.log.open("w") as stderr:
            self.process = subprocess.Popen([HOMOPHILY, "worker"], env=environment, stderr=stderr)
        self.endpoint = f"127.0.0.1:{self.line('metrics on port')['message'].rpartition(' ')[2]}"

    def line(self, words: str) -> dict[str, Any]:
        """The first line of the log with these words, when it is there."""

        def found() -> dict[str, Any] | None:
            lines = (json.loads(line) for line in self.log.read_text().splitlines())
            return next((one for one in lines if words in one["message"]), None)

        line: dict[str, Any] = eventually(found)
        return line

    def told(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Its metrics."""
        with urllib.request.urlopen(f"http://{self.endpoint}/metrics", timeout=PATIENCE) as answer:
            return parsed(answer.read().decode())

    def health(self, *more: str) -> int:
        """What a probe's command answers."""
        return subprocess.run([HOMOPHILY, "health", "--worker", self.endpoint, *more], check=False).returncode

    def __enter__(self) -> WorkerAlone:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0


@pytest.mark.skipif(bool(Devices().memory()), reason="this machine has a GPU")
def test_a_worker_without_its_gpu_is_alive_and_never_ready(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'homophily.db'}")
    database.migrate()
    with WorkerAlone(tmp_path, device="cuda:0") as worker:
        worker.line("cannot compute on cuda:0")
        worker.line("the child process ended by itself")
        assert value(worker.told(), "homophily_worker_ready") == 0
        assert 0.0 <= value(worker.told(), "homophily_worker_silent_seconds") < 30.0
        assert (worker.health(), worker.health("--alive")) == (1, 0)
    database.close()


def test_a_worker_alone_waits_for_the_tables_and_tells_that_it_lives(tmp_path: Path) -> None:
    with WorkerAlone(tmp_path) as worker:
        assert "has schema None" in worker.line("waiting for the database")["message"]
        assert (worker.health(), worker.health("--alive")) == (1, 0)
        database = Database(f"sqlite:///{tmp_path / 'homophily.db'}")
        database.migrate()
        queue = Queue(database)
        request = job_pb2.FitRequest(dataset="projects/p/datasets/none").SerializeToString()
        trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
        queue.submit(NewJob(JobName("p", "j"), "fit", request, origin="a-request", trace=trace), 1)
        eventually(lambda: queue.get(JobName("p", "j")).state == "failed")
        started = worker.line("job started, attempt 1")
        assert (started["job"], started["request_id"]) == ("projects/p/jobs/j", "a-request")
        assert (started["trace_id"], started["span_id"]) == ("ab" * 16, "cd" * 8)
        found = worker.told()
        assert 0.0 <= value(found, "homophily_worker_silent_seconds") < 30.0
        assert value(found, "homophily_worker_ready") == 1
        assert ("homophily_worker_busy", ()) in found
        assert worker.health() == 0
        database.close()
