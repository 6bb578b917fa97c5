"""Traces: spans of calls, of jobs and of their phases, sent as OTLP over HTTP where the setting ``traces_url`` says.

Without it nothing of OpenTelemetry is imported. The place in a trace goes from the client to the API as a W3C
``traceparent`` in the metadata, and from there to the worker in the job's row.
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
# How long a span waits for others to be sent with, and how long the collector has to answer.
SEND_SECONDS, ANSWER_SECONDS = 1.0, 2.0
STOP_SECONDS = 3.0


def is_traceparent(text: str) -> bool:
    """Whether a header is a place in a trace, of the only version that there is."""
    return _TRACEPARENT.fullmatch(text) is not None


def start_traces(settings: Settings, component: str) -> Traces | None:
    """What makes spans; None if the settings want none. FailedPrecondition if OpenTelemetry is not installed."""
    if settings.traces_url is None:
        return None
    try:
        return Traces(settings.traces_url, settings.traces_ratio, component)
    except ImportError as error:
        raise FailedPrecondition(f"traces_url is set, but the extra otel is not installed: {error}") from error


class Traces:
    """Spans on their way to a collector. What cannot be sent is dropped; nobody waits for it."""

    def __init__(self, url: str, ratio: float, component: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        self._trace = trace
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
        """A span below a traceparent, or the first of a trace; it began so many seconds ``ago``."""
        context = None
        if is_traceparent(parent):
            _, identifier, span, flags = parent.split("-")
            place = self._trace.SpanContext(
                int(identifier, 16), int(span, 16), is_remote=True, trace_flags=self._trace.TraceFlags(int(flags, 16))
            )
            context = self._trace.set_span_in_context(self._trace.NonRecordingSpan(place))
        began = time.time_ns() - int(1e9 * ago)
        kinds = self._trace.SpanKind
        return Span(
            self._tracer.start_span(
                name, context, kind=kinds[kind], start_time=began, attributes=attributes, record_exception=False
            )
        )

    def stop(self) -> None:
        """Send what is left, if the collector takes it at once."""
        # A daemon: who hangs on a collector that never answers is left behind.
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(STOP_SECONDS)


class Span:
    """Something that takes time."""

    def __init__(self, span: Any) -> None:
        self._span = span
        context = span.get_span_context()
        #: Its place in the trace, for those below it.
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def note(self, attribute: str, value: str) -> None:
        """Add an attribute."""
        self._span.set_attribute(attribute, value)

    def end(self, failure: str = "") -> None:
        """It is over; with ``failure`` it went wrong."""
        if failure:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end()


class JobSpans:
    """The spans of one attempt at a job: how long it waited, its run, and in this its phases."""

    def __init__(self, traces: Traces, parent: str, waited: float, attributes: Mapping[str, str | int]) -> None:
        self._traces = traces
        traces.start("job wait", parent, ago=waited, attributes=attributes).end()
        self._run = traces.start("job run", parent, kind="CONSUMER", attributes=attributes)
        self._phase: Span | None = None
        self._name = ""

    @property
    def traceparent(self) -> str:
        """The run's place in the trace."""
        return self._run.traceparent

    def enter(self, phase: str) -> None:
        """A phase begins, unless it is the one that is under way."""
        if phase and phase != self._name:
            self._leave()
            self._phase, self._name = self._traces.start(f"phase {phase}", self.traceparent), phase

    def end(self, outcome: str) -> None:
        """The attempt is over."""
        self._leave()
        self._run.note("homophily.outcome", outcome)
        self._run.end(outcome if outcome in ("failed", "lost") else "")

    def _leave(self) -> None:
        if self._phase is not None:
            self._phase.end()
            self._phase = None
