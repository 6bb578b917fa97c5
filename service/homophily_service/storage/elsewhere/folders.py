"""Files in a folder of this machine that the operator allows. Symbolic links in it are not followed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from homophily_service.contract.addresses import Address
from homophily_service.contract.errors import DataLoss, FailedPrecondition, NotFound, Unavailable
from homophily_service.storage.blobs.backends import open_file, open_folder
from homophily_service.storage.elsewhere.places import (
    MOST_FILES,
    MOST_LISTED,
    Place,
    SourceFile,
    changed,
    too_many,
)


class FolderPlace(Place):
    """Files below an allowed folder, opened segment by segment."""

    def __init__(self, address: Address, root: Address) -> None:
        self.address = address
        # The operator's own path may lead over links; below it, none is followed.
        path = Path(f"/{root.path}").resolve()
        self._root, self._outer = (path, root.path.rstrip("/")) if path.is_dir() else (path.parent, root.folder)
        self._lock = threading.Lock()
        self._open: tuple[str, int] | None = None

    def find(self) -> list[SourceFile]:
        """See Place."""
        if not self.address.is_folder and not self.address.is_pattern:
            return [self._pinned(self.address.path)]
        paths: list[str] = []
        with self._opened(self.address.folder) as folder:
            for where, _, names, _ in os.fwalk(".", dir_fd=folder):
                inner = where.removeprefix(".").strip("/")
                paths += ["/".join(part for part in (self.address.folder, inner, name) if part) for name in names]
                if len(paths) > MOST_LISTED:
                    raise too_many(MOST_LISTED)
        chosen = self.address.chosen(paths)
        if len(chosen) > MOST_FILES:
            raise too_many(MOST_FILES)
        return [self._pinned(path) for path in chosen]

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        """See Place."""
        with self._lock:
            if self._open is None or self._open[0] != file.path:
                self.close()
                self._open = (file.path, self._descriptor(file.path))
            descriptor = self._open[1]
            try:
                content = os.pread(descriptor, stop - start, start)
                state = os.fstat(descriptor)
            except OSError as error:
                raise Unavailable(f"file:///{file.path}: cannot be read: {error.strerror}") from error
        if len(content) != stop - start or _state(file.path, state) != file:
            raise changed(file.path)
        return content

    def close(self) -> None:
        """See Place."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _pinned(self, path: str) -> SourceFile:
        descriptor = self._descriptor(path)
        try:
            return _state(path, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _descriptor(self, path: str) -> int:
        above, _, name = path.rpartition("/")
        with self._opened(above) as folder:
            try:
                with open_file(name, folder, f"file:///{path}") as file:
                    return os.dup(file.fileno())
            except (FileNotFoundError, IsADirectoryError):
                raise NotFound(f"file:///{path}: there is no such file") from None
            except DataLoss as error:
                raise FailedPrecondition(error.message, reason="NOT_READABLE") from error
            except PermissionError:
                raise FailedPrecondition(
                    f"file:///{path}: the service may not read it", reason="NOT_READABLE"
                ) from None

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """Yield a descriptor of a folder."""
        with ExitStack() as stack:
            try:
                found = open_folder(self._root)
                stack.callback(os.close, found)
                for segment in filter(None, path[len(self._outer) :].split("/")):
                    found = open_folder(segment, within=found)
                    stack.callback(os.close, found)
            except OSError as error:
                raise NotFound(f"file:///{path}: there is no such folder") from error
            yield found


def _state(path: str, state: os.stat_result) -> SourceFile:
    return SourceFile(path, state.st_size, f"{state.st_ino}-{state.st_mtime_ns}")
