"""The seam between CPU and GPU: what is imported when, what is told where a GPU is missing, what CuPy has."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import types
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily import DeviceFallbackWarning, DeviceUnavailableError, ERRClassifier, KNNGraph
from homophily.device import backend
from homophily.device.backend import get_backend, select_device
from homophily.device.gpu.gauss import read_modes, space_phases
from homophily.device.gpu.matrix import DeviceMatrix, column_dots
from homophily.device.gpu.powers import power_of
from homophily.graph.computing import EigenProblem
from homophily.graph.subspace import chebyshev_filter, iterate

from ..core.oracle import knn_weights, laplacian
from ..patience import COMPUTING_SECONDS
from . import standin

X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.where(np.arange(60) < 20, (X[:, 0] > 0).astype(int), -1)


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(backend, "_told", False)
    monkeypatch.setattr(backend, "_chosen_device", 0)
    backend._cupy_backend.cache_clear()
    yield
    backend._cupy_backend.cache_clear()


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


@pytest.fixture
def no_driver(monkeypatch):
    made = standin.module()

    def refuse():
        raise standin.CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    made.cuda.runtime.getDeviceCount = refuse
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "cupyx", types.ModuleType("cupyx"))


@pytest.mark.usefixtures("no_cupy")
def test_without_cupy_the_error_names_the_extras_before_any_work(monkeypatch):
    monkeypatch.setattr(KNNGraph, "fit", lambda *_: pytest.fail("worked before it looked for a GPU"))
    with pytest.raises(DeviceUnavailableError, match=r"homophily\[gpu\]' for CUDA 12, or 'homophily\[gpu-cuda13\]"):
        ERRClassifier(sharpen=False, backend="cupy").fit(X, Y)


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_the_error_says_so():
    with pytest.raises(DeviceUnavailableError, match=r"needs an NVIDIA driver .*cudaErrorInsufficientDriver"):
        get_backend("cupy")


def test_without_the_cuda_libraries_the_error_says_so(standin_cupy):
    def refuse(*_):
        raise RuntimeError('Failure finding "libcublas.so"')

    standin_cupy.matmul = refuse
    with pytest.raises(DeviceUnavailableError, match=r"needs the CUDA libraries .*libcublas"):
        get_backend("cupy")


@pytest.mark.usefixtures("standin_cupy")
def test_a_device_that_is_not_there_is_told_by_number():
    assert select_device("cuda:0") == select_device("cuda") == "cupy"
    assert select_device("cuda-mixed:0") == "cupy-mixed"
    assert get_backend("cupy-mixed").described == "cuda-mixed:0"
    with pytest.raises(DeviceUnavailableError, match="needs the CUDA device 3, and the driver shows 1"):
        select_device("cuda:3")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda-fast:0", ""])
def test_devices_of_other_names_are_refused(device):
    with pytest.raises(ValueError, match="The device must be 'cpu', 'auto', 'cuda:<number>' or"):
        select_device(device)


@pytest.mark.usefixtures("no_cupy")
def test_auto_falls_back_to_the_cpu_and_says_so_once():
    with pytest.warns(DeviceFallbackWarning, match="computes on the CPU. .*needs CuPy") as told:
        first = ERRClassifier(sharpen=False, backend="auto").fit(X, Y)
    assert len(told) == 1
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = ERRClassifier(sharpen=False, backend="auto").fit(X, Y)
    assert (first.solution_ == second.solution_).all()
    assert (first.solution_ == ERRClassifier(sharpen=False).fit(X, Y).solution_).all()


@pytest.mark.usefixtures("standin_cupy")
def test_auto_takes_the_gpu_where_there_is_one():
    assert get_backend("auto").name == "cupy"


def test_the_base_install_has_nothing_of_cuda_and_the_extras_never_both():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert not [name for name in project["dependencies"] if name.startswith(("cupy", "nvidia", "cuda"))]
    for extra, cupy in (("gpu", "cupy-cuda12x"), ("gpu-cuda13", "cupy-cuda13x")):
        assert [name.partition("[")[0] for name in extras[extra] if name.startswith("cupy")] == [cupy]
    others = [name for extra, names in extras.items() if not extra.startswith("gpu") for name in names]
    assert not [name for name in others if "cupy" in name or "[gpu" in name]


needs_cupy = pytest.mark.skipif(
    find_spec("cupy") is None, reason="CuPy is not installed: pip install 'homophily[gpu-tests]'"
)


@needs_cupy
def test_the_real_cupy_has_every_name_and_argument_of_the_stand_in():
    keywords = {**standin.FUNCTIONS, **{f"ndarray.{name}": words for name, words in standin.METHODS.items()}}
    program = """
import inspect, json, sys, cupy
names, keywords = json.load(sys.stdin)
wrong = []
for name in names:
    found = cupy
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        wrong.append(name)
        continue
    try:
        known = set(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        # Compiled functions tell their arguments in the first lines of their documentation only.
        known = found.__doc__ or ""
    wrong += [f"{name}({word}=)" for word in keywords.get(name, ()) if word not in known]
print(json.dumps(wrong))
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        input=json.dumps([standin.names(), keywords]),
        capture_output=True,
        text=True,
        check=True,
        timeout=COMPUTING_SECONDS,
    )
    assert json.loads(run.stdout) == []


@needs_cupy
def test_the_real_cupy_without_a_device_is_told_of_in_one_sentence():
    program = """
import warnings; warnings.simplefilter("ignore")
from homophily.device.backend import get_backend
from homophily import DeviceUnavailableError
try:
    print("a GPU:", get_backend("cupy").device)
except DeviceUnavailableError as error:
    print("refused:", error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=COMPUTING_SECONDS
    )
    assert run.stdout.startswith(("refused: backend='cupy' needs", "a GPU: 0")), run.stderr


@needs_cupy
def test_the_real_cupyx_is_imported_before_there_are_arrays():
    program = """
