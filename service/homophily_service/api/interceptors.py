"""What surrounds every call, one interceptor each, outermost first.

Logging, metrics, audit, errors, authentication, admission, messages. A message is received only after all others have
admitted the call: even single requests are handled as streams, as gRPC would receive them before it calls a handler.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cache, partial
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status.rpc_status import to_status
from prometheus_client import Counter, Histogram

from homophily_client.names import new_id
from homophily_service.api.access import AuditRecord, audit_record
from homophily_service.api.budgets import held
from homophily_service.contract.errors import (
    InternalError,
    InvalidRequest,
    LimitExceeded,
    ServiceError,
    Unavailable,
)
from homophily_service.runtime.logs import request_id, trace
from homophily_service.runtime.telemetry import is_traceparent

_log = logging.getLogger(__name__)

DOMAIN = "homophily"
# Trailers beyond 8 KB are lost on the way; these use half of it. In bytes of the encoded text: a byte that is not ASCII
# takes three in the message, and every byte takes four thirds in the details.
LONGEST_FIELD, LONGEST_TEXT = 100, 400
MOST_VIOLATIONS = 3
# Parsing a message of this size takes a millisecond.
LARGE_MESSAGE = 1 << 18

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
CODES = {code.value[0]: code for code in grpc.StatusCode}

Context = grpc.aio.ServicerContext[Any, Any]
Around = Callable[[Context], AbstractAsyncContextManager[None]]


class Interceptor:
    """Something to be done around every call."""

    def around(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """A context in which the call is handled."""
        raise NotImplementedError

    def wrap(self, method: str, handler: Any) -> Any:
        """The handler within that context."""
        return _surrounded(handler, lambda context: self.around(method, context))


class Interceptors(grpc.aio.ServerInterceptor):
    """All interceptors as one: gRPC asks each interceptor again for every call."""

    def __init__(self, outermost_first: Sequence[Interceptor]) -> None:
        self._inside_out = outermost_first[::-1]
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """A method's handler, wrapped once; None for an unknown method."""
        method = str(handler_call_details.method)
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            for interceptor in self._inside_out:
                handler = interceptor.wrap(method, handler)
            self._wrapped[method] = handler
        return self._wrapped[method]


def _surrounded(handler: Any, around: Around) -> Any:
    """The handler within a context; :class:`Messages`, the innermost, has made its requests a stream."""
    serializer = handler.response_serializer
    if handler.response_streaming:

        async def stream(requests: Any, context: Context) -> AsyncIterator[Any]:
            async with around(context):
                async for response in handler.stream_stream(requests, context):
                    yield response

        return grpc.stream_stream_rpc_method_handler(stream, response_serializer=serializer)

    async def unary(requests: Any, context: Context) -> Any:
        async with around(context):
            return await handler.stream_unary(requests, context)

    return grpc.stream_unary_rpc_method_handler(unary, response_serializer=serializer)


# The caller's deadline ends earlier than ours, by the time that the call took to arrive; then the caller cancels.
TRANSIT_SECONDS = 0.05


class Observed:
    """Reports the code with which a call ended, and its duration in seconds."""

    def __init__(self, context: Context, report: Callable[[str, float], None]) -> None:
        self.context, self.report = context, report

    async def __aenter__(self) -> None:
        self.began, self.longest = time.monotonic(), self.context.time_remaining()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        seconds = time.monotonic() - self.began
        code: Any = self.context.code()
        if kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit):
            # The caller left before the answer; gRPC sets no code for that here.
            is_late = self.longest is not None and seconds >= self.longest - TRANSIT_SECONDS
            code = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
        elif not isinstance(code, grpc.StatusCode):
            code = CODES.get(code, grpc.StatusCode.OK)
        self.report(code.name, seconds)


_UNOBSERVED = nullcontext()


