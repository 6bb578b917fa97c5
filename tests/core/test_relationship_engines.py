"""The engines of the full regulariser, held against the naive form and against each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

import homophily
from homophily.relationship.cells import CellEngine
from homophily.relationship.dense import DenseEngine
from homophily.relationship.functions import exp_negative
from homophily.relationship.nufft import NufftEngine
from homophily.relationship.nystrom import (
    GRADIENT_SAFETY,
    PLACED_ERROR,
    WANTED_ERROR,
    NystromEngine,
    choose_landmarks,
)
from homophily.relationship.tiles import WIDTH, TileEngine

from .oracle import central_differences, knn_weights, laplacian, relationship_energy, relative_error

SIGMA = 0.8
ANY = (1, 2, 3, 5, 10)
DIMENSIONS = {"dense": ANY, "tiles": ANY, "cells": (1, 2, 3), "nufft": (1, 2, 3), "nystrom": ANY}
# Relative to the energy, and to the gradient's largest entry.
TOLERANCES = {
    "dense": (1e-12, 1e-12),
    "tiles": (1e-12, 1e-11),
    "cells": (1e-9, 1e-8),
    "nufft": (1e-9, 1e-8),
    "nystrom": (1e-7, 1e-6),
}
ENGINES = list(DIMENSIONS)
CASES = [(name, n) for name, dimensions in DIMENSIONS.items() for n in dimensions]


def values(u, n, scale=1.0, seed=0):
    return np.random.default_rng(seed).normal(size=(u, n)) * scale


def engine_for(name, G, F, sigma_f=SIGMA, n_jobs=2):
    if name == "nystrom":
        # Every point a landmark: what is left is the rounding in the inverse.
        return NystromEngine(G, sigma_f, landmarks=choose_landmarks(F, sigma_f, tolerance=1e-10), n_jobs=n_jobs)
    if name == "dense":
        return DenseEngine(G, sigma_f)
    return {"tiles": TileEngine, "cells": CellEngine, "nufft": NufftEngine}[name](G, sigma_f, n_jobs=n_jobs)


def assert_matches_dense(name, G, F, sigma_f=SIGMA):
    energy, gradient = engine_for(name, G, F, sigma_f)(F)
    reference, slope = DenseEngine(G, sigma_f)(F)
    in_energy, in_gradient = TOLERANCES[name]
    assert relative_error(energy, reference) <= in_energy
    assert relative_error(gradient, slope) <= in_gradient


@pytest.mark.parametrize(("name", "n"), CASES)
def test_energy_is_the_triple_sum(name, n):
    G, F = laplacian(knn_weights(14)), values(14, n, 0.6)
    energy, _ = engine_for(name, G, F)(F)
    assert relative_error(energy, relationship_energy(G, F, SIGMA)) <= TOLERANCES[name][0]


@pytest.mark.parametrize(("name", "n"), CASES)
def test_gradient_is_the_slope_of_the_energy(name, n):
    u = 12 if n < 3 else 6
    G, F = laplacian(knn_weights(u)), values(u, n, 0.5)
    engine = engine_for(name, G, F)
    slope = central_differences(lambda moved: engine(moved)[0], F, step=1e-3)
    assert relative_error(engine(F)[1], slope) <= 1e-6


@pytest.mark.parametrize(("name", "n"), CASES)
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_engines_agree_on_every_laplacian(name, n, power, normalized):
    G = laplacian(knn_weights(150, parts=3, isolated=4), normalized=normalized, power=power)
    assert_matches_dense(name, G, values(150, n, 0.5))


@pytest.mark.parametrize("name", ENGINES)
def test_points_of_one_value_have_no_energy_in_the_unnormalised_form(name):
    G, F = laplacian(knn_weights(60), normalized=False), np.full((60, 2), 0.3)
    energy, gradient = engine_for(name, G, F)(F)
    assert abs(energy) <= 1e-8 * 60 * np.abs(G.data).sum()
    assert np.abs(gradient).max() <= 1e-8 * 60 * np.abs(G.data).sum()


@pytest.mark.parametrize("name", ENGINES)
def test_a_single_point_has_its_own_entry_as_energy(name):
    F = np.array([[0.4, -0.2]])
    energy, gradient = engine_for(name, csr_array([[2.0]]), F)(F)
    assert energy == pytest.approx(2.0, rel=1e-9)
    assert np.abs(gradient).max() <= 1e-8


@pytest.mark.parametrize("name", ENGINES)
def test_a_graph_without_edges_has_no_energy(name):
    F = values(40, 2)
    energy, gradient = engine_for(name, laplacian(knn_weights(40, isolated=40)), F)(F)
    assert energy == 0
    assert not gradient.any()


@pytest.mark.parametrize(("name", "n"), [("tiles", 1), ("tiles", 2), ("tiles", 10), ("nufft", 1), ("nufft", 2)])
def test_values_far_apart_keep_the_tolerance(name, n):
    G, F = laplacian(knn_weights(300)), values(300, n)
    F *= 100 * SIGMA / np.ptp(F)
    assert_matches_dense(name, G, F)


def test_tiles_of_any_width_are_complete():
    for u in (WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH + 5):
        assert_matches_dense("tiles", laplacian(knn_weights(u)), values(u, 2, 20.0))


def test_tiles_leave_no_mark_of_far_clusters_on_each_other():
    W = knn_weights(120, parts=2)
    F = values(120, 3, 0.3) + 1e3 * (np.arange(120) % 2)[:, None]
    assert_matches_dense("tiles", laplacian(W), F)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-9, 1e-12])
def test_nufft_keeps_the_tolerance_asked_for(tolerance):
    G, F = laplacian(knn_weights(400)), values(400, 2, 2.0)
    energy, gradient = NufftEngine(G, SIGMA, tolerance=tolerance)(F)
    reference, slope = DenseEngine(G, SIGMA)(F)
    assert relative_error(energy, reference) <= tolerance
    assert relative_error(gradient, slope) <= 10 * tolerance


def test_nufft_refuses_a_grid_beyond_its_limit():
    F = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert not NufftEngine.copes_with(np.ptp(F, axis=0), 1e-3)
    assert NufftEngine(csr_array(np.eye(2)), 1e-3)(F)[0] == np.inf
    with pytest.raises(ValueError, match=r"spread over 1e\+03 sigma_f, too far for the 'nufft' engine"):
        homophily.relationship_energy(F, np.eye(2), sigma_f=1e-3, engine="nufft")


@pytest.mark.parametrize("name", ENGINES)
def test_a_repeated_run_gives_the_same_bits(name):
    G, F = laplacian(knn_weights(500)), values(500, 2)
    first, again = (engine_for(name, G, F)(F) for _ in range(2))
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])


@pytest.mark.parametrize("name", ENGINES)
def test_one_and_two_threads_agree(name):
    G, F = laplacian(knn_weights(500)), values(500, 2)
    one, two = (engine_for(name, G, F, n_jobs=n_jobs)(F) for n_jobs in (1, 2))
    assert relative_error(one[0], two[0]) <= 1e-9
    assert relative_error(one[1], two[1]) <= 1e-9


@pytest.mark.parametrize("name", ENGINES)
@given(shift=st.lists(st.floats(-50, 50), min_size=2, max_size=2))
@settings(max_examples=8, deadline=None)
def test_moving_all_values_together_changes_nothing(name, shift):
    G, F = laplacian(knn_weights(50)), values(50, 2)
    energy, gradient = engine_for(name, G, F)(F)
    moved_energy, moved_gradient = engine_for(name, G, F + shift)(F + shift)
    in_energy, in_gradient = TOLERANCES[name]
    assert relative_error(moved_energy, energy) <= in_energy
    assert relative_error(moved_gradient, gradient) <= in_gradient
    # Hence the gradient sums to nothing.
    assert np.abs(gradient.sum(axis=0)).max() <= in_gradient * np.abs(gradient).sum()


def mixtures(u, confidence, seed=0):
    """Noisy points between the middle and the corner of one of ten classes."""
    rng = np.random.default_rng(seed)
    corners = np.eye(10)[rng.integers(0, 10, u)]
    return confidence * rng.uniform(size=(u, 1)) * corners + 0.1 + 0.02 * rng.normal(size=(u, 10))


@pytest.mark.parametrize(
    ("confidence", "in_energy", "in_gradient"), [(0.4, 1e-3, 3e-3), (0.7, 2e-3, 1e-2), (0.9, 1e-2, 4e-2)]
)
def test_landmarks_of_the_start_serve_points_that_moved_on(confidence, in_energy, in_gradient):
    G, start = laplacian(knn_weights(800, k=8)), mixtures(800, 0.4)
    landmarks = choose_landmarks(start, SIGMA, targets=np.eye(10))
    assert len(landmarks) <= 150
    engine = NystromEngine(G, SIGMA, landmarks=landmarks)
    F = mixtures(800, confidence, seed=1)
    reference, slope = DenseEngine(G, SIGMA)(F)
    energy, gradient = engine(F)
    error = relative_error(energy, reference)
    assert error <= in_energy
    assert relative_error(gradient, slope) <= in_gradient
    assert error / 2 <= engine.error(F) <= 2 * error


def test_the_reported_error_is_the_error_when_all_rows_are_sampled():
    G, F = laplacian(knn_weights(200)), values(200, 4, 0.5)
    engine = NystromEngine(G, SIGMA, landmarks=choose_landmarks(F, SIGMA, most=30))
    reference, _ = DenseEngine(G, SIGMA)(F)
    assert engine.error(F, sample=200) == pytest.approx(abs(engine(F)[0] - reference) / reference, rel=1e-6)


@pytest.mark.parametrize("landmarks", [20, 60])
@pytest.mark.parametrize("power", [1, 2])
def test_the_reported_gradient_error_is_twice_the_error_when_all_rows_are_sampled(landmarks, power):
    L, F = laplacian(knn_weights(200)), values(200, 4, 0.5)
    engine = NystromEngine(L, SIGMA, landmarks=choose_landmarks(F, SIGMA, most=landmarks, tolerance=1e-9), power=power)
    _, slope = DenseEngine(csr_array(L if power == 1 else L @ L), SIGMA)(F)
    error = np.linalg.norm(engine(F)[1] - slope) / np.linalg.norm(slope)
    assert engine.errors(F, sample=200).gradient == pytest.approx(GRADIENT_SAFETY * error, rel=1e-6)


@pytest.mark.parametrize("confidence", [0.4, 0.7, 0.9])
def test_the_gradient_error_of_a_few_rows_is_no_less_than_that_of_all(confidence):
    G, start = laplacian(knn_weights(800, k=8)), mixtures(800, 0.4)
    engine = NystromEngine(G, SIGMA, landmarks=choose_landmarks(start, SIGMA, targets=np.eye(10)))
    F = mixtures(800, confidence, seed=1)
    _, slope = DenseEngine(G, SIGMA)(F)
    error = np.linalg.norm(engine(F)[1] - slope) / np.linalg.norm(slope)
    assert 0.8 * error <= engine.errors(F).gradient <= 5 * error


def test_the_engine_tells_when_points_left_its_landmarks():
    G, F = laplacian(knn_weights(300)), mixtures(300, 0.2)
    engine = NystromEngine(G, SIGMA, landmarks=choose_landmarks(F, SIGMA))
    assert engine.error(F) <= 1e-3
    assert engine.error(3 * F) >= 0.1


def test_coinciding_landmarks_are_harmless():
    G, F = laplacian(knn_weights(50)), values(50, 2, 0.3)
    Z = choose_landmarks(F, SIGMA)
    energy, _ = NystromEngine(G, SIGMA, landmarks=np.concatenate([Z, Z]))(F)
    assert relative_error(energy, NystromEngine(G, SIGMA, landmarks=Z)(F)[0]) <= 1e-3


def test_exponential_is_good_to_the_last_bits():
    for x in np.concatenate([[0.0, 1e-300, 700.0], np.linspace(0, 50, 1001)]):
        assert exp_negative(x) == pytest.approx(np.exp(-x), rel=4e-16)
    assert exp_negative(1e9) < 1e-300


def ten_classes(u=1500, seed=0):
    """Values near the corners of a simplex, near its middle, and on the ways between."""
    rng = np.random.default_rng(seed)
    share = rng.beta(0.5, 0.5, size=(u, 1))
    corner, other = np.eye(10)[rng.integers(10, size=(2, u))]
    middle = rng.random((u, 1)) < 0.2
    return np.where(middle, 0.1, share * corner + (1 - share) * other) + 0.05 * rng.normal(size=(u, 10))


def test_placed_landmarks_have_the_promised_errors_beside_exact_tiles():
    G, F, sigma_f = laplacian(knn_weights(1500)), ten_classes(), 0.92
    far = NystromEngine(G, sigma_f, landmarks=F[:40], power=2)
    assert far.error(F) > WANTED_ERROR
    placed = far.placed_at(F)
    (energy, gradient), (exact, slope) = placed(F), far.exact()(F)
    assert placed.error(F) <= PLACED_ERROR
    assert relative_error(energy, exact) <= 1e-3
    assert np.linalg.norm(gradient - slope) <= 1e-2 * np.linalg.norm(slope)
