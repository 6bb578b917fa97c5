"""The bar that follows a job: what it tells besides how far the job is."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from homophily_service.cli import following
from homophily_service.client import JobEvent, JobState


def event(phase: str, **progress: Any) -> JobEvent:
    fields = ("iteration", "max_iterations", "energy", "error_rate", "fraction", "trials", "max_trials")
    told: dict[str, Any] = dict.fromkeys((*fields, "best_error_rate")) | progress
    return JobEvent(
        sequence=1, time=datetime.now(UTC), state=JobState.RUNNING, attempt=1, phase=phase, message="", **told
    )


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        (event("solve", iteration=7, max_iterations=300, energy=12.345678, fraction=0.5), "7/300  energy 12.346"),
        (event("solve", iteration=7, energy=-3.25e-9), "7  energy -3.25e-09"),
        (event("search", trials=3, max_trials=20, best_error_rate=0.0125), "trial 3/20  best error 1.25 %"),
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
    monkeypatch.setattr(following, "err", Console(file=screen, force_terminal=True, width=120, color_system=None))
    job: Any = SimpleNamespace(state=JobState.RUNNING, watch=watch)
    following.Follower().follow(job)
    assert f" {last.phase} " in screen.getvalue()
    assert shown in screen.getvalue()
