"""Structured logs: one JSON object a line on standard error, with the request's and the job's id where there is one."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

request_id: ContextVar[str] = ContextVar("request_id", default="")
job_name: ContextVar[str] = ContextVar("job_name", default="")


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
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def start_logging(level: str) -> None:
    """Write the service's own lines from ``level`` on, and others' from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("homophily_service").setLevel(level.upper())
