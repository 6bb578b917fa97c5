"""Both clients against a server that fails, breaks off and lies. The asynchronous one runs in a loop of its own."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from homophily_client import (
    AsyncClient,
    Client,
    ClientError,
    FailedPrecondition,
    JobCancelled,
    JobFailed,
    JobState,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from homophily_client._pb import homophily_service_pb2_grpc as services
from homophily_client._pb import job_pb2
from homophily_client.points import Points

from .fake import Fake, slow_proxy

MIB = 1 << 20


class InLoop:
    """An asynchronous object as if it were a blocking one."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        vars(self).update(inner=inner, loop=loop)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        return self._blocking(value) if inspect.ismethod(value) else value

    def _blocking(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            if inspect.isasyncgen(made):
                return self._items(made)
            answer = self._run(made)
            return InLoop(answer, self.loop) if type(answer).__name__ == "AsyncJobHandle" else answer

        return call

    def _items(self, made: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._run(made.__anext__())
            except StopAsyncIteration:
                return

    def _run(self, made: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(made)


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


@pytest.fixture(params=["blocking", "asynchronous"])
def client(fake_port: int, request: pytest.FixtureRequest) -> Iterator[Any]:
    target, how = f"127.0.0.1:{fake_port}", {"token": "secret", "patience": 3.0}
    if request.param == "blocking":
        with Client(target, **how) as client:  # type: ignore[arg-type]
            yield client
        return

    async def connect() -> AsyncClient:
        return AsyncClient(target, **how)  # type: ignore[arg-type]

    with asyncio.Runner() as runner:
        inner = runner.run(connect())
        yield InLoop(inner, runner.get_loop())
        runner.run(inner.close())


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
        client.fit(X, {0: 1, 1: 2}, job={"request_id": "mine"})
    uploads = [request for method, request in fake.calls if method == "UploadDataset"]
    fits = [request for method, request in fake.calls if method == "Fit"]
    assert uploads[0] == uploads[1]
    assert fits[0] == fits[1]
    assert fits[0].WhichOneof("points") == "dataset"
    assert len(fake.received) == X.nbytes


def test_small_points_go_along_with_the_request(client: Client, fake: Fake) -> None:
    X = np.ones((3, 2), dtype=np.float32)
    client.fit(X, [0, -1, 1], solver={"sigma_f": 0.5}, validation={2: 1})
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
    assert events[0].progress is None
    assert (events[2].progress.phase, events[2].progress.energy) == ("solve", None)
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


def ended_job(name: str, **more: Any) -> job_pb2.Job:
    done = job_pb2.Job(name=name, state=job_pb2.JOB_STATE_SUCCEEDED, **more)
    done.fit.model.name = "projects/default/models/m"
    return done


def test_registered_waits_until_the_model_is_registered(client: Client, fake: Fake) -> None:
    job = client.fit("digits", {0: 1, 1: 2})
    fake.faults["WaitJob"] = [ended_job(job.name)]
    fake.faults["GetJob"] = [ended_job(job.name), None, ended_job(job.name, registered_version="models:/p.digits/3")]
    assert job.registered() == "models:/p.digits/3"
    assert job.registered() == "models:/p.digits/3"
    assert fake.count("GetJob") == 3


def test_registered_times_out_while_the_tracking_server_is_away(client: Client, fake: Fake) -> None:
    job = client.fit("digits", {0: 1, 1: 2})
    fake.faults["WaitJob"] = [ended_job(job.name)]
    fake.faults["GetJob"] = [ended_job(job.name)] * 10
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"the model of .*j0 is not registered after 0.7 s"):
        job.registered(timeout=0.7)
    assert 0.6 < time.monotonic() - began < 2.0


def test_registered_fails_if_the_run_is_complete_without_it(client: Client, fake: Fake) -> None:
    job = client.fit("digits", {0: 1, 1: 2})
    fake.faults["WaitJob"] = [ended_job(job.name)]
    fake.faults["GetJob"] = [ended_job(job.name, tracking_complete=True)]
    with pytest.raises(FailedPrecondition, match="is not registered, and will not be"):
        job.registered()


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


def test_a_task_that_waits_for_a_closed_client_gets_an_error_and_is_not_cancelled(fake_port: int, fake: Fake) -> None:
    fake.slow = 5.0

    async def scenario() -> None:
        client = AsyncClient(f"127.0.0.1:{fake_port}")
        waiting = asyncio.create_task(client.get_model("m"))
        while not fake.count("GetModel"):
            await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(ClientError, match="closed during the call"):
            await waiting
        assert not waiting.cancelled()

    asyncio.run(scenario())
    fake.slow = 0.0


def test_spans_of_streams_have_their_code_and_do_not_enclose_the_program(client: Client, fake: Fake) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    fake.faults["ReadSolution"] = [3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer", provider.get_tracer)
        assert client.read_solution("m", ("labels", "scores")).labels is not None
        fake.events = [job_pb2.JobEvent(sequence=1, state=job_pb2.JOB_STATE_RUNNING)]
        for _ in client.fit("digits", {0: 1, 1: 2}).watch():
            assert not trace.get_current_span().get_span_context().is_valid
    codes = [
        (span.name.rpartition("/")[2], span.attributes["rpc.grpc.status_code"], span.status.is_ok)
        for span in exporter.get_finished_spans()
        if span.attributes is not None and "ReadSolution" in span.name
    ]
    assert codes == [("ReadSolution", "UNAVAILABLE", False), ("ReadSolution", "OK", True)]
