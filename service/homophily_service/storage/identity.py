"""Which database a store of arrays belongs to: both hold the same id.

The database has one row, (id, generation). The store has an object ``store/identity`` with the id, written once, and
``store/generations/{number}``, of which the highest counts. Every sweep raises the generation, in the database first:
a database whose generation is lower than the store's is an older copy. A database that finds itself on a store of
another one, or on a newer one, leaves ``store/contested/{claim}``: then the other one sweeps nothing either, since it
would take the new objects of this one for orphans. ``homophily store adopt`` resolves all of this.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, text, update

from homophily_service.contract.errors import AlreadyExists, DataLoss, FailedPrecondition, NotFound, Unavailable
from homophily_service.storage.blobs.objects import Blobs
from homophily_service.storage.catalog import Catalog
from homophily_service.storage.database import Database, now
from homophily_service.storage.layout import IDENTITY, is_object
from homophily_service.storage.tables import store

_OBJECT, _GENERATIONS, _CONTESTED = f"{IDENTITY}/identity", f"{IDENTITY}/generations", f"{IDENTITY}/contested"
# How far the clocks of this machine, of the database and of the store may be apart.
MOST_CLOCK_SECONDS = 3600.0
_EXAMPLES = 3
_ADVICE = "If they do belong together, run `homophily store adopt`; `homophily fsck` shows what is there"


class StoreMismatch(FailedPrecondition):
    """The database and the store of arrays do not seem to belong together."""

    reason = "STORE_MISMATCH"


class ClocksDisagree(FailedPrecondition):
    """Clocks differ so much that nobody can tell how old something is."""

    reason = "CLOCKS_DISAGREE"


class Mismatch(NamedTuple):
    """Why the two do not belong together; and the claim that a database leaves on a store that is another's."""

    sentence: str
    claim: str = ""


class _Held(NamedTuple):
    """The id and the generation that one of the two holds."""

    id: str
    generation: int


