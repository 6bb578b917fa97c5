"""Processes that compute: started afresh (never forked), ended with their parent, connected by a socket pair."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from homophily_service.runtime.background import repeat
from homophily_service.runtime.settings import Settings

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
RESTART_SECONDS = 1.0
STARTER = "homophily_service.runtime.start"
CGROUP = Path("/sys/fs/cgroup")


def die_with_parent(parent: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread of ``parent`` that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        # The parent ended before the kernel was asked.
        os.kill(os.getpid(), how)


def keep_freed_memory(most: int = 64 << 20, largest: int = 8 << 20) -> None:
    """Have malloc keep up to ``most`` freed bytes, in pieces up to ``largest``, for later allocations.

    By default glibc returns the memory of each chunk of an upload to the system, and gets it back page by page for the
    next one, which takes a third of an upload's time. Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, most)
        mallopt(_M_MMAP_THRESHOLD, largest)


def start(module: str, settings: Settings, threads: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Run a module's ``main`` as a process; returns it with our end of the socket.

    The settings go through the socket: they may hold a password, and every user can read a process's arguments.
    """
    ours, theirs = socket.socketpair()
    # Sent before the process exists: if it is killed at once, the caller notices when it reads the socket.
    with Connection(os.dup(ours.fileno())) as connection:
        connection.send_bytes(settings.for_children().encode())
    environment = os.environ | thread_variables(threads)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", STARTER, module, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    return process, ours


def thread_variables(count: int) -> dict[str, str]:
    """Environment variables with the number of threads of libraries, which read them once, when they are loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return dict.fromkeys(names, str(count))


def begin(when_parent_dies: signal.Signals = signal.SIGKILL) -> tuple[Connection, Settings]:
    """Set up a process that :func:`start` has started; returns its end of the socket, and the settings."""
    descriptor, parent = map(int, sys.argv[1:])
    die_with_parent(parent, when_parent_dies)
    # A Ctrl-C in a terminal reaches every process; the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection = Connection(descriptor)
    return connection, Settings.model_validate_json(connection.recv_bytes())


async def keep_running(module: str, settings: Settings, threads: int, stop_seconds: float) -> None:
    """Run a module as a process, and again whenever it ends, until cancelled; then it has ``stop_seconds`` to stop."""
    await repeat(f"running {module}", lambda: _run(module, settings, threads, stop_seconds), RESTART_SECONDS)


async def _run(module: str, settings: Settings, threads: int, stop_seconds: float) -> None:
    process, ours = start(module, settings, threads)
    ours.setblocking(False)
    try:
        # The process never writes, so this returns when it ends; with a reset if it had not read its settings.
        with ours, suppress(ConnectionError):
            await asyncio.get_running_loop().sock_recv(ours, 1)
        _log.error("%s ended", module)
    finally:
        process.terminate()
        await asyncio.shield(asyncio.to_thread(_wait_or_kill, process, stop_seconds))


def _wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def fair_memory(settings: Settings) -> int:
    """Bytes that one computing process may use: the setting, or else its share of most of the memory."""
    return settings.job_memory_bytes or int(0.8 * _memory() / max(1, settings.workers))


def _memory() -> int:
    """The machine's memory, or the part of it that this process's control group may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in (CGROUP / "memory.max", CGROUP / "memory" / "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            total = min(total, int(limit.read_text()))
    return total


def limit_memory(size: int) -> None:
    """Make allocations beyond ``size`` bytes fail in this process, and have the kernel kill it before all others.

    A control group of its own would not do: a container may not create one, and Kubernetes kills all processes of a
    group that runs out of memory. So this limit has to be hit first.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Private writable memory: files that are mapped to be read do not count.
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def fair_threads(settings: Settings) -> int:
    """Threads of one computing process: the setting, or else the cores divided by the number of workers."""
    return settings.threads or max(1, len(os.sched_getaffinity(0)) // max(1, settings.workers))
