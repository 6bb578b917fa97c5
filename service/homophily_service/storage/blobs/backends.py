"""Backends that hold the bytes of stored objects: the interface, and a folder.

The other backend is a bucket, :mod:`.bucket`; :mod:`.objects` knows what the bytes mean. Both publish an object in one
step, so that a reader sees all of it or nothing: a folder by renaming a finished folder into its place, a bucket by
creating the manifest, if there is none yet, after all files.

The bucket uses obstore. The folder does not: obstore's local store neither calls fsync, nor maps files into memory, nor
stops symbolic links from leading out of the folder.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from obstore.exceptions import BaseError

from homophily_service.contract.errors import DataLoss, LimitExceeded, Unavailable

MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
UNFINISHED = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{24}}", re.ASCII)
SEGMENT = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,127}", re.ASCII)

_MAX_MANIFEST_BYTES = 64 << 20
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a named pipe in place of a file would hang the reader.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class StoredFile:
    """A file of an object, as the manifest names it."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Entry:
    """A folder with files: its path, their sizes by name, and when it was written."""

    path: str
    sizes: Mapping[str, int]
    # The time of the manifest, or of the newest file if there is no manifest.
    modified: float

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(self.sizes.values())

    @property
    def is_published(self) -> bool:
        """Whether there is a manifest."""
        return MANIFEST in self.sizes


# Reads the bytes of a file from a start to a stop.
ReadRange: TypeAlias = Callable[[int, int], memoryview]
# Files, each in pieces.
Contents: TypeAlias = Sequence[tuple[StoredFile, Sequence[memoryview]]]


class Backend(ABC):
    """Objects by path. Every method raises Unavailable if the storage fails; paths are checked by the caller."""

    @abstractmethod
    def manifest(self, path: str) -> bytes | None:
        """Return the manifest's bytes; None if there is no object, DataLoss if it is too large to be a manifest."""

    @abstractmethod
    def fetch(self, path: str, file: StoredFile) -> tuple[str, NDArray[np.uint8]]:
        """Return a file's actual sha256 and its bytes, read-only; DataLoss if it is missing or has another size."""

    @abstractmethod
    def ranges(self, path: str, file: StoredFile) -> tuple[str, ReadRange]:
        """Return the same sha256, and a function that reads a range; only a part of the file is in memory at a time."""

    @abstractmethod
    def publish(self, path: str, manifest: bytes, files: Contents) -> bool:
        """Store an object, each file in pieces; False if the path is taken, LimitExceeded if there is no space left."""

    @abstractmethod
    def adopt(self, folder: Path, path: str, manifest: bytes, files: Sequence[StoredFile]) -> bool:
        """Store an object from files in a local folder, which may be left behind."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the files directly in this folder, the manifest first; it need not exist."""

    @abstractmethod
    def move(self, source: str, target: str) -> bool:
        """Move a folder's files to another path; False if the source is empty or an object is at the target.

        A process killed on the way leaves the object at one of them at least.
        """

    @abstractmethod
    def walk(self, prefix: str) -> Sequence[Entry]:
        """Return every folder with files, including those that others wrote."""

    @abstractmethod
    def sweep(self, before: float) -> int:
        """Remove temporary folders of unfinished writes last changed before that time; return their number."""

    @abstractmethod
    def stored_name(self, file: StoredFile) -> str:
        """Return the name under which a file of an object is stored."""


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn errors of the system or the network into errors of the service."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LimitExceeded(f"{path}: there is no space left in the store of arrays", reason="NO_SPACE") from error
        raise Unavailable(f"{path}: the store of arrays failed: {error.strerror or type(error).__name__}") from error
    except BaseError as error:
        # Its text contains internal addresses, so clients do not see it; the log shows it as the cause.
        raise Unavailable(f"{path}: the store of arrays failed: {type(error).__name__}") from error


def check_manifest_size(path: str, size: int) -> None:
    """Raise DataLoss if the manifest is too large to be one, before it is read."""
    if size > _MAX_MANIFEST_BYTES:
        raise DataLoss(f"{path}/{MANIFEST} is larger than any manifest")


def check_size(shown: str, file: StoredFile, size: int) -> None:
    """Raise DataLoss unless the file has the size that was written."""
    if size != file.bytes:
        raise DataLoss(f"{shown} has {size} bytes, but {file.bytes} were written")