import sys, warnings; warnings.simplefilter("ignore")
from homophily.device.backend import get_backend
from homophily import DeviceUnavailableError
import cupy
cupy.cuda.runtime.getDeviceCount = lambda: print("cupyx.optimizing" in sys.modules) or 0
try:
    get_backend("cupy")
except DeviceUnavailableError:
    pass
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=COMPUTING_SECONDS
    )
    assert run.stdout == "True\n", run.stderr


def test_the_stand_in_refuses_what_cupy_refuses(standin_cupy):
    array = standin_cupy.zeros(3)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(array)
    for mix in (lambda: array + np.ones(3), lambda: np.ones(3) * array, lambda: standin_cupy.exp(np.ones(3))):
        with pytest.raises(TypeError):
            mix()
    with pytest.raises(AttributeError):
        standin_cupy.einsum  # noqa: B018
    with pytest.raises(AssertionError, match="mask"):
        array[array > 0]


def test_products_and_sums_on_the_device(device):
    G = KNNGraph(4).fit(X).laplacian()
    matrix, F = DeviceMatrix.of(device, G), np.random.default_rng(1).normal(size=(60, 3))
    on_device = device.to_device(F)
    np.testing.assert_allclose(device.to_host(matrix.product(on_device)), G @ F, atol=1e-14)
    np.testing.assert_allclose(device.to_host(matrix.power(3, on_device)), G @ (G @ (G @ F)), atol=1e-13)
    np.testing.assert_allclose(
        device.to_host(column_dots(device, on_device, on_device)), np.sum(F * F, axis=0), rtol=1e-14
    )


@pytest.mark.parametrize("products", [2**22, 500, 1])
@pytest.mark.parametrize("power", [2, 3])
def test_powers_are_formed_on_the_device(device, power, products, monkeypatch):
    monkeypatch.setattr("homophily.device.gpu.powers.MOST_PRODUCTS", products)
    # With a hub, and points without an edge.
    G = laplacian(knn_weights(80, parts=2, isolated=3)).tolil()
    G[5, :40] = G[:40, 5] = 0.25
    G = csr_array((G + G.T) / 2)
    made = power_of(DeviceMatrix.of(device, G), power)
    indptr, indices, data = (device.to_host(part) for part in (made.indptr, made.indices, made.data))
    found, expected = csr_array((data, indices, indptr), G.shape), G.toarray()
    assert found.has_canonical_format
    np.testing.assert_allclose(found.toarray(), np.linalg.matrix_power(expected, power), atol=1e-14)
    pattern = np.linalg.matrix_power((expected != 0).astype(int), power) > 0
    np.testing.assert_array_equal(np.diff(indptr), pattern.sum(axis=1))
    if power == 2:
        np.testing.assert_array_equal(found.toarray(), found.toarray().T)


def test_a_matrix_too_large_for_32_bits_is_refused(device):
    huge = types.SimpleNamespace(shape=(2, 2), nnz=2**31)
    with pytest.raises(ValueError, match=r"fewer than 2\^31"):
        DeviceMatrix.of(device, huge)


class StrictBackend:
    """Arrays that have what the array API standard has, and nothing else."""

    def __init__(self):
        self.xp = pytest.importorskip(
            "array_api_strict", reason="array-api-strict is not installed: pip install 'homophily[gpu-tests]'"
        )

    def to_host(self, array):
        return np.from_dlpack(array)


def test_modes_need_only_the_array_api():
    xp = StrictBackend().xp
    rng = np.random.default_rng(0)
    places, waves = rng.normal(size=(7, 3)), [rng.normal(size=size) for size in (4, 5, 3)]
    modes = rng.normal(size=(20, 3)) + 1j * rng.normal(size=(20, 3))
    strict = [xp.asarray(wave) for wave in waves]
    first, last = space_phases(xp, xp.asarray(places), strict)
    assert (first.shape, last.shape) == ((7, 20), (7, 3))
    value, slope = read_modes(xp, xp.asarray(places), xp.asarray(modes), strict)
    frequencies = np.stack(np.meshgrid(*waves, indexing="ij"), axis=-1).reshape(-1, 3)
    phases = np.exp(1j * places @ frequencies.T) * modes.ravel()
    np.testing.assert_allclose(np.from_dlpack(value), phases.sum(axis=1).real, atol=1e-12)
    np.testing.assert_allclose(np.from_dlpack(slope), (1j * phases @ frequencies).real, atol=1e-12)


def test_subspace_iteration_needs_only_the_array_api():
    strict, host = StrictBackend(), types.SimpleNamespace(xp=np, to_host=np.asarray)
    L = KNNGraph(4).fit(X).laplacian().toarray()
    start = np.random.default_rng(0).normal(size=(60, 6))
    found = []
    for where in (strict, host):
        matrix = where.xp.asarray(L)

        def product(block, matrix=matrix):
            return matrix @ block

        filtered = chebyshev_filter(product, 2.0)
        problem = EigenProblem(None, where.xp.asarray(start), 3, None, 1e-8, 2.0)
        found.append(iterate(where.xp, where.to_host, product, filtered, problem, lambda block: block)[0])
    np.testing.assert_allclose(found[0][:3], np.linalg.eigvalsh(L)[:3], atol=1e-10)
    np.testing.assert_allclose(found[0], found[1], atol=1e-8)
