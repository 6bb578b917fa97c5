"""The process that answers Predict: keeps the models last used, and answers those who wait for the same one together.

A frame is a length (4 bytes), a call's number (4 bytes) and a body. Asked: a line of JSON (the model's path and its
graph's digest), then a PredictRequest. Answered: S and a PredictResponse, or E and a JobError.
"""

from __future__ import annotations

import json
import logging
import os
import select
import struct
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from homophily_service._pb import model_pb2
from homophily_service.arrays import Limits, Points, from_points, to_tensor
from homophily_service.errors import InternalError, ServiceError
from homophily_service.job_errors import job_error
from homophily_service.logs import start_logging
from homophily_service.models import Classifier, load_model
from homophily_service.parameters import refusal
from homophily_service.processes import begin
from homophily_service.settings import Settings
from homophily_service.stores import Stores
from homophily_service.warm import warm_up

# Not __name__, which is __main__ in the process.
_log = logging.getLogger("homophily_service.predictor")

HEAD = struct.Struct("<II")
SUCCESS, ERROR = b"S", b"E"
# The API has checked the size of what it sends.
NO_LIMITS = Limits(2**62, 2**62, 2**62)


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

    def get(self, path: str, graph: str) -> Classifier:
        """A model, out of memory or of the store."""
        if path in self._models:
            self._models.move_to_end(path)
            return self._models[path]
        model = load_model(self.stores, path, graph, self.threads)
        self._models[path] = model
        if len(self._models) > self.size:
            self._models.popitem(last=False)
        return model


def answer(calls: list[Call], models: ModelCache) -> dict[int, bytes]:
    """The bodies of the answers to calls about one model, by their numbers."""
    try:
        model = models.get(calls[0].path, calls[0].graph)
        points = [from_points(call.request.points, NO_LIMITS, "points") for call in calls]
        return _answers(model, calls, points)
    except ServiceError as error:
        return {call.number: ERROR + job_error(error) for call in calls}
    except ValueError as error:
        if len(calls) > 1:
            # One of them is wrong; the others shall not suffer.
            return {number: body for call in calls for number, body in answer([call], models).items()}
        return {calls[0].number: ERROR + job_error(refusal(error))}
    except Exception:
        _log.exception("a prediction ended with an error of ours")
        failure = ERROR + job_error(InternalError("an error inside the service; its log tells more"))
        return {call.number: failure for call in calls}


def _answers(model: Classifier, calls: list[Call], points: list[Points]) -> dict[int, bytes]:
    together: Any = points[0]
    if len(points) > 1:
        rows_of_all: Any = points
        together = vstack(rows_of_all, format="csr") if isinstance(together, csr_array) else np.concatenate(rows_of_all)
    found = model.answer(together, probabilities=any(call.request.probabilities for call in calls))
    answers, start = {}, 0
    for call, own in zip(calls, points, strict=True):
        rows = slice(start, start + own.shape[0])
        start = rows.stop
        response = model_pb2.PredictResponse(
            class_indices=found.classes[rows], scores=to_tensor(found.scores[rows].reshape(own.shape[0], -1))
        )
        if call.request.probabilities and found.probabilities is not None:
            response.probabilities.CopyFrom(to_tensor(found.probabilities[rows]))
        answers[call.number] = SUCCESS + response.SerializeToString()
    return answers


class Frames:
    """Frames out of a stream of bytes, and into it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._buffer = bytearray()

    def waiting(self) -> list[tuple[int, bytes]]:
        """Wait for a frame, and take every other that is there; none at the end of the stream."""
        frames = self._taken()
        while not frames:
            data = os.read(self.descriptor, 1 << 20)
            if not data:
                return []
            self._buffer += data
            while select.select([self.descriptor], [], [], 0)[0] and len(self._buffer) < 1 << 24:
                more = os.read(self.descriptor, 1 << 20)
                if not more:
                    break
                self._buffer += more
            frames = self._taken()
        return frames

    def send(self, number: int, body: bytes) -> None:
        """Write one frame."""
        data = memoryview(HEAD.pack(len(body), number) + body)
        while data:
            data = data[os.write(self.descriptor, data) :]

    def _taken(self) -> list[tuple[int, bytes]]:
        frames = []
        place = 0
        while len(self._buffer) - place >= HEAD.size:
            length, number = HEAD.unpack_from(self._buffer, place)
            if len(self._buffer) - place - HEAD.size < length:
                break
            place += HEAD.size
            frames.append((number, bytes(self._buffer[place : place + length])))
            place += length
        del self._buffer[:place]
        return frames


def serve(descriptor: int, settings: Settings) -> None:
    """Answer until the API goes away."""
    models = ModelCache(Stores.open(settings), settings.predictor_models, 1)
    frames = Frames(descriptor)
    frames.send(0, b"")
    while waiting := frames.waiting():
        by_model: dict[tuple[str, bool], list[Call]] = {}
        for number, body in waiting:
            line, _, request = body.partition(b"\n")
            head = json.loads(line)
            call = Call(number, head["path"], head["graph"], model_pb2.PredictRequest.FromString(request))
            # Rows of one type only can be put together.
            key = (call.path, call.request.points.WhichOneof("layout") == "csr")
            by_model.setdefault(key, []).append(call)
        for calls in by_model.values():
            for number, body in answer(calls, models).items():
                frames.send(number, body)


def main() -> None:
    """Start as a process."""
    connection, settings = begin()
    start_logging(settings.log_level)
    warm_up(1)
    serve(connection.fileno(), settings)


if __name__ == "__main__":
    main()
