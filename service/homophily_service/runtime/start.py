"""Starts a process: ``python -m homophily_service.runtime.start MODULE ARGUMENT…`` runs the ``main`` of the module.

Imports make hundreds of thousands of objects that all stay. Looking for garbage among them takes a seventh of a start,
and as much at the end.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def imports() -> Iterator[None]:
    """Look for no garbage within, and never among what is there in the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def start() -> None:
    """Import the module, and run it."""
    with imports():
        main = import_module(sys.argv.pop(1)).main
    main()


if __name__ == "__main__":
    start()
