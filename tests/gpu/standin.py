"""A stand-in for CuPy that runs on the CPU and is stricter than the real one.

It has only the names listed here, each of which a test looks up in the real CuPy, with the keyword arguments listed;
its arrays refuse to meet NumPy arrays or to become one except by ``asarray``, ``asnumpy`` and ``get``; kernels are the
emulated ones. Transfers and moments at which the host would wait for the device are counted.
"""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass, field
from importlib import import_module

import numpy as np

from homophily.device.kernels import SOURCES, source

from .emulator import EmulatedKernel

#: Functions of the module, with the keyword arguments that may be used.
FUNCTIONS = {
    "arange": ("dtype",),
    "argsort": ("axis", "kind"),
    "astype": (),
    "broadcast_to": (),
    "clip": (),
    "concatenate": ("axis",),
    "cos": (),
    "cumsum": (),
    "empty": ("dtype",),
    "empty_like": (),
    "exp": (),
    "floor": (),
    "full": ("dtype",),
    "imag": (),
    "isfinite": (),
    "log1p": (),
    "matmul": (),
    "max": ("axis",),
    "maximum": (),
    "minimum": (),
    "ones": ("dtype",),
    "real": (),
    "reshape": (),
    "searchsorted": ("side",),
    "sin": (),
    "sqrt": (),
    "stack": ("axis",),
    "sum": ("axis",),
    "take": ("axis",),
    "where": (),
    "zeros": ("dtype",),
    "zeros_like": (),
    "abs": (),
    "ascontiguousarray": (),
    "linalg.eigh": (),
    "linalg.qr": (),
}
#: Attributes and methods of arrays.
PLAIN_ATTRIBUTES = ("dtype", "flags", "nbytes", "ndim", "shape", "size")
ARRAY_ATTRIBUTES = ("T", "real", "imag")
METHODS = {
    "all": ("axis",),
    "astype": (),
    "conj": (),
    "copy": (),
    "max": ("axis",),
    "min": ("axis",),
    "ravel": (),
    "reshape": (),
    "sum": ("axis",),
    "view": (),
}
OPERATORS = ("add", "sub", "mul", "truediv", "pow", "matmul", "and", "or", "lshift", "rshift", "floordiv", "mod")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass
class Counters:
    """What has crossed between host and device."""

    waits: int = 0
    uploads: list[int] = field(default_factory=list)
    """The elements of each array sent to the device."""
    downloads: int = 0
    sent: int = 0
    fetched: int = 0
    """Bytes to and from the device."""
    launches: int = 0
    operations: int = 0
    """CuPy's own functions and operators, most of which launch a kernel."""
    kinds: set[tuple[str, ...]] = field(default_factory=set)
    """What CuPy compiles a kernel of its own for: functions and operators, with the types of their arrays."""
    compiled: int = 0
    """The files of kernels that were compiled rather than loaded."""
    largest_allocation: float = np.inf
    released: list[int] = field(default_factory=list)
    """The bytes in use on the device each time its memory was given back."""
    used: int = 0
    """The bytes of all arrays on the device now, the most they ever were, and the most they may be."""
    peak: int = 0
    capacity: float = np.inf
    fails_after: float = np.inf
    """The number of launches after which the device fails, as by an invalid address: for the rest of the process."""
    live: set[int] = field(default_factory=set)

    def watch(self, array):
        """Count the memory that an array owns, or is a view of, until it is free."""
        while isinstance(array.base, np.ndarray):
            array = array.base
        if id(array) in self.live:
            return
        if self.used + array.nbytes > self.capacity:
            raise OutOfMemoryError(f"Out of memory allocating {array.nbytes:,} bytes (used: {self.used:,})")
        self.live.add(id(array))
        self.used += array.nbytes
        self.peak = max(self.peak, self.used)
        weakref.finalize(array, self._forget, self.live, id(array), array.nbytes)

    def _forget(self, live, number, size):
        # Arrays of an earlier test may go when the next one has begun to count.
        if live is self.live:
            live.discard(number)
            self.used -= size


counters = Counters()


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    pass


def _unwrap(value):
    if isinstance(value, ndarray):
        return value._array
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>: host and device arrays do not mix")
    if isinstance(value, list | tuple):
        return type(value)(_unwrap(each) for each in value)
    return value


def _wrap(value):
    if isinstance(value, np.ndarray | np.generic):
        return ndarray(np.asarray(value))
    if isinstance(value, tuple):
        return tuple(_wrap(each) for each in value)
    return value


class ndarray:
    """An array «on the device»."""

    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, array):
        self._array = array
        counters.watch(array)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __getattr__(self, name):
        if name in PLAIN_ATTRIBUTES:
            return getattr(self._array, name)
        if name in ARRAY_ATTRIBUTES:
            return ndarray(getattr(self._array, name))
        if name in METHODS:
            return _checked(getattr(self._array, name), name, METHODS[name])
        raise AttributeError(f"the stand-in's arrays have no {name!r}")

    @property
    def device(self):
        return Device(0)

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "version": 3}

    def _key(self, key):
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if isinstance(part, ndarray):
                # A mask gives an array whose size only the device knows; out-of-range indices do not raise in CuPy.
                assert part.dtype.kind in "iu", "a mask as index makes the host wait"
            else:
                assert part is None or part is Ellipsis or isinstance(part, int | slice), f"index of {type(part)}"
        return _unwrap(key)

    def __getitem__(self, key):
        return _wrap(self._array[self._key(key)])

    def __setitem__(self, key, value):
        self._array[self._key(key)] = _unwrap(value)

    def __len__(self):
        return len(self._array)

    def __iter__(self):
        return (_wrap(each) for each in self._array)

    def __neg__(self):
        return ndarray(-self._array)

    def __invert__(self):
        return ndarray(~self._array)

    def _wait(self):
        counters.waits += 1
        return self._array

    def get(self):
        counters.downloads += 1
        counters.fetched += self.nbytes
        return self._wait().copy()

    def item(self):
        return self._wait().item()

    def __float__(self):
        return float(self._wait())

    def __int__(self):
        return int(self._wait())

    def __bool__(self):
        return bool(self._wait())


