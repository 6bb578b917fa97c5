"""Structured logs: one JSON object per line on standard error, with the ids of request, job and trace if known."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

request_id: ContextVar[str] = ContextVar("request_id", default="")
job_name: ContextVar[str] = ContextVar("job_name", default="")
# Our place in the caller's trace, as a W3C traceparent: version, trace, span, flags.
trace: ContextVar[str] = ContextVar("trace", default="")


class JobContext(Protocol):
    """A job, and the call that asked for it."""

    @property
    def name(self) -> object: ...  # noqa: D102

    @property
    def origin(self) -> str: ...  # noqa: D102

    @property
    def trace(self) -> str: ...  # noqa: D102


def about(job: JobContext | None) -> None:
    """Add a job's name and origin to the lines that follow; None stops that."""
    job_name.set("" if job is None else str(job.name))
    request_id.set("" if job is None else job.origin)
    trace.set("" if job is None else job.trace)


class JsonLines(logging.Formatter):
    """Records as JSON; ``extra={"fields": {…}}`` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := request_id.get():
            fields["request_id"] = request
        if job := job_name.get():
            fields["job"] = job
        if place := trace.get():
            fields["trace_id"], fields["span_id"] = place.split("-")[1:3]
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def start_logging(level: str) -> None:
    """Log the service's own records from ``level`` up, and those of libraries from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # Python's warnings become JSON too: plain lines would break programs that read the log.
    logging.captureWarnings(True)
    logging.getLogger("homophily_service").setLevel(level.upper())
