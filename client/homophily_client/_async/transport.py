"""What differs between the asynchronous and the blocking client, written by hand for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
import grpc.aio

from homophily_client._pb import dataset_pb2
from homophily_client.errors import ClientError

sleep = asyncio.sleep
Outcome = TypeVar("Outcome")


def open_channel(
    target: str, credentials: grpc.ChannelCredentials | None, options: list[tuple[str, Any]]
) -> grpc.aio.Channel:
    """Return a channel; it connects at the first call."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


def closing(stream: Any) -> Any:
    """A context that closes an asynchronous generator at once, rather than when it is collected."""
    return aclosing(stream)


async def answered(call: Any) -> Any:
    """Return the answer of a call."""
    try:
        return await call
    except asyncio.CancelledError:
        _raise_if_closed()
        raise


async def received(call: Any) -> AsyncIterator[Any]:
    """Yield the answers of a streaming call."""
    try:
        async for answer in call:
            yield answer
    except asyncio.CancelledError:
        _raise_if_closed()
        raise


def _raise_if_closed() -> None:
    """Raise an error if the channel was closed: that cancels its calls, but not the tasks that wait for them."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise ClientError("the client was closed during the call", code=grpc.StatusCode.CANCELLED) from None


async def send(
    method: Any, requests: AsyncIterator[dataset_pb2.UploadDatasetRequest], metadata: Any
) -> dataset_pb2.UploadDatasetResponse:
    """Send a stream of requests; return the answer."""
    call = method(requests, metadata=metadata)
    try:
        answer: dataset_pb2.UploadDatasetResponse = await answered(call)
        return answer
    finally:
        # Does nothing unless this task was cancelled.
        call.cancel()


async def outcome(future: Future[Outcome]) -> Outcome:
    """Return what another thread computes."""
    return await asyncio.wrap_future(future)
