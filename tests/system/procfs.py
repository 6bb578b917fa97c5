"""What the kernel knows about the processes of a test."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
# A variable in the environment of every process of a test, and of all that they start.
TAG = "SYSTEM_TEST_OF_HOMOPHILY"


def belonging(tag: str) -> dict[int, str]:
    """The processes of a test, running or stopped, and their command lines; without zombies."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                # Empty for a zombie.
                if f"{TAG}={tag}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def parent(pid: int) -> int:
    """The process that started it; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def resident(pid: int) -> int:
    """Bytes of memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def written(pid: int) -> int:
    """Bytes that it has written to files and sockets."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def peak_memory(pid: int) -> int:
    """Its peak memory in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