def _note_kind(name, *arguments):
    counters.operations += name not in ("empty", "empty_like")
    counters.kinds.add((name, *(str(each.dtype) for each in arguments if isinstance(each, ndarray))))


def _operator(name):
    def apply(self, other):
        _note_kind(name, self, other)
        return _wrap(getattr(self._array, name)(_unwrap(other)))

    return apply


def _in_place(name):
    def apply(self, other):
        _note_kind(name, self, other)
        self._array = getattr(self._array, name)(_unwrap(other))
        return self

    return apply


for _name in OPERATORS:
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(ndarray, f"__r{_name}__", _operator(f"__r{_name}__"))
    setattr(ndarray, f"__i{_name}__", _in_place(f"__i{_name}__"))
for _name in COMPARISONS:
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))


def _checked(function, name, keywords):
    def call(*arguments, **named):
        if name.startswith("linalg."):
            # As CuPy does when first asked for one of these.
            import_module("cupyx")
        _note_kind(name, *arguments)
        unknown = set(named) - set(keywords)
        assert not unknown, f"{name} is not known to take {unknown} in CuPy"
        result = function(*_unwrap(arguments), **{key: _unwrap(value) for key, value in named.items()})
        if name in FUNCTIONS and getattr(result, "nbytes", 0) > counters.largest_allocation:
            raise OutOfMemoryError(f"Out of memory allocating {result.nbytes:,} bytes")
        return _wrap(result)

    return call


class Device:
    compute_capability = "80"

    def __init__(self, device=0):
        self.id = device

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def __eq__(self, other):
        return self.id == other.id

    __hash__ = None


class RawModule:
    def __init__(self, *, code=None, options=(), path=None):
        assert (code is None) != (path is None)
        if code is not None:
            assert code in map(source, SOURCES)
            counters.compiled += 1
        self.is_mixed = "-DMIXED" in options

    def get_function(self, kernel):
        emulated = EmulatedKernel(kernel, is_mixed=self.is_mixed)

        def launch(grid, block, arguments):
            counters.launches += 1
            _synchronize()
            emulated.seed = counters.launches
            emulated(grid, block, _unwrap(arguments))

        return launch


def _synchronize():
    if counters.launches > counters.fails_after:
        raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")


class _Pool:
    def free_all_blocks(self):
        _synchronize()
        counters.released.append(counters.used)

    def free_bytes(self):
        return 0

    def total_bytes(self):
        return counters.peak


def _asarray(array, dtype=None):
    if isinstance(array, ndarray):
        return ndarray(np.array(array._array, dtype=dtype))
    counters.uploads.append(np.size(array))
    made = np.array(array, dtype=dtype)
    counters.sent += made.nbytes
    return ndarray(made)


def _asnumpy(array):
    assert isinstance(array, ndarray)
    return array.get()


def module() -> types.ModuleType:
    """What ``import cupy`` would give."""
    made = types.ModuleType("cupy")
    made.__version__ = "14.2.0"
    made.linalg = types.SimpleNamespace()
    for name, keywords in FUNCTIONS.items():
        owner, numpy, short = (made.linalg, np.linalg, name[7:]) if name.startswith("linalg.") else (made, np, name)
        setattr(owner, short, _checked(getattr(numpy, short), name, keywords))
    made.complex128 = np.complex128
    made.ndarray, made.RawModule, made.asarray, made.asnumpy = ndarray, RawModule, _asarray, _asnumpy
    pool = _Pool()
    made.get_default_memory_pool = made.get_default_pinned_memory_pool = lambda: pool
    made.cuda = types.SimpleNamespace(
        Device=Device,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=types.SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            deviceSynchronize=_synchronize,
            getDeviceCount=lambda: 1,
            memGetInfo=lambda: (2**30, 2**31),
        ),
    )
    return made


def names() -> list[str]:
    """Every name of CuPy that the stand-in has, dotted."""
    others = ["complex128", "ndarray", "RawModule", "asarray", "asnumpy", "get_default_memory_pool"]
    others += ["get_default_pinned_memory_pool", "cuda.Device", "cuda.memory.OutOfMemoryError"]
    others += [f"cuda.runtime.{name}" for name in ("CUDARuntimeError", "deviceSynchronize", "getDeviceCount")]
    others += ["cuda.runtime.memGetInfo"]
    arrays = [*PLAIN_ATTRIBUTES, *ARRAY_ATTRIBUTES, *METHODS, "__cuda_array_interface__", "device", "get", "item"]
    return [*FUNCTIONS, *others, *(f"ndarray.{name}" for name in arrays)]
