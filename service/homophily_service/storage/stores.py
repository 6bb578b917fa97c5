"""The database and the store of arrays, opened together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from homophily_service.contract.errors import DataLoss, NotFound
from homophily_service.runtime.settings import Settings
from homophily_service.storage.blobs.objects import Blobs, StoredObject, StoredRows
from homophily_service.storage.catalog import Catalog
from homophily_service.storage.database import Database
from homophily_service.storage.identity import Identity, StoreMismatch
from homophily_service.storage.queue import Queue
from homophily_service.storage.tokens import Tokens

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stores:
    """The database, what is stored in it, and the blobs."""

    database: Database
    queue: Queue
    catalog: Catalog
    tokens: Tokens
    blobs: Blobs
    identity: Identity

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Connect; the database's tables must be there (:meth:`Database.migrate`)."""
        database = Database(settings.database)
        catalog, blobs = Catalog(database), Blobs(settings.blobs)
        identity = Identity(database, catalog, blobs)
        return cls(database, Queue(database), catalog, Tokens(database), blobs, identity)

    def read(self, path: str, *names: str) -> StoredObject:
        """Arrays that a record refers to: as Blobs.read, but DataLoss if they are gone while the record exists."""
        with self._report_loss(path):
            return self.blobs.read(path, *names)

    def read_rows(self, path: str, *names: str) -> list[StoredRows]:
        """The same for Blobs.open."""
        with self._report_loss(path):
            return self.blobs.open(path, *names)

    @contextmanager
    def _report_loss(self, path: str) -> Iterator[None]:
        try:
            yield
        except NotFound:
            if self.blobs.exists(path) or not self.catalog.refers_to(path):
                raise
            raise DataLoss(
                f"the arrays at {path} are lost: they are on record, but not in the store. `homophily fsck` looks for "
                "them in quarantine"
            ) from None

    def discard(self, path: str) -> None:
        """Remove arrays whose record was deleted by a call; leave them if the store may belong to another database.

        They do not go to quarantine: a tenant could fill the disk with deleted data, which no quota counts.
        """
        try:
            self.identity.check()
        except StoreMismatch as error:
            _log.error("the arrays at %s are not removed: %s", path, error.message)
        else:
            self.blobs.delete(path)

    def close(self) -> None:
        """Close connections."""
        self.database.close()
