"""The channel to the server: the metadata of every call, and retries.

Every call may safely be sent twice: jobs carry a request_id, uploads their offset, and all other calls only read or
are idempotent. So UNAVAILABLE is always retried, within the client's patience.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc

from homophily_client._async.transport import answered, closing, open_channel, received, send, sleep
from homophily_client._pb import dataset_pb2
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub
from homophily_client.errors import ClientError, NotFound, from_rpc
from homophily_client.retries import BRIEF_SECONDS, Patience, Retryable, is_unavailable
from homophily_client.tracing import span

OPTIONS: list[tuple[str, Any]] = [
    # Long waits go through firewalls and load balancers that drop silent connections.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    # The default backs off to two minutes, but a server that is back should be found within seconds.
    # Not grpc.min_reconnect_backoff_ms: in spite of its name, it limits how long connecting may take.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


class AsyncConnection:
    """A channel with its metadata."""

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
        #: Whether a server has ever answered; one that never did is not waited for.
        self.is_reached = False
        self._authorization = () if token is None else (("authorization", f"Bearer {token}"),)
        self._channel = open_channel(target, credentials, OPTIONS)
        # Typed for blocking channels only.
        self.stub: Any = HomophilyServiceStub(self._channel)  # type: ignore[arg-type,unused-ignore]

    async def close(self) -> None:
        """Close the channel; calls in flight end."""
        await self._channel.close()

    async def call(
        self, method: str, request: Any, *, timeout: float | None = None, patience: Patience | None = None
    ) -> Any:
        """Make one call, retried while the server cannot be reached."""
        patience = patience or self.brief()
        request_id = new_request_id()
        while True:
            try:
                with span(method) as traced:
                    answer = await answered(
                        getattr(self.stub, method)(
                            request, timeout=timeout or self.timeout, metadata=self._metadata(request_id, traced)
                        )
                    )
            except grpc.RpcError as error:
                failure = self._failure(error, request_id)
            else:
                self.is_reached = True
                return answer
            await sleep(patience.pause(failure))

    async def delete(self, method: str, request: Any, timeout: float | None) -> None:
        """Make a call that removes something."""
        patience = self.brief()
        try:
            await self.call(method, request, timeout=timeout, patience=patience)
        except NotFound:
            # After a failed attempt this means that the attempt succeeded, and its answer was lost.
            if not patience.failures:
                raise

    async def stream(self, method: str, request: Any) -> AsyncIterator[Any]:
        """Yield the answers of one streaming call; the caller knows where to continue after an error."""
        request_id = new_request_id()
        try:
            with span(method) as traced:
                call = getattr(self.stub, method)(request, metadata=self._metadata(request_id, traced))
                try:
                    async with closing(received(call)) as answers:
                        async for answer in answers:
                            yield answer
                finally:
                    call.cancel()
        except grpc.RpcError as error:
            failure = self._failure(error, request_id)
        else:
            return
        raise failure

    async def upload(
        self, requests: AsyncIterator[dataset_pb2.UploadDatasetRequest]
    ) -> dataset_pb2.UploadDatasetResponse:
        """Send one stream of requests. No deadline: keepalive notices a dead connection."""
        request_id = new_request_id()
        try:
            with span("UploadDataset") as traced:
                return await send(self.stub.UploadDataset, requests, self._metadata(request_id, traced))
        except grpc.RpcError as error:
            failure = self._failure(error, request_id)
        raise failure

    def brief(self) -> Patience:
        """Patience for calls that should fail soon."""
        return Patience(lambda: min(BRIEF_SECONDS, self.patience))

    def long(self, retryable: Retryable = is_unavailable, at_most: float = math.inf) -> Patience:
        """Patience for calls that wait for a server that has answered before."""
        return Patience(
            lambda: min(self.patience if self.is_reached else BRIEF_SECONDS, self.patience, at_most), retryable
        )

    def _failure(self, error: grpc.RpcError, request_id: str) -> ClientError:
        failure = from_rpc(error, request_id)
        # Only a server gives reasons; the channel's own errors have none.
        self.is_reached = self.is_reached or bool(failure.reason)
        return failure

    def _metadata(self, request_id: str, traced: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return (*self._authorization, ("x-request-id", request_id), *traced)


def new_request_id() -> str:
    """Return an unused key."""
    return uuid.uuid4().hex
