"""How a job is run, from a request's options."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from homophily_client._pb import job_pb2 as pb
from homophily_client.names import JobName
from homophily_service.contract.errors import InvalidRequest
from homophily_service.runtime.logs import request_id, trace
from homophily_service.runtime.settings import Settings
from homophily_service.storage.records import NewJob


def new_job(name: JobName, kind: str, request: Message, options: pb.JobOptions, settings: Settings) -> NewJob:
    """The job for a request; checks its options."""
    if len(options.request_id) > 128 or not options.request_id.isprintable() or not options.request_id.isascii():
        raise InvalidRequest("options.request_id", "must be at most 128 printable ASCII characters")
    if not -100 <= options.priority <= 100:
        raise InvalidRequest("options.priority", f"must be between -100 and 100; got {options.priority}")
    attempts = options.max_attempts if options.HasField("max_attempts") else settings.max_attempts
    most = max(settings.max_attempts, settings.max_job_attempts)
    if not 1 <= attempts <= most:
        raise InvalidRequest("options.max_attempts", f"must be between 1 and {most}; got {attempts}")
    limit = time_limit(options, settings)
    message = request.SerializeToString(deterministic=True)
    return NewJob(
        name, kind, message, options.request_id, options.priority, attempts, limit, request_id.get(), trace.get()
    )


def time_limit(options: pb.JobOptions, settings: Settings) -> float:
    """Seconds that an attempt may take."""
    if not options.HasField("time_limit"):
        return settings.job_time_limit
    limit = seconds(options.time_limit, "options.time_limit")
    if not 0.0 < limit <= settings.max_job_time_limit:
        raise InvalidRequest(
            "options.time_limit", f"must be positive and at most {settings.max_job_time_limit:g} s; got {limit:g} s"
        )
    return limit


def seconds(length: Duration, field: str) -> float:
    """A duration of a request, in seconds."""
    # By hand: the library's conversions overflow for invalid durations.
    found = length.seconds + length.nanos / 1e9
    if not 0.0 <= found <= 315_576_000_000.0 or not -1e9 < length.nanos < 1e9:
        raise InvalidRequest(field, "must be a duration of at least 0")
    return found
