"""The states of a job, as they are stored and shown."""

from __future__ import annotations

QUEUED, RUNNING = "queued", "running"
#: The job waits for jobs that it queued itself, such as the trials of a search.
WAITING = "waiting"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
#: The states of jobs that have ended.
FINAL = (SUCCEEDED, FAILED, CANCELLED)
