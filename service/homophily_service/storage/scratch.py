"""Folders in which jobs keep files while they run: locked while their process lives, and removed at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from homophily_service.runtime.settings import Settings


def _root(settings: Settings) -> Path:
    return settings.data_dir.absolute() / "imports"


@contextmanager
def scratch_folder(settings: Settings, name: str) -> Iterator[Path]:
    """A new folder, locked while this process lives, and removed at the end."""
    folder = _root(settings) / name
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(settings: Settings) -> None:
    """Remove the folders of processes that were killed: their locks are gone."""
    for folder in _root(settings).glob("*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
