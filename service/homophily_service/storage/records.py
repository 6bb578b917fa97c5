"""What the database holds, as plain records: no rows leave :mod:`homophily_service.storage`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from homophily_client.names import JobName


class Record:
    """Base of the records: reads itself from a row by the names of its fields."""

    @classmethod
    def of(cls, row: Any) -> Self:
        """Read a row; missing bytes are empty."""
        values = {one.name: getattr(row, one.name) for one in fields(cls)}  # type: ignore[arg-type]
        empty = {one.name: b"" for one in fields(cls) if one.type == "bytes" and values[one.name] is None}  # type: ignore[arg-type]
        return cls(**values | empty)


@dataclass(frozen=True, slots=True)
class JobRecord(Record):
    """A job, without its request, which may be large."""

    number: int
    project: str
    id: str
    kind: str
    state: str
    priority: int
    request_id: str | None
    attempt: int
    max_attempts: int
    time_limit: float
    cancel_requested: bool
    #: Seconds since 1970, by the database's clock.
    created: float
    started: float | None
    finished: float | None
    #: A serialised Progress.
    progress: bytes
    #: A serialised result of the job's kind, or a JobError.
    outcome: bytes
    last_sequence: int
    #: The id of the job that waits for this one.
    parent_id: str | None
    #: The worker that computes it, or did last.
    worker: str | None
    #: When it may start.
    not_before: float
    #: The call that submitted it, as a W3C traceparent.
    trace: str | None
    tracking_run: str | None
    tracking_url: str | None
    tracking_attempts: int
    #: Whether its tracking run is behind.
    untracked: bool
    registered_version: str | None

    @property
    def name(self) -> JobName:
        """The job's name."""
        return JobName(self.project, self.id)


@dataclass(frozen=True, slots=True)
class EndedJob(Record):
    """A job that has ended, for statistics."""

    number: int
    kind: str
    state: str
    created: float
    started: float | None
    finished: float
    attempt: int
    outcome: bytes
    #: When its first attempt began.
    first_started: float | None


@dataclass(frozen=True, slots=True)
class RunToEnd(Record):
    """The tracking run of a deleted job, and how the job had ended."""

    run: str
    state: str
    finished: float


@dataclass(frozen=True, slots=True)
class ResourceRecord(Record):
    """A dataset, model or embedding."""

    number: int
    project: str
    id: str
    #: The serialised message that describes it.
    message: bytes
    #: Where its arrays are.
    blob: str
    #: The digest of its graph.
    graph: str | None
    #: The upload that made a dataset.
    upload_id: str | None


class LeaseLost(Exception):
    """Another worker has the job, or it has ended: stop computing, write nothing."""


class NewJob(NamedTuple):
    """A job to be queued. ``request_id`` may be empty."""

    name: JobName
    kind: str
    request: bytes
    request_id: str = ""
    priority: int = 0
    max_attempts: int = 3
    time_limit: float = 3600.0
    # The call that submits it, for logs and traces.
    origin: str = ""
    trace: str = ""
    # Digest of the dataset, model or embedding that it was submitted for, and its name.
    source_digest: str = ""
    source: str = ""


class Lease(NamedTuple):
    """A claimed job, and the token to write with."""

    name: JobName
    number: int
    kind: str
    request: bytes
    attempt: int
    max_attempts: int
    time_limit: float
    token: str
    origin: str = ""
    trace: str = ""
    source_digest: str = ""


class Event(NamedTuple):
    """Something that happened to a job."""

    sequence: int
    time: float
    state: str
    attempt: int
    progress: bytes | None
    message: str
