"""A job's live progress, and what Ctrl-C does to it."""

from __future__ import annotations

import copy
import signal
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

import typer
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

import homophily_client as client
from homophily_client import ClientError, Job, JobEvent, JobHandle, JobState
from homophily_service.cli.failures import INTERRUPTED
from homophily_service.cli.screen import err, percent, print_status
from homophily_service.cli.show import clock, short

# Reports of a phase before its pace is known.
_LEAST_REPORTS = 4


class Pace:
    """How long a job has been waiting or running, and how much longer it will take.

    The time left is estimated from the progress of the current phase, as phases differ too much: by its pace as a whole
    or in its later half, whichever is slower, because trials of a search get slower. There is no estimate before a few
    reports, in phases that report nothing, or once a step takes far longer than every step before it.
    """

    def __init__(self) -> None:
        self.began: datetime | None = None
        self._state: JobState | None = None
        self._phase: str | None = None
        # Of the current phase: when each fraction was reached, the longest time between two, and when the last arrived.
        self._reached: list[tuple[datetime, float]] = []
        self._longest = 0.0
        self._arrived = 0.0

    def see(self, event: JobEvent) -> None:
        """Take an event into account."""
        if event.state != self._state:
            self._state, self.began, self._phase = event.state, event.time, None
        phase, fraction = (event.progress.phase, event.progress.fraction) if event.progress else (None, 0.0)
        if phase != self._phase or phase is None:
            self._phase, self._reached, self._longest = phase, [(event.time, fraction)], 0.0
        elif fraction > self._reached[-1][1]:
            self._longest = max(self._longest, (event.time - self._reached[-1][0]).total_seconds())
            self._reached.append((event.time, fraction))
            self._arrived = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds for which the job has been waiting or running."""
        return 0.0 if self.began is None else max(0.0, (datetime.now(UTC) - self.began).total_seconds())

    @property
    def left(self) -> float | None:
        """Roughly the seconds until the job ends, never less than one; None if there is no estimate."""
        since = time.monotonic() - self._arrived
        if len(self._reached) < _LEAST_REPORTS or since > 2.0 * self._longest:
            return None
        left = (1.0 - self._reached[-1][1]) * max(self._pace(0), self._pace(len(self._reached) // 2)) - since
        return left if left >= 1.0 else None

    def _pace(self, first: int) -> float:
        """Seconds for the whole of a job at the pace since a report."""
        (began, begins), (ended, ends) = self._reached[min(first, len(self._reached) - 2)], self._reached[-1]
        return (ended - began).total_seconds() / (ends - begins)


class _Clock(ProgressColumn):
    """Time since the start, and time left."""

    max_refresh = 0.2

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    def render(self, task: Task) -> Text:  # noqa: ARG002
        left = self.pace.left
        return Text(clock(self.pace.elapsed) + ("" if left is None else f", ~{clock(left)} left"), "cyan")


class Follower:
    """Shows the events of a job: a bar on a terminal, a line for each phase elsewhere."""

    def __init__(self, title: str = "", *, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.pace = Pace()
        self.sequence = 0
        self._last = ""
        self._bar: Progress | None = None

    def follow(self, job: JobHandle[Any]) -> None:
        """Watch a job to its end."""
        with self._display() as bar:
            self._bar = bar if isinstance(bar, Progress) else None
            task = self._bar.add_task(self._titled(str(job.state)), total=1.0, facts="") if self._bar else None
            for event in job.watch(self.sequence):
                self.sequence = event.sequence
                self.pace.see(event)
                if event.message and not self.quiet and not event.state.is_final:
                    print_status(event.message[0].upper() + event.message[1:])
                if self._bar is not None and task is not None:
                    described = self._titled(_what(event))
                    done = event.progress.fraction if event.progress is not None else None
                    self._bar.update(task, description=described, completed=done, facts=_facts(event.progress))
                elif not self.quiet:
                    self._line(event)

    def _display(self) -> AbstractContextManager[Any]:
        if not err.is_terminal:
            return nullcontext()
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=max(6, min(30, err.width - 62 - len(self.title)))),
            TextColumn("{task.fields[facts]}", markup=False),
            _Clock(self.pace),
            console=err,
            transient=True,
        )

    def _titled(self, what: str) -> str:
        return f"{self.title}: {what}" if self.title else what

    def _line(self, event: JobEvent) -> None:
        what = _what(event)
        if what != self._last:
            print_status(self._titled(what))
        self._last = what


def follow_own(job: JobHandle[Any], *, quiet: bool = False, title: str = "", interrupted: bool = False) -> Job:
    """Follow a job that this command started. Ctrl-C cancels it; a second one leaves at once."""
    try:
        with _Cancelling(job) as cancelling:
            if interrupted:
                cancelling.begin()
            Follower(title, quiet=quiet).follow(job)
    except KeyboardInterrupt:
        print_status("Left. The job is being cancelled.")
        raise typer.Exit(INTERRUPTED) from None
    if not cancelling.has_begun:
        return job.info
    if job.state == JobState.CANCELLED:
        print_status(f"Job {short(job.name)} is cancelled.")
    else:
        print_status(f"Job {short(job.name)} had ended before: {job.state}.")
    raise typer.Exit(INTERRUPTED)


class _Cancelling:
    """Within this context, the first Ctrl-C cancels the job, and only the next one raises KeyboardInterrupt.

    Watching continues meanwhile: an exception raised in the middle of gRPC's code may get lost there.
    """

    def __init__(self, job: JobHandle[Any]) -> None:
        # A handle of its own: its answer must not replace newer information from the watch.
        self.job = copy.copy(job)
        self.has_begun = False
        self._thread = threading.Thread(target=self._cancel, daemon=True)

    def __enter__(self) -> _Cancelling:
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self.has_begun:
            # The job may have ended meanwhile; let the thread print its message first.
            self._thread.join(1.0)

    def begin(self) -> None:
        """Ask the service to cancel the job."""
        self.has_begun = True
        self._thread.start()

    def _interrupted(self, *_: object) -> None:
        if self.has_begun:
            raise KeyboardInterrupt
        self.begin()

    def _cancel(self) -> None:
        print_status(f"Cancelling job {short(self.job.name)} … (Ctrl-C again leaves at once)")
        try:
            self.job.cancel()
        except ClientError as error:
            print_status(f"The job could not be cancelled: {error.message}")


def _what(event: JobEvent) -> str:
    again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    if event.state == JobState.RUNNING and event.progress is not None and event.progress.phase:
        return event.progress.phase + again
    return str(event.state) + again


def _facts(progress: client.Progress | None) -> str:
    if progress is None:
        return ""
    facts = []
    if progress.max_trials:
        facts.append(f"trial {progress.trials}/{progress.max_trials}")
        if progress.best_error_rate is not None:
            facts.append(f"lowest error {percent(progress.best_error_rate)}")
    elif progress.max_iterations:
        facts.append(f"{progress.iteration}/{progress.max_iterations}")
    elif progress.iteration:
        facts.append(str(progress.iteration))
    if progress.energy is not None:
        facts.append(f"energy {progress.energy:.5g}")
    return "  ".join(facts)
