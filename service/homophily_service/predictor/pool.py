"""The API's side of the predictor processes: sends each call to the one with the fewest open calls."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Callable
from typing import Any

from prometheus_client import Counter

from homophily_client._pb import job_pb2, model_pb2
from homophily_service.contract.errors import FailedPrecondition, ServiceError, Unavailable, error_of_code
from homophily_service.contract.frames import frame, take_frames
from homophily_service.contract.internal_pb2 import PredictAnswer, PredictCall
from homophily_service.runtime import processes
from homophily_service.runtime.background import repeat
from homophily_service.runtime.settings import Settings

_log = logging.getLogger(__name__)

LOOKED = Counter("homophily_predictor_models_total", "Models that predictors had in memory, or not", ["result"])
HITS, MISSES = LOOKED.labels("hit"), LOOKED.labels("miss")
RESTART_SECONDS = 1.0
# With kernels to compile, starting may take a minute; a process that takes longer has failed.
START_SECONDS = 90.0
# After this number, calls are numbered from 1 again.
MOST_CALLS = 0xFFFFFFFF


class Predictors:
    """A small pool of processes, each started again if it ends."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pool = [_Predictor(settings) for _ in range(settings.predictors)]
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the processes; calls that come before they are warm wait."""
        self._keepers = [asyncio.create_task(predictor.keep()) for predictor in self._pool]

    async def stop(self) -> None:
        """End the processes."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def predict(self, path: str, graph: str, request: model_pb2.PredictRequest) -> model_pb2.PredictResponse:
        """Let one of the processes label new points."""
        return (await self.ask(PredictCall(path=path, graph=graph, request=request))).response

    async def ask(self, call: PredictCall) -> PredictAnswer:
        """Let one of the processes answer."""
        if not self._pool:
            raise FailedPrecondition("this server has no predictors", reason="NO_PREDICTORS")
        predictor = min(self._pool, key=lambda one: (not one.is_ready, len(one.asked)))
        answer = await predictor.ask(call)
        if answer.HasField("error"):
            raise _service_error(answer.error)
        return answer


def _service_error(error: job_pb2.JobError) -> ServiceError:
    return error_of_code(
        error.code,
        error.message,
        error.reason,
        [(violation.field, violation.description) for violation in error.field_violations],
    )


class _Predictor:
    """One process, and the calls that wait for its answers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.asked: dict[int, asyncio.Future[PredictAnswer]] = {}
        self._number = 0
        self._ready = asyncio.Event()
        self._stream: _Stream | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it answers at once."""
        return self._ready.is_set()

    async def ask(self, call: PredictCall) -> PredictAnswer:
        """Send a call, which gets a number, and wait for its answer."""
        if not self.is_ready:
            try:
                await asyncio.wait_for(self._ready.wait(), START_SECONDS)
            except TimeoutError:
                raise Unavailable("no predictor is ready; try again", retry_seconds=5.0) from None
        assert self._stream is not None
        self._number = self._number % MOST_CALLS + 1
        number = call.number = self._number
        answer: asyncio.Future[PredictAnswer] = asyncio.get_running_loop().create_future()
        self.asked[number] = answer
        stream = self._stream
        try:
            stream.send(call)
            return await answer
        except asyncio.CancelledError:
            # The caller has left: its call must not keep the predictor busy.
            stream.send(PredictCall(number=number))
            raise
        finally:
            self.asked.pop(number, None)

    def answered(self, answer: PredictAnswer) -> None:
        """Hand an answer to the call that waits for it."""
        if answer.HasField("lookups"):
            self._ready.set()
            HITS.inc(answer.lookups.found_count)
            MISSES.inc(answer.lookups.loaded_count)
        waiting = self.asked.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def keep(self) -> None:
        """Run the process, and start it again whenever it ends."""
        await repeat("running a predictor", self._run, RESTART_SECONDS)

    async def _run(self) -> None:
        process, ours = processes.start("homophily_service.predictor.process", self.settings, 1)
        try:
            loop = asyncio.get_running_loop()
            transport, self._stream = await loop.create_connection(lambda: _Stream(self.answered), sock=ours)
            try:
                await self._stream.ended.wait()
            finally:
                transport.close()
            _log.error("a predictor ended, with code %s", process.poll())
        finally:
            self._ready.clear()
            _end(process)
            for answer in self.asked.values():
                if not answer.done():
                    answer.set_exception(Unavailable("the predictor was lost; try again", retry_seconds=1.0))


class _Stream(asyncio.Protocol):
    """Frames to and from the process; calls that come at the same time are sent in one packet."""

    def __init__(self, answered: Callable[[PredictAnswer], None]) -> None:
        self.ended = asyncio.Event()
        self._answered = answered
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: list[bytes] = []

    def send(self, call: PredictCall) -> None:
        """Send a call, together with others that are sent now."""
        self._waiting.append(frame(call))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._waiting))
        self._waiting.clear()

    def connection_made(self, transport: Any) -> None:
        """Keep the transport to write to."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass on the answers."""
        self._buffer += data
        for body in take_frames(self._buffer):
            self._answered(PredictAnswer.FromString(body))

    def connection_lost(self, _: Exception | None) -> None:
        """Report the end of the connection."""
        self._transport = None
        self.ended.set()


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
