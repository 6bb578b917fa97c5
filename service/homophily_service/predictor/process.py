"""The process that answers Predict: keeps the latest models in memory, and answers calls about the same one in batches.

Projects take turns, so that neither one project's large calls nor the loading of its models delays the others.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from homophily import DeviceUnavailableError
from homophily.device.backend import select_device
from homophily.estimators.transduction import Answers
from homophily.graph.computing import BackendName
from homophily_client._pb import model_pb2
from homophily_service.contract.arrays import Limits, from_points, row_count
from homophily_service.contract.errors import ServiceError
from homophily_service.contract.frames import frame, take_frames
from homophily_service.contract.internal_pb2 import Lookups, PredictAnswer, PredictCall
from homophily_service.contract.job_errors import job_error
from homophily_service.jobs.warm import warm_up
from homophily_service.predictor.loaded import Answered, Loaded, failed, points_for, response_of
from homophily_service.predictor.questions import Questions
from homophily_service.runtime.logs import start_logging
from homophily_service.runtime.processes import begin, keep_freed_memory, limit_memory
from homophily_service.runtime.settings import Settings
from homophily_service.storage.models import load_model
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import limits_of

_log = logging.getLogger(__name__)

# malloc gets larger buffers from the system each time, which costs more than a second read.
READ_BYTES = 1 << 16
MOST_WAITING = 1 << 24
# The length of a turn. How many points fit into it is measured for each model.
TURN_SECONDS = 0.01
LEAST_ROWS, FIRST_PACE, MOST_ROWS = 16, 64, 4096
MOST_PACES = 1000
# To count the words of so much text takes about as long as to answer for a point.
BYTES_PER_ROW = 1 << 10
# Memory of the process: BASE_BYTES, plus LOADED times the bytes of the models that it keeps.
BASE_BYTES, LOADED = 1 << 30, 3


class Call(NamedTuple):
    """A call: its number, the model, and the points."""

    number: int
    path: str
    graph: str
    request: model_pb2.PredictRequest
    #: Set instead of the request if the call is a question, which takes longer than a turn.
    question: PredictCall | None = None

    @property
    def project(self) -> str:
        """Whose model it is."""
        return self.path.split("/")[1]

    @property
    def rows(self) -> int:
        """Approximately the number of points, by the request's claim; long strings count as more."""
        strings = sum(len(column.data) for column in self.request.points.strings)
        return max(1, row_count(self.request.points)) + strings // BYTES_PER_ROW


class Asked(NamedTuple):
    """A call with its points, as the model takes them, and what there is to warn of."""

    call: Call
    points: Any
    warnings: list[str]


class ModelCache:
    """The models used last, up to ``most_bytes`` stored bytes; the one in use is kept whatever its size."""

    def __init__(self, stores: Stores, most_bytes: int, threads: int) -> None:
        self.stores, self.most_bytes, self.threads = stores, most_bytes, threads
        self._models: OrderedDict[str, tuple[Loaded, int]] = OrderedDict()
        self.hits = self.misses = 0

    def lookups(self) -> list[PredictAnswer]:
        """A message with the counts of lookups since the last one, if there were any."""
        if not (self.hits or self.misses):
            return []
        counted = Lookups(found_count=self.hits, loaded_count=self.misses)
        self.hits = self.misses = 0
        return [PredictAnswer(lookups=counted)]

    def get(self, path: str) -> Loaded | None:
        """A model, if it is in memory."""
        if path not in self._models:
            return None
        self._models.move_to_end(path)
        return self._models[path][0]

    def load(self, path: str, graph: str) -> tuple[Loaded, int]:
        """A model out of the store, and its bytes; in any thread."""
        size = self.stores.catalog.bytes_of_model(path, graph)
        return Loaded(*load_model(self.stores, path, graph, self.threads)), size

    def keep(self, path: str, model: Loaded, size: int) -> None:
        """Keep a model, and let others go if they are too many bytes: first of the project that has the most."""
        self.misses += 1
        self._models[path] = model, size
        while len(self._models) > 1 and sum(size for _, size in self._models.values()) > self.most_bytes:
            by_project: Counter[str] = Counter()
            for kept, (_, size) in self._models.items():
                by_project[kept.split("/")[1]] += size
            largest = by_project.most_common(1)[0][0]
            others = [kept for kept in self._models if kept != path]
            del self._models[next((kept for kept in others if kept.split("/")[1] == largest), others[0])]


