"""The engines of the device, on the stand-in with emulated kernels, held against the dense form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array, eye_array

from homophily import relationship_energy
from homophily.device.backend import get_backend
from homophily.device.gpu.engines import NystromEngine, TileEngine, make_device_engine
from homophily.device.gpu.gauss import DeviceEdges, LineEngine, SpaceEngine
from homophily.device.gpu.masked import DeviceSparseEngine
from homophily.device.gpu.matrix import DeviceMatrix
from homophily.relationship.dense import DenseEngine
from homophily.relationship.functions import RELATIONSHIPS
from homophily.relationship.masked import SparseEngine
from homophily.relationship.nystrom import choose_landmarks

from ..core.oracle import knn_weights, laplacian, relative_error
from .standin import counters

SIGMA = 0.8
#: Of mixed precision, in the energy and in the gradient.
MIXED = 1e-6, 1e-5


def graph(u=150, power=1):
    return laplacian(knn_weights(u, parts=3, isolated=4), power=power)


def values(u, n, scale=0.5):
    return np.random.default_rng(0).normal(size=(u, n)) * scale + 3.0


def assert_matches_dense(device, engine, G, F, in_energy, in_gradient, sigma_f=SIGMA, **how):
    energy, gradient = engine(device.to_device(F))
    reference, slope = DenseEngine(G, sigma_f, **how)(F)
    assert relative_error(device.to_host(energy)[0], reference) <= in_energy
    assert relative_error(device.to_host(gradient), slope) <= in_gradient


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("relationship", RELATIONSHIPS.values(), ids=RELATIONSHIPS)
def test_tiles_are_exact(device, n, power, relationship):
    L, F = graph(), values(150, n)
    engine = TileEngine(DeviceMatrix.of(device, L), SIGMA, power=power, relationship=relationship)
    engine.width = 64
    G = graph(power=power)
    assert_matches_dense(device, engine, G, F, 1e-12, 1e-11, relationship=relationship)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", [0.01, 0.5, 5.0])
def test_modes_on_a_line(device, power, scale):
    G, F = graph(power=power), values(150, 1, scale)
    assert_matches_dense(device, LineEngine(DeviceMatrix.of(device, G), F, SIGMA), G, F, 1e-12, 1e-10)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("modes", [True, False])
def test_modes_and_pairs_in_space(device, n, modes, monkeypatch):
    monkeypatch.setattr(SpaceEngine, "_modes_are_fewer", lambda _: modes)
    G, F = graph(300), values(300, n)
    assert_matches_dense(device, SpaceEngine(DeviceEdges.of(DeviceMatrix.of(device, G)), F, SIGMA), G, F, 1e-9, 1e-8)


@pytest.mark.parametrize("n", [2, 3])
def test_scattered_values_take_the_way_over_pairs(device, n):
    G, F = graph(400), values(400, n, 20.0)
    engine = SpaceEngine(DeviceEdges.of(DeviceMatrix.of(device, G)), F, SIGMA)
    assert engine.series is None
    assert_matches_dense(device, engine, G, F, 1e-9, 1e-8)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", [0.01, 0.5, 5.0])
def test_mixed_precision_on_a_line(mixed_device, power, scale):
    G, F = graph(power=power), values(150, 1, scale)
    engine = LineEngine(DeviceMatrix.of(mixed_device, G), F, SIGMA)
    assert_matches_dense(mixed_device, engine, G, F, *MIXED)


@pytest.mark.parametrize("n", [2, 3])
def test_mixed_precision_over_pairs(mixed_device, n):
    G, F = graph(400), values(400, n, 20.0)
    engine = SpaceEngine(DeviceEdges.of(DeviceMatrix.of(mixed_device, G)), F, SIGMA)
    assert engine.series is None
    assert_matches_dense(mixed_device, engine, G, F, *MIXED)


@pytest.mark.parametrize("n", [1, 5])
def test_mixed_precision_over_tiles(mixed_device, n):
    L, F = graph(), values(150, n)
    assert_matches_dense(mixed_device, TileEngine(DeviceMatrix.of(mixed_device, L), SIGMA), L, F, *MIXED)


@pytest.mark.parametrize("n", [1, 2])
def test_an_engine_tells_that_values_left_its_box_and_adapts(device, n):
    G, F = graph(), values(150, n, 0.1)
    _, engine = make_device_engine(DeviceMatrix.of(device, G), F, SIGMA)
    if n == 2:
        engine._modes_are_fewer = lambda: True
        engine._set_up(F)
    moved = F.copy()
    moved[0] += 3.0
    energy, _ = engine(device.to_device(moved))
    assert np.isnan(device.to_host(energy)).all()
    assert engine.adapt(device.to_device(moved))
    assert_matches_dense(device, engine, G, moved, 1e-9, 1e-8)


def test_values_that_spread_too_far_for_modes_take_tiles(device):
    G, F = graph(power=2), values(150, 1)
    F[0] += 1e4 * SIGMA
    matrix = DeviceMatrix.of(device, graph())
    name, engine = make_device_engine(matrix, F, SIGMA, power=2)
    assert name == "tiles"
    assert_matches_dense(device, engine, G, F, 1e-12, 1e-11)
    assert relationship_energy(F, G, sigma_f=SIGMA, backend="cupy")[0] == pytest.approx(DenseEngine(G, SIGMA)(F)[0])
    with pytest.raises(ValueError, match="Use engine='tiles'"):
        relationship_energy(F, G, sigma_f=SIGMA, backend="cupy", engine="cells")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("relationship", RELATIONSHIPS.values(), ids=RELATIONSHIPS)
def test_the_sparse_form_is_that_of_the_cpu(device, n, normalized, relationship):
    W, F = knn_weights(150, parts=3, isolated=4), values(150, n)
    mask = csr_array(np.random.default_rng(1).random((150, 150)) < 0.1) + eye_array(150, dtype=bool)
    degrees = np.asarray(W.sum(axis=1)).ravel() if normalized else None
    how = {"relationship": relationship, "repulsion": 0.5}
    host = SparseEngine(csr_array(W), degrees, csr_array(mask), SIGMA, **how)
    engine = DeviceSparseEngine(device, csr_array(W), degrees, csr_array(mask), SIGMA, **how)
    energy, gradient = engine(device.to_device(F))
    expected, slope = host(F)
    assert relative_error(device.to_host(energy)[0], expected) <= 1e-12
    assert relative_error(device.to_host(gradient), slope) <= 1e-11


def test_low_rank_with_every_point_a_landmark(device):
    G, F = graph(), values(150, 4)
    landmarks = choose_landmarks(F, SIGMA, tolerance=1e-10)
    engine = NystromEngine(DeviceMatrix.of(device, G), SIGMA, landmarks=landmarks)
    assert_matches_dense(device, engine, G, F, 1e-7, 1e-6)
    assert engine.error(F) <= 1e-7


@pytest.mark.usefixtures("standin_cupy")
def test_narrower_tiles_where_memory_is_short_and_a_clear_error_where_none_fits():
    device = get_backend("cupy")
    L, F = graph(), values(150, 2)
    engine = TileEngine(DeviceMatrix.of(device, L), SIGMA)
    assert engine.width == 1024
    counters.largest_allocation = 150 * 8 * 70
    assert_matches_dense(device, engine, L, F, 1e-12, 1e-11)
    assert engine.width == 64
    counters.largest_allocation = 150 * 8 * 20
    with pytest.raises(MemoryError, match="GPU has too little free memory"), device.job():
        engine(device.to_device(F))
    assert counters.released


def peak_with(rows, engine, F):
    """The most memory in use during an evaluation with so many rows at once."""
    engine.rows, counters.peak = rows, 0
    engine(F)
    return counters.peak


def low_rank(device):
    return NystromEngine(DeviceMatrix.of(device, graph()), SIGMA, landmarks=values(30, 2))


def modes_in_space(device):
    engine = SpaceEngine(DeviceEdges.of(DeviceMatrix.of(device, graph())), values(150, 2), SIGMA)
    assert engine.series is not None
    return engine


@pytest.mark.usefixtures("standin_cupy")
@pytest.mark.parametrize(
    ("make", "told"),
    [(low_rank, "'nystrom' engine with 30 landmarks .* Use engine='tiles'"), (modes_in_space, "free memory for this")],
)
def test_fewer_rows_at_once_where_memory_is_short_and_a_clear_error_where_none_fits(make, told, monkeypatch):
    monkeypatch.setattr(SpaceEngine, "_modes_are_fewer", lambda _: True)
    for file in ("engines", "gauss"):
        monkeypatch.setattr(f"homophily.device.gpu.{file}.FEWEST_ROWS", 8)
    device = get_backend("cupy")
    engine, F = make(device), device.to_device(values(150, 2))
    most, fewer, least = (peak_with(rows, engine, F) for rows in (400, 50, 8))
    assert most > fewer > least
    expected = [device.to_host(part) for part in engine(F)]
    engine.rows, counters.capacity = 400, fewer
    for found, right in zip(engine(F), expected, strict=True):
        np.testing.assert_allclose(device.to_host(found), right, atol=1e-12 * np.abs(right).max())
    assert engine.rows == 50
    counters.capacity = least - 1
    with pytest.raises(MemoryError, match=told), device.job():
        engine(F)


def test_tiles_where_the_low_rank_form_has_no_room(standin_cupy):
    device = get_backend("cupy")
    G, F = graph(), values(150, 4)
    matrix = DeviceMatrix.of(device, G)
    assert make_device_engine(matrix, F, SIGMA, engine="nystrom")[0] == "nystrom"
    standin_cupy.cuda.runtime.memGetInfo = lambda: (2**14, 2**31)
    assert make_device_engine(matrix, F, SIGMA, engine="nystrom")[0] == "tiles"


def test_tile_widths_come_from_the_free_memory(standin_cupy):
    device = get_backend("cupy")
    standin_cupy.cuda.runtime.memGetInfo = lambda: (3 * 8 * 150 * 200 * 10 // 6, 2**31)
    assert TileEngine(DeviceMatrix.of(device, graph()), SIGMA).width == 192
