"""The CUDA kernels, as ``.cu`` files beside this one, and the one way to launch them.

A launch passes arguments blindly: a float32 array where the kernel reads doubles, or a strided view, computes garbage
without an error. So every launch goes through :class:`Kernels`, which reads each kernel's signature out of its source
and checks what it is given against it: types, contiguity, device, and the sizes that the comments there state.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from numbers import Integral, Real
from typing import Any

import numpy as np

THREADS = 128
"""Threads per block of every launch, as in ``common.cuh``."""
SOURCES = ("csr", "reduce", "tiles", "modes", "pairs", "masked", "distances", "topk", "search")
MOST_BLOCKS = 2**31 - 1
MOST_BLOCKS_ACROSS = 2**16 - 1

_SIGNATURE = re.compile(r'extern "C" __global__ void (\w+)\((.*?)\n\)', re.DOTALL)
_ARGUMENT = re.compile(r"(?:const )?(real|quick|float|int)(\*?) (\w+)(?: /\* ([^*]+(?:\*[^/][^*]*)*) \*/)?")


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel; ``size`` makes the least number of a pointer's elements of the integer arguments."""

    name: str
    type: str
    pointer: bool
    size: Callable[..., int]


@cache
def source(name: str) -> str:
    """The text of a kernel file with what is common to all in front."""
    here = files(__name__)
    return "\n".join((here / part).read_text(encoding="utf-8") for part in ("common.cuh", f"{name}.cu"))


def options_of(*, is_mixed: bool) -> tuple[str, ...]:
    """What the compiler is told about the precision."""
    return ("--std=c++17", "-DMIXED") if is_mixed else ("--std=c++17",)


def types_of(*, is_mixed: bool) -> dict[str, Any]:
    """NumPy's types for those of arguments."""
    return {"real": np.float64, "quick": np.float32 if is_mixed else np.float64, "float": np.float32, "int": np.int32}


@cache
def signatures(name: str) -> dict[str, tuple[Argument, ...]]:
    """The kernels of a file and their arguments."""
    found = {}
    for kernel, listed in _SIGNATURE.findall(source(name)):
        arguments = _ARGUMENT.findall(listed)
        integers = ", ".join(argument for kind, star, argument, _ in arguments if kind == "int" and not star)
        found[kernel] = tuple(
            # The expressions are the package's own comments in its kernels; there are no builtins to reach.
            Argument(name, kind, bool(star), eval(f"lambda {integers}: {size if star else 0}", {"__builtins__": {}}))
            for kind, star, name, size in arguments
        )
    return found


class Kernels:
    """The kernels compiled for one backend; with mixed precision, terms of Gauss sums are in float32."""

    def __init__(self, xp: Any, *, is_mixed: bool = False) -> None:
        self.xp, self.is_mixed, self._types = xp, is_mixed, types_of(is_mixed=is_mixed)
        self.quick = self._types["quick"]
        self._files = {kernel: name for name in SOURCES for kernel in signatures(name)}
        self._compiled: dict[str, Any] = {}

    def launch(self, kernel: str, threads: int, *arguments: Any, across: int = 1) -> None:
        """Run ``kernel`` on ``threads`` threads in blocks of ``THREADS``, times ``across`` in the second direction.

        Arguments are those of the kernel's signature: numbers for numbers, device arrays for pointers.
        """
        blocks, across = -(-int(threads) // THREADS), int(across)
        if threads == 0 or across == 0:
            return
        if not (0 < blocks <= MOST_BLOCKS and 0 < across <= MOST_BLOCKS_ACROSS):
            raise ValueError(f"The kernel {kernel!r} cannot be launched on {threads} times {across} threads.")
        declared = signatures(self._files[kernel])[kernel]
        if len(arguments) != len(declared):
            raise TypeError(f"The kernel {kernel!r} takes {len(declared)} arguments. Got {len(arguments)} instead.")
        given = list(zip(declared, arguments, strict=True))
        integers = [value for argument, value in given if argument.type == "int" and not argument.pointer]
        device, checked = self.xp.cuda.Device(), []
        for argument, value in given:
            try:
                check = self._pointer if argument.pointer else self._number
                checked.append(check(argument, value, integers, device))
            except (TypeError, ValueError) as error:
                raise type(error)(f"The argument {argument.name!r} of the kernel {kernel!r} {error}") from None
        self._function(kernel)((blocks, across), (THREADS,), tuple(checked))

    def _number(self, argument: Argument, value: Any, *_: Any) -> Any:
        if argument.type == "int":
            if not isinstance(value, Integral) or not -(2**31) <= int(value) < 2**31:
                raise TypeError(f"must be an int of 32 bits. Got {value!r} instead.")
        elif not isinstance(value, Real):
            raise TypeError(f"must be a number on the host. Got {type(value).__name__} instead.")
        return self._types[argument.type](value)

    def _pointer(self, argument: Argument, value: Any, integers: list[int], device: Any) -> Any:
        if not isinstance(value, self.xp.ndarray):
            raise TypeError(f"must be an array on the device. Got {type(value).__name__} instead.")
        wanted, contiguous = self._types[argument.type], value.flags.c_contiguous
        if value.dtype != wanted or not contiguous:
            layout = "contiguous" if contiguous else "strided"
            raise TypeError(f"must be a contiguous array of {wanted.__name__}. Got a {layout} one of {value.dtype}.")
        if value.device != device:
            raise ValueError(f"must be on the current device. Got an array on {value.device} instead.")
        # Products of NumPy's integers would not fit their type.
        size = argument.size(*map(int, integers))
        if value.size < size:
            raise ValueError(f"must have at least {size} elements. Got {value.size} instead.")
        return value

    def _function(self, kernel: str) -> Any:
        if kernel not in self._compiled:
            from homophily.device.kernels.binaries import compiled

            name = self._files[kernel]
            path = compiled(name, self.is_mixed, self.xp.cuda.Device().compute_capability)
            if path is None:
                module = self.xp.RawModule(code=source(name), options=options_of(is_mixed=self.is_mixed))
            else:
                module = self.xp.RawModule(path=str(path))
            self._compiled |= {each: module.get_function(each) for each in signatures(name)}
        return self._compiled[kernel]
