"""Questions about models and embeddings, which take up to seconds: suggestions, explanations, and the classes of many
new points where a GPU finds their neighbours.

One thread answers them beside the predictions, one at a time. Projects take turns.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from homophily import DeviceFailedError
from homophily.active import HeldPlace, PointSuggestion, explain, suggest_points
from homophily.active.explanation import Explanation
from homophily.active.held_places import held_places
from homophily.active.pairs import Placed, choose_pairs
from homophily.active.strategies import StrategyName
from homophily.graph.computing import BackendName
from homophily.graph.knn_graph import KNNGraph
from homophily.relationship.functions import RELATIONSHIPS
from homophily.solve.link_pairs import Links
from homophily.supervision.links import check_links
from homophily_client._pb import model_pb2, suggestion_pb2
from homophily_client.labels import class_array
from homophily_service.contract.arrays import Limits, from_points
from homophily_service.contract.errors import DataLoss, LimitExceeded
from homophily_service.contract.internal_pb2 import PredictAnswer, PredictCall
from homophily_service.contract.links import read_pairs
from homophily_service.contract.questions import STRATEGIES, explanation_labels, suggestion_count
from homophily_service.contract.values import embedding_parameters
from homophily_service.jobs.maps import make_embedding
from homophily_service.predictor.loaded import Answered, Loaded, failed, points_for, response_of
from homophily_service.storage.embeddings import CANNOT_LINKS, COORDINATES, MUST_LINKS
from homophily_service.storage.models import load_graph
from homophily_service.storage.stores import Stores

REASONS = {
    "unlabelled component": suggestion_pb2.SUGGESTION_REASON_UNLABELLED_COMPONENT,
    "far": suggestion_pb2.SUGGESTION_REASON_FAR,
    "between": suggestion_pb2.SUGGESTION_REASON_BETWEEN,
}


_log = logging.getLogger(__name__)

# The points of the model are sent to the GPU with each call, and one call waits for another: not worth it for few.
DEVICE_ROWS = 1000


class Questions:
    """The questions that wait, and the one that is being answered."""

    def __init__(
        self,
        stores: Stores,
        limits: Limits,
        most_bytes: int,
        threads: int,
        wake: Callable[[], None],
        backend: BackendName,
    ) -> None:
        self.stores, self.limits, self.threads, self._wake = stores, limits, threads, wake
        self.backend: BackendName = backend
        # Of an embedding with its graph, which are read for each question.
        self.most_bytes = most_bytes
        # By project, in the order of their turns.
        self._waiting: OrderedDict[str, deque[tuple[int, PredictCall, Loaded | None]]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "questions")
        self._running: tuple[int, Future[PredictAnswer]] | None = None
        self._last = ""

    @property
    def is_answered(self) -> bool:
        """Whether there is something to do now."""
        return bool(self._waiting) if self._running is None else self._running[1].done()

    def takes(self, rows: int) -> bool:
        """Whether new points of this number are a question, as there is a GPU to answer it."""
        return self.backend != "numpy" and rows >= DEVICE_ROWS

    def put(self, number: int, call: PredictCall, model: Loaded | None) -> None:
        """Add a question about a model, or about an embedding."""
        self._waiting.setdefault(call.path.split("/")[1], deque()).append((number, call, model))

    def drop(self, number: int) -> None:
        """Drop a question whose caller has left; one that is being answered is answered."""
        for project, waiting in list(self._waiting.items()):
            left = deque(one for one in waiting if one[0] != number)
            if left:
                self._waiting[project] = left
            else:
                del self._waiting[project]

    def step(self) -> Answered:
        """The answer that is complete, if one is; begins with the next question."""
        answers: Answered = {}
        if self._running is not None and self._running[1].done():
            number, future = self._running
            self._running, failure = None, future.exception()
            answers = {number: future.result()} if failure is None else failed([number], failure)
        if self._running is None and self._waiting:
            # Whoever was answered last comes after all others.
            self._last = next((project for project in self._waiting if project != self._last), self._last)
            waiting = self._waiting.pop(self._last)
            number, call, model = waiting.popleft()
            if waiting:
                self._waiting[self._last] = waiting
            future = self._thread.submit(self._answer, number, call, model)
            self._running = number, future
            future.add_done_callback(lambda _: self._wake())
        return answers

    def _answer(self, number: int, call: PredictCall, model: Loaded | None) -> PredictAnswer:
        is_suggest = call.WhichOneof("question") == "suggest"
        if model is not None and call.WhichOneof("question") == "request":
            return PredictAnswer(number=number, response=self._prediction(call.request, model))
        if model is None and is_suggest:
            return PredictAnswer(number=number, suggestions=self._pairs(call))
        if model is None:
            return PredictAnswer(number=number, explanations=self._places(call))
        if is_suggest:
            return PredictAnswer(number=number, suggestions=_points(call, model))
        return PredictAnswer(number=number, explanations=self._explanations(call.explain, model))

    def _prediction(self, request: model_pb2.PredictRequest, model: Loaded) -> model_pb2.PredictResponse:
        """The answers for new points by the GPU, or by the CPU where that fails."""
        points, warned = points_for(model, from_points(request.points, self.limits, "points"))
        ask = partial(model.classifier.answer, points, probabilities=request.probabilities, validated=True)
        try:
            found = ask(backend=self.backend)
        except (DeviceFailedError, MemoryError) as error:
            _log.warning("the GPU has no answer for %d points, so the CPU has: %s", points.shape[0], error)
            if isinstance(error, DeviceFailedError):
                self.backend = "numpy"
            found = ask()
        return response_of(found, request, warned)

    def _map(self, call: PredictCall) -> tuple[KNNGraph, Any, Links]:
        """The graph of an embedding, its coordinates, and its links."""
        size = self.stores.catalog.bytes_of_model(call.path, call.graph)
        if size > self.most_bytes:
            raise LimitExceeded(
                f"the embedding and its graph have {size:,} bytes, and a predictor reads {self.most_bytes:,} at most "
                "(predictor_cache_bytes)",
                reason="OUT_OF_MEMORY",
            )
        graph = load_graph(self.stores, call.graph, self.threads).graph
        stored = self.stores.read(call.path, COORDINATES, MUST_LINKS, CANNOT_LINKS).arrays
        if len(stored[COORDINATES]) != graph.n_points:
            raise DataLoss(f"{call.path} is not of the points of its graph")
        return graph, stored[COORDINATES], check_links(stored[MUST_LINKS], stored[CANNOT_LINKS], graph.n_points)

    def _pairs(self, call: PredictCall) -> suggestion_pb2.SuggestResponse:
        graph, coordinates, links = self._map(call)
        made = make_embedding(coordinates.shape[1], embedding_parameters(call.map, "map"), len(links))
        placed = Placed(coordinates, made.widths[-1], RELATIONSHIPS[made.relationship])
        skipped = read_pairs(call.suggest.excluded_pairs, graph.n_points, "excluded_pairs")
        found = choose_pairs(graph, suggestion_count(call.suggest), placed, links, skipped)
        response = suggestion_pb2.SuggestResponse()
        for one in found:
            response.pairs.add(
                first=one.first,
                second=one.second,
                score=one.score,
                together=one.together,
                first_point_count=one.first_size,
                second_point_count=one.second_size,
                text=str(one),
            )
        return response

    def _places(self, call: PredictCall) -> suggestion_pb2.ExplainResponse:
        graph, _, links = self._map(call)
        found = held_places(graph, links, np.array(call.explain.points, dtype=np.intp))
        most = explanation_labels(call.explain)
        return suggestion_pb2.ExplainResponse(places=[_place(one, most) for one in found])

    def _explanations(self, request: suggestion_pb2.ExplainRequest, model: Loaded) -> suggestion_pb2.ExplainResponse:
        found = explain(model.classifier, list(request.points), refit=request.refit) if request.points else []
        if request.HasField("new_points"):
            X, _ = points_for(model, from_points(request.new_points, self.limits, "new_points"), "new_points")
            found += explain(model.classifier, X=X, refit=request.refit)
        response = suggestion_pb2.ExplainResponse()
        for one in found:
            response.explanations.append(_explanation(one, explanation_labels(request)))
        return response


def _points(call: PredictCall, model: Loaded) -> suggestion_pb2.SuggestResponse:
    request, names = call.suggest, class_array(call.classes)
    found = suggest_points(
        model.classifier,
        suggestion_count(request),
        strategy=cast(StrategyName, STRATEGIES[request.strategy]),
        exclude=np.array(request.excluded_points, dtype=np.int64),
    )
    response = suggestion_pb2.SuggestResponse()
    for one in found:
        response.points.add(
            point=one.point,
            score=one.score,
            reason=REASONS[one.reason],
            class_positions=one.classes,
            component_point_count=one.component_size,
            text=str(_with_names(one, names)),
        )
    return response


def _with_names(one: PointSuggestion, names: Any) -> PointSuggestion:
    """A suggestion whose classes are the user's, not positions."""
    return replace(one, classes=tuple(names[list(one.classes)].tolist()))


def _explanation(one: Explanation, most: int) -> suggestion_pb2.Explanation:
    shown = one.contributions[:most]
    explanation = suggestion_pb2.Explanation(
        point=-1 if one.point is None else one.point,
        class_position=int(one.answer),
        runner_up_position=int(one.runner_up),
        score=one.score,
        offset=one.offset,
        remainder=one.remainder,
        score_without_largest=one.without_largest,
        contributing_count=len(one.contributions),
    )
    for part, path in zip(shown, one.paths([part.point for part in shown]), strict=True):
        explanation.contributions.add(
            point=part.point, class_position=int(part.label), value=part.value, share=part.share, path=path
        )
    return explanation


def _place(one: HeldPlace, most: int) -> suggestion_pb2.HeldPlace:
    shown = one.links[:most]
    place = suggestion_pb2.HeldPlace(point=one.point, free_share=one.free, holding_count=len(one.links))
    for link, path in zip(shown, one.paths([link.end for link in shown]), strict=True):
        place.links.add(first=link.first, second=link.second, together=link.together, share=link.share, path=path)
    return place
