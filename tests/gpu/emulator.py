"""The CUDA kernels compiled by g++ and called through ctypes: the same files, their threads one after the other."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import numpy as np

from homophily.device.kernels import SOURCES, options_of, signatures, source, types_of

SHIM = Path(__file__).with_name("cuda_shim.hpp")
FLAGS = ("-O2", "-ffp-contract=off")
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
CACHE = Path(tempfile.gettempdir()) / f"homophily-emulator-{os.getuid()}"

RUNNING = threading.Lock()

missing_compiler = None if shutil.which("g++") else "g++ is not installed: the kernels cannot be emulated"


def program(name: str, text: str | None = None) -> str:
    """A kernel file as C++, with an entry point for each kernel that takes its arguments as an array of pointers."""
    text = source(name) if text is None else text
    parts = ['#include "cuda_shim.hpp"\n', text]
    for kernel, arguments in signatures(name).items():
        begin = text.index(f"void {kernel}(")
        following = text.find('extern "C"', begin)
        own = text[begin : following if following > 0 else len(text)]
        barriers = bool(re.search(r"__syncthreads|block_sum|store_sums|row_times", own))
        values = ", ".join(
            f"*({argument.type}{'*' if argument.pointer else ''}*)a[{at}]" for at, argument in enumerate(arguments)
        )
        parts.append(
            f"static void call_{kernel}(void** a) {{ {kernel}({values}); }}\n"
            f'extern "C" int run_{kernel}(unsigned blocks, unsigned across, unsigned threads, unsigned seed, void** a)'
            f" {{ return emulation::run(blocks, across, threads, seed, {str(barriers).lower()}, call_{kernel}, a); }}\n"
        )
    return "\n".join(parts)


def build(name: str, flags: tuple[str, ...] = FLAGS, text: str | None = None) -> Path:
    """The library of a kernel file, built once for the same text and flags."""
    code = program(name, text)
    digest = hashlib.sha256("\0".join((code, SHIM.read_text(), *flags)).encode()).hexdigest()[:16]
    library = CACHE / f"{name}-{digest}.so"
    if not library.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            file, made = Path(folder) / f"{name}.cpp", Path(folder) / "made.so"
            file.write_text(code)
            command = ["g++", "-shared", "-fPIC", "-Wall", "-Wno-unused"]
            command += [f"-I{SHIM.parent}", *flags, str(file), "-o", str(made)]
            built = subprocess.run(command, check=False, capture_output=True, text=True)
            if built.returncode or built.stderr:
                raise RuntimeError(f"g++ does not like the kernels in {name}.cu:\n{built.stderr}")
            # Several test processes may build the same one: the last to finish replaces an equal file.
            made.replace(library)
    return library


class EmulatedKernel:
    """One kernel; called as CuPy calls a RawKernel, with NumPy arrays and NumPy scalars."""

    def __init__(
        self, kernel: str, flags: tuple[str, ...] = FLAGS, text: str | None = None, *, is_mixed: bool = False
    ) -> None:
        self.name = next(name for name in SOURCES if kernel in signatures(name))
        self.kernel, self.types = kernel, types_of(is_mixed=is_mixed)
        flags = (*flags, *options_of(is_mixed=is_mixed))
        self.arguments = signatures(self.name)[kernel]
        self.function = getattr(ctypes.CDLL(str(build(self.name, flags, text))), f"run_{kernel}")
        self.seed = 0

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple) -> None:
        held = []
        for argument, value in zip(self.arguments, arguments, strict=True):
            kind = self.types[argument.type]
            if argument.pointer:
                assert isinstance(value, np.ndarray)
                assert value.flags.c_contiguous
                assert value.dtype == kind
                held.append(ctypes.c_void_p(value.ctypes.data))
            else:
                # As CuPy: only a NumPy scalar says how wide it is.
                assert isinstance(value, np.generic)
                assert value.dtype == kind
                held.append(np.ctypeslib.as_ctypes_type(kind)(value.item()))
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        across = grid[1] if len(grid) > 1 else 1
        # The fibers of a block are the process's.
        with RUNNING:
            failed = self.function(grid[0], across, block[0], self.seed, pointers)
        assert not failed, f"threads of {self.kernel} disagree about a barrier"
