"""Checks everything in the store of arrays: what it belongs to, whether it is intact, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from homophily_service.contract.errors import DataLoss, FailedPrecondition
from homophily_service.storage.blobs.backends import UNFINISHED, Entry
from homophily_service.storage.layout import QUARANTINE, is_identity, quarantined
from homophily_service.storage.stores import Stores

REFERENCED, QUARANTINED, ORPHANED, FOREIGN = "referenced", "quarantined", "orphaned", "foreign"
MISSING, DAMAGED = "missing", "damaged"
STATES = (REFERENCED, QUARANTINED, ORPHANED, FOREIGN, MISSING, DAMAGED)


class Finding(NamedTuple):
    """A folder in the store, or an object that should be there."""

    path: str
    state: str
    bytes: int = 0
    note: str = ""


def findings(stores: Stores, *, hashes: bool) -> Iterator[Finding]:
    """Every folder that has files, and every object that is missing; without ``hashes``, only sizes are looked at."""
    # Records may come and go while the store is listed: only what is recorded both before and after can be missing.
    before = stores.catalog.blobs()
    entries = sorted(stores.blobs.entries(), key=lambda entry: entry.path)
    after = stores.catalog.blobs()
    for entry in entries:
        if not is_identity(entry.path):
            yield _finding(stores, entry, before | after, hashes=hashes)
    in_quarantine = {place.path: entry.path for entry in entries if (place := quarantined(entry.path))}
    for path in sorted((before & after) - {entry.path for entry in entries}):
        note = f"its arrays are at {in_quarantine[path]}" if path in in_quarantine else ""
        yield Finding(path, MISSING, note=note)


def restore(stores: Stores, path: str) -> bool:
    """Put an object back, given by its path in quarantine or by the one that it had; False if that is not possible."""
    places = [(quarantined(entry.path), entry.path) for entry in stores.blobs.entries(QUARANTINE) if entry.is_published]
    matching = [(place.since, found) for place, found in places if place is not None and path in (place.path, found)]
    return bool(matching) and stores.blobs.restore(max(matching)[1])


def _finding(stores: Stores, entry: Entry, known: set[str], *, hashes: bool) -> Finding:
    def finding(state: str, note: str = "") -> Finding:
        return Finding(_printable(entry.path), state, entry.bytes, note)

    if entry.path in known:
        damage = _damage(stores, entry, hashes=hashes)
        return finding(DAMAGED, damage) if damage else finding(REFERENCED)
    if UNFINISHED.fullmatch(entry.path.partition("/")[0]):
        return finding(ORPHANED, "an unfinished write")
    if not stores.blobs.is_ours(entry):
        return finding(FOREIGN, f"{len(entry.sizes)} files")
    damage = _damage(stores, entry, hashes=hashes) if entry.is_published else "an unfinished write"
    place = quarantined(entry.path)
    if place is None:
        return finding(ORPHANED, damage)
    since = f"since {datetime.fromtimestamp(place.since, UTC):%Y-%m-%d %H:%M} UTC"
    return finding(QUARANTINED, f"{since}; {damage}" if damage else since)


def _damage(stores: Stores, entry: Entry, *, hashes: bool) -> str:
    """What is wrong with an object; empty if it is intact."""
    try:
        stores.blobs.verify(entry, hashes=hashes)
    except (DataLoss, FailedPrecondition) as error:
        return error.message
    return ""


def _printable(path: str) -> str:
    """A path that is safe to print: files of other programs may have any name."""
    return (path if path.isprintable() else ascii(path)) or "/"
