"""The store of arrays.

An object is a folder of ``.npy`` files and a manifest, ``manifest.json``::

    {"document": {…}, "files": {"points.npy": {"bytes": …, "dtype": "float32", "sha256": …, "shape": […]}},
     "format": 1, "sha256": …}

It is written whole or not at all, never changed, and checked against its digests whenever it is read. The manifest's
own digest is of its canonical JSON (keys sorted, no spaces, ASCII) without that digest; the file is canonical too, so
that every flipped bit shows. Nothing is ever unpickled, and no size that a file claims is believed.

The format's number goes up when an older release could not read what a newer one writes; the readers of all former
formats stay. Objects are not nested: if ``models/default/ab12`` is one, there is none below it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from homophily_service.contract.errors import AlreadyExists, DataLoss, FailedPrecondition, NotFound, Unavailable
from homophily_service.storage.blobs.backends import (
    MANIFEST,
    SEGMENT,
    Backend,
    Entry,
    Folder,
    ReadRange,
    StoredFile,
    check_size,
    open_file,
    open_folder,
    storage_errors,
)
from homophily_service.storage.blobs.bucket import BUCKET_URLS, SCHEMES, Bucket
from homophily_service.storage.layout import (
    IDENTITY,
    QUARANTINE,
    is_object,
    is_unfinished,
    quarantine_path,
    quarantined,
)

FORMAT = 1
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float32", "float64")
_BY_DESCRIPTION = {np.dtype(name).newbyteorder("<").str: name for name in _DTYPES}
_MAX_HEADER_BYTES = 16 << 10
_MAX_PATH = 512  # a key of S3 has 1,024 bytes, prefix and file name included
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class StoredObject:
    """A stored object: the document, the arrays that were asked for (read-only), and the size of all of it."""

    document: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    size: int


@dataclass(frozen=True)
class StoredRows:
    """An array whose rows are read on demand."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    _offset: int
    _read: ReadRange

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows into a new array."""
        begin, end = (self._offset + self.row_bytes * row for row in (start, stop))
        content = self._read(begin, end) if begin < end else b""
        return np.frombuffer(content, self.dtype).reshape(stop - start, *self.shape[1:])


@dataclass(frozen=True)
class _ArrayFile(StoredFile):
    """A file and the array in it."""

    dtype: str
    shape: tuple[int, ...]


class Blobs:
    """Objects, each a folder of .npy files and a manifest, in a folder or a bucket.

    ``url`` is a folder, a ``file://`` URL, or a bucket: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or
    ``az://container/prefix``, with endpoint and credentials from the usual ``AWS_*``, ``GOOGLE_*`` or ``AZURE_*``
    variables. Every method raises Unavailable if the storage fails, and ValueError for a path that is not made of
    segments joined by "/", each of a–z, 0–9, ".", "_" and "-" and not starting with ".". Names of arrays are such
    segments.

    >>> import tempfile
    >>> blobs = Blobs(tempfile.mkdtemp())
    >>> size = blobs.write("models/default/ab12", {"solution": np.eye(2)}, {"classes": ["cat", "dog"]})
    >>> blobs.read("models/default/ab12").document
    {'classes': ['cat', 'dog']}
    """

    def __init__(self, url: str) -> None:
        self._backend: Backend
        scheme = urlsplit(url).scheme if "://" in url else ""
        if scheme in SCHEMES:
            self._backend = Bucket(url)
        elif scheme in ("", "file"):
            self._backend = Folder(Path(url2pathname(urlsplit(url).path) if scheme else url))
        else:
            raise ValueError(f"Blobs must be in a folder, or in {BUCKET_URLS}. Got {url} instead.")

    def write(self, path: str, arrays: Mapping[str, NDArray[Any]], document: Mapping[str, Any]) -> int:
        """Publish an object and return its size in bytes.

        AlreadyExists if there is another at that path; the very same object is fine. LimitExceeded without space.
        """
        _check_path(path)
        files = [_array_file(name, array) for name, array in sorted(arrays.items())]
        manifest = _write_manifest([file for file, _ in files], document)
        if not self._is_there(path, manifest) and not self._backend.publish(path, manifest, files):
            self._lost_race(path, manifest)
        return _size(manifest, [file for file, _ in files])

    def adopt(
        self, folder: Path, path: str, document: Mapping[str, Any], digests: Mapping[str, str] | None = None
    ) -> int:
        """Publish a folder of finished .npy files, which is gone afterwards, and return the object's size in bytes.

        ``digests`` spares reading the files: the sha256 of each by its array's name. If the store is a folder, both
        must be on one file system. Errors are those of write, and leave the folder as it was; NotFound if it does not
        exist, DataLoss if a file is not an array as write would write it.
        """
        _check_path(path)
        files = _files_of(folder, digests or {})
        manifest = _write_manifest(files, document)
        if not self._is_there(path, manifest) and not self._backend.adopt(folder, path, manifest, files):
            self._lost_race(path, manifest)
        shutil.rmtree(folder, ignore_errors=True)
        return _size(manifest, files)

    def read(self, path: str, *names: str) -> StoredObject:
        """Read an object with all arrays or some; NotFound; DataLoss, which names the file, if it is damaged."""
        with self._reading(path, names) as (document, files, size):
            return StoredObject(document, {name: self._load(path, files[name]) for name in names or files}, size)

    def open(self, path: str, *names: str) -> list[StoredRows]:
        """Open arrays of an object to read them row by row; errors are those of read."""
        with self._reading(path, names) as (_, files, _):
            return [self._open(path, files[name]) for name in names]

    @contextmanager
    def _reading(self, path: str, names: Sequence[str]) -> Iterator[tuple[dict[str, Any], dict[str, _ArrayFile], int]]:
        """Yield the document, the files by their arrays' names, and the size of an object that is being read."""
        _check_path(path)
        raw = self._backend.manifest(path)
        if raw is None:
            raise NotFound(f"{path}: there is no such object in the store of arrays")
        document, files = _read_manifest(path, raw)
        missing = set(names) - files.keys()
        if missing:
            raise NotFound(f"{path} has no array {', '.join(sorted(missing))}; it has {', '.join(files)}")
        try:
            yield document, files, _size(raw, list(files.values()))
        except DataLoss:
            # It may have been deleted since the manifest was read, which is not a loss.
            now = self._backend.manifest(path)
            if now is None:
                raise NotFound(f"{path} was deleted while it was read") from None
            if now != raw:
                raise Unavailable(f"{path} was replaced while it was read; try again") from None
            raise

    def _open(self, path: str, file: _ArrayFile) -> StoredRows:
        digest, read = self._backend.ranges(path, file)
        start = read(0, min(file.bytes, _MAX_HEADER_BYTES)).tobytes()
        dtype, shape, offset = _checked_header(f"{path}/{file.name}", file, digest, start)
        return StoredRows(dtype, shape, offset, read)

    def exists(self, path: str) -> bool:
        """Whether an object exists; its content is not checked."""
        _check_path(path)
        return self._backend.manifest(path) is not None

    def delete(self, path: str) -> None:
        """Remove an object, or the remains of one; it need not exist.

        Arrays that were read from it stay valid. Not for a path that is written at the same time: in a bucket,
        files of the new object could go with the old ones.
        """
        _check_path(path)
        self._backend.delete(path)

    def list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the path and the time (seconds of the epoch) of every object and of the remains of any.

        "" lists all but the store's own: what is in quarantine, and the store's identity.
        """

        def is_listed(entry: Entry) -> bool:
            segments = entry.path.split("/")
            has_arrays = entry.is_published or any(name.endswith(".npy") for name in entry.sizes)
            hidden = not prefix and segments[0] in (QUARANTINE, IDENTITY)
            return has_arrays and not hidden and all(map(SEGMENT.fullmatch, segments))

        return iter([(entry.path, entry.modified) for entry in self.entries(prefix) if is_listed(entry)])

    def entries(self, prefix: str = "") -> Sequence[Entry]:
        """Return every folder with files below a path, ours or not."""
        prefix = prefix.rstrip("/")
        if prefix:
            _check_path(prefix)
        return self._backend.walk(prefix)

    def is_ours(self, entry: Entry) -> bool:
        """Whether a folder is an object of ours, or the remains of one that a killed process left."""
        place = quarantined(entry.path)
        path = entry.path if place is None else place.path
        if not entry.is_published:
            return is_unfinished(path) and all(name.endswith(".npy") for name in entry.sizes)
        if not is_object(path):
            return False
        try:
            raw = self._backend.manifest(entry.path)
            return raw is not None and bool(_read_manifest(entry.path, raw))
        except (DataLoss, FailedPrecondition):
            return False

    def quarantine(self, path: str, since: float) -> bool:
        """Move an object to quarantine; False if the path cannot be an object's. :meth:`restore` moves it back."""
        return is_object(path) and self._backend.move(path, quarantine_path(path, since))

    def restore(self, path: str) -> bool:
        """Move an object back from this path in quarantine; False if it is not there, or its place is taken."""
        place = quarantined(path)
        return place is not None and self._backend.move(path, place.path)

    def verify(self, entry: Entry, *, hashes: bool) -> None:
        """Raise DataLoss, naming the file, if one is missing, has another size or, with ``hashes``, is damaged."""
        raw = self._backend.manifest(entry.path)
        if raw is None:
            raise DataLoss(f"{entry.path}/{MANIFEST} is missing")
        for file in _read_manifest(entry.path, raw)[1].values():
            size = entry.sizes.get(self._backend.stored_name(file))
            if size is None:
                raise DataLoss(f"{entry.path}/{file.name} is missing")
            check_size(f"{entry.path}/{file.name}", file, size)
            if hashes:
                self._load(entry.path, file)

    def sweep_remnants(self, older_than_seconds: float) -> int:
        """Remove unfinished writes older than this; return their number."""
        return self._backend.sweep(time.time() - older_than_seconds)

    def _load(self, path: str, file: _ArrayFile) -> NDArray[Any]:
        shown = f"{path}/{file.name}"
        digest, content = self._backend.fetch(path, file)
        dtype, shape, offset = _checked_header(shown, file, digest, content[:_MAX_HEADER_BYTES].tobytes())
        try:
            return content[offset:].view(dtype).reshape(shape)
        except ValueError as error:  # more axes than NumPy has, or longer ones
            raise DataLoss(f"{shown} says that its shape is {shape}, which no array has") from error

    def _is_there(self, path: str, manifest: bytes) -> bool:
        """Whether this object is at the path; AlreadyExists if another one is."""
        raw = self._backend.manifest(path)
        if raw is None:
            return False
        if _read_manifest(path, raw) != _read_manifest(path, manifest):
            raise AlreadyExists(f"{path}: there is another object of this name in the store of arrays")
        return True

    def _lost_race(self, path: str, manifest: bytes) -> None:
        if not self._is_there(path, manifest):
            raise Unavailable(f"{path} was deleted while it was written; try again")


