"""NVIDIA's own compiler on every kernel file, for architectures from Turing to Blackwell; no device is needed."""

from __future__ import annotations

import pytest

from homophily.device.kernels import SOURCES, Kernels, binaries, signatures, source

from . import nvrtc, standin
from .needs import skip_unless_ci


@pytest.fixture(autouse=True)
def _compiler():
    if nvrtc.library() is None:
        skip_unless_ci(f"{nvrtc.WHEEL} is not installed: pip install 'homophily[gpu-tests]'")


MOST_REGISTERS = 128
"""Blocks of 128 threads with so many registers each leave four to a multiprocessor of 65,536."""
MOST_SHARED = 8 * 1024


class Reporting:
    """CuPy's access to the compiler, which keeps what the assembler reports of each program."""

    def __init__(self, real):
        self.real, self.names, self.used = real, {}, {}

    def __getattr__(self, name):
        return getattr(self.real, name)

    def createProgram(self, text, name, *headers):
        program = self.real.createProgram(text, name, *headers)
        self.names[program] = name.removesuffix(".cu")
        return program

    def compileProgram(self, program, options):
        self.real.compileProgram(program, (*options, nvrtc.VERBOSE))
        architecture = options[-1].rpartition("=")[2]
        self.used[self.names[program], "-DMIXED" in options, architecture] = nvrtc.usage(
            self.real.getProgramLog(program)
        )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder with all kernels for all architectures, and what each of them uses."""
    made = tmp_path_factory.mktemp("compiled")
    reporting = Reporting(
        pytest.importorskip(
            "cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed: pip install 'homophily[gpu-tests]'"
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binaries, "import_module", lambda _: reporting)
        binaries.compile_all(made)
    return made, reporting.used


@pytest.fixture
def folder(compiled):
    return compiled[0]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("is_mixed", [False, True], ids=["float64", "mixed"])
@pytest.mark.parametrize("architecture", binaries.ARCHITECTURES)
def test_a_kernel_file_compiles_and_spills_nothing(compiled, name, is_mixed, architecture, record_property):
    used = compiled[1][name, is_mixed, f"sm_{architecture}"]
    assert set(used) == set(signatures(name))
    for kernel, usage in used.items():
        record_property(kernel, usage._asdict())
        assert usage.spilled == 0, kernel
        assert usage.registers <= MOST_REGISTERS, kernel
        assert usage.shared <= MOST_SHARED, kernel


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
