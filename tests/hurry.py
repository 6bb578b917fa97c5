"""Gives processes that were started in the idle scheduling class their share of the cores again.

`make test` runs the tests that only compute on cores that are otherwise idle. Once they are the only tests left, that
would let any other program on the machine starve them: two busy loops did, for as long as they ran.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def descendants(process: int) -> list[int]:
    """The process and all that it has started, as far as they still run."""
    found = [process]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def hurry(process: int) -> None:
    """Move all threads of a process and of its descendants to the usual class."""
    for one in descendants(process):
        for thread in Path(f"/proc/{one}/task").glob("*"):
            # It may have ended; and only root may do this for a process in the idle class.
            with suppress(ProcessLookupError, PermissionError):
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


if __name__ == "__main__":
    hurry(int(sys.argv[1]))
