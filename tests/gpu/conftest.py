"""The stand-in for CuPy in the place of the real one."""

from __future__ import annotations

import sys
from dataclasses import fields

import pytest

from homophily import backend

from . import emulator, standin


@pytest.fixture
def cupy(monkeypatch):
    """``backend="cupy"`` runs on the stand-in, with emulated kernels."""
    if emulator.missing_compiler:
        pytest.skip(emulator.missing_compiler)
    for field in fields(standin.Counters):
        setattr(standin.counters, field.name, field.default)
    made = standin.module()
    monkeypatch.setitem(sys.modules, "cupy", made)
    backend._cupy_backend.cache_clear()
    yield made
    backend._cupy_backend.cache_clear()


@pytest.fixture
def device(cupy):  # noqa: ARG001
    """The backend on the stand-in."""
    return backend.get_backend("cupy")
