"""The memory of NVIDIA devices, as the driver's own library (NVML) tells it. Nothing is told where there is none."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class DeviceMemory(NamedTuple):
    """A device's number and bytes."""

    device: int
    used: int
    total: int


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Devices:
    """The devices of this machine, whoever uses them."""

    def __init__(self, library: str = _LIBRARY) -> None:
        try:
            self._nvml: Any = ctypes.CDLL(library)
            if self._nvml.nvmlInit_v2() != _SUCCESS:
                self._nvml = None
        except (OSError, AttributeError):
            self._nvml = None

    def memory(self) -> list[DeviceMemory]:
        """What each device has in use now; those that do not answer are left out."""
        count = ctypes.c_uint()
        if self._nvml is None or self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return []
        found = []
        for number in range(count.value):
            handle, memory = ctypes.c_void_p(), _Memory()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)) != _SUCCESS:
                continue
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _SUCCESS:
                found.append(DeviceMemory(number, memory.used, memory.total))
        return found
