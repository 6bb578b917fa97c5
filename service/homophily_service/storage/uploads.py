"""Uploads: bytes go into .npy files of a staging folder as they arrive, and become a dataset when all are there.

A staging folder belongs to one machine: an upload is resumed on the server where it began.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from homophily_client._pb import dataset_pb2
from homophily_client.names import DatasetName, new_id
from homophily_service.contract.arrays import Limits, Part, check_csr, check_finite, parts_of, strings_from_parts
from homophily_service.contract.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    ServiceError,
    Unavailable,
)
from homophily_service.contract.names import check_id
from homophily_service.contract.tables import check_no_infinity, check_strings, string_kinds
from homophily_service.runtime.settings import Settings
from homophily_service.storage.blobs.backends import storage_errors
from homophily_service.storage.blobs.objects import ONE_HEADER_AT_A_TIME
from homophily_service.storage.quotas import check_bytes, forget_uploads, lock_quota, release_upload, reserve_upload
from homophily_service.storage.stores import Stores

START = "start.binpb"
LONGEST_DESCRIPTION = 1000
# Bytes after which files are synced to disk, so that little is left to write at the end.
SYNC_BYTES = 1 << 25
GRACE_SECONDS = 3600.0


def limits_of(settings: Settings) -> Limits:
    """How large a dataset may be."""
    return Limits(settings.max_points, settings.max_dimensions, settings.max_dataset_bytes)


class Uploads:
    """The uploads under way on this machine."""

    def __init__(self, settings: Settings, stores: Stores) -> None:
        self.root = (settings.data_dir / "uploads").resolve()
        self.settings, self.stores, self.limits = settings, stores, limits_of(settings)
        self._open: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @storage_errors("upload")
    def received(self, project: str, upload_id: str) -> tuple[int, int]:
        """Bytes received and bytes in all, or NotFound."""
        folder = self._folder(project, check_id(upload_id, "upload_id"))
        try:
            start = dataset_pb2.UploadStart.FromString(_read_start(folder))
            parts = parts_of(start.shape, self.limits, "start.shape")
            return _staged_bytes(folder, parts), sum(part.bytes for part in parts)
        except FileNotFoundError:
            done = self._made(project, upload_id)
            if done is None:
                raise NotFound(f"there is no upload {upload_id} in project {project}") from None
            return done.size_bytes, done.size_bytes

    @contextmanager
    def begin(self, project: str, start: dataset_pb2.UploadStart) -> Iterator[Upload]:
        """An upload, new or resumed. Only one connection at a time may write to it."""
        upload_id = check_id(start.upload_id, "start.upload_id") if start.upload_id else new_id()
        dataset_id = check_id(start.dataset_id, "start.dataset_id") if start.dataset_id else upload_id
        if len(start.description) > LONGEST_DESCRIPTION:
            raise InvalidRequest("start.description", f"must be at most {LONGEST_DESCRIPTION} characters")
        parts = parts_of(start.shape, self.limits, "start.shape")
        with storage_errors(f"upload {upload_id}"), self._locked(project, upload_id):
            name = DatasetName(project, dataset_id)
            finished = self._existing(name, upload_id, start)
            folder = self._folder(project, upload_id)
            limits = self.settings.limits_of(project)
            assert limits.max_uploads is not None
            if finished is None:
                size = sum(part.bytes for part in parts)
                with self.stores.database.write() as connection:
                    lock_quota(connection, project)
                    reserve_upload(connection, project, upload_id, size, limits.max_project_bytes, limits.max_uploads)
                self._stage(folder, start, parts)
            upload = Upload(self.stores, name, upload_id, start, parts, folder, finished, limits.max_project_bytes)
            try:
                yield upload
            finally:
                upload.close()

    @contextmanager
    def _locked(self, project: str, upload_id: str) -> Iterator[None]:
        """Lock an upload; Unavailable while another call has it."""
        key = (project, upload_id)
        with self._lock:
            if key in self._open:
                raise Unavailable(f"upload {upload_id} is being sent by another connection", retry_seconds=2.0)
            self._open.add(key)
        try:
            yield
        finally:
            self._open.discard(key)

    def sweep(self, older_than_seconds: float) -> int:
        """Remove abandoned uploads; returns how many."""
        swept = 0
        for folder in self.root.glob("*/*"):
            with suppress(Unavailable, FileNotFoundError), self._locked(folder.parent.name, folder.name):
                touched = max(path.stat().st_mtime for path in [folder, *folder.iterdir()])
                if time.time() - touched > older_than_seconds:
                    shutil.rmtree(folder, ignore_errors=True)
                    swept += 1
        # By the database's clock, and a little later, so that every upload whose bytes are still here is counted.
        forget_uploads(self.stores.database, older_than_seconds + GRACE_SECONDS)
        return swept

    def _folder(self, project: str, upload_id: str) -> Path:
        folder = self.root / project / upload_id
        if folder.resolve() != folder:
            raise DataLoss(f"uploads/{project}/{upload_id} is a symbolic link")
        return folder

    def _made(self, project: str, upload_id: str) -> dataset_pb2.Dataset | None:
        """The dataset that an upload made already; None if it has not."""
        row = self.stores.catalog.of_upload(project, upload_id)
        return None if row is None else dataset_pb2.Dataset.FromString(row.message)

    def _existing(
        self, name: DatasetName, upload_id: str, start: dataset_pb2.UploadStart
    ) -> dataset_pb2.Dataset | None:
        """The dataset, if this upload made it already; AlreadyExists if another upload did."""
        made = self._made(name.project, upload_id)
        if made is None and self.stores.catalog.has(name):
            raise AlreadyExists(f"{name} exists")
        if made is not None and (made.name != str(name) or made.shape != start.shape):
            raise AlreadyExists(f"upload {upload_id} was begun with another start")
        return made

    def _stage(self, folder: Path, start: dataset_pb2.UploadStart, parts: list[Part]) -> None:
        if (folder / START).exists():
            if _read_start(folder) != _described(start):
                raise AlreadyExists(f"upload {start.upload_id} was begun with another start")
            return
        folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            with _open(folder / f"{part.name}.npy", "wb") as file:
                header = {"descr": npy.dtype_to_descr(part.dtype), "fortran_order": False, "shape": part.shape}
                npy.write_array_header_1_0(file, header)
        # Last, so that a folder with a start has all its files.
        _write_start(folder, start)


class Upload:
    """One connection's writing to an upload. Its methods block; call them from a thread."""

    def __init__(
        self,
        stores: Stores,
        name: DatasetName,
        upload_id: str,
        start: dataset_pb2.UploadStart,
        parts: list[Part],
        folder: Path,
        finished: dataset_pb2.Dataset | None,
        most: int | None = None,
    ) -> None:
        self.stores, self.name, self.upload_id, self.most = stores, name, upload_id, most
        self.start, self.parts, self.folder, self.finished = start, parts, folder, finished
        self.total = sum(part.bytes for part in parts)
        self._files: list[IO[bytes]] = []
        self._digest = hashlib.sha256()
        # Each chunk is hashed twice, for the sender and for its file: at the same time, as hashing releases the GIL.
        self._pool = ThreadPoolExecutor(2, "upload")
        self._syncing: Future[None] | None = None
        self._file_digests = [hashlib.sha256() for _ in parts]
        self.received = self.total if finished is not None else self._reopen()

    @storage_errors("upload")
    def write(self, offset: int, data: bytes) -> None:
        """Take the next bytes."""
        if offset != self.received:
            raise FailedPrecondition(
                f"the chunk starts at {offset}, but {self.received} bytes are here: continue from there (GetUpload)",
                reason="WRONG_OFFSET",
            )
        if offset + len(data) > self.total:
            raise InvalidRequest("chunk.data", f"goes beyond the {self.total} bytes that start.shape implies")
        if not data:
            return
        hashed = self._pool.submit(self._digest.update, data)
        view = memoryview(data)
        begins = 0
        for part, file, digest in zip(self.parts, self._files, self._file_digests, strict=True):
            piece = view[max(0, begins - offset) : max(0, begins + part.bytes - offset)]
            if piece and begins + part.bytes > offset:
                self._check(part, max(offset, begins) - begins, piece)
                file.write(piece)
                digest.update(piece)
                self._sync_if_due(file, len(piece))
            begins += part.bytes
        hashed.result()
        self.received += len(data)

    @storage_errors("upload")
    def finish(self, sha256: bytes) -> dataset_pb2.Dataset:
        """Make the dataset."""
        if self.finished is not None:
            if sha256 != self.finished.sha256:
                raise AlreadyExists(f"{self.name} exists with other bytes")
            return self.finished
        if self.received != self.total:
            raise FailedPrecondition(
                f"{self.received} of {self.total} bytes are here: continue from there", reason="INCOMPLETE"
            )
        if sha256 != self._digest.digest():
            self.discard()
            raise InvalidRequest(
                "end.sha256", "does not match the bytes received, which were discarded: send all again"
            )
        self._synced()
        self.close()
        self._check_together()
        digests = zip(self.parts, self._file_digests, strict=True)
        return publish_dataset(
            self.stores,
            self.name,
            self.start,
            sha256,
            self.total,
            folder=self.folder,
            digests={part.name: digest.hexdigest() for part, digest in digests},
            upload_id=self.upload_id,
            most=self.most,
        )

    def discard(self) -> None:
        """Delete the bytes."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        with self.stores.database.write() as connection:
            release_upload(connection, self.name.project, self.upload_id)

    def close(self) -> None:
        """Close the files; what is in them stays."""
        self._pool.shutdown()
        for file in self._files:
            file.close()
        self._files = []

    def _sync_if_due(self, file: IO[bytes], written: int) -> None:
        if self.received // SYNC_BYTES < (self.received + written) // SYNC_BYTES:
            self._synced()
            self._syncing = self._pool.submit(os.fdatasync, file.fileno())

    def _synced(self) -> None:
        """Raise errors of the syncs so far: the system reports each only once."""
        if self._syncing is not None:
            self._syncing.result()

    def _reopen(self) -> int:
        """Open the files at their ends, and compute the digests of what is in them."""
        received = _staged_bytes(self.folder, self.parts)
        left = received
        for part, digest in zip(self.parts, self._file_digests, strict=True):
            file = _open(self.folder / f"{part.name}.npy", "r+b")
            self._files.append(file)
            begins = _after_header(file)
            file.seek(0)
            digest.update(file.read(begins))
            size = min(left, part.bytes)
            for _ in range(0, size, 1 << 20):
                data = file.read(min(1 << 20, begins + size - file.tell()))
                self._digest.update(data)
                digest.update(data)
            file.truncate(begins + size)
            left -= size
        return received

    def _check(self, part: Part, offset: int, data: memoryview) -> None:
        """Refuse infinity, and NaN unless it is a table's, as they come, element by element."""
        size = part.dtype.itemsize
        # Elements that are split between two chunks are checked later, by the job.
        skip = -offset % size
        elements = data[skip : skip + (len(data) - skip) // size * size]
        if part.dtype.kind == "f" and elements:
            try:
                check = check_no_infinity if self.start.shape.HasField("schema") else check_finite
                check(np.frombuffer(elements, dtype=part.dtype), "chunk.data", (offset + skip) // size)
            except InvalidRequest:
                self.discard()
                raise

    def _check_together(self) -> None:
        """Refuse arrays that do not fit together."""
        shape = self.start.shape
        staged = {part.name: self._staged(part.name) for part in self.parts}
        try:
            if shape.WhichOneof("layout") == "csr":
                values, columns, starts = staged.values()
                check_csr(values, columns, starts, shape.csr.columns, "csr")
            found = zip(strings_from_parts(staged, shape), string_kinds(shape.schema), strict=True)
            for place, (strings, kind) in enumerate(found):
                check_strings(strings, shape.dense.rows, kind, f"strings[{place}]")
        except InvalidRequest:
            self.discard()
            raise

    def _staged(self, name: str) -> NDArray[Any]:
        with ONE_HEADER_AT_A_TIME:
            array: NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return array


def publish_dataset(
    stores: Stores,
    name: DatasetName,
    start: dataset_pb2.UploadStart,
    sha256: bytes,
    size: int,
    *,
    folder: Path | None = None,
    digests: dict[str, str] | None = None,
    arrays: dict[str, Any] | None = None,
    upload_id: str | None = None,
    most: int | None = None,
) -> dataset_pb2.Dataset:
    """Store the arrays, from a staging folder or from memory, and record the dataset.

    LimitExceeded if the project would have more than ``most`` bytes: other uploads may have finished first.
    """
    path = f"datasets/{name.project}/{name.id}/{new_id()}"
    if folder is not None:
        (folder / START).unlink()
        try:
            stores.blobs.adopt(folder, path, {"sha256": sha256.hex()}, digests)
        except ServiceError:
            # The files are unchanged, and the end can be sent again.
            _write_start(folder, start)
            raise
    else:
        stores.blobs.write(path, arrays or {}, {"sha256": sha256.hex()})
    dataset = dataset_pb2.Dataset(
        name=str(name), shape=start.shape, sha256=sha256, size_bytes=size, description=start.description
    )
    dataset.create_time.GetCurrentTime()
    try:
        with stores.database.write() as connection:
            if most is not None:
                lock_quota(connection, name.project)
                check_bytes(connection, name.project, size, most, upload_id or "")
            if upload_id is not None:
                release_upload(connection, name.project, upload_id)
            stores.catalog.add(connection, name, dataset.SerializeToString(), path, upload_id=upload_id, size=size)
    except LimitExceeded:
        stores.blobs.delete(path)
        raise
    return dataset


def _open(path: Path, mode: str) -> IO[bytes]:
    """Open a file that is not a symbolic link."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    file: IO[bytes] = open(path, mode, opener=opener)  # noqa: SIM115
    return file


def _described(start: dataset_pb2.UploadStart) -> bytes:
    return start.SerializeToString(deterministic=True)


def _read_start(folder: Path) -> bytes:
    with _open(folder / START, "rb") as file:
        return file.read()


def _write_start(folder: Path, start: dataset_pb2.UploadStart) -> None:
    """Write down what is uploaded, in one step."""
    unfinished = folder / f"{START}.tmp"
    unfinished.write_bytes(_described(start))
    unfinished.replace(folder / START)


def _after_header(file: IO[bytes]) -> int:
    """Where the array begins in a file of ours, whose header is known."""
    npy.read_magic(file)
    length = int.from_bytes(file.read(2), "little")
    return file.tell() + length


def _staged_bytes(folder: Path, parts: list[Part]) -> int:
    """How many bytes of an upload are in its folder, from the first without a gap."""
    received = 0
    for part in parts:
        with _open(folder / f"{part.name}.npy", "rb") as file:
            header = _after_header(file)
            present = min(part.bytes, file.seek(0, 2) - header)
        received += present
        if present < part.bytes:
            break
    return received
