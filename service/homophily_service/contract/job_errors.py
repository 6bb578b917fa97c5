"""Errors of jobs as messages."""

from __future__ import annotations

from homophily_client._pb import job_pb2
from homophily_service.contract.errors import FieldViolation, InvalidRequest, ServiceError
from homophily_service.contract.values import field_of

# Long enough for people, short enough for a row of the database.
LONGEST_MESSAGE = 2000


def lost_too_often() -> bytes:
    """The serialised error of a job whose workers died too often."""
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
    """Turn the core's error about a parameter into one about the request's field. Only the job could find it."""
    sentence, parameter = str(error), getattr(error, "parameter", None)
    # Errors of scikit-learn itself name no parameter; they are about the points.
    field = field_of(parameter) if parameter else "points"
    refused = InvalidRequest(field, sentence)
    refused.violations = (FieldViolation(field, sentence),)
    return refused
