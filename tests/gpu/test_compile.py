"""NVIDIA's own compiler on every kernel file, for architectures from Turing to Blackwell; no device is needed."""

from __future__ import annotations

import pytest

from homophily.device.kernels import SOURCES, signatures, source

from . import nvrtc
from .needs import skip_unless_ci


@pytest.fixture(autouse=True)
def _compiler():
    if nvrtc.library() is None:
        skip_unless_ci(f"{nvrtc.WHEEL} is not installed: pip install 'homophily[gpu-tests]'")


ARCHITECTURES = (75, 80, 90, 120)
MOST_REGISTERS = 128
"""Blocks of 128 threads with so many registers each leave four to a multiprocessor of 65,536."""
MOST_SHARED = 8 * 1024


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(("real", "architecture"), [*(("double", sm) for sm in ARCHITECTURES), ("float", 90)])
def test_a_kernel_file_compiles_and_spills_nothing(name, real, architecture, record_property):
    used = nvrtc.compile_kernels(source(name), architecture, ("--std=c++17", f"-DREAL={real}"))
    assert set(used) == set(signatures(name))
    for kernel, usage in used.items():
        record_property(kernel, usage._asdict())
        assert usage.spilled == 0, kernel
        assert usage.registers <= MOST_REGISTERS, kernel
        assert usage.shared <= MOST_SHARED, kernel


def test_a_mistake_is_told_in_the_compilers_words():
    with pytest.raises(ValueError, match=r"identifier .nowhere. is undefined"):
        nvrtc.compile_kernels(source("csr").replace("real total = 0;", "real total = nowhere;"), 80, ())
