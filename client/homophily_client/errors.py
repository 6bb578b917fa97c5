"""Errors that a program using the client may want to handle.

ClientError                  any refusal or failure of the service; ``code`` says which
├── InvalidArgument          INVALID_ARGUMENT: a field is wrong, see ``violations`` (also a ValueError)
├── Unauthenticated          UNAUTHENTICATED: no token, or an unknown one
├── PermissionDenied         PERMISSION_DENIED: the token is for other projects
├── NotFound                 NOT_FOUND
├── AlreadyExists            ALREADY_EXISTS: an id or a request_id is taken
├── FailedPrecondition       FAILED_PRECONDITION: the request does not fit the service's current state
├── LimitExceeded            RESOURCE_EXHAUSTED: a limit, which the message states
├── Unavailable              UNAVAILABLE: the server was not reached within the client's ``patience``
├── DeadlineExceeded         DEADLINE_EXCEEDED: no answer in time (also a TimeoutError)
├── JobFailed                the job ended with an error; ``code`` and the rest are the job's
└── JobCancelled             the job was cancelled

Arguments that the client itself finds wrong raise a plain ValueError or TypeError before anything is sent. All of these
can be pickled, so they pass between processes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from homophily_client._pb import job_pb2

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Violation(NamedTuple):
    """A field of the request, and what is wrong with it."""

    #: The field's path in the request.
    field: str
    #: What is wrong, and what was expected.
    description: str


class ClientError(Exception):
    """The base class: a code, a word for programs (``reason``), a sentence for people (``message``).

    ``retry_seconds`` is the wait that the server suggests before another try, if any; ``request_id`` finds the call in
    the server's log.
    """

    # Keywords with defaults, and only the message in args: pickle needs this to rebuild it.
    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        violations: tuple[Violation, ...] = (),
        retry_seconds: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.violations = violations
        self.retry_seconds = retry_seconds
        self.request_id = request_id


class InvalidArgument(ClientError, ValueError):
    """A field is wrong; ``violations`` names it."""


class Unauthenticated(ClientError):
    """No token, or an unknown one."""


class PermissionDenied(ClientError):
    """The token is for other projects."""


class NotFound(ClientError):
    """Nothing has this name."""


class AlreadyExists(ClientError):
    """An id or a request_id is taken."""


class FailedPrecondition(ClientError):
    """The request does not fit the service's current state."""


class LimitExceeded(ClientError):
    """A limit, which the message states."""


class Unavailable(ClientError):
    """The server could not be reached."""


class DeadlineExceeded(ClientError, TimeoutError):
    """No answer in time."""


class JobFailed(ClientError):
    """A job ended with an error."""


class JobCancelled(ClientError):
    """A job was cancelled."""


_BY_CODE: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitExceeded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}


def from_rpc(error: Any, request_id: str) -> ClientError:
    """The error of a call, with the google.rpc details of its trailer."""
    code: grpc.StatusCode = error.code()
    reason, violations, retry_seconds = "", [], None
    for detail in _details(error):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
            reason = info.reason
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            detail.Unpack(bad)
            violations = [Violation(one.field, one.description) for one in bad.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_seconds = retry.retry_delay.ToNanoseconds() / 1e9
    trailer = dict(error.trailing_metadata() or ())
    return _BY_CODE.get(code, ClientError)(
        error.details() or code.name,
        code=code,
        reason=reason,
        violations=tuple(violations),
        retry_seconds=retry_seconds,
        request_id=str(trailer.get("x-request-id", request_id)),
    )


def from_job(name: str, error: job_pb2.JobError) -> JobFailed:
    """The error that a job ended with."""
    return JobFailed(
        f"{name} failed: {error.message}",
        code=_CODES.get(error.code, grpc.StatusCode.UNKNOWN),
        reason=error.reason,
        violations=tuple(Violation(one.field, one.description) for one in error.field_violations),
    )


def _details(error: Any) -> list[Any]:
    try:
        status = rpc_status.from_call(error)
    except (ValueError, DecodeError):
        # A proxy on the way may have changed the status or the trailer; the code still counts.
        return []
    return [] if status is None else list(status.details)
