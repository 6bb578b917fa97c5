"""Where arrays live and computing happens: the CPU (NumPy) or a GPU (CuPy). The one seam between the two.

CuPy is imported only when a GPU is asked for. What runs there is in :mod:`homophily.device.gpu`, its kernels in
:mod:`homophily.device.kernels`.
"""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import import_module
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.device.kernels import Kernels
from homophily.device.operations import CpuOperations, Operations
from homophily.exceptions import DeviceFailedError, DeviceFallbackWarning, DeviceUnavailableError
from homophily.graph.computing import BackendName, Device, Eigenpairs, EigenProblem, NeighborSearch, register_devices

# Of the memory that is free, as much is planned for; the rest is for what libraries take for themselves.
SHARE_OF_FREE = 0.6

Result = TypeVar("Result")


class NumpyBackend(Device):
    """The CPU."""

    name = "numpy"
    on_device = False

    def neighbor_search(self, points: NDArray[np.float32], exact: Callable[[slice], Floats]) -> None:
        """None: the CPU's own indexes are taken."""

    def eigenpairs(self, problem: EigenProblem) -> None:
        """None: the CPU's own way is taken."""

    def operations(self, laplacian: csr_array, n_jobs: int | None) -> Operations:
        """What a fit on this Laplacian asks for."""
        return CpuOperations(laplacian, n_jobs)

    @contextmanager
    def job(self) -> Iterator[NumpyBackend]:
        """Nothing to prepare or to give back."""
        yield self


class CupyBackend(Device):
    """One GPU through CuPy: transfers, memory, kernels."""

    name = "cupy"
    on_device = True

    def __init__(self, cupy: Any, device: int, *, is_mixed: bool = False) -> None:
        self.xp, self.device, self.is_mixed = cupy, device, is_mixed
        self._jobs = threading.local()

    @cached_property
    def kernels(self) -> Kernels:
        """The kernels, compiled when first launched."""
        return Kernels(self.xp, is_mixed=self.is_mixed)

    @property
    def described(self) -> str:
        """What :func:`select_device` calls it."""
        return f"cuda{'-mixed' if self.is_mixed else ''}:{self.device}"

    def to_device(self, array: Any, dtype: Any = np.float64) -> Any:
        """A contiguous copy on the device."""
        return self.xp.asarray(np.ascontiguousarray(array, dtype=dtype))

    def as_quick(self, array: Any) -> Any:
        """An array on the device in the type that terms of Gauss sums are computed in."""
        return array.astype(np.float32) if self.is_mixed else array

    def to_host(self, array: Any) -> NDArray[Any]:
        """A copy on the host; waits for the device."""
        return np.asarray(self.xp.asnumpy(array))

    def free_memory(self) -> int:
        """Bytes that can still be allocated: those free on the device and those that the pool holds unused."""
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(free) + int(self.xp.get_default_memory_pool().free_bytes())

    def planned_memory(self) -> int:
        """Bytes that work arrays may be planned for."""
        return int(SHARE_OF_FREE * self.free_memory())

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the device had no room (CuPy's error is a MemoryError, like the host's)."""
        return isinstance(error, self.xp.cuda.memory.OutOfMemoryError)

    @contextmanager
    def job(self) -> Iterator[CupyBackend]:
        """The device in use for one fit: current for this thread, its memory given back at the end.

        A job within a job is part of it. Work in a function called inside: what this block's own variables hold is not
        given back.
        """
        if self._sent() is not None:
            yield self
            return
        try:
            with self.xp.cuda.Device(self.device):
                self._jobs.sent = {}
                try:
                    yield self
                finally:
                    self._jobs.sent.clear()
                    self._jobs.sent = None
                    self.release()
        except Exception as error:
            failure = self._failure()
            if failure is not None:
                raise DeviceFailedError(
                    f"The GPU failed, and this process cannot use it any more: start a new one ({failure})."
                ) from error
            if not self.is_out_of_memory(error):
                raise
            # The frames that ran out of memory still hold what they had.
            traceback.clear_frames(error.__traceback__)
            self.release()
            raise MemoryError(
                f"The GPU has too little free memory for this problem ({error}). Free some, use fewer points, or "
                "backend='numpy'."
            ) from error

    def _failure(self) -> Exception | None:
        """The error that the device has given since it failed, whatever it is asked; None if it works."""
        try:
            self.xp.cuda.runtime.deviceSynchronize()
        except self.xp.cuda.runtime.CUDARuntimeError as error:
            return cast(Exception, error)
        return None

    def neighbor_search(self, points: NDArray[np.float32], exact: Callable[[slice], Floats]) -> NeighborSearch:
        """A search among all pairs of these points, which ``exact`` gives in float64."""
        from homophily.device.gpu.neighbors import DeviceSearch

        return DeviceSearch(self, points, exact)

    def eigenpairs(self, problem: EigenProblem) -> Eigenpairs:
        """The smallest eigenvalues, their eigenvectors and the residual."""
        from homophily.device.gpu.spectral import device_eigenpairs

        with self.job():
            return device_eigenpairs(self, problem)

    def operations(self, laplacian: csr_array, n_jobs: int | None) -> Operations:  # noqa: ARG002
        """What a fit on this Laplacian, which is sent to the device, asks for."""
        from homophily.device.gpu.matrix import DeviceMatrix
        from homophily.device.gpu.operations import GpuOperations

        return GpuOperations(DeviceMatrix.of(self, laplacian), laplacian)

    def shrinking(self, part: int, least: int, work: Callable[[int], Result]) -> tuple[Result, int]:
        """``work(part)``, with the part halved down to ``least`` while memory is short; and the part that fitted."""
        while True:
            try:
                return work(part), part
            except MemoryError as error:
                if not self.is_out_of_memory(error) or part <= least:
                    raise
            # Here the frames that ran out of memory are gone, with what they held.
            self.release()
            part = max(least, part // 2)

    def once(self, host: Any, send: Callable[[], Any]) -> Any:
        """What ``send`` makes of a host object; in one job it is sent once, and kept as long as the host keeps it."""
        sent = self._sent()
        if sent is None:
            return send()
        key = id(host)
        if key not in sent:
            sent[key] = weakref.ref(host, lambda _: sent.pop(key, None)), send()
        return sent[key][1]

    def _sent(self) -> dict[int, tuple[Any, Any]] | None:
        """What this thread's job has sent; None outside of jobs."""
        found: dict[int, tuple[Any, Any]] | None = getattr(self._jobs, "sent", None)
        return found

    def release(self) -> None:
        """Give unused memory back to the device."""
        self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()


