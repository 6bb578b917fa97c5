"""Everything that is kept, opened together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from homophily_service.queue import Queue
from homophily_service.settings import Settings
from homophily_service.store.blobs import Blobs
from homophily_service.store.catalog import Catalog
from homophily_service.store.database import Database
from homophily_service.tokens import Tokens


@dataclass(frozen=True)
class Stores:
    """The database with what lives in it, and the blobs."""

    database: Database
    queue: Queue
    catalog: Catalog
    tokens: Tokens
    blobs: Blobs

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Connect; the database's tables must be there (:meth:`Database.migrate`)."""
        database = Database(settings.database)
        return cls(database, Queue(database), Catalog(database), Tokens(database), Blobs(settings.blobs))

    def close(self) -> None:
        """Close connections."""
        self.database.close()
