"""The engine that copes with any spread of values: each of its ways, and the passage from one to another."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily.relationship import cells, grid, pairs
from homophily.relationship.cells import CellEngine
from homophily.relationship.dense import DenseEngine

from .oracle import central_differences, knn_weights, laplacian, relative_error

SIGMA = 0.7
# Everything is a crowd, or nothing is. The grid is the crowd's way in the plane, Fourier modes that in space.
WAYS = {"grid": (2, 0.0), "modes": (3, 0.0), "pairs on a line": (1, np.inf), "pairs": (2, np.inf)}
WAYS["pairs in space"] = (3, np.inf)


@pytest.fixture(params=WAYS)
def dimensions(request, monkeypatch):
    """Dimensions of the way that is made the only one."""
    n, crowd = WAYS[request.param]
    monkeypatch.setattr(cells, "CROWD", dict.fromkeys((1, 2, 3), crowd))
    monkeypatch.setattr(cells, "LEAST", dict.fromkeys((1, 2, 3), 0))
    return n


def values(u, n, scale=1.0, seed=0):
    return np.random.default_rng(seed).normal(size=(u, n)) * scale


def assert_matches_dense(G, F, sigma_f=SIGMA, tolerance=1e-9):
    """Energy and gradient of G, of its off-diagonal entries and of its diagonal."""
    diagonal = csr_array(np.diag(G.diagonal()))
    for matrix in (G, csr_array(G - diagonal), diagonal):
        energy, gradient = CellEngine(matrix, sigma_f, tolerance=tolerance, n_jobs=2)(F)
        reference, slope = DenseEngine(matrix, sigma_f)(F)
        # Where points are out of each other's reach, sums of nothing are nothing beside the entries of G.
        least = 1e-4 * np.abs(matrix.data).sum()
        assert abs(energy - reference) <= tolerance * max(abs(reference), least)
        assert np.abs(gradient - slope).max() <= 10 * tolerance * max(np.abs(slope).max(), least / sigma_f)


@pytest.mark.parametrize("spread", [0.1, 3, 10, 100, 1000])
def test_every_way_keeps_the_tolerance_at_any_spread(dimensions, spread):
    F = values(400, dimensions)
    F *= spread * SIGMA / np.ptp(F)
    if dimensions == 3 and spread == 1000:
        assert not cells.NufftEngine.copes_with(np.ptp(F, axis=0), SIGMA)
    assert_matches_dense(laplacian(knn_weights(400, parts=3, isolated=4)), F)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_every_way_serves_every_laplacian(dimensions, power, normalized):
    G = laplacian(knn_weights(200, parts=2), normalized=normalized, power=power)
    assert_matches_dense(G, values(200, dimensions))


def test_clusters_far_apart_keep_their_own_energy(dimensions):
    F = values(300, dimensions, 0.3) + 1e4 * (np.arange(300) % 3)[:, None]
    assert_matches_dense(laplacian(knn_weights(300)), F)


def test_an_outlier_does_not_disturb_a_crowd(dimensions):
    F = values(300, dimensions, 0.3)
    F[17] = 1e7
    assert_matches_dense(laplacian(knn_weights(300)), F)


def test_a_huge_offset_costs_no_more_than_its_rounding(dimensions):
    # Values that are the same numbers after the shift.
    F = np.round(values(300, dimensions) * 2**20) / 2**20
    G = laplacian(knn_weights(300))
    here, there = (CellEngine(G, SIGMA)(F + shift) for shift in (0.0, 2.0**24))
    assert relative_error(there[0], here[0]) <= 1e-9
    assert relative_error(there[1], here[1]) <= 1e-7


def test_points_of_one_value_repel_alike(dimensions):
    G = laplacian(knn_weights(200), normalized=False)
    energy, gradient = CellEngine(G, SIGMA)(np.full((200, dimensions), 0.3))
    scale = 200 * np.abs(G.data).sum()
    assert abs(energy) <= 1e-10 * scale
    assert np.abs(gradient).max() <= 1e-10 * scale


def test_duplicates_count_each(dimensions):
    F = np.repeat(values(50, dimensions), 6, axis=0)
    assert_matches_dense(laplacian(knn_weights(300)), F)


def test_one_point_has_its_own_entry_as_energy(dimensions):
    energy, gradient = CellEngine(csr_array([[2.0]]), SIGMA)(np.full((1, dimensions), 0.4))
    assert energy == pytest.approx(2.0, rel=1e-9)
    assert np.abs(gradient).max() <= 1e-8


def test_gradient_is_the_slope_of_the_energy(dimensions):
    u = 12 if dimensions < 3 else 5
    G, F = laplacian(knn_weights(u)), values(u, dimensions, 0.5)
    engine = CellEngine(G, SIGMA)
    slope = central_differences(lambda moved: engine(moved)[0], F, step=1e-3)
    assert relative_error(engine(F)[1], slope) <= 1e-6


def test_a_repeated_run_gives_the_same_bits_and_threads_hardly_matter(dimensions):
    G, F = laplacian(knn_weights(500)), values(500, dimensions)
    one, first, again = (CellEngine(G, SIGMA, n_jobs=n_jobs)(F) for n_jobs in (1, 2, 2))
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])
    assert relative_error(one[0], first[0]) <= 1e-9
    assert relative_error(one[1], first[1]) <= 1e-9


@pytest.mark.parametrize("n", [2, 3])
def test_passing_from_one_way_to_another_moves_the_energy_within_the_tolerance(n, monkeypatch):
    G, F = laplacian(knn_weights(800)), values(800, n)
    monkeypatch.setattr(cells, "CROWD", {n: 0.0})
    monkeypatch.setattr(cells, "LEAST", {n: 0})
    crowded = CellEngine(G, SIGMA)(F)
    monkeypatch.setattr(cells, "CROWD", {n: np.inf})
    scattered = CellEngine(G, SIGMA)(F)
    assert relative_error(scattered[0], crowded[0]) <= 1e-9
    assert relative_error(scattered[1], crowded[1]) <= 1e-8


def test_crowds_take_the_grid_and_scattered_values_the_pairs(monkeypatch):
    taken = []
    for name in ("_over_grid", "_over_pairs"):
        whole = getattr(CellEngine, name)
        monkeypatch.setattr(
            CellEngine, name, lambda *a, name=name, whole=whole, **k: taken.append(name) or whole(*a, **k)
        )
    engine, F = CellEngine(laplacian(knn_weights(2_000)), SIGMA), values(2_000, 2)
    for scale in (1.0, 100.0, 1.0):
        assert np.isfinite(engine(scale * F)[0])
    assert taken == ["_over_grid", "_over_pairs", "_over_grid"]


def test_a_grid_too_large_for_memory_gives_way_to_pairs(monkeypatch):
    G, F = laplacian(knn_weights(200)), values(200, 2, 10.0)
    monkeypatch.setattr(cells, "CROWD", {2: 0.0})
    reference = CellEngine(G, SIGMA)(F)
    for limit in ("MOST_BLOCKS", "MOST_NUMBERS"):
        with monkeypatch.context() as patch:
            patch.setattr(cells, limit, 1)
            energy, gradient = CellEngine(G, SIGMA)(F)
        assert relative_error(energy, reference[0]) <= 1e-9
        assert relative_error(gradient, reference[1]) <= 1e-8


@pytest.mark.parametrize("tolerance", [1e-5, 1e-12])
def test_other_tolerances_are_kept(dimensions, tolerance):
    assert_matches_dense(laplacian(knn_weights(300)), values(300, dimensions, 0.7), tolerance=tolerance)


def test_values_beyond_all_counting_have_an_infinite_energy():
    F = values(10, 2)
    F[0] = 1e300
    energy, gradient = CellEngine(laplacian(knn_weights(10)), 1e-9)(F)
    assert energy == np.inf
    assert np.isnan(gradient).all()


def test_points_on_the_borders_of_panels_and_blocks_belong_to_one():
    # Nodes, panels and blocks all begin at whole multiples of the spacing.
    line = np.arange(-40, 41) * grid.SPACING * SIGMA
    F = np.stack(np.meshgrid(line[::5], line[::4]), axis=-1).reshape(-1, 2)
    F = np.ascontiguousarray(np.vstack([F, np.nextafter(F, -np.inf)]))
    assert_matches_dense(laplacian(knn_weights(len(F))), F)


def test_cells_that_share_a_number_do_not_share_their_points():
    # Three bits number eight cells along each axis: a lattice of cells eight apart falls into one number.
    engine = CellEngine(laplacian(knn_weights(16)), SIGMA)
    lattice = np.stack(np.meshgrid(np.arange(4), np.arange(4)), axis=-1).reshape(-1, 2)
    F = (8 * lattice + 0.5) * engine.cell
    assert np.diff(pairs.sort_points(F / engine.cell, 3)[0]).max() == 16
    assert_matches_dense(laplacian(knn_weights(16)), F)
