"""The process that answers Predict: keeps the models last used, answers all who wait for the same one together."""

from __future__ import annotations

import logging
import os
import select
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from homophily_service._pb import model_pb2
from homophily_service.arrays import Limits, Points, from_points, to_tensor
from homophily_service.errors import InternalError, InvalidRequest, ServiceError
from homophily_service.frames import ERROR, LOOKS, READY, SUCCESS, frame, read_head, take_frames
from homophily_service.job_errors import job_error
from homophily_service.logs import start_logging
from homophily_service.models import Classifier, load_model
from homophily_service.parameters import refusal
from homophily_service.processes import begin, keep_freed_memory
from homophily_service.settings import Settings
from homophily_service.stores import Stores
from homophily_service.uploads import limits_of
from homophily_service.warm import warm_up

# Not __name__, which is __main__ in the process.
_log = logging.getLogger("homophily_service.predictor")

# Larger buffers come fresh from the system each time, which costs more than a second read.
READ_BYTES = 1 << 16
MOST_WAITING = 1 << 24


class Call(NamedTuple):
    """A question: who asks, about which model, what."""

    number: int
    path: str
    graph: str
    request: model_pb2.PredictRequest


class ModelCache:
    """The models last used, at most ``size`` of them."""

    def __init__(self, stores: Stores, size: int, threads: int) -> None:
        self.stores, self.size, self.threads = stores, size, threads
        self._models: OrderedDict[str, Classifier] = OrderedDict()
        self.hits = self.misses = 0

    def looks(self) -> bytes:
        """A frame that tells how many models were here and how many were loaded, since the last time."""
        told = frame(READY, LOOKS.pack(self.hits, self.misses)) if self.hits or self.misses else b""
        self.hits = self.misses = 0
        return told

    def get(self, path: str, graph: str) -> Classifier:
        """A model, out of memory or of the store."""
        if path in self._models:
            self.hits += 1
            self._models.move_to_end(path)
            return self._models[path]
        self.misses += 1
        model = load_model(self.stores, path, graph, self.threads)
        self._models[path] = model
        if len(self._models) > self.size:
            self._models.popitem(last=False)
        return model


def answer(calls: list[Call], models: ModelCache, limits: Limits) -> dict[int, bytes]:
    """The bodies of the answers to calls about one model, by their numbers."""
    try:
        model = models.get(calls[0].path, calls[0].graph)
        asked, refused = _read(calls, model, limits)
        return refused | (_answers(model, asked) if asked else {})
    except ServiceError as error:
        return {call.number: ERROR + job_error(error) for call in calls}
    except ValueError as error:
        if len(calls) > 1:
            # One of them is wrong; the others shall not suffer.
            return {number: body for call in calls for number, body in answer([call], models, limits).items()}
        return {calls[0].number: ERROR + job_error(refusal(error))}
    except Exception:
        _log.exception("a prediction ended with an error of ours")
        failure = ERROR + job_error(InternalError("an error inside the service; its log tells more"))
        return {call.number: failure for call in calls}


def _read(calls: list[Call], model: Classifier, limits: Limits) -> tuple[list[tuple[Call, Points]], dict[int, bytes]]:
    """The calls with their points, and the answers to those whose points are wrong."""
    asked, refused = [], {}
    for call in calls:
        try:
            points = from_points(call.request.points, limits, "points")
            if points.shape[1] != model.n_features_in_:
                raise InvalidRequest(
                    "points", f"must have {model.n_features_in_} features, as the model's; got {points.shape[1]}"
                )
            asked.append((call, points))
        except ServiceError as error:
            refused[call.number] = ERROR + job_error(error)
    return asked, refused


def _answers(model: Classifier, asked: list[tuple[Call, Points]]) -> dict[int, bytes]:
    together: Any = asked[0][1]
    if len(asked) > 1:
        rows_of_all: Any = [points for _, points in asked]
        together = vstack(rows_of_all, format="csr") if isinstance(together, csr_array) else np.concatenate(rows_of_all)
    found = model.answer(together, probabilities=any(call.request.probabilities for call, _ in asked), validated=True)
    answers, start = {}, 0
    for call, own in asked:
        rows = slice(start, start + own.shape[0])
        start = rows.stop
        response = model_pb2.PredictResponse(
            class_indices=found.classes[rows], scores=to_tensor(found.scores[rows].reshape(own.shape[0], -1))
        )
        if call.request.probabilities and found.probabilities is not None:
            response.probabilities.CopyFrom(to_tensor(found.probabilities[rows]))
        answers[call.number] = SUCCESS + response.SerializeToString()
    return answers


def questions(descriptor: int) -> Iterator[list[tuple[int, bytes]]]:
    """The frames that have come, all that are there at a time, until the stream ends."""
    buffer = bytearray()
    while data := os.read(descriptor, READ_BYTES):
        buffer += data
        while len(buffer) < MOST_WAITING and select.select([descriptor], [], [], 0)[0]:
            data = os.read(descriptor, READ_BYTES)
            if not data:
                break
            buffer += data
        if frames := take_frames(buffer):
            yield frames


def send(descriptor: int, frames: bytes) -> None:
    """Write all of them."""
    rest = memoryview(frames)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def serve(descriptor: int, settings: Settings) -> None:
    """Answer until the API goes away."""
    models, limits = ModelCache(Stores.open(settings), settings.predictor_models, 1), limits_of(settings)
    send(descriptor, frame(READY, b""))
    for asked in questions(descriptor):
        by_model: dict[tuple[str, bool], list[Call]] = {}
        for number, body in asked:
            line, _, request = body.partition(b"\n")
            path, graph = read_head(line)
            call = Call(number, path, graph, model_pb2.PredictRequest.FromString(request))
            # Rows of one type only can be put together.
            key = (call.path, call.request.points.WhichOneof("layout") == "csr")
            by_model.setdefault(key, []).append(call)
        for calls in by_model.values():
            answers = [frame(number, body) for number, body in answer(calls, models, limits).items()]
            send(descriptor, b"".join([*answers, models.looks()]))


def main() -> None:
    """Start as a process."""
    connection, settings = begin()
    start_logging(settings.log_level)
    keep_freed_memory()
    warm_up(1)
    # The API was killed before it heard all answers; nobody waits for the rest.
    with suppress(ConnectionError):
        serve(connection.fileno(), settings)


if __name__ == "__main__":
    main()
