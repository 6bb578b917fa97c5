"""Spans of the client's calls, for programs that use OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

SERVICE = "homophily.v1.HomophilyService"


@contextmanager
def span(method: str) -> Iterator[tuple[tuple[str, str], ...]]:
    """Trace one attempt of a call; yields the metadata that carries the span to the server.

    Does nothing unless the program has imported OpenTelemetry. The span is never the current one: a stream returns to
    the program in the middle of it, and the program's own spans must not become its children.
    """
    if "opentelemetry.trace" not in sys.modules:
        yield ()
        return
    from opentelemetry import propagate, trace

    attributes = {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method}
    tracer = trace.get_tracer("homophily_client")
    traced = tracer.start_span(f"{SERVICE}/{method}", kind=trace.SpanKind.CLIENT, attributes=attributes)
    metadata: dict[str, str] = {}
    propagate.inject(metadata, trace.set_span_in_context(traced))
    try:
        yield tuple(metadata.items())
    except grpc.RpcError as error:
        code = error.code().name
        traced.set_attribute("rpc.grpc.status_code", code)
        traced.set_status(trace.Status(trace.StatusCode.ERROR, code))
        raise
    else:
        traced.set_attribute("rpc.grpc.status_code", grpc.StatusCode.OK.name)
    finally:
        traced.end()
