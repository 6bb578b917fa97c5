"""A job's error as its message."""

from __future__ import annotations

from homophily_client._pb import job_pb2
from homophily_service.contract.errors import FieldViolation, InvalidRequest, ServiceError
from homophily_service.contract.values import field_of

# What a person can read, and a database row can hold.
LONGEST_MESSAGE = 2000


def lost_too_often() -> bytes:
    """The serialised error of a job whose workers do not survive it."""
    error = ServiceError("the process that computed it was lost too often", reason="TOO_MANY_ATTEMPTS")
    return job_error(error).SerializeToString()


def job_error(error: ServiceError) -> job_pb2.JobError:
    """The message of an error."""
    code: int = error.code.value[0]
    violations = [
        job_pb2.JobFieldViolation(field=field, description=description[:LONGEST_MESSAGE])
        for field, description in error.violations[:20]
    ]
    return job_pb2.JobError(
        code=code, reason=error.reason, message=error.message[:LONGEST_MESSAGE], field_violations=violations
    )


def refusal(error: ValueError) -> ServiceError:
    """The core's refusal as the request's: what only the job could find out."""
    sentence, parameter = str(error), getattr(error, "parameter", None)
    # What scikit-learn refuses itself, without a name, are the points.
    field = field_of(parameter) if parameter else "points"
    refused = InvalidRequest(field, sentence)
    refused.violations = (FieldViolation(field, sentence),)
    return refused
