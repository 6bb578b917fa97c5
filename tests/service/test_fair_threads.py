"""Threads that calls of several projects share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextvars import copy_context

import pytest

from homophily_service.api.access import caller
from homophily_service.api.threads import FairThreads


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    with FairThreads(4, "test") as threads:
        yield threads


def submit(threads: FairThreads, project: str, function, *arguments):  # type: ignore[no-untyped-def]
    def run():  # type: ignore[no-untyped-def]
        caller.set(project)
        return threads.submit(function, *arguments)

    return copy_context().run(run)


def test_answers_and_errors_come_back(threads: FairThreads) -> None:
    assert submit(threads, "p", divmod, 7, 2).result(10.0) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        submit(threads, "p", divmod, 7, 0).result(10.0)


def test_a_call_does_not_wait_behind_all_tasks_of_another_project(threads: FairThreads) -> None:
    go = threading.Event()
    greedy = [submit(threads, "greedy", go.wait, 30.0) for _ in range(100)]
    time.sleep(0.05)
    # Most of the threads are left to others.
    assert submit(threads, "modest", int, "7").result(10.0) == 7
    go.set()
    assert all(task.result(10.0) for task in greedy)


def test_projects_take_turns(threads: FairThreads) -> None:
    order: list[str] = []
    go = threading.Event()
    blocked = [submit(threads, name, go.wait, 30.0) for name in "wxyz"]
    time.sleep(0.05)
    tasks = [submit(threads, "a", order.append, f"a{number}") for number in range(6)]
    tasks += [submit(threads, "b", order.append, f"b{number}") for number in range(2)]
    go.set()
    for task in [*blocked, *tasks]:
        task.result(10.0)
    assert max(order.index("b0"), order.index("b1")) < 7


def test_a_cancelled_task_is_not_run(threads: FairThreads) -> None:
    go, ran = threading.Event(), []
    blocked = [submit(threads, name, go.wait, 30.0) for name in "wxyz"]
    time.sleep(0.05)
    task = submit(threads, "v", ran.append, 1)
    assert task.cancel()
    go.set()
    for one in blocked:
        one.result(10.0)
    assert submit(threads, "v", len, ran).result(10.0) == 0
