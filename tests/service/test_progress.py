"""The bar that follows a job, the time that it says is left, and the fraction of the work that a job reports."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from homophily.selection import Trial
from homophily_client import JobEvent, JobState, Search
from homophily_client._pb import job_pb2, model_pb2
from homophily_service.cli import progress, show
from homophily_service.cli.progress import Pace
from homophily_service.jobs.search import Counter, planned_cost
from homophily_service.jobs.work import Stage


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
        (event("search", trial_count=3, max_trials=20, best_error_rate=0.0125), "trial 3/20  lowest error 1.25 %"),
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


# -- time left ---------------------------------------------------------------------------------------------------------


class Simulation:
    """A job whose reports come at made-up times; at each second, what a person would see is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pace, self.now, self.began = Pace(), 0.0, datetime.now(UTC)
        #: By second and phase: the time left, as shown.
        self.shown: list[tuple[float, str, float | None]] = []
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)

    def report(self, phase: str, fraction: float, **more: Any) -> None:
        told = event(phase, fraction=fraction, **more)
        self.pace.see(replace(told, time=self.began + timedelta(seconds=self.now), state=JobState.RUNNING))

    def work(self, seconds: float, phase: str) -> None:
        for _ in range(int(10 * seconds)):
            self.now += 0.1
            self.shown.append((self.now, phase, self.pace.left))

    def run(self, phase: str, begins: float, ends: float, steps: Sequence[float]) -> None:
        """A phase with a report after each step; a step takes this many seconds."""
        self.report(phase, begins)
        for number, seconds in enumerate(steps, 1):
            self.work(seconds, phase)
            self.report(phase, begins + (ends - begins) * number / len(steps))

    def estimates(self, phase: str) -> list[tuple[float, float]]:
        """The seconds left as shown, with those that were left indeed."""
        return [(left, self.now - when) for when, one, left in self.shown if one == phase and left is not None]


def test_time_left_follows_from_how_fast_a_phase_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Simulation(monkeypatch)
    job.run("graph", 0.0, 0.0, [5.0])
    job.run("solve", 0.0, 1.0, [1.0] * 50)
    estimates = job.estimates("solve")
    assert len(estimates) > 400
    assert all(left == pytest.approx(truth, abs=0.2) for left, truth in estimates)


@pytest.mark.parametrize("search_ends", [0.4, 0.97])
def test_time_left_is_never_nothing_while_trials_get_slower(
    monkeypatch: pytest.MonkeyPatch, search_ends: float
) -> None:
    """A search showed "0:00 left" for 130 seconds: linear trials take a second, those with relationships twelve."""
    job = Simulation(monkeypatch)
    job.report("load", 0.0)
    job.work(1.0, "load")
    job.run("search", 0.02, search_ends, [0.5] * 36 + [12.0, 3.0, 14.0, 20.0] * 6)
    job.run("graph", search_ends, search_ends, [20.0])
    job.run("solve", search_ends, search_ends + 0.01, [0.5] * 10)
    job.run("calibrate", search_ends + 0.02, search_ends + 0.02, [60.0])
    job.run("save", 0.99, 0.99, [5.0])
    assert all(left is None or left >= 1.0 for _, _, left in job.shown)
    # Phases that report no steps have no estimate.
    for phase in ("load", "graph", "calibrate", "save"):
        assert job.estimates(phase) == []
    assert job.estimates("search")


