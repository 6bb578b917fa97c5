"""The linear-time engine for one column of values, held against the dense form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily.relationship import chebyshev
from homophily.relationship.chebyshev import MAX_PANELS, SUBPANELS, TERMS, ChebyshevEngine, edge_pass
from homophily.relationship.dense import DenseEngine

from .oracle import central_differences, knn_weights, laplacian, relationship_energy, relative_error


def values(u, seed=0):
    return np.random.default_rng(seed).normal(size=(u, 1))


def assert_matches_dense(G, F, sigma_f):
    """Energy to 1e-11 of what its terms add up to before they cancel, gradient to 1e-8 of a point's share of that."""
    energy, gradient = ChebyshevEngine(G, sigma_f)(F)
    reference, slope = DenseEngine(G, sigma_f)(F)
    K = np.exp(-((F - F.T) ** 2) / sigma_f**2)
    uncancelled = K * (abs(G) @ K)
    assert abs(energy - reference) <= 1e-11 * uncancelled.sum()
    assert np.abs(gradient - slope).max() <= 1e-8 * uncancelled.sum(axis=1).max() / sigma_f


@pytest.mark.parametrize("sigma_f", [0.01, 0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_widths_up_to_the_spread_of_the_values_keep_ten_and_eight_digits(sigma_f, power, normalized):
    G, F = laplacian(knn_weights(300), normalized=normalized, power=power), values(300)
    energy, gradient = ChebyshevEngine(G, sigma_f)(F)
    reference, slope = DenseEngine(G, sigma_f)(F)
    assert relative_error(energy, reference) <= 1e-10
    assert relative_error(gradient, slope) <= 1e-8


def test_energy_is_the_triple_sum():
    G, F = laplacian(knn_weights(20)), values(20)
    assert relative_error(ChebyshevEngine(G, 0.7)(F)[0], relationship_energy(G, F, 0.7)) <= 1e-11


@pytest.mark.parametrize("sigma_f", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_every_width_and_laplacian_keeps_the_tolerance(sigma_f, power, normalized):
    assert_matches_dense(laplacian(knn_weights(300), normalized=normalized, power=power), values(300), sigma_f)


@pytest.mark.parametrize("sigma_f", [0.01, 0.5, 100.0])
@pytest.mark.parametrize("graph", [{"parts": 3}, {"isolated": 7}, {"parts": 2, "isolated": 3}])
def test_disconnected_graphs_and_isolated_points_keep_the_tolerance(sigma_f, graph):
    assert_matches_dense(laplacian(knn_weights(200, **graph)), values(200), sigma_f)


@pytest.mark.parametrize("shift", [-1e3, 0.0, 0.123, 1e3])
def test_the_place_of_the_values_on_the_line_does_not_matter(shift):
    G, F = laplacian(knn_weights(200)), values(200)
    energy, gradient = ChebyshevEngine(G, 0.5)(F)
    moved, slope = ChebyshevEngine(G, 0.5)(F + shift)
    assert relative_error(moved, energy) <= 1e-10
    assert relative_error(slope, gradient) <= 1e-8


@pytest.mark.parametrize("value", [0.0, -3.7, 1e6])
@pytest.mark.parametrize("normalized", [True, False])
def test_values_that_are_all_equal(value, normalized):
    G, F = laplacian(knn_weights(100), normalized=normalized), np.full((100, 1), value)
    energy, gradient = ChebyshevEngine(G, 0.5)(F)
    # K is all ones: the energy is u 1ᵀG1, and no direction changes it.
    assert energy == pytest.approx(100 * G.sum(), rel=1e-10, abs=1e-10 * 100 * abs(G).sum())
    assert np.abs(gradient).max() <= 1e-8 * 100 * abs(G).sum()


def test_values_in_tight_clusters_far_apart():
    F = np.repeat([-1.0, 0.2, 1.0], 50)[:, None] + 1e-9 * values(150)
    for sigma_f in (0.01, 0.5, 5.0):
        assert_matches_dense(laplacian(knn_weights(150)), F, sigma_f)


def test_values_on_the_borders_of_panels():
    sigma_f = 0.5
    F = np.arange(-40, 40)[:, None] * sigma_f / (2 * chebyshev.SUBPANELS)
    assert_matches_dense(laplacian(knn_weights(80)), F, sigma_f)


@pytest.mark.parametrize("sigma_f", [0.01, 1.0, 100.0])
def test_one_and_two_points(sigma_f):
    assert_matches_dense(csr_array([[1.5]]), np.array([[0.3]]), sigma_f)
    energy, gradient = ChebyshevEngine(csr_array((1, 1)), sigma_f)(np.array([[0.3]]))
    assert (energy, gradient.tolist()) == (0.0, [[0.0]])
    for gap in (0.0, 0.1, 10.0):
        F = np.array([[0.0], [gap]])
        energy, gradient = ChebyshevEngine(csr_array([[1.0, -1.0], [-1.0, 1.0]]), sigma_f)(F)
        # tr(KᵀLK) = 2(1 − κ)² with κ = K_12, so that dE/df_2 = 8(1 − κ) κ (f_2 − f_1)/σ².
        kappa = math.exp(-((gap / sigma_f) ** 2))
        assert energy == pytest.approx(2 * (1 - kappa) ** 2, rel=1e-10, abs=1e-10)
        slope = 8 * (1 - kappa) * kappa * gap / sigma_f**2
        np.testing.assert_allclose(gradient[:, 0], [-slope, slope], rtol=1e-8, atol=1e-8 / sigma_f)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("sigma_f", [0.2, 1.0, 5.0])
def test_gradient_is_the_slope_of_the_energy(sigma_f, power):
    engine, F = ChebyshevEngine(laplacian(knn_weights(40), power=power), sigma_f), values(40)
    slope = central_differences(lambda moved: engine(moved)[0], F, step=1e-3 * sigma_f)
    assert relative_error(engine(F)[1], slope) <= 1e-6


def test_a_repeated_run_gives_the_same_bits(monkeypatch):
    monkeypatch.setattr(chebyshev, "EDGES_WORTH_A_THREAD", 100)
    G, F = laplacian(knn_weights(400)), values(400)
    for n_jobs in (1, 2):
        engine = ChebyshevEngine(G, 0.3, n_jobs=n_jobs)
        assert engine.chunks == n_jobs
        first, again, anew = engine(F), engine(F), ChebyshevEngine(G, 0.3, n_jobs=n_jobs)(F)
        assert first[0] == again[0] == anew[0]
        assert (first[1] == again[1]).all()
        assert (first[1] == anew[1]).all()


@pytest.mark.parametrize("power", [1, 2])
def test_thread_counts_agree(monkeypatch, power):
    monkeypatch.setattr(chebyshev, "EDGES_WORTH_A_THREAD", 100)
    G, F = laplacian(knn_weights(400), power=power), values(400)
    energy, gradient = ChebyshevEngine(G, 0.3, n_jobs=1)(F)
    for n_jobs in (2, 3):
        other, slope = ChebyshevEngine(G, 0.3, n_jobs=n_jobs)(F)
        assert relative_error(other, energy) <= 1e-9
        assert relative_error(slope, gradient) <= 1e-9


def test_small_problems_stay_on_one_thread():
    assert ChebyshevEngine(laplacian(knn_weights(50)), 1.0, n_jobs=2).chunks == 1


@pytest.mark.parametrize("far", [1e12, 1e300, np.inf, np.nan])
def test_values_out_of_range_have_infinite_energy(far):
    engine, F = ChebyshevEngine(laplacian(knn_weights(30)), 0.1), values(30)
    F[3] = far
    energy, gradient = engine(F)
    assert energy == np.inf
    assert gradient.shape == F.shape


def test_the_range_is_bounded_by_memory():
    assert ChebyshevEngine.copes_with(0.49 * MAX_PANELS, 1.0)
    assert not ChebyshevEngine.copes_with(0.51 * MAX_PANELS, 1.0)


def test_values_are_left_as_they_were():
    F = values(50)
    before = F.copy()
    ChebyshevEngine(laplacian(knn_weights(50)), 0.5)(F)
    assert (before == F).all()


def test_edges_between_far_values_leave_no_subnormal_numbers():
    # Ever farther apart, the last by a hundred σ_f.
    places = np.linspace(0.0, 3200.0, 400)
    edges = np.zeros(400, np.int32), np.arange(400, dtype=np.int32), np.ones(400)
    moments = np.zeros((3216, TERMS))
    edge_pass(*edges, places, 1 / (2 * (2 * SUBPANELS) ** 2), np.ones_like(moments), moments, np.zeros(400))
    sizes = np.abs(moments[moments != 0.0])
    assert sizes.min() > 1e-80
