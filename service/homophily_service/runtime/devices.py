"""The memory of NVIDIA devices, as the driver reports it (NVML).

Nothing is reported on machines without a driver, or without nvidia-ml-py, which the extra `gpu` brings.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple


class DeviceMemory(NamedTuple):
    """A device's number, and its memory in bytes."""

    device: int
    used: int
    total: int


class Devices:
    """The devices of this machine."""

    def __init__(self) -> None:
        self._nvml = _load_nvml()

    def memory(self) -> list[DeviceMemory]:
        """Return the memory of each device; devices that do not answer are left out."""
        nvml = self._nvml
        found: list[DeviceMemory] = []
        if nvml is None:
            return found
        with suppress(nvml.NVMLError):
            for number in range(nvml.nvmlDeviceGetCount()):
                with suppress(nvml.NVMLError):
                    memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(number))
                    found.append(DeviceMemory(number, memory.used, memory.total))
        return found


def _load_nvml() -> Any:
    """The NVML module, initialised; None without a driver or nvidia-ml-py."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
