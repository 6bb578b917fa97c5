"""Response messages, made from the database's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from homophily_client._pb import job_pb2
from homophily_client.names import JobName
from homophily_client.words import words
from homophily_service.contract import states
from homophily_service.contract.errors import InvalidRequest
from homophily_service.contract.kinds import KINDS
from homophily_service.storage.database import Page
from homophily_service.storage.records import Event, JobRecord, ResourceRecord

STATES: dict[str, int] = words(job_pb2.JobState.DESCRIPTOR)
DEFAULT_PAGE, LARGEST_PAGE = 100, 1000


def timestamp(seconds: float | None) -> Timestamp | None:
    """A time of the database, as a message."""
    if seconds is None:
        return None
    stamp = Timestamp()
    stamp.FromMicroseconds(int(seconds * 1e6))
    return stamp


def duration(seconds: float) -> Duration:
    """A duration, as a message."""
    length = Duration()
    length.FromMicroseconds(int(seconds * 1e6))
    return length


def job_message(row: JobRecord, position: int = 0) -> job_pb2.Job:
    """A job as clients see it."""
    kind = KINDS.get(row.kind)
    job = job_pb2.Job(
        name=str(row.name),
        kind=kind.number if kind is not None else job_pb2.JOB_KIND_UNSPECIFIED,
        state=state_number(row.state),
        priority=row.priority,
        queue_position=position,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        progress=job_pb2.Progress.FromString(row.progress) if row.progress else None,
        create_time=timestamp(row.created),
        start_time=timestamp(row.started),
        finish_time=timestamp(row.finished),
        time_limit=duration(row.time_limit),
        request_id=row.request_id or "",
        cancel_requested=row.cancel_requested,
        last_sequence=row.last_sequence,
        tracking_run=row.tracking_run or "",
        tracking_url=row.tracking_url or "",
        parent_job=str(JobName(row.project, row.parent_id)) if row.parent_id is not None else "",
        registered_version=row.registered_version or "",
        tracking_complete=row.state in states.FINAL and not row.untracked,
    )
    if row.state == states.FAILED:
        job.error.ParseFromString(row.outcome)
    elif row.state == states.SUCCEEDED and kind is not None:
        getattr(job, kind.outcome).ParseFromString(row.outcome)
    return job


def state_number(state: str) -> job_pb2.JobState.ValueType:
    """The state as clients see it."""
    return job_pb2.JobState.ValueType(STATES[state])


def event_message(event: Event) -> job_pb2.JobEvent:
    """An event as clients see it."""
    return job_pb2.JobEvent(
        sequence=event.sequence,
        time=timestamp(event.time),
        state=state_number(event.state),
        attempt=event.attempt,
        progress=job_pb2.Progress.FromString(event.progress) if event.progress else None,
        message=event.message,
    )


def page_asked(request: Any) -> Page:
    """The page that a request for a list asks for. Its token is the number of the last row that was shown."""
    if request.page_size < 0:
        raise InvalidRequest("page_size", f"must be at least 0; got {request.page_size}")
    token = request.page_token
    if token and not (token.isascii() and token.isdecimal() and len(token) <= 18):
        raise InvalidRequest("page_token", "must be the next_page_token of an earlier response")
    times = [_time(request, field) for field in ("created_after", "created_before")]
    limit = min(request.page_size or DEFAULT_PAGE, LARGEST_PAGE)
    return Page(limit, int(token) if token else None, request.oldest_first, *times)


def _time(request: Any, field: str) -> float | None:
    """A time in seconds since 1970, if it is given."""
    if not request.HasField(field):
        return None
    try:
        return float(getattr(request, field).ToMicroseconds() / 1e6)
    except ValueError:
        raise InvalidRequest(field, "must be a time between the years 1 and 9999") from None


def next_page(rows: Sequence[JobRecord | ResourceRecord], *, has_more: bool) -> str:
    """The token of the page that follows; empty if there is none."""
    return str(rows[-1].number) if has_more else ""
