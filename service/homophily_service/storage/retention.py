"""Forgets what is old: records of ended jobs, broken uploads, graphs that nothing uses, blobs that nothing names.

Blobs are removed in two steps. What nothing refers to goes to quarantine, and is removed when it has been there for
``keep_quarantine_days``; until then it goes back to its place as soon as something refers to it. Nothing of this
happens while the store may be another database's, or while clocks differ.
"""

from __future__ import annotations

import logging

from prometheus_client import Gauge

from homophily_service.runtime.settings import Settings, sends_runs
from homophily_service.storage.identity import ClocksDisagree, StoreMismatch
from homophily_service.storage.layout import QUARANTINE, quarantined
from homophily_service.storage.quotas import forget_days
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import Uploads

_log = logging.getLogger(__name__)

HOUR, DAY = 3600.0, 86400.0
BLOCKED = Gauge("homophily_sweep_blocked", "Whether no blob is swept: wrong database or store, or clocks differ")


def sweep(stores: Stores, uploads: Uploads, settings: Settings) -> dict[str, int]:
    """One round; returns how much of each kind was removed."""
    removed = {
        # Where runs are kept, MLflow may be away longer than that.
        "jobs": stores.queue.forget_ended(settings.keep_jobs_days * DAY, untracked=not sends_runs(settings)),
        "uploads": uploads.sweep(settings.keep_uploads_hours * HOUR),
    }
    forget_days(stores.database)
    try:
        removed |= _sweep_blobs(stores, settings)
        BLOCKED.set(0)
    except (StoreMismatch, ClocksDisagree) as error:
        BLOCKED.set(1)
        _log.error("NO BLOB IS SWEPT: %s", error.message)
    if any(removed.values()):
        _log.info("swept", extra={"fields": removed})
    return removed


def _sweep_blobs(stores: Stores, settings: Settings) -> dict[str, int]:
    blobs = stores.blobs
    # A job may still name what it wrote, or the graph that it began with, when its time limit is over.
    retention = max(settings.keep_orphans_hours * HOUR, settings.max_job_time_limit)
    now = stores.identity.begin_sweep(retention)
    restored = restore_referenced(stores)
    graphs = sum(blobs.quarantine(path, now) for path in stores.catalog.remove_unused_graphs(retention))
    # First the blobs, then what is referred to: one that is published meanwhile is either young or seen.
    entries = blobs.entries()
    known = stores.catalog.blobs()
    in_place = {entry.path for entry in entries if entry.is_published}
    orphans = gone = 0
    for entry in entries:
        place = quarantined(entry.path)
        if place is None:
            if entry.path not in known and now - entry.modified > retention and blobs.is_ours(entry):
                orphans += blobs.quarantine(entry.path, now)
        elif now - place.since > settings.keep_quarantine_days * DAY:
            is_needed = place.path in known and place.path not in in_place
            if not is_needed and blobs.is_ours(entry):
                blobs.delete(entry.path)
                gone += 1
    remnants = blobs.sweep_remnants(retention)
    return {"restored": restored, "graphs": graphs, "quarantined": orphans, "blobs": gone, "remnants": remnants}


def restore_referenced(stores: Stores) -> int:
    """Put objects back that are in quarantine although something refers to them; returns how many."""
    known = stores.catalog.blobs()
    found = [(quarantined(entry.path), entry) for entry in stores.blobs.entries(QUARANTINE) if entry.is_published]
    wanted = [(place, entry.path) for place, entry in found if place is not None and place.path in known]
    restored = 0
    # The newest of several first; the others stay, as their place is taken then.
    for place, path in sorted(wanted, reverse=True):
        if stores.blobs.restore(path):
            _log.warning("%s is back from quarantine: something refers to it", place.path)
            restored += 1
    return restored
