"""What differs between the asynchronous and the blocking client, written by hand for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc
import grpc.aio

from homophily_client._pb import dataset_pb2

sleep = asyncio.sleep
Outcome = TypeVar("Outcome")


def open_channel(
    target: str, credentials: grpc.ChannelCredentials | None, options: list[tuple[str, Any]]
) -> grpc.aio.Channel:
    """Return a channel; it connects at the first call."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


async def send(
    method: Any, requests: AsyncIterator[dataset_pb2.UploadDatasetRequest], metadata: Any
) -> dataset_pb2.UploadDatasetResponse:
    """Send a stream of requests; return the answer."""
    call = method(requests, metadata=metadata)
    try:
        answer: dataset_pb2.UploadDatasetResponse = await call
        return answer
    finally:
        # Does nothing unless this task was cancelled.
        call.cancel()


async def outcome(future: Future[Outcome]) -> Outcome:
    """Return what another thread computes."""
    return await asyncio.wrap_future(future)
