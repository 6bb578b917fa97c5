"""How a command ends when something is wrong: a sentence and an exit code."""

from __future__ import annotations

# The codes, as the end of `homophily --help` lists them.
FAILED, WRONG_USAGE, UNREACHABLE, NOT_FOUND, NOT_ALLOWED, INTERRUPTED = 1, 2, 3, 4, 5, 130


class WrongInput(ValueError):
    """A file or an option is wrong; the message names it."""


def explained(error: Exception) -> tuple[str, int] | None:
    """The sentence and the code of an error; None for a bug."""
    # Imported late: every command loads this module, and gRPC takes a while.
    from homophily_client import errors as client
    from homophily_service.contract.errors import InvalidRequest, ServiceError

    if isinstance(error, client.ClientError):
        return _sentence(error), _code(error)
    if isinstance(error, ServiceError):
        return error.message, WRONG_USAGE if isinstance(error, InvalidRequest) else FAILED
    if isinstance(error, ValueError | TypeError):
        # The client refuses it before anything is sent.
        return str(error), WRONG_USAGE
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED
    return None


def _code(error: Exception) -> int:
    from homophily_client import errors as client

    if isinstance(error, client.InvalidArgument | client.AlreadyExists):
        return WRONG_USAGE
    if isinstance(error, client.Unavailable | client.DeadlineExceeded):
        return UNREACHABLE
    if isinstance(error, client.NotFound):
        return NOT_FOUND
    if isinstance(error, client.Unauthenticated | client.PermissionDenied):
        return NOT_ALLOWED
    return FAILED


def _sentence(error: Exception) -> str:
    from homophily_client import errors as client

    assert isinstance(error, client.ClientError)
    parts = [error.message]
    # The service's sentences begin with the field; a proxy's or an older server's may not.
    parts += [f"{one.field}: {one.description}" for one in error.violations if one.field not in error.message]
    sentence = "; ".join(parts)
    if error.code.name == "UNIMPLEMENTED":
        return f"This version of the service cannot do that: {sentence}"
    if isinstance(error, client.Unavailable):
        # gRPC's message has a long prefix.
        sentence = sentence.rpartition("last error: UNKNOWN: ")[2]
        return f"The service cannot be reached: {sentence}. Is it running (homophily serve), and is --target right?"
    if type(error) is client.ClientError and error.request_id and error.code.name in ("INTERNAL", "UNKNOWN"):
        return f"{sentence} (request {error.request_id} in the service's log)"
    return sentence
