"""A bucket as a backend of stored objects: S3 and stores that speak its protocol, Google, Azure."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from homophily_service.contract.errors import DataLoss
from homophily_service.storage.blobs.backends import (
    MANIFEST,
    Backend,
    Contents,
    Entry,
    ReadRange,
    StoredFile,
    check_manifest_size,
    check_size,
    open_file,
    open_folder,
    storage_errors,
)

# Waiting three minutes for a bucket, as obstore does by default, is longer than callers wait.
RETRY_SECONDS = 30.0
# A request of obstore may take 30 s in all, body included: files go in parts that a slow line manages in that time.
_PART_BYTES = 16 << 20
_MAX_PARTS = 10_000
# The bytes of one read when a file is only hashed.
_RANGE_BYTES = 1 << 20


def _space(size: int) -> NDArray[np.uint8]:
    """Return a buffer for a file's bytes, aligned for arrays; a large one is on disk, as many may be read at a time."""
    if size <= _PART_BYTES:
        return np.empty(size, np.uint8)
    with tempfile.TemporaryFile(prefix="homophily-") as file:
        return np.memmap(file, np.uint8, "w+", shape=(size,))


# S3 itself copies up to 5 GB, and is given 30 s for it.
_COPY_BYTES = 1 << 30


# What S3, Azure and Google answer if the bucket itself is missing.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")

SCHEMES = ("s3", "gs", "az")
BUCKET_URLS = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"


