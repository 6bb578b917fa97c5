"""Threads in which calls wait for the database and the store; projects take turns."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from homophily_service.api.access import caller
from homophily_service.storage.tokens import EVERY_PROJECT

T = TypeVar("T")
Task = tuple["Future[Any]", Callable[[], Any]]


class FairThreads(ThreadPoolExecutor):
    """A thread pool in which projects take turns, and each has at most an eighth of the threads.

    In a plain pool a call waits behind all earlier tasks; here behind one task of each other project. And as threads
    share the GIL, a limit on one project's threads leaves more of it to the event loop that answers everybody.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self.threads = threads
        self._lock = threading.Lock()
        # By project, in the order of their turns.
        self._waiting: OrderedDict[str, deque[Task]] = OrderedDict()
        self._running: Counter[str] = Counter()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function when it is its caller's turn."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(caller.get(), deque()).append((future, lambda: fn(*args, **kwargs)))
        super().submit(self._work)
        return future

    def _work(self) -> None:
        """Run tasks until none may run; tasks of a project at its limit are left to the threads that it has."""
        while (taken := self._take()) is not None:
            project, (future, run) = taken
            try:
                if future.set_running_or_notify_cancel():
                    _finish(future, run)
            finally:
                with self._lock:
                    self._running[project] -= 1
                    if not self._running[project]:
                        del self._running[project]

    def _take(self) -> tuple[str, Task] | None:
        with self._lock:
            for project, tasks in self._waiting.items():
                if self._running[project] < self._most(project):
                    self._running[project] += 1
                    task = tasks.popleft()
                    del self._waiting[project]
                    if tasks:
                        # Behind the others.
                        self._waiting[project] = tasks
                    return project, task
        return None

    def _most(self, project: str) -> int:
        # The server itself, an operator, or any caller of a server without tokens.
        return self.threads if project in ("", EVERY_PROJECT) else max(1, self.threads // 8)


def _finish(future: Future[Any], run: Callable[[], Any]) -> None:
    try:
        future.set_result(run())
    except BaseException as error:
        future.set_exception(error)