class Logging(Interceptor):
    """Logs a line for every call. The request id is the caller's, or a new one, and is returned in the trailer.

    It names the token, the project and the resource, as reads are in the audit log only with `audit=all`.
    """

    def around(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Log the call's end."""
        given = metadata_of(context, "x-request-id")
        request_id.set(given if given and REQUEST_ID.fullmatch(given) else new_id())
        context.set_trailing_metadata((("x-request-id", request_id.get()),))
        # If calls are traced, the span has set it already.
        if not trace.get() and is_traceparent(parent := metadata_of(context, "traceparent")):
            trace.set(parent)
        # Get the peer now: after a cancelled call has ended, asking for it crashes the process.
        done = AuditRecord(peer=context.peer())
        audit_record.set(done)
        if not _log.isEnabledFor(logging.INFO):
            return _UNOBSERVED

        def log(code: str, seconds: float) -> None:
            fields = {"method": method, "code": code, "milliseconds": round(1e3 * seconds, 2), **done.fields()}
            _log.info("call", extra={"fields": fields})

        return Observed(context, log)


class Metrics(Interceptor):
    """Counts and times calls, by method and code."""

    calls = Counter("homophily_rpc_calls_total", "Calls that have ended", ["method", "code"])
    seconds = Histogram(
        "homophily_rpc_seconds",
        "Duration of calls",
        ["method", "code"],
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
    )

    def around(self, method: str, context: Context) -> Observed:
        """Count and time the call."""
        return Observed(context, partial(self._count, method))

    def _count(self, method: str, code: str, seconds: float) -> None:
        counter, histogram = self._of_call(method, code)
        counter.inc()
        histogram.observe(seconds)

    @classmethod
    @cache
    def _of_call(cls, method: str, code: str) -> tuple[Counter, Histogram]:
        """The metrics of a method and code; cached, as looking them up takes as long as counting."""
        return cls.calls.labels(method, code), cls.seconds.labels(method, code)


class Errors(Interceptor):
    """The one place where exceptions become codes."""

    def around(self, method: str, context: Context) -> _Translated:
        """Turn exceptions into a status."""
        return _Translated(method, context)


class _Translated:
    def __init__(self, method: str, context: Context) -> None:
        self.method, self.context = method, context

    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if isinstance(error, ServiceError):
            await _abort(self.context, error)
        elif isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            _log.error("internal error in %s", self.method, exc_info=error)
            await _abort(self.context, InternalError("an internal error of the service; see its log"))


class Messages(Interceptor):
    """Reads messages, and refuses those that are too large, too late or malformed.

    gRPC could do some of this, but its errors would not state the limit, nor how to send large data, nor be
    INVALID_ARGUMENT.
    """

    # Seconds that a call may take to send its message, and an upload its next one. An upload can be resumed.
    LONGEST_SILENCE = 60.0

    def __init__(self, max_message_bytes: int) -> None:
        self.max_message_bytes = max_message_bytes

    def wrap(self, _: str, handler: Any) -> Any:
        """Wrap a handler so that it reads a stream of bytes."""
        deserializer, serializer = handler.request_deserializer, handler.response_serializer
        inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

        async def incoming(requests: AsyncIterator[bytes]) -> Any:
            if not handler.request_streaming:
                return await self._one(deserializer, requests)
            # One message is received while the one before is written.
            await held.get().take(2 * self.max_message_bytes)
            return self._each(deserializer, requests)

        if handler.response_streaming:

            async def stream(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
                responses = inner(await incoming(requests), context)
                if inspect.isawaitable(responses):
                    # It writes its responses itself, as the standard health service does.
                    await responses
                    return
                async for response in responses:
                    yield response

            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=serializer)

        async def unary(requests: AsyncIterator[bytes], context: Context) -> Any:
            return await inner(await incoming(requests), context)

        return grpc.stream_unary_rpc_method_handler(unary, response_serializer=serializer)

    async def _one(self, deserializer: Callable[[bytes], Any], requests: AsyncIterator[bytes]) -> Any:
        """The only message of a call; from then on, only its own size is held."""
        budget = held.get()
        await budget.take(self.max_message_bytes)
        data = await self._next(requests)
        if data is None:
            raise InvalidRequest("request", "is missing")
        budget.keep(len(data))
        if len(data) < LARGE_MESSAGE:
            return self._read(deserializer, data)
        # In a thread: several large messages at once would delay everybody's calls.
        return await asyncio.to_thread(self._read, deserializer, data)

    async def _each(self, deserializer: Callable[[bytes], Any], requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        while (data := await self._next(requests)) is not None:
            yield self._read(deserializer, data)

    async def _next(self, requests: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout(self.LONGEST_SILENCE):
                return await anext(requests, None)
        except TimeoutError:
            raise Unavailable(f"nothing was sent for {self.LONGEST_SILENCE:g} s: start the call again") from None

    def _read(self, deserializer: Callable[[bytes], Any], data: bytes) -> Any:
        if len(data) > self.max_message_bytes:
            raise LimitExceeded(
                f"the message has {len(data)} bytes, the limit is {self.max_message_bytes}: "
                "send large data with UploadDataset",
                reason="MESSAGE_TOO_LARGE",
            )
        try:
            return deserializer(data)
        except DecodeError:
            raise InvalidRequest("request", "is not a well-formed message") from None


async def _abort(context: Context, error: ServiceError) -> None:
    """End the call with google.rpc details in the trailer."""
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
    if error.violations:
        shown = [
            error_details_pb2.BadRequest.FieldViolation(
                field=_cut(violation.field, LONGEST_FIELD), description=_cut(violation.description, LONGEST_TEXT)
            )
            for violation in error.violations[:MOST_VIOLATIONS]
        ]
        details.append(error_details_pb2.BadRequest(field_violations=shown))
    if error.retry_seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    message = _cut(error.message, LONGEST_TEXT)
    code: int = error.code.value[0]
    status = to_status(status_pb2.Status(code=code, message=message, details=packed))
    # abort() sends only the trailer it is given.
    trailer = (*status.trailing_metadata, ("x-request-id", request_id.get()))
    await context.abort(error.code, message, trailer)


def _cut(text: str, longest: int) -> str:
    """Shorten a text to the bytes that may be sent."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= longest else encoded[: longest - 3].decode("utf-8", "ignore") + "…"


def metadata_of(context: Context, name: str) -> str:
    """The caller's metadata of this name, if it is text."""
    values = (value for key, value in context.invocation_metadata() or () if key == name)
    return next((value for value in values if isinstance(value, str)), "")
