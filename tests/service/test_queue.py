"""The rules of the job queue, on SQLite and on Postgres."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Row, event, text, update

from homophily_client.names import JobName, ModelName, new_id
from homophily_service.contract.errors import AlreadyExists, FailedPrecondition, LimitExceeded, NotFound, Unavailable
from homophily_service.contract.states import CANCELLED, FAILED, FINAL, QUEUED, RUNNING, SUCCEEDED, WAITING
from homophily_service.storage import database as database_module
from homophily_service.storage import job_rows, leases
from homophily_service.storage import queue as queue_module
from homophily_service.storage.catalog import Catalog
from homophily_service.storage.database import FIRST_PAGE, Database, Page
from homophily_service.storage.queue import Queue
from homophily_service.storage.records import Event, Lease, LeaseLost, NewJob
from homophily_service.storage.tables import jobs

from .together import eventually, in_processes, in_threads

KINDS = ("fit", "transduce")
POISON = b"too often"
NO_LIMIT = 10**6
# A lease that has run out when it is given: the worker was lost at once.
LOST = -1.0


@pytest.fixture
def queue(database: Database, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue in which lost jobs may start again at once."""
    monkeypatch.setattr(job_rows, "FIRST_BACKOFF", 0.0)
    return Queue(database)


def submit(queue: Queue, kind: str = "fit", project: str = "default", request: bytes = b"r", **fields: Any) -> JobName:
    name = JobName(project, new_id())
    row = queue.submit(NewJob(name, kind, request, **fields), NO_LIMIT)
    return JobName(row.project, row.id)


def claim(queue: Queue, lease_seconds: float = 60.0) -> Lease:
    lease = queue.claim("a worker", KINDS, lease_seconds, POISON)
    assert lease is not None
    return lease


def nothing_to_do(queue: Queue) -> bool:
    return queue.claim("a worker", KINDS, 60.0, POISON) is None


def history(queue: Queue, name: JobName) -> list[Event]:
    return queue.events_after(queue.get(name).number, 0)


def states(queue: Queue, name: JobName) -> list[tuple[str, int]]:
    """States and attempts that a job went through; checks that the events are numbered 1, 2, 3, …"""
    happened = history(queue, name)
    assert [event.sequence for event in happened] == list(range(1, len(happened) + 1))
    assert queue.get(name).last_sequence == len(happened)
    return [(event.state, event.attempt) for event in happened]


WRITES: dict[str, Callable[[Queue, Lease], object]] = {
    "renew": lambda queue, lease: queue.renew(lease, 60.0),
    "report": lambda queue, lease: queue.report(lease, b"half"),
    "finish": lambda queue, lease: queue.finish(lease, b"result"),
    "fail": lambda queue, lease: queue.fail(lease, b"error", "no"),
    "cancelled": lambda queue, lease: queue.cancelled(lease),
    "release": lambda queue, lease: queue.release(lease, "back", charged=True),
    "release uncharged": lambda queue, lease: queue.release(lease, "back", charged=False),
}


# -- a job's life ------------------------------------------------------------------------------------------------------


def test_a_submitted_job_waits(queue: Queue) -> None:
    before = time.time()
    name = submit(queue, request=b"a request", priority=3, max_attempts=5, time_limit=7.5)
    row = queue.get(name)
    assert (row.state, row.kind, row.priority, row.attempt) == (QUEUED, "fit", 3, 0)
    assert queue.get_request(row.number) == b"a request"
    assert (row.max_attempts, row.time_limit, row.cancel_requested, row.outcome) == (5, 7.5, False, b"")
    assert abs(row.created - before) < 60
    assert states(queue, name) == [(QUEUED, 0)]


def test_a_claimed_job_is_what_was_submitted_and_nobody_else_gets_it(queue: Queue) -> None:
    name = submit(queue, "transduce", request=b"a request", max_attempts=5, time_limit=7.5)
    lease = claim(queue)
    assert lease[:7] == (name, queue.get(name).number, "transduce", b"a request", 1, 5, 7.5)
    row = queue.get(name)
    assert (row.state, row.worker) == (RUNNING, "a worker")
    assert row.started >= row.created
    assert nothing_to_do(queue)


def test_a_job_that_does_not_exist_is_not_found(queue: Queue) -> None:
    name = JobName("default", "nothing")
    for act in (queue.get, queue.cancel, queue.delete):
        with pytest.raises(NotFound, match="projects/default/jobs/nothing does not exist"):
            act(name)


def test_progress_and_the_end_are_told(queue: Queue) -> None:
    name = submit(queue)
    lease = claim(queue)
    queue.report(lease, b"half")
    assert queue.get(name).progress == b"half"
    queue.finish(lease, b"result")
    row = queue.get(name)
    assert (row.state, row.outcome) == (SUCCEEDED, b"result")
    assert row.finished >= row.started
    assert [event.progress for event in history(queue, name)] == [None, None, b"half", None]
    assert states(queue, name) == [(QUEUED, 0), (RUNNING, 1), (RUNNING, 1), (SUCCEEDED, 1)]


