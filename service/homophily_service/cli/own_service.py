"""A service of the command's own, and other commands beside it: processes that end with this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.status import Status

from homophily_service.cli.screen import err, print_status
from homophily_service.cli.serve import ask_health

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class ServiceFailed(OSError):
    """The service did not start or did not end well; the message says how."""


# The command ends with this process. It arranges that itself, as gRPC's threads do not survive a fork.
_COMMAND = """
import signal, sys
from homophily_service.runtime.processes import die_with_parent
die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
from homophily_service.cli import main
main()
"""


def _own_command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", _COMMAND, str(os.getpid()), *arguments]


@contextmanager
def beside(*arguments: str) -> Iterator[None]:
    """Another command of ours beside this one, stopped on exit."""
    # Ctrl-C must reach only this process, which then stops the other.
    process = subprocess.Popen(_own_command(*arguments), stdin=subprocess.DEVNULL, text=True, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        _wait_or_kill(process)


@contextmanager
def embedded_service(folder: Path) -> Iterator[str]:
    """`homophily serve` on a free port, ready on entry and stopped on exit; yields its address."""
    # Settings of another service must not reach this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMOPHILY_")}
    # Its runs would be deleted with its folder.
    environment |= {"HOMOPHILY_LOG_LEVEL": "warning", "HOMOPHILY_TRACKING": "false"}
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            _own_command("serve", "--port=0", f"--data-dir={folder / 'data'}"),
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
            # Ctrl-C must reach only this process, which then stops the service.
            start_new_session=True,
        )
    try:
        began = time.monotonic()
        with Status("starting a service", console=err):
            target = _address(process, log)
            _wait_until_ready(process, target, log)
        print_status(f"✓ a service runs on {target} ({time.monotonic() - began:.1f} s)")
        yield target
    except BaseException:
        process.terminate()
        _wait_or_kill(process)
        raise
    with Status("stopping the service", console=err):
        process.terminate()
        code = _wait_or_kill(process)
    if code:
        raise ServiceFailed(f"the service ended with code {code}{_tail(log)}")


def _address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"serves on (\S+:\d+)", line)
    if match is None:
        raise ServiceFailed(f"the service did not start{_tail(log)}")
    return match.group(1)


def _wait_until_ready(process: subprocess.Popen[str], target: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    # It may answer before it is ready, and a call may be lost.
    while ask_health(target, deadline - time.monotonic()) != "SERVING":
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServiceFailed(f"the service on {target} is not ready{_tail(log)}")
        time.sleep(0.1)


def _wait_or_kill(process: subprocess.Popen[str]) -> int:
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    if process.stdout is not None:
        process.stdout.close()
    return code


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "" if not lines else "; its last lines:\n" + "\n".join(lines[-10:])
