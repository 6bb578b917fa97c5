"""Forgets what is old: records of ended jobs, broken uploads, graphs that nothing uses, blobs that nothing names."""

from __future__ import annotations

import logging
import time

from homophily_service.quotas import forget_days
from homophily_service.settings import Settings
from homophily_service.stores import Stores
from homophily_service.tracking.place import is_kept
from homophily_service.uploads import Uploads

_log = logging.getLogger(__name__)

HOUR, DAY = 3600.0, 86400.0


def sweep(stores: Stores, uploads: Uploads, settings: Settings) -> dict[str, int]:
    """One round; returns how much of each kind was removed."""
    orphans = settings.keep_orphans_hours * HOUR
    removed = {
        # Where runs are kept, MLflow may be away longer than that.
        "jobs": stores.queue.forget_ended(settings.keep_jobs_days * DAY, untracked=not is_kept(settings)),
        "uploads": uploads.sweep(settings.keep_uploads_hours * HOUR),
        "graphs": 0,
        "blobs": 0,
        "remnants": stores.blobs.sweep_remnants(orphans),
    }
    forget_days(stores.database)
    for path in stores.catalog.remove_unused_graphs(orphans):
        stores.blobs.delete(path)
        removed["graphs"] += 1
    # First the blobs, then what is referred to: one that is published meanwhile is either young or seen.
    old = [path for path, modified in stores.blobs.list("") if time.time() - modified > orphans]
    known = stores.catalog.blobs() if old else set()
    for path in old:
        if path not in known:
            stores.blobs.delete(path)
            removed["blobs"] += 1
    if any(removed.values()):
        _log.info("swept", extra={"fields": removed})
    return removed
