"""Several threads or processes at once, and conditions to wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_threads(count: int, act: Callable[[int], T]) -> list[T]:
    """Run a function in several threads that start at the same moment; returns their results."""
    start = threading.Barrier(count)

    def begin(number: int) -> T:
        start.wait()
        return act(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


def in_processes(count: int, program: str, *arguments: str) -> list[list[str]]:
    """The lines that each of several processes prints; they start at the same moment, when all are loaded.

    The program calls ``begin()`` when it has loaded what it needs.
    """
    prelude = "import sys\ndef begin():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", prelude + program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=60)[0].splitlines() for process in processes]
        assert [process.returncode for process in processes] == [0] * count
        return printed
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def eventually(look: Callable[[], T | None], seconds: float = 20.0) -> T:
    """Call ``look`` until it returns something, and return that."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)
