"""What differs between the asynchronous and the blocking client, written by hand for each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc

from homophily_client._pb import dataset_pb2

sleep = time.sleep
Outcome = TypeVar("Outcome")


def open_channel(
    target: str, credentials: grpc.ChannelCredentials | None, options: list[tuple[str, Any]]
) -> grpc.Channel:
    """Return a channel; it connects at the first call."""
    if credentials is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, credentials, options=options)


def closing(stream: Any) -> Any:
    """A context that closes a generator."""
    return contextlib.closing(stream)


def answered(call: Any) -> Any:
    """Return the answer of a call, which has been waited for already."""
    return call


def received(call: Any) -> Iterator[Any]:
    """Yield the answers of a streaming call."""
    yield from call


def send(
    method: Any, requests: Iterator[dataset_pb2.UploadDatasetRequest], metadata: Any
) -> dataset_pb2.UploadDatasetResponse:
    """Send a stream of requests; return the answer."""
    call = method.future(requests, metadata=metadata)
    try:
        answer: dataset_pb2.UploadDatasetResponse = call.result()
        return answer
    finally:
        # Does nothing unless this thread was interrupted.
        call.cancel()


def outcome(future: Future[Outcome]) -> Outcome:
    """Return what another thread computes."""
    return future.result()
