"""The kernels as machine code, compiled where there is no GPU: ``python -m homophily.device.kernels.binaries``.

An image has them from its build, so that no new pod compiles them. They lie beside the sources, a file for each source
and architecture, and are found by the source's text: after a change of a kernel, it is compiled when first launched.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from itertools import product
from pathlib import Path

from homophily.device.kernels import SOURCES, options_of, source

FOLDER = Path(__file__).with_name("compiled")
#: Machine code runs on its own architecture and on later ones with the same first digits: 8.0 on 8.6 and 8.9 as well.
ARCHITECTURES = (75, 80, 90, 100, 120)
#: The driver makes machine code for all others from this intermediate code, which any device from 7.5 on takes.
PORTABLE = 75


def compiled(name: str, is_mixed: bool, capability: str, folder: Path = FOLDER) -> Path | None:
    """The file with the kernels of a source for a device, by its compute capability, as "80"; None if there is none."""
    device = int(capability)
    fitting = [each for each in ARCHITECTURES if each // 10 == device // 10 and each <= device]
    if device < PORTABLE:
        return None
    path = folder / _file(name, is_mixed, f"sm_{fitting[-1]}.cubin" if fitting else f"compute_{PORTABLE}.ptx")
    return path if path.exists() else None


def compile_all(folder: Path = FOLDER) -> None:
    """Compile every source, in float64 and in mixed precision, for every architecture."""
    nvrtc = import_module("cupy_backends.cuda.libs.nvrtc")
    folder.mkdir(exist_ok=True)
    for name, is_mixed in product(SOURCES, (False, True)):
        for kind, numbers in (("sm", ARCHITECTURES), ("compute", (PORTABLE,))):
            for number in numbers:
                program = nvrtc.createProgram(source(name), f"{name}.cu", (), ())
                nvrtc.compileProgram(program, (*options_of(is_mixed=is_mixed), f"--gpu-architecture={kind}_{number}"))
                code, suffix = (nvrtc.getCUBIN, "cubin") if kind == "sm" else (nvrtc.getPTX, "ptx")
                (folder / _file(name, is_mixed, f"{kind}_{number}.{suffix}")).write_bytes(code(program))
                nvrtc.destroyProgram(program)


def _file(name: str, is_mixed: bool, rest: str) -> str:
    text = "\0".join((source(name), *options_of(is_mixed=is_mixed)))
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}-{rest}"


if __name__ == "__main__":
    compile_all()
