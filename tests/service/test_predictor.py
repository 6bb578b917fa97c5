"""The models that a predictor keeps in memory, and whose turn it is to be answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from homophily import DeviceFailedError, IRRClassifier, KNNGraph
from homophily_client._pb import model_pb2
from homophily_client.names import ModelName
from homophily_service.contract.arrays import Limits
from homophily_service.contract.internal_pb2 import PredictAnswer, PredictCall
from homophily_service.predictor.pool import _Predictor
from homophily_service.predictor.process import Call, Dispatcher, Loaded, ModelCache
from homophily_service.predictor.questions import DEVICE_ROWS
from homophily_service.runtime.settings import Settings

from .serving import Project, Service, eventually, inline, open_stores, refusal, running

X = np.random.default_rng(0).normal(size=(40, 3)) + 9.0 * (np.arange(40) % 2)[:, None]
IRR = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR)
LIMITS = Limits(10**6, 10**3, 1 << 30)


def test_a_predictor_forgets_the_model_that_was_used_longest_ago(
    service: Service, project: Project, tmp_path: Path
) -> None:
    stores = open_stores(service)
    model = project.model(X, {0: 0, 1: 1}, solver=IRR)
    blob = stores.catalog.get(ModelName.parse(model.name, "name")).blob
    size = stores.catalog.bytes_of_model(blob, model.graph.digest)
    stores.close()
    with running(tmp_path / "data", predictor_cache_bytes=int(2.5 * size)) as service:
        project = service.project()
        points = project.upload(X).name
        a, b, c = (project.model(points, {0: 0, 1: 1, 2 + point: 0}, solver=IRR).name for point in (0, 2, 4))
        answers = {name: project.predict(name, X[:9]) for name in (a, b, a, c)}
        # What is in memory needs no files.
        models = tmp_path / "data" / "blobs" / "models"
        models.rename(tmp_path / "elsewhere")
        for name in (a, c):
            assert project.predict(name, X[:9]) == answers[name]
        request = model_pb2.PredictRequest(name=b, points=inline(X[:9]))
        assert refusal(project.stub.Predict, request).code is grpc.StatusCode.DATA_LOSS
        (tmp_path / "elsewhere").rename(models)
        assert project.predict(b, X[:9]) == answers[b]


class Slow:
    """A model that takes a second for 10,000 points, and notes what it was asked."""

    n_features_in_ = 3

    def __init__(self, model: Any) -> None:
        self.model, self.asked = model, Counter[int]()

    def answer(self, points: Any, **more: Any) -> Any:
        self.asked[len(points)] += 1
        time.sleep(len(points) / 10_000)
        return self.model.answer(points, **more)


@pytest.fixture(scope="module")
def model() -> Any:
    return IRRClassifier(KNNGraph(n_neighbors=5)).fit(X, [0, 1] + 38 * [-1])


class Cache(ModelCache):
    """Models that are made instead of loaded; every one has a byte."""

    def __init__(self, model: Any, most_bytes: int = 100) -> None:
        super().__init__(None, most_bytes, 1)  # type: ignore[arg-type]
        self.model, self.loads = model, Counter[str]()

    def load(self, path: str, graph: str) -> tuple[Any, int]:  # noqa: ARG002
        self.loads[path] += 1
        if "slow-load" in path:
            time.sleep(0.5)
        if "lost" in path:
            raise ValueError("lost")
        return Loaded(Slow(self.model)), 1  # type: ignore[arg-type]


def call(number: int, project: str, rows: int, model: str = "m") -> Call:
    points = np.resize(X, (rows, 3))
    return Call(number, f"models/{project}/{model}/t", "g", model_pb2.PredictRequest(points=inline(points)))


def answered(dispatcher: Dispatcher, count: int) -> list[int]:
    """The numbers of the calls, in the order in which they were answered."""
    order: list[int] = []

    def done() -> bool:
        for number, body in dispatcher.step().items():
            assert body.WhichOneof("kind") in ("response", "error")
            assert body.number == number
            order.append(number)
        return len(order) >= count

    eventually(done, 60.0)
    return order


def test_a_small_question_does_not_wait_for_a_large_one_of_another_project(model: Any) -> None:
    dispatcher = Dispatcher(Cache(model), LIMITS, lambda: None)
    for number, project in ((1, "large"), (2, "small")):
        dispatcher.put(call(number, project, 1))
    answered(dispatcher, 2)
    dispatcher.put(call(3, "large", 5000))
    dispatcher.step()
    dispatcher.put(call(4, "small", 1))
    began = time.monotonic()
    assert answered(dispatcher, 1) == [4]
    assert time.monotonic() - began < 0.2
    assert answered(dispatcher, 1) == [3]


def test_a_large_question_is_answered_as_if_at_once(model: Any) -> None:
    dispatcher = Dispatcher(Cache(model), LIMITS, lambda: None)
    points = np.random.default_rng(1).normal(4.0, 5.0, size=(700, 3))
    request = model_pb2.PredictRequest(points=inline(points), probabilities=True)
    dispatcher.put(Call(1, "models/p/m/t", "g", request))
    body: dict[int, PredictAnswer] = {}
    eventually(lambda: body.update(dispatcher.step()) or body, 60.0)
    found = body[1].response
    expected = model.answer(points, probabilities=True, validated=True)
    assert list(found.class_indices) == expected.classes.tolist()
    np.testing.assert_allclose(
        np.frombuffer(found.probabilities.data).reshape(700, 2), expected.probabilities, atol=1e-12
    )


def test_a_model_that_loads_holds_up_only_questions_about_it(model: Any) -> None:
    cache = Cache(model)
    dispatcher = Dispatcher(cache, LIMITS, lambda: None)
    dispatcher.put(call(1, "quick", 1))
    answered(dispatcher, 1)
    for number in (2, 3):
        dispatcher.put(call(number, "other", 1, "slow-load"))
    dispatcher.step()
    dispatcher.put(call(4, "quick", 1))
    assert answered(dispatcher, 3)[0] == 4
    assert cache.loads["models/other/slow-load/t"] == 1


def test_a_model_that_cannot_be_loaded_is_an_error_for_those_who_asked(model: Any) -> None:
    dispatcher = Dispatcher(Cache(model), LIMITS, lambda: None)
    dispatcher.put(call(1, "p", 1, "lost"))
    body: dict[int, PredictAnswer] = {}
    eventually(lambda: body.update(dispatcher.step()) or body, 60.0)
    assert body[1].HasField("error")
    assert dispatcher.is_idle


def test_models_of_the_project_with_the_most_bytes_go_first(model: Any) -> None:
    cache = Cache(model, most_bytes=4)
    for path in ("models/modest/a/t", *(f"models/greedy/{number}/t" for number in range(6))):
        cache.keep(path, Loaded(Slow(model)), 1)  # type: ignore[arg-type]
    assert cache.get("models/modest/a/t") is not None
    assert [number for number in range(6) if cache.get(f"models/greedy/{number}/t") is not None] == [3, 4, 5]
    cache.keep("models/modest/huge/t", Loaded(Slow(model)), 100)  # type: ignore[arg-type]
    assert cache.get("models/modest/huge/t") is not None
    assert cache.get("models/greedy/5/t") is None


def test_a_large_question_goes_on_though_its_model_had_to_make_room(model: Any) -> None:
    cache = Cache(model, most_bytes=1)
    dispatcher = Dispatcher(cache, LIMITS, lambda: None)
    dispatcher.put(call(1, "large", 2000))
    eventually(lambda: dispatcher.step() or dispatcher._large, 60.0)
    dispatcher.put(call(2, "other", 1))
    assert answered(dispatcher, 2) == [2, 1]
    assert cache.loads == {"models/large/m/t": 1, "models/other/m/t": 1}


@pytest.mark.parametrize("begun", [0, 1, 3])
def test_a_question_that_nobody_waits_for_is_not_answered(model: Any, begun: int) -> None:
    """Calls with short deadlines left the predictor more to do each time, without bound."""
    cache = Cache(model)
    dispatcher = Dispatcher(cache, LIMITS, lambda: None)
    dispatcher.put(call(1, "p", 1))
    answered(dispatcher, 1)
    dispatcher.put(call(2, "p", 5000))
    for _ in range(begun):
        assert dispatcher.step() == {}
    dispatcher.put(call(3, "p", 1, "slow-load"))
    dispatcher.drop(2)
    assert dispatcher.step() == {}
    dispatcher.drop(3)
    time.sleep(0.7)
    assert dispatcher.step() == {}
    assert dispatcher.is_idle
    assert not dispatcher._large


def test_the_predictor_is_told_when_a_caller_is_gone() -> None:
    class Sent(list[PredictCall]):
        def send(self, call: PredictCall) -> None:
            self.append(call)

    question = model_pb2.PredictRequest()

    async def scenario() -> None:
        predictor, sent = _Predictor(Settings()), Sent()
        predictor._stream = sent  # type: ignore[assignment]
        predictor._ready.set()
        asking = asyncio.create_task(predictor.ask(PredictCall(path="a", request=question)))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [(call.number, call.HasField("request")) for call in sent] == [(1, True), (1, False)]
        assert predictor.asked == {}
        answered = asyncio.create_task(predictor.ask(PredictCall(path="b", request=question)))
        await asyncio.sleep(0)
        answer = PredictAnswer(number=2, response=model_pb2.PredictResponse())
        predictor.answered(answer)
        assert await answered == answer
        assert len(sent) == 3

    asyncio.run(scenario())


def test_many_points_are_asked_of_the_device_beside_small_calls(model: Any) -> None:
    asked = []

    class OnDevice(Slow):
        def answer(self, points: Any, *, backend: str = "numpy", **more: Any) -> Any:
            asked.append((len(points), backend))
            if backend == "cupy" and len(asked) == 3:
                raise DeviceFailedError("The GPU failed.")
            return self.model.answer(points, **more)

    class Devices(Cache):
        def load(self, path: str, graph: str) -> tuple[Any, int]:  # noqa: ARG002
            return Loaded(OnDevice(self.model)), 1  # type: ignore[arg-type]

    dispatcher = Dispatcher(Devices(model), LIMITS, lambda: None, "cupy")
    for number, rows in ((1, 1), (2, DEVICE_ROWS), (3, 2 * DEVICE_ROWS)):
        dispatcher.put(call(number, "p", rows))
        assert answered(dispatcher, 1) == [number]
    assert asked[:3] == [(1, "numpy"), (DEVICE_ROWS, "cupy"), (2 * DEVICE_ROWS, "cupy")]
    # The device has failed, so the CPU answers this call and all that follow.
    assert asked[3] == (2 * DEVICE_ROWS, "numpy")
    dispatcher.put(call(4, "p", DEVICE_ROWS))
    assert answered(dispatcher, 1) == [4]
    assert {backend for _, backend in asked[4:]} == {"numpy"}
