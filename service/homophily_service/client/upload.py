"""Sending points: in chunks, hashed on the way, going on where a broken connection stopped."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import grpc

from homophily_service._pb import dataset_pb2 as pb
from homophily_service.client.connection import Connection, is_unavailable, new_request_id
from homophily_service.client.errors import ClientError, NotFound
from homophily_service.client.points import Points

CHUNK_BYTES = 1 << 20

Progress = Callable[[int, int], object]

# What the server had was not what it told: an earlier connection was still at work. Ask again.
_ASK_AGAIN = ("WRONG_OFFSET", "INCOMPLETE")


class Upload:
    """One upload, over as many connections as it takes."""

    def __init__(
        self, connection: Connection, start: pb.UploadStart, points: Points, progress: Progress | None = None
    ) -> None:
        self.connection, self.start, self.points, self.progress = connection, start, points, progress
        self._digest = hashlib.sha256()
        self._hashed = 0
        # The sender of a broken connection may take its time to end, and hash on while the next one begins. Both
        # hash the same bytes, so it is enough that they do not do it at once.
        self._hashing = threading.Lock()
        self._broken: BaseException | None = None

    def run(self, *, resume: bool = False) -> pb.Dataset:
        """Send what the server does not have, until it has made the dataset.

        ``resume`` says that an earlier run may have begun it.
        """
        received = self._received() if resume else 0
        patience = self.connection.long(lambda error: is_unavailable(error) or error.reason in _ASK_AGAIN)
        while True:
            try:
                return self._send(received)
            except ClientError as error:
                failure = error
            patience.wait(failure)
            before, received = received, self._received()
            if received > before:
                patience.renew()

    def _received(self) -> int:
        request = pb.GetUploadRequest(parent=self.start.parent, upload_id=self.start.upload_id)
        try:
            answer = self.connection.call(self.connection.stub.GetUpload, request, patience=self.connection.long())
        except NotFound:
            return 0
        return answer.received_bytes

    def _send(self, received: int) -> pb.Dataset:
        """One connection's attempt."""
        request_id = new_request_id()
        # No deadline: large data takes what it takes, and keepalive notices a dead connection.
        call = self.connection.stub.UploadDataset.future(
            self._requests(received), metadata=self.connection.metadata(request_id)
        )
        try:
            return call.result().dataset
        except grpc.RpcError as error:
            failure = self.connection.failure(error, request_id)
        finally:
            # Only an interrupt leaves something to cancel here.
            call.cancel()
        if self._broken is not None:
            raise self._broken
        raise failure

    def _requests(self, received: int) -> Iterator[pb.UploadDatasetRequest]:
        """The messages, made one at a time by the channel's own thread."""
        try:
            yield pb.UploadDatasetRequest(start=self.start)
            # The channel asks for the next message when it has sent the last one.
            self.connection.is_reached = True
            self._hash_skipped(received)
            for chunk in self._chunks(received):
                yield pb.UploadDatasetRequest(chunk=chunk)
                if self.progress is not None:
                    self.progress(chunk.offset + len(chunk.data), self.points.bytes)
            yield pb.UploadDatasetRequest(end=pb.UploadEnd(sha256=self._digest.digest()))
        except Exception as error:
            # gRPC would log it and answer UNKNOWN; the caller wants the error itself.
            self._broken = error

    def _chunks(self, received: int) -> Iterator[pb.UploadChunk]:
        """The chunks; each is read and hashed while the channel sends the one before."""
        with ThreadPoolExecutor(1, "chunks") as ahead:
            current: Future[pb.UploadChunk] | None = None
            for start in range(received, self.points.bytes, CHUNK_BYTES):
                current, last = ahead.submit(self._chunk, start), current
                if last is not None:
                    yield last.result()
            if current is not None:
                yield current.result()

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
