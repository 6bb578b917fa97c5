"""A span for every call, below the caller's, if traces are sent."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from homophily_service.api.interceptors import Context, Interceptor, Observed, metadata_of
from homophily_service.runtime.logs import trace
from homophily_service.runtime.telemetry import Span, Traces

_UNTRACED = nullcontext()


class Tracing(Interceptor):
    """Starts the span; the outermost interceptor, so that the call's log lines carry it."""

    def __init__(self, traces: Traces) -> None:
        self.traces = traces

    def around(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Start the span, and end it with the call's status code."""
        service, _, name = method.lstrip("/").partition("/")
        if service.startswith("grpc."):
            # Probes call the health service all the time.
            return _UNTRACED
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        parent = metadata_of(context, "traceparent")
        span = self.traces.start(f"{service}/{name}", parent, kind="SERVER", attributes=attributes)
        trace.set(span.traceparent)
        return Observed(context, partial(_end, span))


def _end(span: Span, code: str, _: float) -> None:
    span.note("rpc.grpc.status_code", code)
    # Other codes are the caller's mistakes, not failures of the server.
    span.end(code if code in ("UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "DEADLINE_EXCEEDED") else "")
