"""NVIDIA's own compiler on every kernel file, for architectures from Turing to Blackwell; no device is needed."""

from __future__ import annotations

import pytest

from homophily.device.kernels import SOURCES, Kernels, binaries, options_of, signatures, source

from . import nvrtc, standin
from .needs import skip_unless_ci


@pytest.fixture(autouse=True)
def _compiler():
    if nvrtc.library() is None:
        skip_unless_ci(f"{nvrtc.WHEEL} is not installed: pip install 'homophily[gpu-tests]'")


ARCHITECTURES = binaries.ARCHITECTURES
MOST_REGISTERS = 128
"""Blocks of 128 threads with so many registers each leave four to a multiprocessor of 65,536."""
MOST_SHARED = 8 * 1024


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    ("is_mixed", "architecture"), [*((False, sm) for sm in ARCHITECTURES), (True, 75), (True, 120)]
)
def test_a_kernel_file_compiles_and_spills_nothing(name, is_mixed, architecture, record_property):
    used = nvrtc.compile_kernels(source(name), architecture, options_of(is_mixed=is_mixed))
    assert set(used) == set(signatures(name))
    for kernel, usage in used.items():
        record_property(kernel, usage._asdict())
        assert usage.spilled == 0, kernel
        assert usage.registers <= MOST_REGISTERS, kernel
        assert usage.shared <= MOST_SHARED, kernel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("compiled")
    pytest.importorskip("cupy", reason="CuPy is not installed: pip install 'homophily[gpu-tests]'")
    binaries.compile_all(made)
    return made


@pytest.mark.parametrize(
    ("capability", "end"),
    [
        ("75", "sm_75.cubin"),
        ("80", "sm_80.cubin"),
        ("89", "sm_80.cubin"),
        ("90", "sm_90.cubin"),
        ("103", "sm_100.cubin"),
        ("120", "sm_120.cubin"),
        ("130", "compute_75.ptx"),
    ],
)
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("is_mixed", [False, True], ids=["float64", "mixed"])
def test_an_image_has_code_for_every_device(folder, name, is_mixed, capability, end):
    path = binaries.compiled(name, is_mixed, capability, folder)
    assert path.name.endswith(end)
    code = path.read_bytes()
    assert code.startswith(b"\x7fELF" if end.endswith("cubin") else b"//")
    for kernel in signatures(name):
        assert kernel.encode() in code


def test_a_changed_kernel_and_an_older_device_are_compiled_for(folder, monkeypatch):
    assert binaries.compiled("csr", False, "70", folder) is None
    text = source("csr")
    monkeypatch.setattr(binaries, "source", lambda _: text + "// changed")
    assert binaries.compiled("csr", False, "80", folder) is None


def test_code_of_the_image_is_loaded_instead_of_compiled(folder, standin_cupy, monkeypatch):
    launched = Kernels(standin_cupy)
    arrays = [standin_cupy.zeros((4, 2)) for _ in range(3)]
    launched.launch("column_dots", 128, 4, 2, 1, *arrays, across=2)
    assert standin.counters.compiled == 1
    monkeypatch.setattr(binaries.compiled, "__defaults__", (folder,))
    Kernels(standin_cupy).launch("column_dots", 128, 4, 2, 1, *arrays, across=2)
    assert standin.counters.compiled == 1


def test_a_mistake_is_told_in_the_compilers_words():
    with pytest.raises(ValueError, match=r"identifier .nowhere. is undefined"):
        nvrtc.compile_kernels(source("csr").replace("real total = 0;", "real total = nowhere;"), 80, ())