def test_a_failed_job_has_its_error_also_if_the_message_has_a_nul(queue: Queue) -> None:
    name = submit(queue)
    queue.fail(claim(queue), b"error", "the class is \0")
    assert (queue.get(name).state, queue.get(name).outcome) == (FAILED, b"error")
    assert history(queue, name)[-1].message == "the class is �"


# -- leases ------------------------------------------------------------------------------------------------------------


def taken_over(queue: Queue, _: Lease) -> None:
    assert claim(queue).attempt == 2


def ended(queue: Queue, lease: Lease) -> None:
    queue.finish(lease, b"the result that stands")


def given_back(queue: Queue, lease: Lease) -> None:
    queue.release(lease, "back", charged=False)


def taken_over_and_ended(queue: Queue, _: Lease) -> None:
    queue.finish(claim(queue), b"the result that stands")


def cancelled_for_its_worker_was_lost(queue: Queue, lease: Lease) -> None:
    assert queue.cancel(lease.name).state == CANCELLED


@pytest.mark.parametrize(
    "lose", [taken_over, ended, given_back, taken_over_and_ended, cancelled_for_its_worker_was_lost]
)
def test_who_has_lost_the_lease_writes_nothing(queue: Queue, lose: Callable[[Queue, Lease], None]) -> None:
    name = submit(queue)
    lease = claim(queue, LOST)
    lose(queue, lease)
    before = queue.get(name), history(queue, name)
    for write in WRITES.values():
        with pytest.raises(LeaseLost):
            write(queue, lease)
    assert (queue.get(name), history(queue, name)) == before


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_the_lease_of_a_deleted_job_is_lost(queue: Queue, write: Callable[[Queue, Lease], object]) -> None:
    name = submit(queue)
    lease = claim(queue)
    queue.finish(lease, b"")
    queue.delete(name)
    with pytest.raises(LeaseLost):
        write(queue, lease)


def test_a_token_is_worth_nothing_in_any_other_state(queue: Queue) -> None:
    name = submit(queue)
    lease = claim(queue)
    for state in (QUEUED, SUCCEEDED, FAILED, CANCELLED):
        with queue.database.write() as connection:
            connection.execute(update(jobs).values(state=state))
        before = queue.get(name), history(queue, name)
        for write in WRITES.values():
            with pytest.raises(LeaseLost):
                write(queue, lease)
        assert (queue.get(name), history(queue, name)) == before


def test_a_lost_lease_publishes_nothing(queue: Queue) -> None:
    submit(queue)
    lease = claim(queue, LOST)
    claim(queue)
    with pytest.raises(LeaseLost):
        queue.finish(lease, b"", lambda _: pytest.fail("published"))


def test_a_job_is_taken_over_as_soon_as_its_lease_runs_out_and_no_earlier(queue: Queue) -> None:
    name = submit(queue)
    began = time.monotonic()
    first = claim(queue, 0.3)
    second = eventually(lambda: queue.claim("another", KINDS, 60.0, POISON))
    assert time.monotonic() - began > 0.29
    assert (second.name, second.attempt) == (name, 2)
    assert second.token != first.token
    assert queue.get(name).worker == "another"
    assert history(queue, name)[-2].message == "queued again: its worker was lost"


def test_a_lease_that_is_renewed_in_time_is_not_taken_over(queue: Queue) -> None:
    submit(queue)
    lease = claim(queue, 0.3)
    assert queue.renew(lease, 60.0) is False
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        assert nothing_to_do(queue)
    queue.finish(lease, b"")


def test_a_late_worker_may_go_on_until_somebody_takes_over(queue: Queue) -> None:
    name = submit(queue)
    lease = claim(queue, LOST)
    assert queue.renew(lease, 60.0) is False
    assert nothing_to_do(queue)
    queue.finish(lease, b"late")
    assert queue.get(name).outcome == b"late"


