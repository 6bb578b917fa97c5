"""The states of a job, as they are stored and shown."""

from __future__ import annotations

QUEUED, RUNNING = "queued", "running"
#: For jobs of its own, such as the trials of a search.
WAITING = "waiting"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
#: Jobs in these have ended.
FINAL = (SUCCEEDED, FAILED, CANCELLED)
