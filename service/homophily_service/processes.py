"""Processes that compute: started fresh (never forked), tied to their parent's life, spoken to over a socket pair."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from homophily_service.settings import Settings

_PR_SET_PDEATHSIG = 1


def die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent or parent == 1:
        # It ended before the kernel was asked.
        os.kill(os.getpid(), how)


def start(module: str, settings: Settings, threads: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Run a module as a process; returns it with our end of the socket.

    The settings go through the socket, as they may hold a password, and arguments are for everybody to see.
    """
    ours, theirs = socket.socketpair()
    # Libraries read these once, when they are loaded.
    count = str(threads)
    environment = os.environ | {
        "OMP_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "NUMBA_NUM_THREADS": count,
    }
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    with Connection(os.dup(ours.fileno())) as connection:
        connection.send_bytes(settings.for_children().encode())
    return process, ours


def begin() -> tuple[Connection, Settings]:
    """What such a process does first; the answer is its end of the socket, and the settings."""
    die_with_parent()
    # A Ctrl-C in a terminal reaches every process; what becomes of this one is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection = Connection(int(sys.argv[1]))
    return connection, Settings.model_validate_json(connection.recv_bytes())


def fair_threads(settings: Settings) -> int:
    """Threads of one computing process, unless the setting says so: the cores, shared between the workers."""
    return settings.threads or max(1, len(os.sched_getaffinity(0)) // max(1, settings.workers))