def test_a_wrong_clock_of_a_worker_takes_no_lease_away(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(queue)
    claim(queue)
    tomorrow = time.time() + 86400
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    assert nothing_to_do(queue)


def test_progress_of_a_lost_attempt_is_not_shown_in_the_next(queue: Queue) -> None:
    name = submit(queue)
    queue.report(claim(queue, LOST), b"almost there")
    claim(queue)
    assert queue.get(name).progress == b""


def test_lost_jobs_wait_again_or_end_though_nobody_claims(queue: Queue) -> None:
    lost, unwanted, poison, alive = submit(queue), submit(queue), submit(queue, max_attempts=1), submit(queue)
    leases = [claim(queue) for _ in range(4)]
    queue.cancel(unwanted)
    for lease in leases[:3]:
        queue.renew(lease, -5.0)
    assert queue.requeue_lost(20.0, POISON) == 0
    assert queue.requeue_lost(1.0, POISON) == 3
    assert [queue.get(name).state for name in (lost, unwanted, poison, alive)] == [QUEUED, CANCELLED, FAILED, RUNNING]
    assert queue.get(poison).outcome == POISON
    assert history(queue, lost)[-1].message == "queued again: its worker was lost"
    with pytest.raises(LeaseLost):
        queue.finish(leases[0], b"too late")
    assert (claim(queue).name, queue.get(lost).attempt) == (lost, 2)
    assert queue.requeue_lost(1.0, POISON) == 0


# -- attempts ----------------------------------------------------------------------------------------------------------


def test_a_poison_job_fails_after_so_many_attempts_and_the_next_job_is_claimed(queue: Queue) -> None:
    poison = submit(queue, max_attempts=2, priority=1)
    harmless = submit(queue)
    assert [claim(queue, LOST).attempt for _ in range(2)] == [1, 2]
    assert claim(queue).name == harmless
    row = queue.get(poison)
    assert (row.state, row.outcome, row.attempt) == (FAILED, POISON, 2)
    assert states(queue, poison) == [(QUEUED, 0), (RUNNING, 1), (QUEUED, 1), (RUNNING, 2), (FAILED, 2)]
    assert history(queue, poison)[-1].message == "failed: its worker was lost 2 times"


def test_charged_returns_count_as_attempts(queue: Queue) -> None:
    name = submit(queue, max_attempts=2)
    for attempt in (1, 2):
        lease = claim(queue)
        assert lease.attempt == attempt
        queue.release(lease, "the process that computed it was lost", charged=True)
    assert nothing_to_do(queue)
    assert (queue.get(name).state, queue.get(name).outcome) == (FAILED, POISON)


def test_returns_that_are_not_charged_do_not_count(queue: Queue) -> None:
    name = submit(queue, max_attempts=1)
    for _ in range(3):
        lease = claim(queue)
        assert lease.attempt == 1
        queue.report(lease, b"half")
        queue.release(lease, "its worker is stopping", charged=False)
        row = queue.get(name)
        assert (row.state, row.attempt, row.worker, row.progress) == (QUEUED, 0, None, b"")
    queue.finish(claim(queue), b"")
    assert queue.get(name).state == SUCCEEDED


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once(queue: Queue) -> None:
    name = submit(queue)
    assert queue.cancel(name).state == CANCELLED
    assert nothing_to_do(queue)
    assert states(queue, name) == [(QUEUED, 0), (CANCELLED, 0)]


def test_the_worker_of_a_running_job_is_asked_to_cancel_it(queue: Queue) -> None:
    name = submit(queue)
    lease = claim(queue)
    row = queue.cancel(name)
    assert (row.state, row.cancel_requested) == (RUNNING, True)
    assert queue.renew(lease, 60.0) is True
    queue.cancelled(lease)
    assert queue.get(name).state == CANCELLED


def test_a_job_that_ends_before_it_hears_of_being_cancelled_has_succeeded(queue: Queue) -> None:
    name = submit(queue)
    lease = claim(queue)
    queue.cancel(name)
    queue.finish(lease, b"result")
    assert queue.get(name).state == SUCCEEDED


@pytest.mark.parametrize("end", ["finish", "fail", "cancelled"])
def test_an_ended_job_stays_as_it_is_when_it_is_cancelled(queue: Queue, end: str) -> None:
    name = submit(queue)
    WRITES[end](queue, claim(queue))
    before = queue.get(name), history(queue, name)
    assert queue.cancel(name) == before[0]
    assert (queue.get(name), history(queue, name)) == before


def test_a_cancelled_job_whose_worker_is_lost_ends_cancelled(queue: Queue) -> None:
    name = submit(queue)
    lease = claim(queue)
    queue.cancel(name)
    queue.renew(lease, LOST)
    assert nothing_to_do(queue)
    assert states(queue, name) == [(QUEUED, 0), (RUNNING, 1), (CANCELLED, 1)]


def test_a_job_whose_worker_is_lost_is_cancelled_at_once(queue: Queue) -> None:
    name = submit(queue)
    claim(queue, LOST)
    assert queue.cancel(name).state == CANCELLED
    assert states(queue, name) == [(QUEUED, 0), (RUNNING, 1), (CANCELLED, 1)]


def test_a_job_that_is_given_back_after_it_was_cancelled_ends(queue: Queue) -> None:
    name = submit(queue)
    lease = claim(queue)
    queue.cancel(name)
    queue.release(lease, "its worker is stopping", charged=False)
    assert states(queue, name) == [(QUEUED, 0), (RUNNING, 1), (CANCELLED, 1)]


# -- request_id --------------------------------------------------------------------------------------------------------


def test_the_same_request_with_the_same_id_is_the_same_job_also_after_its_end(queue: Queue) -> None:
    name = submit(queue, request_id="once")
    assert submit(queue, request_id="once") == name
    queue.finish(claim(queue), b"")
    assert submit(queue, request_id="once") == name
    assert nothing_to_do(queue)


@pytest.mark.parametrize("other", [{"request": b"other"}, {"kind": "transduce"}])
def test_another_request_with_the_same_id_is_refused(queue: Queue, other: dict[str, Any]) -> None:
    name = submit(queue, request_id="once")
    with pytest.raises(AlreadyExists, match=f"'once' was used for another request, {name}") as caught:
        submit(queue, request_id="once", **other)
    assert caught.value.reason == "REQUEST_ID_CONFLICT"
    assert len(queue.page("default")[0]) == 1


def test_the_same_id_in_another_project_is_another_job(queue: Queue) -> None:
    assert submit(queue, project="one", request_id="once").project == "one"
    assert submit(queue, project="two", request_id="once").project == "two"


def test_requests_without_an_id_are_different_jobs(queue: Queue) -> None:
    assert submit(queue) != submit(queue)


def test_a_job_of_the_same_name_is_refused(queue: Queue) -> None:
    job = NewJob(submit(queue), "fit", b"r")
    with pytest.raises(AlreadyExists, match=f"{job.name} exists"):
        queue.submit(job, NO_LIMIT)


def test_many_at_once_with_the_same_request_make_one_job(queue: Queue) -> None:
    assert len(set(in_threads(12, lambda _: submit(queue, request_id="once")))) == 1
    assert len(queue.page("default")[0]) == 1


def test_of_many_at_once_with_different_requests_and_one_id_one_gets_a_job(queue: Queue) -> None:
    def attempt(number: int) -> bool:
        try:
            submit(queue, request=str(number).encode(), request_id="once")
        except AlreadyExists:
            return False
        return True

    assert sum(in_threads(12, attempt)) == 1
    assert len(queue.page("default")[0]) == 1


# -- whose turn it is --------------------------------------------------------------------------------------------------


def test_higher_priorities_go_first_then_older_jobs(queue: Queue) -> None:
    names = [submit(queue, priority=priority) for priority in (0, 5, -1, 5, 0)]
    assert [names.index(claim(queue).name) for _ in names] == [1, 3, 0, 4, 2]


def test_a_lost_job_goes_behind_others_of_its_priority(queue: Queue) -> None:
    """First in line again, one request could take down every worker in turn."""
    lost, second, third = submit(queue), submit(queue), submit(queue, priority=-1)
    claim(queue, LOST)
    assert [claim(queue).name for _ in range(3)] == [second, lost, third]


@pytest.mark.parametrize(
    "lose", [lambda queue, lease: queue.renew(lease, LOST), WRITES["release"]], ids=["lost", "back"]
)
def test_a_lost_job_waits_longer_before_each_attempt(
    queue: Queue, lose: Callable[[Queue, Lease], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_rows, "FIRST_BACKOFF", 1000.0)
    monkeypatch.setattr(job_rows, "LONGEST_BACKOFF", 5000.0)
    name = submit(queue, max_attempts=9)
    for expected in (1000.0, 4000.0, 5000.0):
        lose(queue, claim(queue))
        assert nothing_to_do(queue)
        row = queue.get(name)
        assert row.state == QUEUED
        assert row.not_before - row.started == pytest.approx(expected, abs=60.0)
        with queue.database.write() as connection:
            connection.execute(update(jobs).values(not_before=0.0))


def test_projects_take_turns_whatever_their_priorities(queue: Queue) -> None:
    for _ in range(4):
        submit(queue, project="greedy", priority=100)
    modest = [submit(queue, project="modest", priority=-100) for _ in range(2)]
    taken = []
    for _ in range(6):
        lease = claim(queue)
        taken.append(lease.name.project)
        queue.finish(lease, b"")
        time.sleep(0.002)
    assert taken == ["greedy", "modest", "greedy", "modest", "greedy", "greedy"]
    assert all(queue.get(name).state == SUCCEEDED for name in modest)


def test_a_project_with_fewer_running_jobs_goes_first(queue: Queue) -> None:
    for project in ("greedy", "greedy", "greedy", "modest", "modest"):
        submit(queue, project=project)
    assert Counter(claim(queue).name.project for _ in range(4)) == {"greedy": 2, "modest": 2}


def test_a_project_runs_no_more_jobs_than_it_may(queue: Queue) -> None:
    for project in ("small", "small", "small", "other"):
        submit(queue, project=project)
    limits = {"small": 1}

    def claimed() -> Lease | None:
        return queue.claim("a worker", KINDS, 60.0, POISON, limits.get)

    leases = [claimed() for _ in range(3)]
    assert {lease.name.project for lease in leases if lease is not None} == {"small", "other"}
    assert leases[2] is None
    small = next(lease for lease in leases if lease is not None and lease.name.project == "small")
    queue.finish(small, b"")
    again = claimed()
    assert again is not None
    assert again.name.project == "small"


def test_many_that_claim_at_once_start_no_more_jobs_of_a_project_than_it_may(queue: Queue) -> None:
    for _ in range(8):
        submit(queue)

    def claims(_: int) -> bool:
        return queue.claim("a worker", KINDS, 60.0, POISON, lambda _: 2) is not None

    assert sum(in_threads(8, claims)) <= 2
    assert eventually(lambda: nothing_to_do_within(queue, 2))
    assert len(queue.page("default", states=[RUNNING])[0]) == 2


def nothing_to_do_within(queue: Queue, limit: int) -> bool:
    return queue.claim("a worker", KINDS, 60.0, POISON, lambda _: limit) is None


def test_a_job_that_was_given_back_keeps_its_place(queue: Queue) -> None:
    first, second = submit(queue), submit(queue)
    queue.release(claim(queue), "back", charged=False)
    assert [claim(queue).name for _ in range(2)] == [first, second]


def test_unknown_kinds_are_left_for_workers_that_know_them(queue: Queue) -> None:
    unknown = submit(queue, "embed", priority=10)
    known = submit(queue)
    assert claim(queue).name == known
    assert nothing_to_do(queue)
    assert queue.claim("a newer worker", ["embed"], LOST, POISON) is not None
    assert nothing_to_do(queue)
    assert states(queue, unknown) == [(QUEUED, 0), (RUNNING, 1)]
    assert queue.claim("an idle worker", [], 60.0, POISON) is None


def test_positions_count_the_jobs_that_go_first(queue: Queue) -> None:
    names = [submit(queue, priority=priority) for priority in (0, 0, 5, 0)]
    assert [queue.placed(names)[name][1] for name in names] == [1, 2, 0, 3]
    assert sorted(place for _, place in queue.page("default")[0]) == [0, 1, 2, 3]
    claim(queue)
    assert [queue.placed(names)[name][1] for name in names] == [0, 1, 0, 2]


def test_positions_are_those_of_projects_that_take_turns(queue: Queue) -> None:
    greedy = [submit(queue, project="greedy", priority=9) for _ in range(3)]
    modest = submit(queue, project="modest")
    assert queue.placed([modest])[modest][1] == 1
    assert [queue.placed(greedy)[name][1] for name in greedy] == [0, 2, 3]


def test_many_at_once_do_not_overfill_a_queue(queue: Queue) -> None:
    def is_taken(_: int) -> bool:
        try:
            queue.submit(NewJob(JobName("default", new_id()), "fit", b"r"), 3)
        except LimitExceeded:
            return False
        return True

    assert sum(in_threads(12, is_taken)) == 3


def test_a_full_queue_refuses_and_says_when_to_try_again(queue: Queue) -> None:
    def try_to_submit(project: str = "default", request_id: str = "") -> JobName:
        row = queue.submit(NewJob(JobName(project, new_id()), "fit", b"r", request_id), 2)
        return JobName(row.project, row.id)

    first = try_to_submit(request_id="once")
    try_to_submit()
    with pytest.raises(LimitExceeded, match="2 jobs of project default are waiting, the limit is 2") as caught:
        try_to_submit()
    assert caught.value.reason == "QUEUE_FULL"
    assert caught.value.retry_seconds == 5.0
    # What is there already, other projects and room that a started job has made are no matter of the limit.
    assert try_to_submit(request_id="once") == first
    try_to_submit("other")
    claim(queue)
    try_to_submit()


# -- looking -----------------------------------------------------------------------------------------------------------


def test_pages_are_newest_first_and_complete(queue: Queue) -> None:
    names = [submit(queue) for _ in range(5)]
    submit(queue, project="other")
    seen: list[Row[Any]] = []
    has_more = True
    while has_more:
        page, has_more = queue.page("default", Page(2, seen[-1].number if seen else None))
        assert 1 <= len(page) <= 2
        seen += [row for row, _ in page]
    assert [row.id for row in seen] == [name.id for name in reversed(names)]


def test_pages_end_before_their_results_are_too_large_together(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "PAGE_BYTES", 1000)
    for size in (400, 400, 400, 5000):
        submit(queue)
        queue.finish(claim(queue), bytes(size))
    sizes, before, has_more = [], None, True
    while has_more:
        page, has_more = queue.page("default", Page(last=before))
        sizes.append([len(row.outcome) for row, _ in page])
        before = page[-1][0].number
    assert sizes == [[5000], [400, 400], [400]]


def test_reports_of_progress_are_thinned_but_states_and_the_newest_stay(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "MOST_REPORTS", 40)
    monkeypatch.setattr(leases, "NEWEST_REPORTS", 10)
    name = submit(queue)
    lease = claim(queue)
    for number in range(300):
        queue.report(lease, str(number).encode())
    queue.finish(lease, b"result")
    happened = history(queue, name)
    assert len(happened) <= 40 + 10 + 3
    assert [event.state for event in happened if event.progress is None] == [QUEUED, RUNNING, SUCCEEDED]
    assert [int(event.progress) for event in happened if event.progress][-10:] == list(range(290, 300))
    assert happened[-1].sequence == queue.get(name).last_sequence == 303


def test_pages_can_be_of_some_states_or_a_kind(queue: Queue) -> None:
    done, waiting, other = submit(queue, priority=1), submit(queue), submit(queue, "transduce")
    queue.finish(claim(queue), b"")

    def ids(**filters: Any) -> list[str]:
        return [row.id for row, _ in queue.page("default", **filters)[0]]

    assert ids(states=[SUCCEEDED]) == [done.id]
    assert ids(states=[QUEUED, SUCCEEDED]) == [other.id, waiting.id, done.id]
    assert ids(states=FINAL, kind="transduce") == []
    assert ids(kind="transduce") == [other.id]


def test_pages_can_be_of_a_source_and_a_time_and_in_either_order(queue: Queue) -> None:
    names = [submit(queue, source=source) for source in ("a", "b", "a", "")]
    created = [queue.get(name).created for name in names]

    def ids(page: Page = FIRST_PAGE, **filters: Any) -> list[str]:
        return [row.id for row, _ in queue.page("default", page, **filters)[0]]

    assert ids(source="a") == [names[2].id, names[0].id]
    assert ids(Page(oldest_first=True), source="a") == [names[0].id, names[2].id]
    first, has_more = queue.page("default", Page(3, oldest_first=True))
    assert has_more
    assert ids(Page(3, first[-1][0].number, oldest_first=True)) == [names[3].id]
    assert set(ids(Page(created_after=created[1]))) >= {names[1].id, names[2].id, names[3].id}
    assert names[3].id not in ids(Page(created_before=created[3]))
    assert ids(Page(created_after=created[3] + 60)) == []


def test_versions_and_depths_tell_what_has_changed(queue: Queue) -> None:
    numbers = [queue.get(submit(queue)).number for _ in range(3)]
    queue.finish(claim(queue), b"")
    assert queue.versions(numbers) == {numbers[0]: (3, SUCCEEDED), numbers[1]: (1, QUEUED), numbers[2]: (1, QUEUED)}
    assert queue.versions([]) == {}
    assert sorted(queue.depths()) == [(QUEUED, "fit", 2), (SUCCEEDED, "fit", 1)]


def test_events_can_be_read_from_where_one_stopped(queue: Queue) -> None:
    name = submit(queue)
    number = queue.get(name).number
    lease = claim(queue)
    queue.report(lease, b"half")
    assert [event.sequence for event in queue.events_after(number, 1)] == [2, 3]
    assert queue.events_after(number, 3) == []


# -- the end, and forgetting -------------------------------------------------------------------------------------------


def test_what_is_published_appears_with_the_end(queue: Queue) -> None:
    name, model = submit(queue), ModelName("default", "m")
    catalog = Catalog(queue.database)

    def publish(connection: Connection) -> None:
        catalog.add(connection, model, b"message", "blob")
        # Others see neither yet.
        assert not catalog.has(model)
        assert queue.get(name).state == RUNNING

    queue.finish(claim(queue), b"result", publish)
    assert catalog.has(model)
    assert queue.get(name).state == SUCCEEDED


def test_if_publishing_fails_nothing_has_happened(queue: Queue) -> None:
    name, model = submit(queue), ModelName("default", "m")
    catalog = Catalog(queue.database)
    with queue.database.write() as connection:
        catalog.add(connection, model, b"the older one", "blob")
    lease = claim(queue)
    before = queue.get(name), history(queue, name)

    def publish(connection: Connection) -> None:
        catalog.add(connection, ModelName("default", "another"), b"message", "blob")
        catalog.add(connection, model, b"message", "blob")

    with pytest.raises(AlreadyExists, match="projects/default/models/m exists"):
        queue.finish(lease, b"result", publish)
    assert (queue.get(name), history(queue, name)) == before
    assert not catalog.has(ModelName("default", "another"))
    queue.fail(lease, b"error", "the model_id is taken")
    assert queue.get(name).state == FAILED


def test_only_ended_jobs_are_deleted_with_all_their_events(queue: Queue) -> None:
    name = submit(queue)
    number = queue.get(name).number
    with pytest.raises(FailedPrecondition, match="is queued: cancel it first"):
        queue.delete(name)
    lease = claim(queue)
    with pytest.raises(FailedPrecondition, match="is running: cancel it first"):
        queue.delete(name)
    queue.finish(lease, b"")
    queue.delete(name)
    assert queue.events_after(number, 0) == []
    assert queue.versions([number]) == {}
    with pytest.raises(NotFound):
        queue.get(name)


def test_a_number_is_not_used_again_after_its_job_was_deleted(queue: Queue) -> None:
    name = submit(queue)
    number = queue.get(name).number
    queue.cancel(name)
    queue.delete(name)
    assert queue.get(submit(queue)).number > number


def test_jobs_that_ended_long_ago_are_forgotten(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "FORGET_AT_ONCE", 2)
    names = [submit(queue) for _ in range(7)]
    for end in ("finish", "fail", "cancelled", "finish", "finish"):
        WRITES[end](queue, claim(queue))
    claim(queue)
    assert queue.forget_ended(3600.0) == 0
    # All of them wait for the tracker still.
    assert queue.forget_ended(LOST, untracked=False) == 0
    assert queue.forget_ended(LOST) == 5
    assert [row.id for row, _ in queue.page("default")[0]] == [names[6].id, names[5].id]
    with queue.database.read() as connection:
        assert connection.scalar(text("SELECT count(*) FROM events")) == 3


# -- many at once ------------------------------------------------------------------------------------------------------


def test_many_threads_claim_each_job_once(queue: Queue) -> None:
    for _ in range(200):
        submit(queue)

    def work(_: int) -> list[int]:
        done = []
        while lease := queue.claim("a worker", KINDS, 60.0, POISON):
            done.append(lease.number)
        return done

    claimed = Counter(number for done in in_threads(8, work) for number in done)
    assert len(claimed) == 200
    assert set(claimed.values()) == {1}
    assert queue.depths() == [(RUNNING, "fit", 200)]


WORK = """
import time
from homophily_service.storage.queue import Queue
from homophily_service.storage.database import Database

queue = Queue(Database(sys.argv[1]))
begin()
while lease := queue.claim("a worker", ["fit"], 60.0, b""):
    queue.report(lease, b"half")
    queue.finish(lease, b"")
    print(lease.number)
    # SQLite's lock is not fair: who has just had it could have it again and again.
    time.sleep(0.01)
"""


def test_two_processes_work_on_each_job_once(queue: Queue) -> None:
    names = [submit(queue) for _ in range(60)]
    done = in_processes(2, WORK, queue.database.url)
    assert all(done), "one of them did nothing"
    assert sorted(int(number) for lines in done for number in lines) == sorted(queue.get(name).number for name in names)
    for name in names[::10]:
        assert states(queue, name) == [(QUEUED, 0), (RUNNING, 1), (RUNNING, 1), (SUCCEEDED, 1)]


def test_of_many_that_find_a_lost_job_one_takes_it_over(queue: Queue) -> None:
    name = submit(queue)
    claim(queue, LOST)
    leases = in_threads(8, lambda _: queue.claim("a worker", KINDS, 60.0, POISON))
    assert [lease.attempt for lease in leases if lease is not None] == [2]
    assert states(queue, name) == [(QUEUED, 0), (RUNNING, 1), (QUEUED, 1), (RUNNING, 2)]


def test_of_ends_at_the_same_time_one_counts(queue: Queue) -> None:
    def end_in_three_ways() -> JobName:
        name = submit(queue)
        lease = claim(queue, LOST)
        ends = (lambda: queue.finish(lease, b""), lambda: queue.fail(lease, b"", ""), lambda: queue.cancel(name))

        def end(number: int) -> None:
            with suppress(LeaseLost):
                ends[number]()

        in_threads(3, end)
        return name

    for _ in range(10):
        assert [state in FINAL for state, _ in states(queue, end_in_three_ways())] == [False, False, True]


def test_events_have_no_gaps_while_many_write_and_one_reads(queue: Queue) -> None:
    name = submit(queue)
    lease = claim(queue)
    number = lease.number
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while True:
            was_done = done.is_set()
            seen.extend(event.sequence for event in queue.events_after(number, seen[-1] if seen else 0))
            if was_done:
                return

    def report(_: int) -> None:
        for _ in range(10):
            queue.report(lease, b"some")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        in_threads(6, report)
        queue.finish(lease, b"")
    finally:
        done.set()
        reader.join()
    assert seen == list(range(1, 64))
    assert len(states(queue, name)) == 63


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_a_worker_that_freezes_within_a_transaction_loses_its_job(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = submit(queue)
    monkeypatch.setattr(database_module, "_FROZEN_SECONDS", 0.2)
    frozen = Queue(Database(queue.database.url))
    lease = claim(frozen, LOST)

    def freeze(_: Connection) -> None:
        # The row is locked, as long as the server waits for us.
        second = eventually(lambda: queue.claim("another", KINDS, 60.0, POISON))
        queue.finish(second, b"the result that stands")

    with pytest.raises(Unavailable):
        frozen.finish(lease, b"the frozen one's", freeze)
    with pytest.raises(LeaseLost):
        frozen.finish(lease, b"the frozen one's")
    frozen.database.close()
    assert queue.get(name).outcome == b"the result that stands"


def test_the_next_job_is_found_by_an_index(queue: Queue, backend: str) -> None:
    """However many jobs have ended or wait: without it, claiming took longer with each."""
    statements: list[tuple[str, Any]] = []

    @event.listens_for(queue.database.engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.startswith("SELECT"):
            statements.append((statement, parameters))

    submit(queue)
    claim(queue)
    assert len(statements) >= 3
    chosen = 0
    with queue.database.read() as connection:
        if backend == "postgres":
            # A table this small is read as a whole otherwise.
            for way in ("seqscan", "bitmapscan", "sort"):
                connection.exec_driver_sql(f"SET enable_{way} = off")
        for statement, parameters in statements:
            explain = "EXPLAIN QUERY PLAN" if backend == "sqlite" else "EXPLAIN"
            plan = "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters))
            assert "SCAN jobs" not in plan
            assert "Seq Scan on jobs" not in plan
            # Of a project's waiting jobs the first is the index's; running ones and projects are few.
            if "LIMIT" in statement and QUEUED in str(parameters):
                assert "TEMP B-TREE" not in plan
                assert "Sort" not in plan
                chosen += 1
    assert chosen == 1


# -- jobs that wait for others -----------------------------------------------------------------------------------------


def waiting_parent(queue: Queue, count: int = 2) -> tuple[JobName, list[JobName]]:
    name = JobName("p", "parent")
    queue.submit(NewJob(name, "fit", b"all"), max_queued=10)
    lease = queue.claim("w", ["fit"], 60.0, b"")
    assert lease is not None
    names = [JobName("p", f"parent-{number}") for number in range(count)]
    queue.wait_for(lease, [NewJob(child, "trial", child.id.encode()) for child in names], "waits for its trials")
    return name, names


def test_a_job_waits_for_those_that_it_has_queued(queue: Queue) -> None:
    name, names = waiting_parent(queue)
    assert queue.get(name).state == WAITING
    assert [row.id for row in queue.children(name)] == [child.id for child in names]
    assert queue.claim("w", ["fit"], 60.0, b"") is None
    first, second = (queue.claim("w", ["trial"], 60.0, b"") for _ in range(2))
    assert first is not None
    assert second is not None
    queue.finish(first, b"one")
    assert queue.get(name).state == WAITING
    queue.fail(second, b"wrong", "wrong")
    row = queue.get(name)
    # Waiting was no attempt of its own.
    assert (row.state, row.attempt) == (QUEUED, 0)
    again = queue.claim("w", ["fit"], 60.0, b"")
    assert again is not None
    assert again.attempt == 1
    assert [(row.state, row.outcome) for row in queue.children(name)] == [(SUCCEEDED, b"one"), (FAILED, b"wrong")]


def test_children_that_an_earlier_attempt_has_queued_are_not_queued_again(queue: Queue) -> None:
    name, names = waiting_parent(queue)
    for _ in names:
        lease = queue.claim("w", ["trial"], 60.0, b"")
        assert lease is not None
        queue.finish(lease, b"done")
    lease = queue.claim("w", ["fit"], 60.0, b"")
    assert lease is not None
    queue.wait_for(lease, [NewJob(child, "trial", b"") for child in names], "")
    # All have ended: it need not wait.
    assert queue.get(name).state == QUEUED
    assert len(queue.children(name)) == 2


def test_cancelling_a_job_cancels_those_that_it_waits_for(queue: Queue) -> None:
    name, names = waiting_parent(queue)
    running = queue.claim("w", ["trial"], 60.0, b"")
    assert running is not None
    assert queue.cancel(name).state == CANCELLED
    assert queue.get(names[1]).state == CANCELLED
    assert queue.renew(running, 60.0)
    queue.cancelled(running)
    assert {queue.get(one).state for one in (name, *names)} == {CANCELLED}


def test_a_worker_that_lost_its_lease_queues_nothing(queue: Queue) -> None:
    queue.submit(NewJob(JobName("p", "parent"), "fit", b""), max_queued=10)
    lost = queue.claim("w", ["fit"], LOST, b"")
    assert lost is not None
    queue.claim("x", ["fit"], 60.0, b"")
    with pytest.raises(LeaseLost):
        queue.wait_for(lost, [NewJob(JobName("p", "child"), "trial", b"")], "")
    with pytest.raises(NotFound):
        queue.get(JobName("p", "child"))


def test_children_that_end_at_once_wake_their_parent_once(queue: Queue) -> None:
    name, names = waiting_parent(queue, 16)
    leases = [queue.claim("w", ["trial"], 60.0, b"") for _ in names]

    def finish(place: int) -> None:
        lease = leases[place]
        assert lease is not None
        queue.finish(lease, b"")

    in_threads(len(names), finish)
    row = queue.get(name)
    assert row.state == QUEUED
    woken = [
        event
        for event in queue.events_after(row.number, 0)
        if event.message == "the jobs that it waited for have ended"
    ]
    assert len(woken) == 1


def test_children_count_towards_the_limits_of_their_project(queue: Queue) -> None:
    """Trials of a spread search were a way around them."""
    name = JobName("p", "parent")
    queue.submit(NewJob(name, "fit", b"all"), max_queued=3, max_per_day=4)
    children = [NewJob(JobName("p", f"parent-{number}"), "trial", b"t") for number in range(5)]
    lease = queue.claim("w", ["fit"], 60.0, b"")
    assert lease is not None
    queue.wait_for(lease, children, "waits", max_queued=3, max_per_day=4)
    assert len(queue.children(name)) == 3
    with pytest.raises(LimitExceeded, match="are waiting"):
        queue.submit(NewJob(JobName("p", new_id()), "fit", b"r"), max_queued=3)
    for _ in range(3):
        trial = queue.claim("w", ["trial"], 60.0, b"")
        assert trial is not None
        queue.finish(trial, b"")
    lease = queue.claim("w", ["fit"], 60.0, b"")
    assert lease is not None
    with pytest.raises(LimitExceeded, match="max_jobs_per_day is 4"):
        queue.wait_for(lease, children, "waits", max_queued=3, max_per_day=4)
    assert len(queue.children(name)) == 3


def test_a_job_that_no_worker_has_time_for_is_charged_in_the_end(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that were scaled in gave a job back that took longer than their grace time, again and again."""
    monkeypatch.setattr(leases, "FREE_RETURNS", 3)
    name, other = submit(queue, max_attempts=2), submit(queue, priority=-1)
    for attempt in (1, 1, 1, 1, 2):
        lease = claim(queue)
        assert (lease.name, lease.attempt) == (name, attempt)
        queue.release(lease, "its worker is stopping", charged=False)
    assert claim(queue).name == other
    assert nothing_to_do(queue)
    row = queue.get(name)
    assert (row.state, row.outcome, row.attempt) == (FAILED, POISON, 2)


def test_a_job_that_waits_for_its_own_jobs_again_and_again_is_not_charged(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only returns count towards the limit, though the job is queued after each wait as well."""
    monkeypatch.setattr(leases, "FREE_RETURNS", 2)
    name = submit(queue, max_attempts=1)
    for number in range(4):
        queue.wait_for(claim(queue), [NewJob(JobName("default", f"child-{number}"), "trial", b"t")], "waits")
        trial = queue.claim("w", ["trial"], 60.0, b"")
        assert trial is not None
        queue.finish(trial, b"")
    queue.release(claim(queue), "its worker is stopping", charged=False)
    assert (queue.get(name).state, queue.get(name).attempt) == (QUEUED, 0)