def _check_path(path: str) -> None:
    segments = path.split("/")
    if len(path) > _MAX_PATH or MANIFEST in segments or not all(map(SEGMENT.fullmatch, segments)):
        raise ValueError(
            f"A path must be segments of [a-z0-9._-], not starting with '.'. Got {path[:_MAX_PATH]!r} instead."
        )


def _check_name(name: str) -> None:
    if SEGMENT.fullmatch(name) is None:
        raise ValueError(
            f"An array's name must be of [a-z0-9._-], not starting with '.'. Got {name[:_MAX_PATH]!r} instead."
        )


def _size(manifest: bytes, files: Sequence[StoredFile]) -> int:
    return len(manifest) + sum(file.bytes for file in files)


# -- the manifest


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _write_manifest(files: Sequence[_ArrayFile], document: Mapping[str, Any]) -> bytes:
    entries = {file.name: {key: value for key, value in asdict(file).items() if key != "name"} for file in files}
    # Encoded and decoded first: keys that are numbers would be sorted as numbers, but as text when read back.
    plain = json.loads(json.dumps(dict(document), allow_nan=False))
    body = {"format": FORMAT, "document": plain, "files": entries}
    return _canonical({**body, "sha256": hashlib.sha256(_canonical(body)).hexdigest()})


def _read_manifest(path: str, raw: bytes) -> tuple[dict[str, Any], dict[str, _ArrayFile]]:
    """Return the document, and the files by their arrays' names."""
    damaged = DataLoss(f"{path}/{MANIFEST} is damaged")
    try:
        body = json.loads(raw)
        if _canonical(body) != raw or body.pop("sha256") != hashlib.sha256(_canonical(body)).hexdigest():
            raise damaged
        if body["format"] != FORMAT:
            raise FailedPrecondition(f"{path} has format {body['format']}, but this release reads up to {FORMAT}")
        document = dict(body["document"])
        files = [_ArrayFile(name, **{**entry, "shape": tuple(entry["shape"])}) for name, entry in body["files"].items()]
        for file in files:
            # They become file names and keys, so they are checked even though the manifest's digest is right.
            named = SEGMENT.fullmatch(file.name.removesuffix(".npy")) and file.name.endswith(".npy")
            if not named or not _DIGEST.fullmatch(file.sha256) or type(file.bytes) is not int or file.bytes <= 0:
                raise damaged
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged from error
    return document, {file.name.removesuffix(".npy"): file for file in files}


