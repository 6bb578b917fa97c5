"""The CUDA kernels themselves, compiled by g++ and run on the CPU: arithmetic, bounds, barriers; and their launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from homophily.device.kernels import SOURCES, Kernels, options_of, signatures, source

from . import standin
from .cases import cases, run
from .emulator import SANITIZERS, EmulatedKernel, build, missing_compiler
from .needs import skip_unless_ci


@pytest.fixture(autouse=True)
def _compiler():
    if missing_compiler:
        skip_unless_ci(missing_compiler)


KERNELS = [kernel for name in SOURCES for kernel in signatures(name)]
# Relative to the largest entry.
TOLERANCE, MIXED_TOLERANCE = 1e-12, 2e-6


@pytest.mark.parametrize("is_mixed", [False, True], ids=["float64", "mixed"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_computes_what_numpy_does(kernel, is_mixed):
    chosen = [case for case in cases() if case.kernel == kernel]
    assert chosen
    for case in chosen:
        for found, expected in zip(run(case, EmulatedKernel(kernel, is_mixed=is_mixed)), case.expected, strict=True):
            scale = np.nanmax(np.abs(expected), initial=0.0) or 1.0
            tolerance = MIXED_TOLERANCE if is_mixed else TOLERANCE
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_order_of_threads_and_blocks_changes_no_bit(kernel):
    emulated = EmulatedKernel(kernel)
    for case in cases():
        if case.kernel == kernel:
            results = []
            for emulated.seed in range(4):
                results.append([part.tobytes() for part in run(case, emulated)])
            assert all(result == results[0] for result in results)


def test_a_missing_barrier_would_be_noticed():
    barrier = "__syncthreads();\n    for (unsigned half"
    assert barrier in source("reduce")
    broken = source("reduce").replace(barrier, "for (unsigned half")
    emulated = EmulatedKernel("column_dots", text=broken)
    case = next(case for case in cases() if case.kernel == "column_dots" and case.arguments[0] == 5000)
    results = set()
    for emulated.seed in range(4):
        results.add(run(case, emulated)[0].tobytes())
    # Poisoned shared memory is read before it is written, in an order that the seed decides.
    assert len(results) > 1 or np.isnan(np.frombuffer(results.pop())).any()


def test_threads_that_skip_a_barrier_would_be_noticed():
    whole = "    real total = 0;\n    for (int step"
    broken = source("reduce").replace(whole, "    if (threadIdx.x > 100) return;\n" + whole)
    assert broken != source("reduce")
    case = next(case for case in cases() if case.kernel == "column_dots")
    with pytest.raises(AssertionError, match="disagree about a barrier"):
        run(case, EmulatedKernel("column_dots", text=broken))


def sanitizer_run(*arguments):
    library = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = library.stdout.strip()
    if not Path(path).exists():
        pytest.skip("g++ has no address sanitizer here (libasan.so)")
    environment = os.environ | {"LD_PRELOAD": path, "ASAN_OPTIONS": "detect_leaks=0", "OPENBLAS_NUM_THREADS": "1"}
    program = Path(__file__).with_name("sanitized.py")
    return subprocess.run(
        [sys.executable, str(program), *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_no_kernel_leaves_its_arrays():
    for name in SOURCES:
        build(name, (*SANITIZERS, *options_of(is_mixed=False)))
    done = sanitizer_run()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "clean\n"


def test_a_kernel_that_left_its_arrays_would_be_noticed():
    done = sanitizer_run("csr:at >= (long long)rows * columns:at > (long long)rows * columns")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


@pytest.fixture
def launcher(standin_cupy):
    return Kernels(standin_cupy)


def arrays(rows=4, columns=2, dtype=np.float64):
    return [standin.ndarray(np.ones((rows, columns), dtype=dtype)) for _ in range(3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, out: (x, y.astype(np.float32), out), "contiguous array of float64"),
        (lambda x, y, out: (x, y.T, out), "Got a strided one"),
        (lambda x, y, out: (x, y.get(), out), "must be an array on the device. Got ndarray"),
        (lambda x, y, out: (x, y, out[:1]), "must have at least 10 elements. Got 2"),
        (lambda x, y, out: (x, y[:2], out), "must have at least 8 elements. Got 4"),
    ],
)
def test_the_launcher_refuses_what_a_kernel_would_misread(launcher, change, message):
    x, y, out = arrays()
    launcher.launch("column_dots", 128, 4, 2, 1, x, y, out, across=2)
    with pytest.raises((TypeError, ValueError), match=message):
        launcher.launch("column_dots", 128, 4, 2, 5, *change(x, y, out), across=2)


def test_the_launcher_refuses_wrong_numbers(launcher):
    x, y, out = arrays()
    with pytest.raises(TypeError, match=r"'rows' .* must be an int of 32 bits. Got 2147483648"):
        launcher.launch("column_dots", 128, 2**31, 2, 1, x, y, out)
    with pytest.raises(TypeError, match=r"takes 6 arguments. Got 5"):
        launcher.launch("column_dots", 128, 4, 2, x, y, out)
    with pytest.raises(ValueError, match="cannot be launched"):
        launcher.launch("column_dots", 128, 4, 2, 1, x, y, out, across=2**16)
    with pytest.raises(TypeError, match=r"'factor' .* must be a number on the host"):
        launcher.launch("tile_slopes", 8, 4, 2, 0, x, x, y)


def test_the_launcher_takes_the_numbers_of_numpy(launcher):
    x, y, out = arrays()
    launcher.launch("column_dots", np.int64(128), np.int32(4), np.int64(2), np.int8(1), x, y, out, across=np.int64(2))
    launcher.launch("tile_slopes", 8, 4, 2, 0, np.float32(0.5), x, y)
    # 200 · 200 does not fit 16 bits, nor would it be larger than 8.
    with pytest.raises(ValueError, match=r"must have at least 40000 elements\. Got 8"):
        launcher.launch("column_dots", 128, np.int16(200), np.int16(200), 1, x, y, out)


def test_the_launcher_refuses_an_array_on_another_device(launcher, standin_cupy, monkeypatch):
    x, y, out = arrays()
    monkeypatch.setattr(standin_cupy.cuda, "Device", lambda: standin.Device(1))
    with pytest.raises(ValueError, match="must be on the current device"):
        launcher.launch("column_dots", 128, 4, 2, 1, x, y, out, across=2)


def test_every_pointer_states_its_size_and_every_kernel_its_threads():
    assert "#define THREADS 128" in source("csr")
    for name in SOURCES:
        for kernel, arguments in signatures(name).items():
            for argument in arguments:
                assert not argument.pointer or f"{argument.name} /*" in source(name), (kernel, argument.name)


def test_where_tests_are_run_for_everybody_a_missing_compiler_fails(monkeypatch):
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no g"):
        skip_unless_ci("no g++")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no g"):
        skip_unless_ci("no g++")
