"""Sending points: in chunks, hashed on the way, resumed where a broken connection stopped."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor

import grpc

from homophily_client._async.connection import AsyncConnection
from homophily_client._async.transport import outcome, sleep
from homophily_client._pb import dataset_pb2 as pb
from homophily_client.errors import ClientError, NotFound
from homophily_client.points import Points
from homophily_client.retries import is_unavailable

CHUNK_BYTES = 1 << 20

Progress = Callable[[int, int], object]

# An earlier connection was still active when the server reported how much it had: ask again.
_ASK_AGAIN = ("WRONG_OFFSET", "INCOMPLETE")


def _is_resumable(error: ClientError) -> bool:
    # gRPC's asyncio calls report a chunk written after the server ended the call as INTERNAL, instead of the server's
    # own status; the server gives every error a reason.
    is_lost_status = error.code is grpc.StatusCode.INTERNAL and not error.reason
    return is_unavailable(error) or is_lost_status or error.reason in _ASK_AGAIN


class AsyncUpload:
    """One upload, over as many connections as it takes."""

    def __init__(
        self, connection: AsyncConnection, start: pb.UploadStart, points: Points, progress: Progress | None = None
    ) -> None:
        self.connection, self.start, self.points, self.progress = connection, start, points, progress
        self._digest = hashlib.sha256()
        self._hashed = 0
        # The sender of a broken connection may still be hashing while the next one starts. Both hash the same bytes,
        # so a lock is enough.
        self._hashing = threading.Lock()
        self._broken: BaseException | None = None

    async def run(self, *, resume: bool = False) -> pb.Dataset:
        """Send what the server lacks, until it has made the dataset; ``resume`` continues an earlier run."""
        received = await self._received() if resume else 0
        patience = self.connection.long(_is_resumable)
        while True:
            try:
                return (await self.connection.upload(self._requests(received))).dataset
            except ClientError as error:
                failure = error
            if self._broken is not None:
                raise self._broken
            await sleep(patience.pause(failure))
            before, received = received, await self._received()
            if received > before:
                patience.renew()

    async def _received(self) -> int:
        request = pb.GetUploadRequest(parent=self.start.parent, upload_id=self.start.upload_id)
        try:
            answer = await self.connection.call("GetUpload", request, patience=self.connection.long())
        except NotFound:
            return 0
        return int(answer.received_bytes)

    async def _requests(self, received: int) -> AsyncIterator[pb.UploadDatasetRequest]:
        """The messages, made as the channel asks for them."""
        try:
            yield pb.UploadDatasetRequest(start=self.start)
            # The channel asks for the next message when it has sent the last one.
            self.connection.is_reached = True
            async for chunk in self._chunks(received):
                yield pb.UploadDatasetRequest(chunk=chunk)
                if self.progress is not None:
                    self.progress(chunk.offset + len(chunk.data), self.points.bytes)
            yield pb.UploadDatasetRequest(end=pb.UploadEnd(sha256=self._digest.digest()))
        except Exception as error:
            # gRPC would log it and report UNKNOWN; the caller needs the error itself.
            self._broken = error

    async def _chunks(self, received: int) -> AsyncIterator[pb.UploadChunk]:
        """The chunks; each is read and hashed while the channel sends the one before."""
        ahead = ThreadPoolExecutor(1, "chunks")
        try:
            await outcome(ahead.submit(self._hash_skipped, received))
            current: Future[pb.UploadChunk] | None = None
            for start in range(received, self.points.bytes, CHUNK_BYTES):
                current, last = ahead.submit(self._chunk, start), current
                if last is not None:
                    yield await outcome(last)
            if current is not None:
                yield await outcome(current)
        finally:
            # Do not wait: a chunk may be read from a slow disk.
            ahead.shutdown(wait=False, cancel_futures=True)

    def _chunk(self, start: int) -> pb.UploadChunk:
        data = self.points.read(start, min(start + CHUNK_BYTES, self.points.bytes))
        self._hash(start, data)
        return pb.UploadChunk(offset=start, data=bytes(data))

    def _hash(self, start: int, data: bytes) -> None:
        with self._hashing:
            fresh = memoryview(data)[max(0, self._hashed - start) :]
            self._digest.update(fresh)
            self._hashed += len(fresh)

    def _hash_skipped(self, received: int) -> None:
        """Hash what an earlier run has sent."""
        for start in range(self._hashed, received, CHUNK_BYTES):
            self._hash(start, self.points.read(start, min(start + CHUNK_BYTES, received)))