# -- .npy files


def _array_file(name: str, array: NDArray[Any]) -> tuple[_ArrayFile, Sequence[memoryview]]:
    """Return the file for an array, and its bytes in two pieces."""
    _check_name(name)
    array = np.asarray(array)
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"The array {name!r} must be one of {', '.join(_DTYPES)}. Got {array.dtype} instead.")
    array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(array))
    pieces = [header.getbuffer(), array.reshape(-1).view(np.uint8).data]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    size = sum(len(piece) for piece in pieces)
    return _ArrayFile(f"{name}.npy", digest.hexdigest(), size, array.dtype.name, array.shape), pieces


def _files_of(folder: Path, digests: Mapping[str, str]) -> Sequence[_ArrayFile]:
    files = []
    with storage_errors(folder.name):
        try:
            within = open_folder(folder)
        except FileNotFoundError as error:
            raise NotFound(f"{folder.name}: there is no such folder to take files from") from error
        try:
            for name in sorted(name for name in os.listdir(within) if name.endswith(".npy")):
                array, shown = name.removesuffix(".npy"), f"{folder.name}/{name}"
                _check_name(array)
                with open_file(name, within, shown) as file:
                    size = os.fstat(file.fileno()).st_size
                    dtype, shape, _ = _read_header(file.read(_MAX_HEADER_BYTES), size, shown)
                    file.seek(0)
                    digest = digests.get(array) or hashlib.file_digest(file, "sha256").hexdigest()
                files.append(_ArrayFile(name, digest, size, _BY_DESCRIPTION[dtype.str], shape))
        finally:
            os.close(within)
    unknown = digests.keys() - {file.name.removesuffix(".npy") for file in files}
    if unknown or not all(map(_DIGEST.fullmatch, digests.values())):
        raise ValueError(f"Digests must be the sha256 of arrays by their names, in hexadecimal. Got {digests} instead.")
    return files


