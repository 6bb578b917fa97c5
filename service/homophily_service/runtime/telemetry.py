"""Traces: spans of calls, of jobs and of their phases, sent as OTLP over HTTP to the setting ``traces_url``.

OpenTelemetry is only imported if that is set. The position in a trace passes from the client to the API as a W3C
``traceparent`` in the metadata, and from there to the worker in the job's record.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from homophily_service.contract.errors import FailedPrecondition
from homophily_service.runtime.settings import Settings

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# How long spans are collected before they are sent, and how long the collector has to answer.
SEND_SECONDS, ANSWER_SECONDS = 1.0, 2.0
STOP_SECONDS = 3.0


def is_traceparent(text: str) -> bool:
    """Whether a header is a W3C traceparent of version 00. Must be cheap: it is called for every call."""
    return _TRACEPARENT.fullmatch(text) is not None


def start_traces(settings: Settings, component: str) -> Traces | None:
    """Start tracing; None if no ``traces_url`` is set, FailedPrecondition if OpenTelemetry is not installed."""
    if settings.traces_url is None:
        return None
    try:
        return Traces(settings.traces_url, settings.traces_ratio, component)
    except ImportError as error:
        raise FailedPrecondition(f"traces_url is set, but the extra otel is not installed: {error}") from error


class Traces:
    """Makes spans, and sends them to a collector. Spans that cannot be sent are dropped; no call waits for them."""

    def __init__(self, url: str, ratio: float, component: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource.create({"service.name": f"homophily-{component}"}),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=url, timeout=ANSWER_SECONDS)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter, schedule_delay_millis=1e3 * SEND_SECONDS, export_timeout_millis=1e3 * ANSWER_SECONDS
            )
        )
        self._tracer = self._provider.get_tracer("homophily_service")

    def start(
        self,
        name: str,
        parent: str = "",
        *,
        kind: str = "INTERNAL",
        ago: float = 0.0,
        attributes: Mapping[str, str | int] | None = None,
    ) -> Span:
        """Start a span below a traceparent, or the first of a trace; it began ``ago`` seconds ago."""
        span = self._tracer.start_span(
            name,
            self._propagator.extract({"traceparent": parent}),
            kind=self._trace.SpanKind[kind],
            start_time=time.time_ns() - int(1e9 * ago),
            attributes=attributes,
            record_exception=False,
        )
        headers: dict[str, str] = {}
        self._propagator.inject(headers, self._trace.set_span_in_context(span))
        return Span(span, headers.get("traceparent", ""))

    def stop(self) -> None:
        """Send the remaining spans, if the collector takes them at once."""
        # A daemon thread does not keep the process alive if the collector never answers.
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(STOP_SECONDS)


class Span:
    """A timed step of a trace; ``traceparent`` is what spans below it are given."""

    def __init__(self, span: Any, traceparent: str) -> None:
        self._span, self.traceparent = span, traceparent

    def note(self, attribute: str, value: str) -> None:
        """Add an attribute."""
        self._span.set_attribute(attribute, value)

    def end(self, failure: str = "") -> None:
        """End the span, as failed if a ``failure`` is given."""
        if failure:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end()


class JobSpans:
    """The spans of one attempt at a job: its wait, its run, and the phases within the run."""

    def __init__(self, traces: Traces, parent: str, waited: float, attributes: Mapping[str, str | int]) -> None:
        self._traces = traces
        traces.start("job wait", parent, ago=waited, attributes=attributes).end()
        self._run = traces.start("job run", parent, kind="CONSUMER", attributes=attributes)
        self._phase: Span | None = None
        self._name = ""

    @property
    def traceparent(self) -> str:
        """The traceparent of the run."""
        return self._run.traceparent

    def enter(self, phase: str) -> None:
        """Start a phase, unless it is the current one."""
        if phase and phase != self._name:
            self._leave()
            self._phase, self._name = self._traces.start(f"phase {phase}", self.traceparent), phase

    def end(self, outcome: str) -> None:
        """End the attempt."""
        self._leave()
        self._run.note("homophily.outcome", outcome)
        self._run.end(outcome if outcome in ("failed", "lost") else "")

    def _leave(self) -> None:
        if self._phase is not None:
            self._phase.end()
            self._phase = None
