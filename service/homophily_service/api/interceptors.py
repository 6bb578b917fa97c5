"""What surrounds every call, one interceptor each, outermost first.

Logging, metrics, audit, errors, authentication, messages: who is not known does not learn what is wrong with a message.
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

from homophily_service.api.access import caller, this_deed
from homophily_service.errors import InternalError, InvalidRequest, LimitExceeded, ServiceError, Unauthenticated
from homophily_service.logs import request_id, trace
from homophily_service.names import new_id
from homophily_service.telemetry import is_traceparent
from homophily_service.tokens import EVERY_PROJECT, Token, Tokens

_log = logging.getLogger(__name__)

DOMAIN = "homophily"
# Trailers beyond 8 KB are lost on the way; half of it leaves room for others'. In bytes, as every one of a message that
# is not ASCII takes three, and those of the details take four thirds.
LONGEST_FIELD, LONGEST_TEXT = 100, 400
MOST_VIOLATIONS = 3

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
    """All of them as one, since gRPC asks each that it is given anew with every call."""

    def __init__(self, outermost_first: Sequence[Interceptor]) -> None:
        self._inside_out = outermost_first[::-1]
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """A method's handler, wrapped once; None for a method that is not known."""
        method = str(handler_call_details.method)
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            for interceptor in self._inside_out:
                handler = interceptor.wrap(method, handler)
            self._wrapped[method] = handler
        return self._wrapped[method]


def _surrounded(handler: Any, around: Around, read: Callable[[bytes], Any] | None = None) -> Any:
    """The handler within a context; with ``read`` it is given bytes, and reads its messages by that."""

    def incoming(request: Any) -> Any:
        if read is None:
            return request
        return _each(read, request) if handler.request_streaming else read(request)

    serializers = {
        "request_deserializer": handler.request_deserializer if read is None else None,
        "response_serializer": handler.response_serializer,
    }
    if handler.response_streaming:
        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            async with around(context):
                responses = inner(incoming(request), context)
                if inspect.isawaitable(responses):
                    # It writes by itself, as the standard health service does.
                    await responses
                    return
                async for response in responses:
                    yield response

        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
        return make(stream, **serializers)
    inner = handler.stream_unary if handler.request_streaming else handler.unary_unary

    async def unary(request: Any, context: Context) -> Any:
        async with around(context):
            return await inner(incoming(request), context)

    make_unary = (
        grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
    )
    return make_unary(unary, **serializers)


async def _each(read: Callable[[bytes], Any], requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for request in requests:
        yield read(request)


class Observed:
    """Tells with which code a call has ended, and after how many seconds."""

    def __init__(self, context: Context, tell: Callable[[str, float], None]) -> None:
        self.context, self.tell = context, tell

    async def __aenter__(self) -> None:
        self.began, self.longest = time.monotonic(), self.context.time_remaining()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        seconds = time.monotonic() - self.began
        code: Any = self.context.code()
        if kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit):
            # The caller did not wait for the answer; gRPC has no code for that here.
            late = self.longest is not None and seconds >= self.longest
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
        elif not isinstance(code, grpc.StatusCode):
            code = CODES.get(code, grpc.StatusCode.OK)
        self.tell(code.name, seconds)


_UNOBSERVED = nullcontext()


class Logging(Interceptor):
    """A line for every call; the request's id is the caller's, or ours, and goes back in the trailer."""

    def around(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Log the call's end."""
        given = metadata_of(context, "x-request-id")
        request_id.set(given if given and REQUEST_ID.fullmatch(given) else new_id())
        context.set_trailing_metadata((("x-request-id", request_id.get()),))
        # Where calls are traced, it is the span's already.
        if not trace.get() and is_traceparent(parent := metadata_of(context, "traceparent")):
            trace.set(parent)
        if not _log.isEnabledFor(logging.INFO):
            return _UNOBSERVED
        # Now: once a cancelled call is gone, asking for its peer ends the process.
        peer = context.peer()

        def log(code: str, seconds: float) -> None:
            fields = {"method": method, "code": code, "milliseconds": round(1e3 * seconds, 2), "peer": peer}
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
        """Kept, as looking them up takes as long as counting."""
        return cls.calls.labels(method, code), cls.seconds.labels(method, code)


class Errors(Interceptor):
    """The one place where exceptions become codes."""

    def around(self, method: str, context: Context) -> _Told:
        """Turn what is raised into a status."""
        return _Told(method, context)


class _Told:
    def __init__(self, method: str, context: Context) -> None:
        self.method, self.context = method, context

    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if isinstance(error, ServiceError):
            await _abort(self.context, error)
        elif isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            _log.error("error inside the service in %s", self.method, exc_info=error)
            await _abort(self.context, InternalError("an error inside the service; its log tells more"))


class Authentication(Interceptor):
    """Finds out whom a bearer token belongs to. Health may be asked by anybody."""

    # A revoked token works for so long at most.
    SECONDS_REMEMBERED = 2.0

    def __init__(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        self._known: dict[str, tuple[float, Token]] = {}

    def around(self, method: str, context: Context) -> _Known:
        """Set the caller."""
        return _Known(self, method, context)

    async def token(self, header: str) -> Token:
        """The token in a header, or Unauthenticated."""
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise Unauthenticated("a bearer token is needed in the metadata: authorization: Bearer hph_…")
        until, token = self._known.get(secret, (0.0, None))
        if token is not None and time.monotonic() < until:
            return token
        assert self.tokens is not None
        self._known.pop(secret, None)
        token = await asyncio.to_thread(self.tokens.look_up, secret)
        if len(self._known) > 10_000:
            self._known.clear()
        left = self.SECONDS_REMEMBERED if token.seconds_left is None else token.seconds_left
        self._known[secret] = time.monotonic() + min(self.SECONDS_REMEMBERED, left), token
        return token


class _Known:
    def __init__(self, authentication: Authentication, method: str, context: Context) -> None:
        self.authentication, self.method, self.context = authentication, method, context

    async def __aenter__(self) -> None:
        if self.authentication.tokens is None:
            caller.set(EVERY_PROJECT)
        elif not self.method.startswith("/grpc.health."):
            token = await self.authentication.token(metadata_of(self.context, "authorization"))
            caller.set(token.project)
            this_deed().token = token.id

    async def __aexit__(self, *_: object) -> None:
        return


class Messages(Interceptor):
    """Reads messages, and refuses those that are too large or not well formed.

    gRPC could do either, but not say what the limit is, where large data goes, or INVALID_ARGUMENT.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self.max_message_bytes = max_message_bytes

    def wrap(self, _: str, handler: Any) -> Any:
        """The handler, given bytes."""
        return _surrounded(handler, lambda _: nullcontext(), partial(self._read, handler.request_deserializer))

    def _read(self, deserializer: Callable[[bytes], Any], data: bytes) -> Any:
        if len(data) > self.max_message_bytes:
            raise LimitExceeded(
                f"the message has {len(data)} bytes, the limit is {self.max_message_bytes}: "
                "send large data by UploadDataset",
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
    """As much of a text as has so many bytes."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= longest else encoded[: longest - 3].decode("utf-8", "ignore") + "…"


def metadata_of(context: Context, name: str) -> str:
    """What the caller has sent under a name, if it is a text."""
    values = (value for key, value in context.invocation_metadata() or () if key == name)
    return next((value for value in values if isinstance(value, str)), "")