class Bucket(Backend):
    """A bucket that supports conditional puts (If-None-Match).

    A file's key contains a part of its digest, so that two writers of one path do not overwrite each other's files
    before one of them publishes. Parts of an upload that was killed are for a lifecycle rule of the bucket to remove
    (AbortIncompleteMultipartUpload): obstore cannot list them.
    """

    def __init__(self, url: str) -> None:
        try:
            # No client_options: giving any makes obstore ignore those of the environment, such as AWS_ALLOW_HTTP.
            self._store = from_url(url, retry_config={"retry_timeout": timedelta(seconds=RETRY_SECONDS)})
        except BaseError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"A bucket must be given as {BUCKET_URLS}, with its credentials in the environment. Got {url} instead: "
                f"{reason}"
            ) from error

    def manifest(self, path: str) -> bytes | None:
        """See Backend."""
        with storage_errors(path):
            try:
                result = self._store.get(f"{path}/{MANIFEST}")
            except FileNotFoundError as error:
                if any(words in str(error) for words in _NO_BUCKET):
                    raise
                return None
            check_manifest_size(path, result.meta["size"])
            return result.bytes().to_bytes()

    def fetch(self, path: str, file: StoredFile) -> tuple[str, NDArray[np.uint8]]:
        """See Backend."""
        key, shown = self._key(path, file), f"{path}/{file.name}"
        with storage_errors(path):
            try:
                result = self._store.get(key)
                check_size(shown, file, result.meta["size"])
                content = _space(file.bytes)
                for start in range(0, file.bytes, _PART_BYTES):
                    length = min(_PART_BYTES, file.bytes - start)
                    is_complete = length == file.bytes
                    part = result.bytes() if is_complete else self._store.get_range(key, start=start, length=length)
                    content[start : start + length] = np.frombuffer(memoryview(part), np.uint8)
            except FileNotFoundError as error:
                raise DataLoss(f"{shown} is missing") from error
        content.flags.writeable = False
        return hashlib.sha256(content.data).hexdigest(), content

    def ranges(self, path: str, file: StoredFile) -> tuple[str, ReadRange]:
        """See Backend."""
        key, shown = self._key(path, file), f"{path}/{file.name}"

        def read(start: int, stop: int) -> memoryview:
            with storage_errors(path):
                try:
                    return memoryview(self._store.get_range(key, start=start, end=stop))
                except FileNotFoundError as error:
                    raise DataLoss(f"{shown} is missing") from error

        digest = hashlib.sha256()
        with storage_errors(path):
            try:
                check_size(shown, file, self._store.head(key)["size"])
            except FileNotFoundError as error:
                raise DataLoss(f"{shown} is missing") from error
        for start in range(0, file.bytes, _RANGE_BYTES):
            digest.update(read(start, min(file.bytes, start + _RANGE_BYTES)))
        return digest.hexdigest(), read

    def publish(self, path: str, manifest: bytes, files: Contents) -> bool:
        """See Backend."""
        with storage_errors(path):
            for file, pieces in files:
                self._put(path, file, (p[i : i + _PART_BYTES] for p in pieces for i in range(0, len(p), _PART_BYTES)))
            return self._put_manifest(path, manifest)

    def adopt(self, folder: Path, path: str, manifest: bytes, files: Sequence[StoredFile]) -> bool:
        """See Backend."""
        with storage_errors(path), ExitStack() as stack:
            within = open_folder(folder)
            stack.callback(os.close, within)
            for file in files:
                with open_file(file.name, within, f"{folder}/{file.name}") as opened:
                    self._put(path, file, iter(partial(opened.read, _PART_BYTES), b""))
            return self._put_manifest(path, manifest)

    def _put(self, path: str, file: StoredFile, pieces: Iterable[memoryview | bytes]) -> None:
        if file.bytes <= _PART_BYTES:
            self._store.put(self._key(path, file), b"".join(pieces))
        else:
            part = max(_PART_BYTES, -(-file.bytes // _MAX_PARTS))
            self._store.put(self._key(path, file), pieces, use_multipart=True, chunk_size=part, max_concurrency=4)

    def _put_manifest(self, path: str, manifest: bytes) -> bool:
        try:
            self._store.put(f"{path}/{MANIFEST}", manifest, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        """See Backend."""
        with storage_errors(path):
            self._store.delete(f"{path}/{MANIFEST}")
            if names := self._directly_in(path):
                self._store.delete([f"{path}/{name}" for name in names])

    def move(self, source: str, target: str) -> bool:
        """See Backend. The manifest is copied last and deleted first."""
        with storage_errors(source):
            items = self._directly_in(source)
            if not items or self.manifest(target) is not None:
                return False
            try:
                for name, size in items.items():
                    if name != MANIFEST:
                        self._copy(f"{source}/{name}", f"{target}/{name}", size)
                manifest = self.manifest(source)
            except FileNotFoundError:
                return False  # another process has moved it in the meantime
            if MANIFEST in items and (manifest is None or not self._put_manifest(target, manifest)):
                return False
            self.delete(source)
            return True

    def _copy(self, source: str, target: str, size: int) -> None:
        if size <= _COPY_BYTES:
            self._store.copy(source, target)
            return
        part = max(_PART_BYTES, -(-size // _MAX_PARTS))
        # In another thread: obstore cannot be called while it asks for the next piece.
        with ThreadPoolExecutor(1) as reader:

            def piece(start: int) -> memoryview:
                length = min(_PART_BYTES, size - start)
                return memoryview(reader.submit(self._store.get_range, source, start=start, length=length).result())

            pieces = map(piece, range(0, size, _PART_BYTES))
            self._store.put(target, pieces, use_multipart=True, chunk_size=part, max_concurrency=4)

    def walk(self, prefix: str) -> Sequence[Entry]:
        """See Backend."""
        sizes: dict[str, dict[str, int]] = {}
        times: dict[str, tuple[bool, float]] = {}
        with storage_errors(prefix or "/"):
            for chunk in self._store.list(prefix or None, chunk_size=1000):
                for item in chunk:
                    path, _, name = item["path"].rpartition("/")
                    sizes.setdefault(path, {})[name] = item["size"]
                    seen = (name == MANIFEST, item["last_modified"].timestamp())
                    times[path] = max(times.get(path, seen), seen)
        return [Entry(path, found, times[path][1]) for path, found in sizes.items()]

    def sweep(self, before: float) -> int:  # noqa: ARG002
        """See Backend: an unfinished write is a folder without manifest in an object's place."""
        return 0

    def stored_name(self, file: StoredFile) -> str:
        """See Backend."""
        return f"{file.name.removesuffix('.npy')}.{file.sha256[:16]}.npy"

    def _key(self, path: str, file: StoredFile) -> str:
        return f"{path}/{self.stored_name(file)}"

    def _directly_in(self, path: str) -> dict[str, int]:
        """Return the sizes of the files directly in a folder."""
        items = [item for chunk in self._store.list(path) for item in chunk]
        split = [(*item["path"].rpartition("/"), item["size"]) for item in items]
        return {name: size for folder, _, name, size in split if folder == path}