class Identity:
    """What ties a database and a store of arrays together."""

    def __init__(self, database: Database, catalog: Catalog, blobs: Blobs) -> None:
        self.database, self.catalog, self.blobs = database, catalog, blobs

    def check(self) -> None:
        """StoreMismatch unless both hold the same id, and the database is not an older copy."""
        wrong = self.mismatch()
        if wrong is not None:
            if wrong.claim:
                self.blobs.write(f"{_CONTESTED}/{wrong.claim}", {}, {})
            raise StoreMismatch(f"{wrong.sentence}. {_ADVICE}")

    def mismatch(self) -> Mismatch | None:
        """What is wrong, if something is; nothing is written."""
        try:
            # The store first: the database's generation is never the lower one of the two, and may rise meanwhile.
            in_store = self._in_store()
        except StoreMismatch as error:
            return Mismatch(error.message)
        in_database = self._in_database()
        if in_store is None:
            if in_database is None:
                return Mismatch("the database and the store of arrays have no id yet, or do not fit each other")
            return Mismatch("the database has an id, but the store of arrays has none: is it another store?")
        if in_database is None:
            return Mismatch("the store of arrays belongs to another database: this one has no id", "new")
        if in_database.id != in_store.id:
            return Mismatch(
                f"the store of arrays belongs to the database {in_store.id}, but this one is {in_database.id}",
                in_database.id,
            )
        if in_database.generation < in_store.generation:
            return Mismatch(
                f"the database is an older copy, of generation {in_database.generation}: the store of arrays is at "
                f"{in_store.generation}",
                f"older-{in_database.generation}",
            )
        # Our own id is there if a check fell between the two halves of an adoption.
        if {path.rpartition("/")[2] for path, _ in self.blobs.list(_CONTESTED)} - {in_database.id}:
            return Mismatch(
                "another database is, or was, used with this store of arrays: stop its programs, then adopt the store"
            )
        return None

    def begin_sweep(self, retention: float) -> float:
        """The database's time. StoreMismatch or ClocksDisagree if nothing may be removed now.

        A store and a database that are both without an id are tied together here, if they fit each other: everything
        that the database refers to is in the store, and all other objects are younger than ``retention`` and than the
        database's oldest record.
        """
        in_database = self._in_database()
        # The generation is 0 until the first sweep: a process may have been killed before the store had its id.
        if (in_database is None or in_database.generation == 0) and not self.blobs.exists(_OBJECT):
            self._tie(retention)
        self.check()
        with self.database.write() as connection:
            raised = update(store).values(generation=store.c.generation + 1).returning(store.c.generation, now())
            generation, database_time = connection.execute(raised).one()
        self._check_clocks(float(database_time), self._note(int(generation)))
        return float(database_time)

    def adopt(self) -> str:
        """Tie this database and this store together, whatever they held, under a new id, which is returned."""
        in_store, in_database = self._in_store(damaged_is_none=True), self._in_database()
        generation = 1 + max(held.generation for held in (in_store, in_database, _Held("", 0)) if held is not None)
        adopted = _Held(secrets.token_hex(16), generation)
        with self.database.write() as connection:
            _lock(connection)
            connection.execute(delete(store))
            connection.execute(insert(store).values(**adopted._asdict()))
        self.blobs.delete(_OBJECT)
        self.blobs.write(_OBJECT, {}, {"id": adopted.id})
        self._note(generation)
        for path, _ in self.blobs.list(_CONTESTED):
            self.blobs.delete(path)
        return adopted.id

    # -- the two sides

    def _in_database(self) -> _Held | None:
        with self.database.read() as connection:
            row = connection.execute(select(store.c.id, store.c.generation)).first()
        return None if row is None else _Held(*row)

    def _in_store(self, *, damaged_is_none: bool = False) -> _Held | None:
        numbers = [int(path.rpartition("/")[2]) for path, _ in self.blobs.list(_GENERATIONS)]
        try:
            return _Held(str(self.blobs.read(_OBJECT).document["id"]), max(numbers, default=0))
        except NotFound:
            return None
        except (DataLoss, KeyError) as error:
            if damaged_is_none:
                return _Held("", max(numbers, default=0))
            raise StoreMismatch("the identity of the store of arrays is damaged") from error

    def _tie(self, retention: float) -> None:
        self._check_fit(retention)
        with self.database.write() as connection:
            _lock(connection)
            # Another API may have come first.
            found = connection.scalar(select(store.c.id))
            chosen = found or secrets.token_hex(16)
            if found is None:
                connection.execute(insert(store).values(id=chosen, generation=0))
        with suppress(AlreadyExists):  # another database came first, which the check reports
            self.blobs.write(_OBJECT, {}, {"id": chosen})

    def _check_fit(self, retention: float) -> None:
        """StoreMismatch unless the database and the store, both without an id, look as if they belong together."""
        known = self.catalog.blobs()
        present = {entry.path: entry for entry in self.blobs.entries() if is_object(entry.path) and entry.is_published}
        # Read again: what was recorded while the store was listed is known.
        unknown = present.keys() - known - self.catalog.blobs()
        oldest, database_time = self.catalog.oldest_record()
        limit = database_time if oldest is None else max(oldest, database_time - retention)
        unexpected = sorted(path for path in unknown if oldest is None or present[path].modified < limit)
        missing = sorted(known - present.keys())
        if unexpected:
            raise StoreMismatch(
                f"the database does not know {len(unexpected)} of {len(present)} objects in the store of arrays, "
                f"such as {_some(unexpected)}: it is new, an older copy, or belongs to another store. {_ADVICE}"
            )
        if missing:
            raise StoreMismatch(
                f"{len(missing)} of {len(known)} objects that the database refers to are not in the store of arrays, "
                f"such as {_some(missing)}: is it another store? {_ADVICE}"
            )

    def _note(self, generation: int) -> float:
        """Write the generation to the store; returns the time there."""
        path = f"{_GENERATIONS}/{generation}"
        self.blobs.write(path, {}, {"generation": generation})
        written = dict(self.blobs.list(_GENERATIONS))
        for other in written:
            if int(other.rpartition("/")[2]) < generation:
                self.blobs.delete(other)
        if path not in written:
            # Another API's sweep began meanwhile and has removed it.
            raise Unavailable("another sweep is under way")
        return written[path]

    def _check_clocks(self, database_time: float, store_time: float) -> None:
        machine_time = time.time()
        times = (machine_time, database_time, store_time)
        if max(times) - min(times) > MOST_CLOCK_SECONDS:
            raise ClocksDisagree(
                f"clocks differ by {max(times) - min(times):.0f} s: this machine's is at {machine_time:.0f}, the "
                f"database's at {database_time:.0f}, that of the store of arrays at {store_time:.0f}. Correct them"
            )


def _lock(connection: Connection) -> None:
    """Lock the table until the transaction ends; on SQLite the whole database is locked anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE store IN EXCLUSIVE MODE"))


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:_EXAMPLES])