Backend = NumpyBackend | CupyBackend

_NUMPY = NumpyBackend()
_chosen_device = 0
_told = False
_lock = threading.Lock()


def get_backend(name: BackendName = "numpy") -> Backend:
    """The backend of that name.

    "cupy" and "cupy-mixed" raise a :class:`~homophily.exceptions.DeviceUnavailableError` that says what is missing;
    "auto" then takes the CPU, with one warning in a process.
    """
    if name == "numpy":
        return _NUMPY
    try:
        return _cupy_backend(_chosen_device, is_mixed=name == "cupy-mixed")
    except DeviceUnavailableError as error:
        if name != "auto":
            raise
        _tell_fallback(str(error))
        return _NUMPY


def select_device(device: str) -> BackendName:
    """Choose where this process computes; the ``backend`` to ask for.

    The device is "cpu", "auto", "cuda" or "cuda:<number>", or "cuda-mixed:<number>" for mixed precision.
    """
    global _chosen_device
    if device in ("cpu", "auto"):
        return "numpy" if device == "cpu" else "auto"
    kind, _, number = device.partition(":")
    if kind not in ("cuda", "cuda-mixed") or not (number.isdecimal() or device == kind):
        raise ValueError(
            f"The device must be 'cpu', 'auto', 'cuda:<number>' or 'cuda-mixed:<number>'. Got {device!r} instead."
        )
    _chosen_device = int(number or 0)
    backend: BackendName = "cupy" if kind == "cuda" else "cupy-mixed"
    get_backend(backend)
    return backend


@cache
def _cupy_backend(device: int, *, is_mixed: bool) -> CupyBackend:
    try:
        cupy = import_module("cupy")
        # CuPy imports it when first needed, and with it optuna where that is installed, which keeps the tracebacks of
        # imports that fail: all frames below, with their arrays, would never be freed. On a new thread there are none.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(import_module, "cupyx").result()
    except ImportError as error:
        raise DeviceUnavailableError(
            "backend='cupy' needs CuPy, which cannot be imported: pip install 'homophily[gpu]' for CUDA 12, or "
            f"'homophily[gpu-cuda13]' for CUDA 13 ({error})."
        ) from error
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceUnavailableError(
            f"backend='cupy' needs an NVIDIA driver that CuPy {cupy.__version__} can use, and finds none ({error})."
        ) from error
    if device >= count:
        raise DeviceUnavailableError(
            f"backend='cupy' needs the CUDA device {device}, and the driver shows {count} devices "
            "(see CUDA_VISIBLE_DEVICES)."
        )
    try:
        # The first product loads cuBLAS: better to miss it now than after the graph is made.
        with cupy.cuda.Device(device):
            cupy.matmul(cupy.ones((1, 1)), cupy.ones((1, 1)))
    except Exception as error:
        raise DeviceUnavailableError(
            f"backend='cupy' needs the CUDA libraries that CuPy {cupy.__version__} uses, which "
            f"pip install 'homophily[gpu]' (or [gpu-cuda13]) brings along, and a GPU that runs them ({error})."
        ) from error
    return CupyBackend(cupy, device, is_mixed=is_mixed)


def _tell_fallback(reason: str) -> None:
    global _told
    with _lock:
        told, _told = _told, True
    if not told:
        warnings.warn(f"backend='auto' computes on the CPU. {reason}", DeviceFallbackWarning, _level_of_caller())


def _level_of_caller() -> int:
    """The ``stacklevel`` of whoever called this package, past scikit-learn's wrappers of it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in ("homophily", "sklearn"):
        level, frame = level + 1, frame.f_back
    return level


register_devices(get_backend)