def test_time_left_is_not_shown_once_a_step_takes_longer_than_all_before(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Simulation(monkeypatch)
    job.run("search", 0.0, 0.5, [1.0] * 10)
    assert job.pace.left == pytest.approx(10.0)
    job.work(1.0, "search")
    assert job.pace.left == pytest.approx(9.0)
    job.work(1.5, "search")
    assert job.pace.left is None


def test_time_left_needs_more_than_a_report_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Simulation(monkeypatch)
    job.run("search", 0.0, 0.2, [5.0, 5.0])
    assert job.estimates("search") == []


# -- fraction ----------------------------------------------------------------------------------------------------------


def stage_of(*phases: str, search: float = 0.0) -> tuple[Stage, list[job_pb2.Progress]]:
    """A stage with a plan, and its reports."""
    reports: list[job_pb2.Progress] = []

    def report(one: job_pb2.Progress) -> None:
        reports.append(job_pb2.Progress.FromString(one.SerializeToString()))

    stage = Stage(report)
    stage.plan(*phases, search=search)
    return stage, reports


def trial(number: int, stage: Any, error: float | None = None) -> Trial:
    return Trial(number, stage, "irr" if stage == "graph" else "err", {}, error, None, 10, 1.0, False)


def test_linear_trials_are_a_small_part_of_a_search() -> None:
    """They were 36 of 60 trials, and so counted as six tenths of a search of which they take a tenth."""
    request = job_pb2.FitRequest(search=model_pb2.SearchParameters(trials=60))
    stage, _ = stage_of("load", "search", "graph", "solve", "save", search=planned_cost(request))
    stage.enter("load")
    stage.enter("search")
    counter = Counter(SimpleNamespace(stage=stage), {"graph": 36, "relationships": 24})  # type: ignore[arg-type]
    fractions = []
    for number in range(60):
        counter.count(trial(number, "graph" if number < 36 else "relationships"))
        fractions.append(stage.progress.fraction)
    assert stage.progress.trial_count == stage.progress.max_trials == 60
    assert fractions == sorted(fractions)
    assert fractions[35] < 0.15
    assert fractions[47] == pytest.approx((fractions[35] + fractions[59]) / 2)
    # Nothing is taken back in the phases after it.
    assert fractions[59] < 1.0
    for phase in ("graph", "solve", "save"):
        before = stage.progress.fraction
        stage.enter(phase)
        assert before <= stage.progress.fraction < 1.0


def test_a_search_that_tries_few_graphs_does_not_count_those_that_it_leaves_out() -> None:
    request = job_pb2.FitRequest(search=model_pb2.SearchParameters(trials=10))
    stage, _ = stage_of("search", search=planned_cost(request))
    stage.enter("search")
    counter = Counter(SimpleNamespace(stage=stage), {"graph": 6, "relationships": 4})  # type: ignore[arg-type]
    for number in range(10):
        assert stage.progress.fraction <= number / 10
        counter.count(trial(number, "relationships" if number else "graph"))
    assert stage.progress.fraction == pytest.approx(1.0)


def test_a_fit_that_is_calibrated_is_not_almost_done_when_it_is_solved() -> None:
    """Calibration takes up to half as long as the fit."""
    stage, _ = stage_of("load", "graph", "solve", "calibrate", "save")
    stage.enter("solve")
    stage.step(50, 50)
    assert stage.progress.fraction == pytest.approx(21 / 27)


def test_the_graph_shows_how_far_its_search_is() -> None:
    stage, reports = stage_of("load", "graph", "solve", "save")
    stage.enter("graph")
    before, after = stage.progress.fraction, 11 / 22
    stage.done(0.5)
    assert stage.progress.fraction == pytest.approx((before + after) / 2)
    # At most a few times a second.
    assert len(reports) == 1
    stage._reported -= 1.0
    stage.done(1.0)
    assert [report.fraction for report in reports] == pytest.approx([before, after])


def test_a_solver_of_unknown_length_claims_nothing() -> None:
    stage, _ = stage_of("load", "graph", "solve", "save")
    stage.enter("solve")
    before = stage.progress.fraction
    stage.step(3, 0)
    assert (stage.progress.iteration, stage.progress.fraction) == (3, before)


def test_a_solver_that_is_run_for_each_class_claims_one_run_and_takes_nothing_back() -> None:
    stage, _ = stage_of("solve")
    stage.enter("solve")
    fractions = []
    for _ in range(3):
        for iteration in (10, 50):
            stage.step(iteration, 50, runs=3)
            fractions.append(stage.progress.fraction)
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1 / 3)


# -- error -------------------------------------------------------------------------------------------------------------


def test_the_end_of_a_search_names_the_lowest_error_that_was_shown_and_that_of_the_chosen_trial() -> None:
    """Only the chosen one's was printed, so that the error that the bar had promised was nowhere."""

    def searched(*errors: float, best: int) -> Search:
        trials = [model_pb2.Trial(number=number, error_rate=error) for number, error in enumerate(errors)]
        return Search.from_message(model_pb2.SearchSummary(trials=trials, best=best))

    assert show.search_facts(searched(0.03, 0.02, best=0)) == (
        "2 trials, the chosen one with 3.00 % of the held-out labels wrong, the lowest of all was 2.00 %"
    )
    assert show.search_facts(searched(0.03, 0.02, best=1)) == (
        "2 trials, the chosen one with 2.00 % of the held-out labels wrong, the lowest of all"
    )
