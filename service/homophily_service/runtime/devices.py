"""The memory of NVIDIA devices, as the driver reports it (NVML); of each instance of a device that is divided (MIG).

Nothing is reported on machines without a driver, or without nvidia-ml-py, which the extra `gpu` brings.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple


class DeviceMemory(NamedTuple):
    """A device's number ("0"), or that of an instance of it ("0:1"), and its memory in bytes."""

    device: str
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
                    for name, handle in self._parts(str(number), nvml.nvmlDeviceGetHandleByIndex(number)):
                        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                        found.append(DeviceMemory(name, memory.used, memory.total))
        return found

    def _parts(self, name: str, device: Any) -> list[tuple[str, Any]]:
        """The device, or the instances that it is divided into."""
        nvml, parts = self._nvml, []
        try:
            is_divided = bool(nvml.nvmlDeviceGetMigMode(device)[0])
        except nvml.NVMLError:
            # The device cannot be divided, or the driver knows nothing of it.
            is_divided = False
        if not is_divided:
            return [(name, device)]
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
            with suppress(nvml.NVMLError_NotFound):
                parts.append((f"{name}:{number}", nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number)))
        return parts


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
