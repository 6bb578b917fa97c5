"""Removes what is old: records of ended jobs, broken uploads, unused graphs, blobs that nothing refers to.

Blobs are removed in two steps. What nothing refers to goes to quarantine, and is removed when it has been there for
``keep_quarantine_days``; until then it goes back to its place as soon as something refers to it. None of this
happens while the store may belong to another database, or while clocks differ.
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
        # With tracking, jobs that MLflow does not have yet are kept, however long it is down.
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
    # Until its time limit, a job may still refer to what it wrote, or to the graph that it began with.
    retention = max(settings.keep_orphans_hours * HOUR, settings.max_job_time_limit)
    now = stores.identity.begin_sweep(retention)
    restored = restore_referenced(stores)
    graphs = sum(blobs.quarantine(path, now) for path in stores.catalog.remove_unused_graphs(retention))
    # First the blobs, then the references: a blob that is published in between is either young or referred to.
    entries = blobs.entries()
    known = stores.catalog.blobs()
    in_place = {entry.path for entry in entries if entry.is_published}
    orphans = removed = 0
    for entry in entries:
        place = quarantined(entry.path)
        if place is None:
            if entry.path not in known and now - entry.modified > retention and blobs.is_ours(entry):
                orphans += blobs.quarantine(entry.path, now)
        elif now - place.since > settings.keep_quarantine_days * DAY:
            is_needed = place.path in known and place.path not in in_place
            if not is_needed and blobs.is_ours(entry):
                blobs.delete(entry.path)
                removed += 1
    remnants = blobs.sweep_remnants(retention)
    return {"restored": restored, "graphs": graphs, "quarantined": orphans, "blobs": removed, "remnants": remnants}


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