class Dispatcher:
    """Calls that wait for their answers. Projects take turns of a few milliseconds; models are loaded in a thread."""

    def __init__(
        self, models: ModelCache, limits: Limits, wake: Callable[[], None], backend: BackendName = "numpy"
    ) -> None:
        self.models, self.limits, self._wake = models, limits, wake
        # By project, in the order of their turns; the first call of each is the next.
        self._waiting: OrderedDict[str, deque[Call]] = OrderedDict()
        # The answers so far to calls that take several turns.
        self._large: dict[int, Large] = {}
        # Calls whose model had to be loaded.
        self._waited: set[int] = set()
        # How many points a model answers in a turn.
        self._pace: dict[str, int] = {}
        self._loader = ThreadPoolExecutor(1, "loader")
        self._questions = Questions(models.stores, limits, models.most_bytes, models.threads, wake, backend)
        self._loading: dict[str, tuple[Future[tuple[Loaded, int]], list[Call]]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do now."""
        is_loaded = any(future.done() for future, _ in self._loading.values())
        return not (self._waiting or is_loaded or self._questions.is_answered)

    def put(self, call: Call) -> None:
        """Add a call."""
        if call.question is not None and call.question.HasField("map"):
            # It reads an embedding, which is not kept.
            self._questions.put(call.number, call.question, None)
            return
        self._waiting.setdefault(call.project, deque()).append(call)

    def drop(self, number: int) -> None:
        """Drop a call whose caller has left."""
        self._large.pop(number, None)
        self._waited.discard(number)
        self._questions.drop(number)
        for project, calls in self._waiting.items():
            left = deque(call for call in calls if call.number != number)
            if not left:
                del self._waiting[project]
            elif len(left) < len(calls):
                self._waiting[project] = left
            if len(left) < len(calls):
                return
        for _, waiting in self._loading.values():
            waiting[:] = [call for call in waiting if call.number != number]

    def step(self) -> Answered:
        """Answer some calls: those of one project about one model that fit into one batch."""
        answers = self._loaded() | self._questions.step()
        if not self._waiting:
            return answers
        project, calls = self._waiting.popitem(last=False)
        first = calls.popleft()
        # A call continues with the model that it began with, even if the cache has dropped that meanwhile.
        large = self._large.get(first.number)
        model = self.models.get(first.path) if large is None else large.model
        pace = self._pace.setdefault(first.path, FIRST_PACE)
        if model is None:
            self._load(first)
            self._rotate(project, calls)
            return answers
        self._count_lookup(first)
        if first.question is not None:
            self._questions.put(first.number, first.question, model)
        elif first.rows > pace and self._questions.takes(first.rows):
            asked = PredictCall(path=first.path, graph=first.graph, request=first.request)
            self._questions.put(first.number, asked, model)
        elif first.rows > pace:
            answers |= self._answer_some(first, model, pace, calls)
        else:
            batch = self._batch(first, calls, pace)
            with self._timed(first.path, sum(call.rows for call in batch)):
                answers |= answer(model, batch, self.limits)
        self._rotate(project, calls)
        return answers

    def _rotate(self, project: str, calls: deque[Call]) -> None:
        """Put a project that has more calls behind the others."""
        if calls:
            self._waiting[project] = calls

    def _count_lookup(self, call: Call) -> None:
        """Count a hit if the model was in memory in the first turn of the call."""
        if call.number in self._waited:
            self._waited.discard(call.number)
        elif call.number not in self._large:
            self.models.hits += 1

    def _answer_some(self, call: Call, model: Loaded, pace: int, calls: deque[Call]) -> Answered:
        """Answer the next points of a large call, which goes behind the others of its project if there are more."""
        try:
            large = self._large.pop(call.number, None) or Large(call, model, self.limits)
            with self._timed(call.path, pace):
                body = large.step(pace)
        except Exception as error:
            return failed([call.number], error)
        if body is not None:
            return {call.number: body}
        self._large[call.number] = large
        calls.append(call)
        return {}

    @contextmanager
    def _timed(self, path: str, rows: int) -> Iterator[None]:
        """Measure how many points a model answers in a turn."""
        began = time.perf_counter()
        yield
        pace = int(rows * TURN_SECONDS / max(1e-6, time.perf_counter() - began))
        if len(self._pace) > MOST_PACES:
            self._pace.clear()
        self._pace[path] = min(MOST_ROWS, max(LEAST_ROWS, pace))

    def _batch(self, first: Call, calls: deque[Call], pace: int) -> list[Call]:
        """The first call and others about its model with the same layout, up to ``pace`` points in all."""
        taken, rows, left = [first], first.rows, deque[Call]()
        kind = first.path, first.request.points.WhichOneof("layout")
        while calls:
            call = calls.popleft()
            is_alike = call.question is None and (call.path, call.request.points.WhichOneof("layout")) == kind
            if is_alike and rows + call.rows <= pace:
                taken.append(call)
                rows += call.rows
            else:
                left.append(call)
        calls.extend(left)
        return taken

    def _load(self, call: Call) -> None:
        """Let a call wait until its model is loaded."""
        if call.path in self._loading:
            self._loading[call.path][1].append(call)
            return
        future = self._loader.submit(self.models.load, call.path, call.graph)
        self._loading[call.path] = future, [call]
        future.add_done_callback(lambda _: self._wake())

    def _loaded(self) -> Answered:
        """Keep the loaded models and queue the calls that waited for them; answer those whose model failed."""
        answers: Answered = {}
        for path in [path for path, (future, _) in self._loading.items() if future.done()]:
            future, calls = self._loading.pop(path)
            failure = future.exception()
            if failure is not None:
                answers |= failed((call.number for call in calls), failure)
                continue
            self.models.keep(path, *future.result())
            for call in calls:
                self._waited.add(call.number)
                self.put(call)
        return answers


def answer(model: Loaded, calls: list[Call], limits: Limits) -> Answered:
    """The bodies of the answers to calls about one model, by their numbers."""
    try:
        asked, refused = _read(calls, model, limits)
        return refused | (_answers(model, asked) if asked else {})
    except Exception as error:
        if isinstance(error, ValueError) and len(calls) > 1:
            # One of them is wrong; answer the others.
            return {number: body for call in calls for number, body in answer(model, [call], limits).items()}
        return failed((call.number for call in calls), error)


def _read(calls: list[Call], model: Loaded, limits: Limits) -> tuple[list[Asked], Answered]:
    """The calls with their points, and the answers to those whose points are wrong."""
    asked: list[Asked] = []
    refused: Answered = {}
    for call in calls:
        try:
            asked.append(Asked(call, *points_for(model, from_points(call.request.points, limits, "points"))))
        except ServiceError as error:
            refused[call.number] = PredictAnswer(number=call.number, error=job_error(error))
    return asked, refused


class Large:
    """A call that is answered in several turns."""

    def __init__(self, call: Call, model: Loaded, limits: Limits) -> None:
        self.call, self.model = call, model
        self._given: Any = from_points(call.request.points, limits, "points")
        self._done = 0
        self._found: list[Any] = []
        self._warned: dict[str, None] = {}

    def step(self, rows: int) -> PredictAnswer | None:
        """Answer the next points; returns the whole answer after the last."""
        # Rows of a table become points in the turn that answers them.
        count = self._given.shape[0]
        stop = min(self._done + max(1, rows * count // self.call.rows), count)
        some, warned = points_for(self.model, self._given[self._done : stop])
        self._done = stop
        self._warned |= dict.fromkeys(warned)
        probabilities = self.call.request.probabilities
        self._found.append(self.model.classifier.answer(some, probabilities=probabilities, validated=True))
        if self._done < count:
            return None
        columns = zip(*self._found, strict=True)
        found: list[Any] = [None if column[0] is None else np.concatenate(column) for column in columns]
        return _response(Answers(*found), Asked(self.call, None, list(self._warned)), slice(None))


def _response(found: Answers, asked: Asked, rows: slice) -> PredictAnswer:
    """The answer to a call, out of some rows of what was found."""
    call, probabilities = asked.call, found.probabilities
    part = Answers(found.classes[rows], found.scores[rows], None if probabilities is None else probabilities[rows])
    return PredictAnswer(number=call.number, response=response_of(part, call.request, asked.warnings))


def _answers(model: Loaded, asked: list[Asked]) -> Answered:
    batch = asked[0].points
    if len(asked) > 1:
        rows_of_all = [one.points for one in asked]
        batch = vstack(rows_of_all, format="csr") if isinstance(batch, csr_array) else np.concatenate(rows_of_all)
    probabilities = any(one.call.request.probabilities for one in asked)
    found = model.classifier.answer(batch, probabilities=probabilities, validated=True)
    answers, start = {}, 0
    for one in asked:
        rows = slice(start, start + one.points.shape[0])
        start = rows.stop
        answers[one.call.number] = _response(found, one, rows)
    return answers


def receive(descriptor: int, buffer: bytearray) -> bool:
    """Read the bytes that have arrived; False if the stream has ended."""
    while len(buffer) < MOST_WAITING:
        data = os.read(descriptor, READ_BYTES)
        buffer += data
        if not data or not select.select([descriptor], [], [], 0)[0]:
            return bool(data)
    return True


def send(descriptor: int, frames: bytes) -> None:
    """Write all frames."""
    rest = memoryview(frames)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def serve(descriptor: int, settings: Settings, backend: BackendName) -> None:
    """Answer until the API ends."""
    woken, wakes = os.pipe()
    models = ModelCache(Stores.open(settings), settings.predictor_cache_bytes, 1)
    dispatcher = Dispatcher(models, limits_of(settings), lambda: send(wakes, b"."), backend)
    send(descriptor, frame(PredictAnswer(lookups=Lookups())))
    buffer = bytearray()
    while True:
        ready, _, _ = select.select([descriptor, woken], [], [], None if dispatcher.is_idle else 0)
        if woken in ready:
            os.read(woken, READ_BYTES)
        if descriptor in ready and not receive(descriptor, buffer):
            return
        for body in take_frames(buffer):
            call = PredictCall.FromString(body)
            match call.WhichOneof("question"):
                case None:
                    dispatcher.drop(call.number)
                case "request":
                    dispatcher.put(Call(call.number, call.path, call.graph, call.request))
                case _:
                    dispatcher.put(Call(call.number, call.path, call.graph, call.request, call))
        answers = [*dispatcher.step().values(), *models.lookups()]
        send(descriptor, b"".join(map(frame, answers)))


def main() -> None:
    """Start as a process."""
    connection, settings = begin()
    start_logging(settings.log_level)
    keep_freed_memory()
    backend = device_of(settings)
    if backend == "numpy":
        # A GPU's driver reserves more than it uses.
        limit_memory(LOADED * settings.predictor_cache_bytes + BASE_BYTES)
    warm_up(1)
    # The API was killed before it read all answers.
    with suppress(ConnectionError):
        serve(connection.fileno(), settings, backend)


def device_of(settings: Settings) -> BackendName:
    """Where large calls are answered: on the CPU if the device is missing."""
    try:
        return select_device(settings.predict_device)
    except DeviceUnavailableError as error:
        _log.error("cannot predict on %s, so the CPU does: %s", settings.predict_device, error)
        return "numpy"
