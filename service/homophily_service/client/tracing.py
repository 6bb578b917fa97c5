"""The client's spans, for programs that use OpenTelemetry: each call is one, and tells the server its traceparent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import grpc


def traced(channel: grpc.Channel) -> grpc.Channel:
    """The channel, with spans if the program has loaded OpenTelemetry; otherwise it is left alone."""
    if "opentelemetry.trace" not in sys.modules:
        return channel
    return grpc.intercept_channel(channel, _Spans())


class _Details(grpc.ClientCallDetails):
    """What goes along with a call, with other metadata."""

    def __init__(self, details: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        for name in ("method", "timeout", "credentials", "wait_for_ready", "compression"):
            setattr(self, name, getattr(details, name, None))
        self.metadata = metadata


class _Spans(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Begins a span with the call, and ends it when the call is done."""

    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        """Around a call with one answer."""
        return _called(continuation, client_call_details, request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        """Around a call with many answers."""
        return _called(continuation, client_call_details, request)

    def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        """Around an upload."""
        return _called(continuation, client_call_details, request_iterator)


def _called(continuation: Callable[..., Any], details: Any, request: Any) -> Any:
    from opentelemetry import trace

    method = details.method.decode() if isinstance(details.method, bytes) else details.method
    name = method.lstrip("/")
    span = trace.get_tracer("homophily_service.client").start_span(name, kind=trace.SpanKind.CLIENT)
    place = span.get_span_context()
    if not place.is_valid:
        # The program has loaded OpenTelemetry, but traces nothing.
        return continuation(details, request)
    traceparent = f"00-{place.trace_id:032x}-{place.span_id:016x}-{int(place.trace_flags):02x}"
    span.set_attributes({"rpc.system": "grpc", "rpc.method": name.rpartition("/")[2]})
    try:
        call = continuation(_Details(details, (*(details.metadata or ()), ("traceparent", traceparent))), request)
    except BaseException:
        span.end()
        raise

    def ended(done: Any) -> None:
        code = done.code()
        if code is not None:
            span.set_attribute("rpc.grpc.status_code", code.name)
            if code is not grpc.StatusCode.OK:
                span.set_status(trace.Status(trace.StatusCode.ERROR, code.name))
        span.end()

    call.add_done_callback(ended)
    return call
