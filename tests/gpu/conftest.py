"""The stand-in for CuPy in the place of the real one."""

from __future__ import annotations

import sys
import types

import pytest

from homophily.device import backend
from homophily.graph.laplacian import choose_method

from . import emulator, standin
from .needs import skip_unless_ci

NO_DEVICE = "no GPU here: run `make test-gpu` on a machine that has one"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """One place for all tests that want a GPU, so that a run tells of them in one line."""
    report = (yield).get_result()
    if report.skipped and NO_DEVICE in str(report.longrepr):
        report.longrepr = (__file__, 1, f"Skipped: {NO_DEVICE}")


@pytest.fixture(autouse=True)
def never_factorised(monkeypatch):
    """Graphs as small as in tests are better factorised, on the CPU; a test may put the choice back."""
    monkeypatch.setattr("homophily.device.gpu.linear.choose_method", lambda *_: "cg")
    monkeypatch.setattr("homophily.graph.spectral.choose_method", lambda *_: "cg")


@pytest.fixture
def chosen_method(monkeypatch, never_factorised):  # noqa: ARG001
    """The choice between factors and products, as it is."""
    for module in ("homophily.device.gpu.linear", "homophily.graph.spectral"):
        monkeypatch.setattr(f"{module}.choose_method", choose_method)


@pytest.fixture
def standin_cupy(monkeypatch):
    """``backend="cupy"`` runs on the stand-in, with emulated kernels."""
    if emulator.missing_compiler:
        skip_unless_ci(emulator.missing_compiler)
    standin.counters.__init__()
    made = standin.module()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "cupyx", types.ModuleType("cupyx"))
    backend._cupy_backend.cache_clear()
    yield made
    backend._cupy_backend.cache_clear()


@pytest.fixture(params=["stand-in", pytest.param("device", marks=pytest.mark.gpu)])
def cupy(request):
    """CuPy: the stand-in, and on a machine that has a GPU the real one."""
    if request.param == "stand-in":
        return request.getfixturevalue("standin_cupy")
    try:
        return backend.get_backend("cupy").xp
    except backend.DeviceUnavailableError:
        return pytest.skip(NO_DEVICE)


@pytest.fixture
def device(cupy):  # noqa: ARG001
    """The backend of that CuPy."""
    return backend.get_backend("cupy")


@pytest.fixture
def mixed_device(cupy):  # noqa: ARG001
    """The same with mixed precision."""
    return backend.get_backend("cupy-mixed")
