"""The bar that follows a job: what it tells besides how far the job is."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from homophily_client import JobEvent, JobState
from homophily_client._pb import job_pb2
from homophily_service.cli import progress


def event(phase: str, **progress: Any) -> JobEvent:
    message = job_pb2.JobEvent(sequence=1, attempt=1, state=job_pb2.JOB_STATE_RUNNING)
    message.time.GetCurrentTime()
    message.progress.CopyFrom(job_pb2.Progress(phase=phase, **progress))
    return JobEvent.from_message(message)


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        (event("solve", iteration=7, max_iterations=300, energy=12.345678, fraction=0.5), "7/300  energy 12.346"),
        (event("solve", iteration=7, energy=-3.25e-9), "7  energy -3.25e-09"),
        (event("search", trial_count=3, max_trials=20, best_error_rate=0.0125), "trial 3/20  best error 1.25 %"),
    ],
    ids=["solver", "solver without a last iteration", "search"],
)
def test_the_bar_shows_the_iteration_and_the_energy(
    monkeypatch: pytest.MonkeyPatch, last: JobEvent, shown: str
) -> None:
    def watch(_: int) -> Iterator[JobEvent]:
        yield event("graph", fraction=0.05)
        yield last

    screen = io.StringIO()
    monkeypatch.setattr(progress, "err", Console(file=screen, force_terminal=True, width=120, color_system=None))
    job: Any = SimpleNamespace(state=JobState.RUNNING, watch=watch)
    progress.Follower().follow(job)
    assert f" {last.progress.phase} " in screen.getvalue()
    assert shown in screen.getvalue()
