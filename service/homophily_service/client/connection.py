"""The channel to the server: what goes along with every call, and when a call is tried again.

Every call may be sent twice without harm: jobs carry a request_id, uploads their offset, and the rest only reads or
has the same end however often it is asked for. So UNAVAILABLE is always tried again, for as long as we are patient.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

import grpc

from homophily_service._pb.homophily_service_pb2_grpc import HomophilyServiceStub
from homophily_service.client.errors import ClientError, NotFound, Unavailable, from_rpc
from homophily_service.client.tracing import traced

# Enough for a hiccup, short enough to notice a wrong address.
BRIEF_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

_OPTIONS = [
    # Long waits go through firewalls and load balancers that forget silent connections.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    # The default backs off to two minutes: a server that has come back should be found within seconds.
    # Not grpc.min_reconnect_backoff_ms: in spite of its name, it limits how long connecting may take.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

Request = TypeVar("Request")
Response = TypeVar("Response")


def is_unavailable(error: ClientError) -> bool:
    """True for what is always tried again."""
    return isinstance(error, Unavailable)


class Patience:
    """How long failures are waited out, counted from the first one since something last went well."""

    def __init__(self, seconds: Callable[[], float], passes: Callable[[ClientError], bool] = is_unavailable) -> None:
        self.seconds, self.passes = seconds, passes
        self.failures = 0
        self._since = 0.0

    def wait(self, error: ClientError) -> None:
        """Pause before the next attempt, or raise the error."""
        if not self.passes(error):
            raise error
        now = time.monotonic()
        if not self.failures:
            self._since = now
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.failures, 10)) * random.uniform(0.5, 1.0)
        pause = max(pause, error.retry_seconds or 0.0)
        if now + pause > self._since + self.seconds():
            raise error
        self.failures += 1
        time.sleep(pause)

    def renew(self) -> None:
        """Something went well."""
        self.failures = 0


class Connection:
    """A channel with its metadata. Threads may share it."""

    def __init__(
        self,
        target: str,
        *,
        token: str | None,
        credentials: grpc.ChannelCredentials | None,
        timeout: float,
        patience: float,
    ) -> None:
        self.timeout, self.patience = timeout, patience
        #: Whether there ever was a server: one that never was is not waited for.
        self.is_reached = False
        self._authorization = () if token is None else (("authorization", f"Bearer {token}"),)
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        self.stub = HomophilyServiceStub(traced(self._channel))

    def close(self) -> None:
        """Close the channel; calls under way end."""
        self._channel.close()

    def call(
        self,
        method: grpc.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout: float | None = None,
        patience: Patience | None = None,
    ) -> Response:
        """One call, tried again while the server cannot be reached."""
        patience = patience or self.brief()
        request_id = new_request_id()
        while True:
            try:
                answer = method(request, timeout=timeout or self.timeout, metadata=self.metadata(request_id))
            except grpc.RpcError as error:
                failure = self.failure(error, request_id)
            else:
                self.is_reached = True
                return answer
            patience.wait(failure)

    def delete(self, method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request) -> None:
        """A call that removes something."""
        patience = self.brief()
        try:
            self.call(method, request, patience=patience)
        except NotFound:
            # After a failed attempt this means that it was done, and its answer was lost.
            if not patience.failures:
                raise

    def stream(self, method: grpc.UnaryStreamMultiCallable[Request, Response], request: Request) -> Iterator[Response]:
        """The answers of one streaming call; whoever reads them knows where to go on after an error."""
        request_id = new_request_id()
        call = method(request, metadata=self.metadata(request_id))
        try:
            yield from call
            return
        except grpc.RpcError as error:
            failure = self.failure(error, request_id)
        finally:
            call.cancel()
        raise failure

    def brief(self) -> Patience:
        """For calls that somebody waits for."""
        return Patience(lambda: min(BRIEF_SECONDS, self.patience))

    def long(self, passes: Callable[[ClientError], bool] = is_unavailable, at_most: float = math.inf) -> Patience:
        """For work that is worth waiting for a server that was there before."""
        return Patience(
            lambda: min(self.patience if self.is_reached else BRIEF_SECONDS, self.patience, at_most), passes
        )

    def failure(self, error: grpc.RpcError, request_id: str) -> ClientError:
        """What a call failed with."""
        failure = from_rpc(error, request_id)
        # Only a server gives reasons; the channel's own errors have none.
        self.is_reached = self.is_reached or bool(failure.reason)
        return failure

    def metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        """What goes along with a call."""
        return (*self._authorization, ("x-request-id", request_id))


def new_request_id() -> str:
    """A key that nobody has."""
    return uuid.uuid4().hex
