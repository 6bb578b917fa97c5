"""Spans of the client's calls, for programs that use OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

SERVICE = "homophily.v1.HomophilyService"


@contextmanager
def span(method: str) -> Iterator[tuple[tuple[str, str], ...]]:
    """Trace one attempt of a call; yields the metadata that passes the span on to the server.

    Does nothing unless the program has imported OpenTelemetry.
    """
    if "opentelemetry.trace" not in sys.modules:
        yield ()
        return
    from opentelemetry import propagate, trace

    attributes = {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method}
    tracer = trace.get_tracer("homophily_client")
    with tracer.start_as_current_span(
        f"{SERVICE}/{method}", kind=trace.SpanKind.CLIENT, attributes=attributes, record_exception=False
    ) as current:
        metadata: dict[str, str] = {}
        propagate.inject(metadata)
        try:
            yield tuple(metadata.items())
        except grpc.RpcError as error:
            current.set_attribute("rpc.grpc.status_code", error.code().name)
            raise
        current.set_attribute("rpc.grpc.status_code", grpc.StatusCode.OK.name)
