"""Imports scikit-learn without scipy.stats and pandas, which would take a third of the time of `import homophily`.

scikit-learn imports both for functions that are not called here. Programs that use them import them as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import scipy.sparse.linalg  # noqa: F401

POSTPONED = ("scipy.stats", "pandas")


class Postponed(ModuleType):
    """Stands for a module that is imported when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        """Look it up in the module itself."""
        _forget(self)
        return getattr(import_module(self.__name__), name)


def _forget(module: Postponed) -> None:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


@contextmanager
def postponed(*names: str) -> Iterator[None]:
    """Postpone imports of these modules by the code within, unless one is imported already or not installed."""
    modules = [Postponed(name) for name in names if name not in sys.modules and _is_installed(name)]
    sys.modules.update({module.__name__: module for module in modules})
    try:
        yield
    finally:
        for module in modules:
            _forget(module)


with postponed(*POSTPONED):
    import sklearn.base  # noqa: F401
