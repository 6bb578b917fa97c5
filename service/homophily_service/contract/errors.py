"""What can go wrong, as clients see it.

ServiceError
├── InvalidRequest      INVALID_ARGUMENT     a field is wrong; names it
├── Unauthenticated     UNAUTHENTICATED      no token, or an unknown one
├── PermissionDenied    PERMISSION_DENIED    the token is for other projects
├── NotFound            NOT_FOUND
├── AlreadyExists       ALREADY_EXISTS       an id or a request_id is taken
├── FailedPrecondition  FAILED_PRECONDITION  valid, but not in the current state
├── LimitExceeded       RESOURCE_EXHAUSTED   a limit, stated in the message
├── Unavailable         UNAVAILABLE          temporary; try again
│   └── DeviceFailed                         the process that used a GPU cannot use it any more
├── TimeLimit           DEADLINE_EXCEEDED
├── DataLoss            DATA_LOSS            stored bytes differ from those that were written
└── InternalError       INTERNAL             a bug in the service

Everything raises these; :mod:`homophily_service.api.interceptors` turns them into RPC errors and
:mod:`homophily_service.worker` into a job's error. No other module maps exceptions to codes.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from grpc import StatusCode


class FieldViolation(NamedTuple):
    """A field of the request, and what is wrong with it."""

    field: str
    description: str


class ServiceError(Exception):
    """The root: a code, a word for programs, a sentence for people."""

    code: ClassVar[StatusCode] = StatusCode.INTERNAL
    reason: str = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        violations: tuple[FieldViolation, ...] = (),
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.violations = violations
        self.retry_seconds = retry_seconds
        if reason is not None:
            self.reason = reason


class InvalidRequest(ServiceError):
    """A field is wrong: ``InvalidRequest("labels.points[3]", "is 12, but there are 10 points")``."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}", violations=(FieldViolation(field, description),))


class Unauthenticated(ServiceError):
    """No token, or an unknown one."""

    code = StatusCode.UNAUTHENTICATED
    reason = "NO_VALID_TOKEN"


class PermissionDenied(ServiceError):
    """The token is for other projects."""

    code = StatusCode.PERMISSION_DENIED
    reason = "OTHER_PROJECT"


class NotFound(ServiceError):
    """There is no resource of this name."""

    code = StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class AlreadyExists(ServiceError):
    """An id or a request_id is taken."""

    code = StatusCode.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class FailedPrecondition(ServiceError):
    """The request is valid, but not in the current state."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"


class LimitExceeded(ServiceError):
    """A limit was exceeded; the message states it."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "LIMIT_EXCEEDED"


class Unavailable(ServiceError):
    """A temporary failure: try again."""

    code = StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class DeviceFailed(Unavailable):
    """A GPU failed, and is lost to the process that used it; another process may compute the job."""

    reason = "DEVICE_FAILED"


class TimeLimit(ServiceError):
    """The time limit was reached."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = "TIME_LIMIT"


class DataLoss(ServiceError):
    """Stored bytes differ from those that were written; names the file."""

    code = StatusCode.DATA_LOSS
    reason = "DATA_LOSS"


class InternalError(ServiceError):
    """A bug in the service."""


def error_of_code(code: int, message: str, reason: str, violations: list[tuple[str, str]]) -> ServiceError:
    """The error that another process of the service sent as a message."""
    kind = next((kind for kind in ServiceError.__subclasses__() if kind.code.value[0] == code), InternalError)
    error = kind.__new__(kind)
    ServiceError.__init__(
        error, message, reason=reason, violations=tuple(FieldViolation(*violation) for violation in violations)
    )
    return error
