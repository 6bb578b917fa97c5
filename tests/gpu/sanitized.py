"""Run as a program, with the address sanitizer loaded first: every kernel under it, on arrays that fit exactly.

An argument names a change to a kernel, ``file:old:new``, that the sanitizer is expected to catch.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Only the kernels of the package, not the libraries that the rest of it loads.
for name, folder in (("homophily", ROOT / "core" / "homophily"), ("gpu_tests", Path(__file__).parent)):
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package

from gpu_tests.cases import cases, run  # noqa: E402
from gpu_tests.emulator import SANITIZERS, EmulatedKernel  # noqa: E402

from homophily.device.kernels import SOURCES, signatures, source  # noqa: E402


def main() -> None:
    changed, old, new = sys.argv[1].split(":") if len(sys.argv) > 1 else ("", "", "")
    for file in [changed] if changed else SOURCES:
        text = source(file).replace(old, new) if changed else None
        assert text is None or text != source(file)
        for case in cases():
            if case.kernel in signatures(file):
                run(case, EmulatedKernel(case.kernel, SANITIZERS, text))
    print("clean")


main()
