"""Tests that wait for idle cores are not starved by other programs once they are the last."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ..hurry import descendants, hurry

PROGRAM = """
import os, subprocess, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
with subprocess.Popen([sys.executable, "-c", "input()"]) as child:
    print(child.pid, flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take a process out of the idle class")
def test_a_process_and_its_children_leave_the_idle_class() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert descendants(process.pid) == [process.pid, child]
        assert {os.sched_getscheduler(one) for one in (process.pid, child)} == {os.SCHED_IDLE}
        hurry(process.pid)
        assert {os.sched_getscheduler(one) for one in (process.pid, child)} == {os.SCHED_OTHER}
        process.communicate(b"\n")