# NumPy reads a header with Python's parser. In 3.11 it sometimes miscounts when threads use it at once, and raises a
# SystemError (see CPython's issue 106905): an intact file would be reported as lost.
ONE_HEADER_AT_A_TIME = threading.Lock()


def _checked_header(
    shown: str, file: _ArrayFile, digest: str, start: bytes
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Read the header of a file with this digest; DataLoss if the file is not the one that was written."""
    if digest != file.sha256:
        raise DataLoss(f"{shown} is damaged: its sha256 is {digest}, but {file.sha256} was written")
    dtype, shape, offset = _read_header(start, file.bytes, shown)
    if (_BY_DESCRIPTION[dtype.str], shape) != (file.dtype, file.shape):
        raise DataLoss(f"{shown} is {dtype} {shape}, but the manifest says {file.dtype} {file.shape}")
    return dtype, shape, offset


def _read_header(start: bytes, size: int, shown: str) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return the array's dtype, shape and the offset of its bytes; DataLoss unless they account for every byte."""
    stream = io.BytesIO(start)
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(stream)]
        with ONE_HEADER_AT_A_TIME:
            shape, fortran_order, dtype = read(stream)
    except Exception as error:  # NumPy evaluates a literal here, which can raise anything
        raise DataLoss(f"{shown} is not a .npy file of version 1 or 2") from error
    if dtype.str not in _BY_DESCRIPTION or fortran_order:
        raise DataLoss(f"{shown} must be row-major and one of {', '.join(_DTYPES)}; it is not")
    offset = stream.tell()
    if any(type(n) is not int or n < 0 for n in shape) or offset + math.prod(shape) * dtype.itemsize != size:
        raise DataLoss(f"{shown} says that its shape is {shape}, which {size} bytes do not hold exactly")
    return dtype, shape, offset
