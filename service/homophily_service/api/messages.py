"""Messages that answer, out of rows of the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import Row

from homophily_client._pb import job_pb2
from homophily_client.names import JobName
from homophily_service.contract.errors import InvalidRequest
from homophily_service.storage import queue

STATES = {
    queue.QUEUED: job_pb2.JOB_STATE_QUEUED,
    queue.RUNNING: job_pb2.JOB_STATE_RUNNING,
    queue.SUCCEEDED: job_pb2.JOB_STATE_SUCCEEDED,
    queue.FAILED: job_pb2.JOB_STATE_FAILED,
    queue.CANCELLED: job_pb2.JOB_STATE_CANCELLED,
    queue.WAITING: job_pb2.JOB_STATE_WAITING,
}
KINDS = {
    "fit": job_pb2.JOB_KIND_FIT,
    "transduce": job_pb2.JOB_KIND_TRANSDUCE,
    "embed": job_pb2.JOB_KIND_EMBED,
    "trial": job_pb2.JOB_KIND_TRIAL,
    "import": job_pb2.JOB_KIND_IMPORT,
}
# Where a job's result is, if the field is not called as the kind.
OUTCOMES = {"import": "imported"}
DEFAULT_PAGE, LARGEST_PAGE = 100, 1000


def timestamp(seconds: float | None) -> Timestamp | None:
    """A time of the database."""
    if seconds is None:
        return None
    stamp = Timestamp()
    stamp.FromMicroseconds(int(seconds * 1e6))
    return stamp


def duration(seconds: float) -> Duration:
    """A length of time."""
    length = Duration()
    length.FromMicroseconds(int(seconds * 1e6))
    return length


def job_message(row: Row[Any], position: int = 0) -> job_pb2.Job:
    """A job as clients see it."""
    job = job_pb2.Job(
        name=str(JobName(row.project, row.id)),
        kind=KINDS.get(row.kind, job_pb2.JOB_KIND_UNSPECIFIED),
        state=STATES[row.state],
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
    )
    if row.state == queue.FAILED:
        job.error.ParseFromString(row.outcome)
    elif row.state == queue.SUCCEEDED and row.kind in KINDS:
        getattr(job, OUTCOMES.get(row.kind, row.kind)).ParseFromString(row.outcome)
    return job


def event_message(event: queue.Event) -> job_pb2.JobEvent:
    """An event as clients see it."""
    return job_pb2.JobEvent(
        sequence=event.sequence,
        time=timestamp(event.time),
        state=STATES[event.state],
        attempt=event.attempt,
        progress=job_pb2.Progress.FromString(event.progress) if event.progress else None,
        message=event.message,
    )


def page_limit(page_size: int) -> int:
    """How many rows a page has."""
    if page_size < 0:
        raise InvalidRequest("page_size", f"must be at least 0; got {page_size}")
    return min(page_size or DEFAULT_PAGE, LARGEST_PAGE)


def page_start(page_token: str) -> int | None:
    """The row before which a page begins: the token is the number of the last row that was shown."""
    if not page_token:
        return None
    if not (page_token.isascii() and page_token.isdecimal() and len(page_token) <= 18):
        raise InvalidRequest("page_token", "must be next_page_token of an earlier answer")
    return int(page_token)


def next_page(rows: Sequence[Row[Any]], *, has_more: bool) -> str:
    """The token of the page that follows; empty if there is none."""
    return str(rows[-1].number) if has_more else ""
