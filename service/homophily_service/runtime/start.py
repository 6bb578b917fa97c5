"""Starts a process: ``python -m homophily_service.runtime.start MODULE ARGUMENT…`` runs the ``main`` of the module.

Imports make hundreds of thousands of objects that all stay. Looking for garbage among them takes a seventh of a start.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module


def start() -> None:
    """Import the module, and run it."""
    gc.disable()
    main = import_module(sys.argv.pop(1)).main
    gc.freeze()
    gc.enable()
    main()


if __name__ == "__main__":
    start()
