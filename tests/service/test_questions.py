"""Suggest and Explain: what to ask a person next, and why an answer is what it is."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import grpc
import numpy as np
import pytest

from homophily import ERRClassifier, IRRClassifier, KNNGraph, active
from homophily_client import AsyncClient, Client
from homophily_client._pb import embedding_pb2, job_pb2, model_pb2
from homophily_client._pb import suggestion_pb2 as pb
from homophily_service.contract.arrays import Limits
from homophily_service.contract.internal_pb2 import PredictCall
from homophily_service.predictor import questions
from homophily_service.predictor.loaded import Loaded
from homophily_service.predictor.questions import Questions

from .serving import Project, Service, eventually, inline, labels_of, refusal

RNG = np.random.default_rng(0)
Y = np.arange(120) % 3
X = (RNG.normal(size=(120, 4)) + 2.0 * Y[:, None]).astype(np.float32)
LABELS = {point: ["ant", "bee", "cat"][Y[point]] for point in range(9)}
IRR = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR)


@pytest.fixture
def model(project: Project) -> model_pb2.Model:
    return project.model(X, LABELS, solver=IRR)


@pytest.fixture(scope="module")
def classifier() -> IRRClassifier:
    few = np.full(120, -1)
    few[:9] = Y[:9]
    return IRRClassifier().fit(KNNGraph().fit(X), few)


def test_suggestions_are_those_of_the_core(project: Project, model: model_pb2.Model, classifier: IRRClassifier) -> None:
    for strategy in ("surroundings", "margin", "norm", "variance", "sigma"):
        number = pb.SuggestionStrategy.Value(f"SUGGESTION_STRATEGY_{strategy.upper()}")
        request = pb.SuggestRequest(name=model.name, count=7, strategy=number, excluded_points=[50, 51])
        answer = project.stub.Suggest(request)
        expected = active.suggest_points(classifier, 7, strategy=strategy, exclude=[50, 51])
        assert [one.point for one in answer.points] == [one.point for one in expected]
        np.testing.assert_allclose([one.score for one in answer.points], [one.score for one in expected], rtol=1e-6)
        assert list(answer.classes.strings.values) == ["ant", "bee", "cat"]
        assert {one.component_point_count for one in answer.points} <= {120}
        # Reasons name the user's classes.
        assert all(any(name in one.text for name in ("ant", "bee", "cat")) for one in answer.points)
    assert len(project.stub.Suggest(pb.SuggestRequest(name=model.name)).points) == 20


def test_explanations_are_those_of_the_core(
    project: Project, model: model_pb2.Model, classifier: IRRClassifier
) -> None:
    request = pb.ExplainRequest(name=model.name, points=[17, 3], new_points=inline(X[30:31] + 0.1), label_count=4)
    answer = project.stub.Explain(request)
    expected = [*active.explain(classifier, [17, 3]), *active.explain(classifier, X=X[30:31] + 0.1)]
    assert [one.point for one in answer.explanations] == [17, 3, -1]
    for found, one in zip(answer.explanations, expected, strict=True):
        assert (found.class_position, found.runner_up_position) == (one.answer, one.runner_up)
        assert found.score == pytest.approx(one.score, abs=1e-6)
        assert found.score_without_largest == pytest.approx(one.without_largest, abs=1e-6)
        assert found.contributing_count == len(one.contributions)
        assert [part.point for part in found.contributions] == [part.point for part in one.contributions[:4]]
        assert [list(part.path) for part in found.contributions] == one.paths(
            [part.point for part in one.contributions[:4]]
        )


def test_a_refit_without_the_largest_label_is_that_of_the_core(project: Project) -> None:
    labels = {point: int(Y[point]) for point in range(30)}
    model = project.model(X, labels)
    few = np.where(np.arange(len(Y)) < 30, Y, -1)
    fitted = ERRClassifier(graph=KNNGraph()).fit(X, few)
    request = pb.ExplainRequest(name=model.name, points=[40], new_points=inline(X[50:51] + 0.1), refit=True)
    found = project.stub.Explain(request).explanations
    expected = [*active.explain(fitted, [40], refit=True), *active.explain(fitted, X=X[50:51] + 0.1, refit=True)]
    for one, other in zip(found, expected, strict=True):
        assert one.score_without_largest == pytest.approx(other.without_largest, abs=1e-6)
    request.refit = False
    assert not project.stub.Explain(request).explanations[0].HasField("score_without_largest")


def test_pairs_of_a_map_are_those_of_the_core(project: Project) -> None:
    must, cannot = [(0, 3), (1, 4)], [(0, 1)]
    few = embedding_pb2.EmbeddingParameters(max_iter=3)
    made = project.embed(X, must, cannot, solver=few)
    request = pb.SuggestRequest(name=made.name, count=4, excluded_pairs=[embedding_pb2.Link(first=7, second=9)])
    answer = project.stub.Suggest(request)
    assert len(answer.pairs) > 0
    assert not answer.points
    from homophily import ERREmbedding

    fitted = ERREmbedding(max_iter=3, graph=KNNGraph()).fit(X, must_link=must, cannot_link=cannot)
    expected = active.suggest_pairs(fitted, 4, exclude=[(7, 9)])
    assert [(pair.first, pair.second) for pair in answer.pairs] == [(one.first, one.second) for one in expected]
    assert all(pair.text and 0.0 < pair.together < 1.0 for pair in answer.pairs)
    assert all(pair.first_point_count and pair.second_point_count for pair in answer.pairs)


def test_links_that_hold_a_point_are_those_of_the_core(project: Project) -> None:
    must, cannot = [(0, 3), (1, 4)], [(0, 1)]
    made = project.embed(X, must, cannot, solver=embedding_pb2.EmbeddingParameters(max_iter=3))
    answer = project.stub.Explain(pb.ExplainRequest(name=made.name, points=[60, 0], label_count=2))
    from homophily import ERREmbedding

    fitted = ERREmbedding(max_iter=3, graph=KNNGraph()).fit(X, must_link=must, cannot_link=cannot)
    assert not answer.explanations
    for found, one in zip(answer.places, active.explain_place(fitted, [60, 0]), strict=True):
        assert (found.point, found.holding_count) == (one.point, len(one.links))
        assert found.free_share == pytest.approx(one.free)
        assert [(link.first, link.second, link.together) for link in found.links] == [
            (link.first, link.second, link.together) for link in one.links[:2]
        ]
        assert [list(link.path) for link in found.links] == one.paths([link.end for link in one.links[:2]])
    for changes, field in (
        ({"points": [120]}, "points[0]"),
        ({"points": [0], "new_points": inline(X)}, "new_points"),
        ({"points": [0], "refit": True}, "refit"),
    ):
        refused = refusal(project.stub.Explain, pb.ExplainRequest(name=made.name, **changes))
        assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


def test_flipped_labels_are_listed_in_the_model(project: Project) -> None:
    labels = {point: int(Y[point]) for point in range(60)}
    labels[12] = (labels[12] + 1) % 3
    model = project.model(X, labels, solver=IRR)
    first = model.suspicious_labels[0]
    assert (first.point, first.class_position, first.answer_position) == (12, 1, 0)
    assert 0.0 < first.suspicion <= 1.0


def test_ids_come_with_suggestions_and_explanations(project: Project) -> None:
    from homophily_client.points import Points
    from homophily_client.tables import as_points

    table = as_points({"name": [f"p{point}" for point in range(120)], "x": X}, {"id_column": "name"})
    request = job_pb2.FitRequest(
        parent=project.name, inline=Points(table).message(), labels=labels_of(LABELS), solver=IRR
    )
    model = project.ended(project.stub.Fit(request).job).fit.model
    answer = project.stub.Suggest(pb.SuggestRequest(name=model.name, count=3, ids=True))
    assert [one.id for one in answer.points] == [f"p{one.point}" for one in answer.points]
    parts = (
        project.stub.Explain(pb.ExplainRequest(name=model.name, points=[20], ids=True)).explanations[0].contributions
    )
    assert [part.id for part in parts] == [f"p{part.point}" for part in parts]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"count": -1}, "count"),
        ({"count": 1001}, "count"),
        ({"strategy": 99}, "strategy"),
        ({"excluded_points": [5, 120]}, "excluded_points[1]"),
        ({"excluded_points": [-1]}, "excluded_points[0]"),
        ({"excluded_pairs": [embedding_pb2.Link(first=0, second=1)]}, "excluded_pairs"),
        ({"name": "projects/x/datasets/y"}, "name"),
    ],
)
def test_wrong_requests_for_suggestions_name_the_field(
    project: Project, model: model_pb2.Model, changes: dict[str, Any], field: str
) -> None:
    request = pb.SuggestRequest(**{"name": model.name, **changes})
    found = refusal(project.stub.Suggest, request)
    assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, "points"),
        ({"points": range(11)}, "points"),
        ({"points": [0, 120]}, "points[1]"),
        ({"points": [0], "label_count": 101}, "label_count"),
        ({"new_points": inline(X[:2, :3])}, "new_points"),
    ],
)
def test_wrong_requests_for_explanations_name_the_field(
    project: Project, model: model_pb2.Model, changes: dict[str, Any], field: str
) -> None:
    found = refusal(project.stub.Explain, pb.ExplainRequest(name=model.name, **changes))
    assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


def test_of_a_large_model_less_may_be_asked() -> None:
    from homophily_service.contract.errors import InvalidRequest
    from homophily_service.contract.questions import check_explain, check_suggest

    check_suggest(pb.SuggestRequest(count=20), 10**8, of_pairs=False)
    ten = model_pb2.ClassValues(integers=model_pb2.IntegerValues(values=range(10)))
    smooth, sharp = (
        model_pb2.Model(classes=ten, solver_parameters=model_pb2.SolverParameters(sharpen=is_sharp))
        for is_sharp in (False, True)
    )
    dense = model_pb2.Model(classes=ten, graph=model_pb2.GraphSummary(edge_count=1_000_000))
    check_explain(pb.ExplainRequest(points=[0]), 10**8, 0)
    check_explain(pb.ExplainRequest(points=[0], refit=True), 60_000, 0, sharp)
    check_explain(pb.ExplainRequest(points=[0], refit=True), 15_000, 0, smooth)
    for wrong in (
        lambda: check_suggest(pb.SuggestRequest(count=21), 10**6, of_pairs=False),
        lambda: check_suggest(pb.SuggestRequest(strategy=4), 10**6, of_pairs=False),
        lambda: check_suggest(pb.SuggestRequest(strategy=2), 100, of_pairs=True),
        lambda: check_explain(pb.ExplainRequest(points=[0, 1]), 10**6, 0),
        lambda: check_explain(pb.ExplainRequest(points=[0]), 10**6, 1, sharp),
        lambda: check_explain(pb.ExplainRequest(points=[0, 1], refit=True), 60_000, 0, sharp),
        lambda: check_explain(pb.ExplainRequest(points=[0], refit=True), 15_001, 0, smooth),
        # As many edges as points of larger models have.
        lambda: check_explain(pb.ExplainRequest(points=[0], refit=True), 3_000, 0, dense),
    ):
        with pytest.raises(InvalidRequest):
            wrong()


def test_both_clients_ask_the_same(service: Service, project: Project, model: model_pb2.Model) -> None:
    async def ask() -> Any:
        async with AsyncClient(service.target, project=project.id) as client:
            return await client.suggest(model.name, 4, strategy="norm"), await client.explain(model.name, [17])

    with Client(service.target, project=project.id) as client:
        blocking = client.suggest(model.name, 4, strategy="norm"), client.explain(model.name, [17])
        with pytest.raises(ValueError, match="strategy must be one of 'surroundings'"):
            client.suggest(model.name, strategy="best")
        with pytest.raises(ValueError, match="count must be at least 1"):
            client.suggest(model.name, 0)
    assert asyncio.run(ask()) == blocking
    assert str(blocking[0].points[0]).startswith(f"{blocking[0].points[0].point}: ")


def test_a_project_cannot_ask_about_the_models_of_another(idle_project: Project, idle: Service) -> None:
    other = idle.project(idle.token("someone-else"))
    name = f"{idle_project.name}/models/none"
    for call, request in (("Suggest", pb.SuggestRequest(name=name)), ("Explain", pb.ExplainRequest(name=name))):
        assert refusal(getattr(other.stub, call), request).code is grpc.StatusCode.PERMISSION_DENIED
        assert refusal(getattr(idle_project.stub, call), request).code is grpc.StatusCode.NOT_FOUND


# -- turns


class Slow:
    """Answers each question when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.go = threading.Semaphore(0)
        monkeypatch.setattr(questions, "suggest_points", self._suggest)

    def _suggest(self, model: Any, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(model)
        assert self.go.acquire(timeout=60.0)
        return []


def ask(waiting: Questions, number: int, project: str) -> None:
    call = PredictCall(number=number, path=f"models/{project}/a/b", suggest=pb.SuggestRequest())
    waiting.put(number, call, Loaded(f"{project}{number}"))  # type: ignore[arg-type]


def test_projects_take_turns_with_their_questions_and_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, woken = Slow(monkeypatch), threading.Event()
    waiting = Questions(None, Limits(1, 1, 1), 100, 1, woken.set, "numpy")  # type: ignore[arg-type]
    for number in (1, 2, 3):
        ask(waiting, number, "greedy")
    assert waiting.is_answered
    began = time.monotonic()
    assert waiting.step() == {}
    assert time.monotonic() - began < 5.0
    ask(waiting, 4, "modest")
    # The caller of the third has left.
    waiting.drop(3)
    answered: list[int] = []
    for _ in range(3):
        slow.go.release()
        assert woken.wait(60.0)
        woken.clear()
        eventually(lambda: waiting.is_answered)
        answered += waiting.step()
    assert slow.asked == ["greedy1", "modest4", "greedy2"]
    assert sorted(answered) == [1, 2, 4]
    assert not waiting.is_answered


def test_a_question_that_fails_is_answered_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(questions, "suggest_points", fail)
    woken = threading.Event()
    waiting = Questions(None, Limits(1, 1, 1), 100, 1, woken.set, "numpy")  # type: ignore[arg-type]
    ask(waiting, 1, "hungry")
    waiting.step()
    assert woken.wait(60.0)
    assert waiting.step()[1].error.reason == "OUT_OF_MEMORY"
    # The next one is answered.
    monkeypatch.setattr(questions, "suggest_points", lambda *_, **__: [])
    ask(waiting, 2, "hungry")
    waiting.step()
    eventually(lambda: waiting.is_answered)
    assert waiting.step()[2].HasField("suggestions")


def test_an_embedding_that_does_not_fit_into_a_predictor_is_refused_with_its_size() -> None:
    class Stores:
        """Knows the size of an embedding."""

        catalog = property(lambda self: self)

        def bytes_of_model(self, *_: str) -> int:
            return 101

    woken = threading.Event()
    waiting = Questions(Stores(), Limits(1, 1, 1), 100, 1, woken.set, "numpy")  # type: ignore[arg-type]
    waiting.put(1, PredictCall(number=1, path="embeddings/p/e/t", suggest=pb.SuggestRequest()), None)
    waiting.step()
    assert woken.wait(60.0)
    error = waiting.step()[1].error
    assert (error.reason, "101 bytes" in error.message) == ("OUT_OF_MEMORY", True)
