"""NVIDIA's run-time compiler without a GPU: it needs neither driver nor device to compile for an architecture."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from typing import NamedTuple

WHEEL = "nvidia-cuda-nvrtc-cu12"
#: Has the assembler report what kernels use.
VERBOSE = "--ptxas-options=--verbose"


class Usage(NamedTuple):
    """What a kernel takes of a multiprocessor: registers a thread, bytes spilled a thread, bytes of shared memory."""

    registers: int
    spilled: int
    shared: int


@cache
def library() -> ctypes.CDLL | None:
    """The compiler, out of its wheel."""
    try:
        parts = files(WHEEL) or []
    except PackageNotFoundError:
        return None
    # The builtins are loaded by the compiler itself, from beside it.
    path = next(str(part.locate()) for part in parts if re.fullmatch(r"libnvrtc\.so\.\d+", part.name))
    return ctypes.CDLL(path)


def version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_kernels(text: str, architecture: int, options: tuple[str, ...]) -> dict[str, Usage]:
    """Compile to machine code for ``sm_<architecture>``; what its kernels use. An error has the compiler's words."""
    nvrtc = library()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None) == 0
    flags = [f"--gpu-architecture=sm_{architecture}", VERBOSE, *options]
    status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*map(str.encode, flags)))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if status != 0:
        raise ValueError(f"sm_{architecture}: {log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    assert size.value > 0
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return usage(log.value.decode())


def usage(log: str) -> dict[str, Usage]:
    """What kernels use, out of the assembler's report."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        registers = re.search(r"Used (\d+) registers", part)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        shared = re.search(r"(\d+) bytes smem", part)
        spilled = int(spills[1]) + int(spills[2])
        found[part[: part.index("'")]] = Usage(int(registers[1]), spilled, int(shared[1]) if shared else 0)
    return found
