"""What a place must do, and reading a file of it as Arrow wants it, with the next pieces fetched ahead.

A file is pinned when it is listed: each range that is read later must come from the same state of it.
"""

from __future__ import annotations

import hashlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from homophily_service.contract.errors import FailedPrecondition, LimitExceeded

#: More files than this are refused, and so are folders in which more would have to be looked through.
MOST_FILES, MOST_LISTED = 10_000, 200_000
# The bytes of a range, and of those that are held at a time.
PIECE_BYTES, HELD_BYTES = 16 << 20, 96 << 20
FETCHERS = 6


@dataclass(frozen=True)
class SourceFile:
    """A file, as it was when it was listed."""

    path: str
    size: int
    #: What differs if the file was changed: its ETag, or the time of its last change.
    tag: str


class Place(ABC):
    """Files by path. Its methods may be called from several threads."""

    @abstractmethod
    def find(self) -> list[SourceFile]:
        """Return the files that the address means; NotFound if there is none."""

    @abstractmethod
    def read(self, file: SourceFile, start: int, stop: int) -> bytes | memoryview:
        """Return a range of a file; FailedPrecondition if it was changed since it was listed."""

    def close(self) -> None:  # noqa: B027
        """Give back what is open."""


def changed(path: str) -> FailedPrecondition:
    """Make the error that a file was changed while it was read."""
    return FailedPrecondition(
        f"{path} was changed while it was read: submit the job again when it is complete", reason="SOURCE_CHANGED"
    )


def too_many(most: int) -> LimitExceeded:
    """Make the error that an address means too many files."""
    return LimitExceeded(f"address: there are more than {most} files: name a smaller folder, or write larger files")


def digest_of(files: Iterable[SourceFile], choices: bytes) -> bytes:
    """The SHA-256 of the state of files and of how they are read."""
    described = [[file.path, file.size, file.tag] for file in files]
    return hashlib.sha256(json.dumps([described, choices.hex()]).encode()).digest()


class RemoteFile(io.RawIOBase):
    """A file of a place, as Python's readers and Arrow's want it. Only one thread may read it.

    What is announced with :meth:`want` is fetched ahead by several threads, and may be read in any order until the next
    announcement; anything else is fetched when it is read.
    """

    def __init__(self, place: Place, file: SourceFile) -> None:
        super().__init__()
        self.place, self.file = place, file
        self._at = 0
        self._pool = ThreadPoolExecutor(FETCHERS, "fetch")
        self._wanted: list[int] = []
        self._pieces: dict[int, Future[bytes | memoryview]] = {}

    def want(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce the ranges that will be read next, from a start to a stop each; earlier ones are forgotten."""
        pieces = {number for start, stop in ranges for number in range(start // PIECE_BYTES, -(-stop // PIECE_BYTES))}
        for number in self._pieces.keys() - pieces:
            self._pieces.pop(number).cancel()
        self._wanted = sorted(pieces)
        self._fetch_ahead(0)

    def readable(self) -> bool:
        """See io."""
        return True

    def seekable(self) -> bool:
        """See io."""
        return True

    def tell(self) -> int:
        """See io."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See io."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.file.size}[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """See io; all that is asked for comes at once."""
        start = min(self._at, self.file.size)
        stop = self.file.size if size is None or size < 0 else min(self.file.size, start + size)
        parts = []
        while start < stop:
            number = start // PIECE_BYTES
            end = min(stop, (number + 1) * PIECE_BYTES)
            if number in self._pieces or number in self._wanted:
                piece = memoryview(self._piece(number))
                begin = start - number * PIECE_BYTES
                parts.append(piece[begin : begin + end - start])
            else:
                end = stop
                parts.append(memoryview(self.place.read(self.file, start, end)))
            start = end
        self._at = stop
        return b"".join(parts)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """See io."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """See io."""
        self._pool.shutdown(cancel_futures=True)
        self._pieces.clear()
        super().close()

    def _piece(self, number: int) -> bytes | memoryview:
        self._fetch_ahead(number)
        found = self._pieces[number].result()
        # Pieces long before this one will not be read again by sequential readers; others read few enough of them.
        passed = [one for one in self._pieces if one < number]
        for one in passed[: max(0, len(self._pieces) - HELD_BYTES // PIECE_BYTES)]:
            del self._pieces[one]
        return found

    def _fetch_ahead(self, number: int) -> None:
        """Have this piece and those after it fetched, as many as may be held."""
        room = HELD_BYTES // PIECE_BYTES - sum(one < number for one in self._pieces)
        ahead = [one for one in self._wanted if one >= number][: max(1, room)]
        for one in ahead:
            if one not in self._pieces:
                self._pieces[one] = self._pool.submit(self._fetch, one)

    def _fetch(self, number: int) -> bytes | memoryview:
        start = number * PIECE_BYTES
        stop = min(self.file.size, start + PIECE_BYTES)
        return self.place.read(self.file, start, stop)