def open_folder(folder: Path | str, within: int | None = None) -> int:
    """Open a folder that is not a symbolic link; return its descriptor."""
    return os.open(folder, _FOLDER_FLAGS, dir_fd=within)


def open_file(name: str, within: int, shown: str) -> io.BufferedReader:
    """Open a regular file for reading; DataLoss if it is anything else."""
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise DataLoss(f"{shown} is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataLoss(f"{shown} is not a regular file")
    return os.fdopen(descriptor, "rb")


def _write_file(name: str, within: int, pieces: Iterable[memoryview]) -> None:
    descriptor = os.open(name, _WRITE_FLAGS, 0o666, dir_fd=within)
    try:
        for piece in pieces:
            rest = piece
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_empty(path: str, folders: Sequence[int]) -> None:
    """Remove the folder at the path if it is empty, and those above it that become so."""
    with suppress(OSError):  # the first one that is not empty ends it
        for name, within in reversed(list(zip(path.split("/"), folders, strict=False))):
            os.rmdir(name, dir_fd=within)


class Folder(Backend):
    """A folder on a POSIX file system. Paths are opened segment by segment, and symbolic links are not followed."""

    def __init__(self, root: Path) -> None:
        with storage_errors(str(root)):
            root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()

    @contextmanager
    def _open(self, path: str, *, create: bool = False) -> Iterator[Sequence[int]]:
        """Yield descriptors of the root and of every folder down to path; FileNotFoundError if one is missing."""
        with ExitStack() as stack:
            try:
                folders = [open_folder(self.root)]
            except FileNotFoundError as error:
                raise Unavailable("the folder of the store of arrays is gone") from error
            stack.callback(os.close, folders[0])
            for segment in filter(None, path.split("/")):
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(segment, dir_fd=folders[-1])
                try:
                    folders.append(open_folder(segment, within=folders[-1]))
                except OSError as error:
                    if error.errno in (errno.ENOTDIR, errno.ELOOP):
                        raise DataLoss(f"{path}: {segment} in the store of arrays is not a folder") from error
                    raise
                stack.callback(os.close, folders[-1])
            yield folders

    def manifest(self, path: str) -> bytes | None:
        """See Backend."""
        with storage_errors(path):
            try:
                with self._open(path) as folders, open_file(MANIFEST, folders[-1], f"{path}/{MANIFEST}") as file:
                    check_manifest_size(path, os.fstat(file.fileno()).st_size)
                    return file.read()
            except FileNotFoundError:
                return None

    def fetch(self, path: str, file: StoredFile) -> tuple[str, NDArray[np.uint8]]:
        """See Backend; the bytes are mapped, not read."""
        shown = f"{path}/{file.name}"
        with storage_errors(path):
            try:
                with self._open(path) as folders, open_file(file.name, folders[-1], shown) as opened:
                    check_size(shown, file, os.fstat(opened.fileno()).st_size)
                    # Read rather than mapped: a bad sector is an error here, but a SIGBUS in a mapping.
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
                    return digest, np.memmap(opened, np.uint8, "r", shape=(file.bytes,))
            except FileNotFoundError as error:
                raise DataLoss(f"{shown} is missing") from error

    def ranges(self, path: str, file: StoredFile) -> tuple[str, ReadRange]:
        """See Backend; the kernel drops mapped pages when memory is short."""
        digest, content = self.fetch(path, file)
        return digest, lambda start, stop: content[start:stop].data

    def publish(self, path: str, manifest: bytes, files: Contents) -> bool:
        """See Backend."""
        with storage_errors(path):
            temporary = self.root / f"{TEMPORARY}{secrets.token_hex(12)}"
            os.mkdir(temporary)
            try:
                with self._open(temporary.name) as folders:
                    for file, pieces in files:
                        _write_file(file.name, folders[-1], pieces)
                    _write_file(MANIFEST, folders[-1], [memoryview(manifest)])
                    os.fsync(folders[-1])
                return self._move(temporary, path)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    def adopt(self, folder: Path, path: str, manifest: bytes, files: Sequence[StoredFile]) -> bool:
        """See Backend; the folder must be on the root's file system. A failure leaves it unchanged."""
        with storage_errors(path), ExitStack() as stack:
            within = open_folder(folder)
            stack.callback(os.close, within)
            for file in files:
                with open_file(file.name, within, f"{folder}/{file.name}") as opened:
                    os.fsync(opened.fileno())
            with suppress(FileNotFoundError):  # a process was killed between writing and renaming
                os.unlink(MANIFEST, dir_fd=within)
            moved = False
            try:
                _write_file(MANIFEST, within, [memoryview(manifest)])
                os.fsync(within)
                moved = self._move(folder, path)
            finally:
                if not moved:
                    with suppress(OSError):
                        os.unlink(MANIFEST, dir_fd=within)
            return moved

    def move(self, source: str, target: str) -> bool:
        """See Backend."""
        above, _, name = source.rpartition("/")
        with storage_errors(source), suppress(FileNotFoundError), self._open(above) as folders:
            if not stat.S_ISDIR(os.stat(name, dir_fd=folders[-1], follow_symlinks=False).st_mode):
                return False
            if not self._move(name, target, folders[-1]):
                return False
            os.fsync(folders[-1])
            _remove_empty(above, folders)
            return True
        return False

    def _move(self, source: Path | str, path: str, within: int | None = None) -> bool:
        """Rename a finished folder to its place; False if an object is there already."""
        parent, _, name = path.rpartition("/")
        for _attempt in range(10):
            try:
                with self._open(parent, create=True) as folders:
                    os.rename(source, name, src_dir_fd=within, dst_dir_fd=folders[-1])
                    try:
                        for folder in reversed(folders):
                            os.fsync(folder)
                    except OSError:
                        # The rename may not survive a crash, so undo it and report the failure.
                        with suppress(OSError):
                            os.rename(name, source, src_dir_fd=folders[-1], dst_dir_fd=within)
                        raise
                    return True
            except FileNotFoundError:
                # Either the source is gone, and this raises, or a delete removed a parent that had become empty.
                os.stat(source, dir_fd=within, follow_symlinks=False)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if self.manifest(path) is not None:
                    return False
                self._remove(path, published=False)  # left by a delete that was killed
        raise Unavailable(f"{path} cannot be put in its place: it keeps changing, or other objects are below it")

    def delete(self, path: str) -> None:
        """See Backend."""
        self._remove(path, published=True)

    def _remove(self, path: str, *, published: bool) -> None:
        with storage_errors(path), suppress(FileNotFoundError), self._open(path) as folders:
            names = os.listdir(folders[-1])
            if MANIFEST in names:
                # A folder without manifest never gets one: if it has one now, another writer's object took its place.
                if not published:
                    return
                with suppress(FileNotFoundError):
                    os.unlink(MANIFEST, dir_fd=folders[-1])
                os.fsync(folders[-1])
            for name in names:
                with suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name, dir_fd=folders[-1])
            _remove_empty(path, folders)

    def walk(self, prefix: str) -> Sequence[Entry]:
        """See Backend. Links count as files and are not followed."""
        found = []
        with storage_errors(prefix or "/"), suppress(FileNotFoundError), self._open(prefix) as folders:
            for where, subfolders, files, within in os.fwalk(".", dir_fd=folders[-1]):
                path = "/".join(part for part in (prefix, *where.split("/")) if part not in ("", "."))
                sizes, times = {}, {}
                for name in [*files, *subfolders]:
                    with suppress(FileNotFoundError):
                        status = os.stat(name, dir_fd=within, follow_symlinks=False)
                        if not stat.S_ISDIR(status.st_mode):
                            sizes[name], times[name] = status.st_size, status.st_mtime
                if sizes:
                    found.append(Entry(path, sizes, times.get(MANIFEST, max(times.values()))))
        return found

    def stored_name(self, file: StoredFile) -> str:
        """See Backend."""
        return file.name

    def sweep(self, before: float) -> int:
        """See Backend."""
        swept = 0
        with storage_errors("sweep"), os.scandir(self.root) as entries:
            for entry in entries:
                if not UNFINISHED.fullmatch(entry.name) or entry.is_symlink():
                    continue
                # The writer has finished in the meantime, or the entry is a file of someone else.
                with suppress(FileNotFoundError, NotADirectoryError), os.scandir(entry) as files:
                    times = [entry.stat().st_mtime, *(file.stat(follow_symlinks=False).st_mtime for file in files)]
                    if max(times) < before:
                        shutil.rmtree(entry)
                        swept += 1
        return swept
