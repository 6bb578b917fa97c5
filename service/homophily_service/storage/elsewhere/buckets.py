"""Files in buckets, with the credentials and the endpoint of this process's environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from homophily_service.contract.addresses import Address
from homophily_service.contract.errors import FailedPrecondition, NotFound, Unavailable
from homophily_service.storage.elsewhere.places import (
    MOST_FILES,
    MOST_LISTED,
    Place,
    SourceFile,
    changed,
    too_many,
)

# A worker that waits longer tries the job again later.
RETRY_SECONDS = 30.0


class BucketPlace(Place):
    """A bucket of S3 or a store that speaks its protocol, of Google, or a container of Azure."""

    def __init__(self, address: Address) -> None:
        self.address = address
        with _errors(address):
            self._store = from_url(
                f"{address.scheme}://{address.place}", retry_config={"retry_timeout": timedelta(seconds=RETRY_SECONDS)}
            )

    def find(self) -> list[SourceFile]:
        """See Place."""
        address = self.address
        with _errors(address):
            if not address.is_folder and not address.is_pattern:
                return [_pinned(self._store.head(address.path))]
            found: dict[str, SourceFile] = {}
            listed = 0
            for chunk in self._store.list(address.folder or None, chunk_size=1000):
                listed += len(chunk)
                names = {meta["path"]: meta for meta in chunk}
                found |= {path: _pinned(names[path]) for path in address.chosen(names)}
                if len(found) > MOST_FILES or listed > MOST_LISTED:
                    raise too_many(MOST_FILES if len(found) > MOST_FILES else MOST_LISTED)
            return [found[path] for path in sorted(found)]

    def read(self, file: SourceFile, start: int, stop: int) -> memoryview:
        """See Place."""
        with _errors(self.address):
            result = self._store.get(file.path, options={"range": (start, stop)})
            if _pinned(result.meta) != file:
                raise changed(file.path)
            content = memoryview(result.bytes())
        if len(content) != stop - start:
            raise changed(file.path)
        return content


def _pinned(meta: Any) -> SourceFile:
    return SourceFile(meta["path"], meta["size"], meta["e_tag"] or meta["last_modified"].isoformat())


@contextmanager
def _errors(address: Address) -> Iterator[None]:
    """Turn errors of the store into errors of the service; their text contains internal addresses."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{address}: there is no such file or bucket") from error
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise FailedPrecondition(
            f"{address}: the service's credentials may not read it", reason="NOT_READABLE"
        ) from error
    except (BaseError, OSError) as error:
        raise Unavailable(f"{address}: the store does not answer: {type(error).__name__}") from error
