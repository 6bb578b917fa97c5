"""The sparse form: relationships within neighbourhoods only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, diags_array

from homophily.relationship.dense import DenseEngine
from homophily.relationship.functions import RELATIONSHIPS
from homophily.relationship.masked import SparseEngine

from .oracle import central_differences, knn_weights, laplacian, masked_energy, relative_error

SIGMA = 0.8


def random_mask(u, size, seed=0):
    """Each row its own point and others at random: not symmetric, and of rows of different length."""
    rng = np.random.default_rng(seed)
    g = rng.uniform(size=(u, u)) < rng.uniform(0, 2 * size / u, size=(u, 1))
    np.fill_diagonal(g, True)
    return csr_array(g)


def values(u, n, scale=0.6, seed=0):
    return np.random.default_rng(seed).normal(size=(u, n)) * scale


def degrees_of(W, normalized):
    return W.sum(axis=1) if normalized else None


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("n", [1, 2, 5, 10])
def test_full_mask_gives_the_full_regulariser(n, normalized):
    W, F = knn_weights(90, parts=2, isolated=3), values(90, n)
    energy, gradient = SparseEngine(W, degrees_of(W, normalized), csr_array(np.ones((90, 90))), SIGMA)(F)
    reference, slope = DenseEngine(laplacian(W, normalized=normalized), SIGMA)(F)
    assert relative_error(energy, reference) <= 1e-10
    assert relative_error(gradient, slope) <= 1e-10


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_energy_is_the_masked_triple_sum(n, normalized):
    W, F, mask = knn_weights(18, isolated=1), values(18, n), random_mask(18, 8)
    degrees = degrees_of(W, normalized)
    energy, _ = SparseEngine(W, degrees, mask, SIGMA)(F)
    assert energy > 0
    assert relative_error(energy, masked_energy(W, degrees, mask, F, SIGMA)) <= 1e-12


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_gradient_is_the_slope_of_the_energy(n, normalized):
    W, F = knn_weights(25), values(25, n)
    engine = SparseEngine(W, degrees_of(W, normalized), random_mask(25, 10), SIGMA)
    slope = central_differences(lambda moved: engine(moved)[0], F, step=1e-3)
    assert relative_error(engine(F)[1], slope) <= 1e-6


def test_points_that_know_only_themselves_have_no_energy():
    W, F = knn_weights(30), values(30, 2)
    energy, gradient = SparseEngine(W, W.sum(axis=1), csr_array(np.eye(30)), SIGMA)(F)
    assert energy == 0
    assert not gradient.any()


def test_a_graph_without_edges_has_no_energy():
    W = knn_weights(20, isolated=20)
    energy, gradient = SparseEngine(W, W.sum(axis=1), random_mask(20, 5), SIGMA)(values(20, 1))
    assert energy == 0
    assert not gradient.any()


def test_a_single_point_has_no_energy():
    energy, gradient = SparseEngine(csr_array((1, 1)), np.zeros(1), csr_array([[1.0]]), SIGMA)(np.array([[0.5]]))
    assert (energy, gradient.item()) == (0, 0)


def test_points_of_one_value_have_no_energy_in_the_unnormalised_form():
    W = knn_weights(60)
    energy, gradient = SparseEngine(W, None, random_mask(60, 20), SIGMA)(np.full((60, 2), 0.3))
    assert abs(energy) <= 1e-12 * W.sum() * 60
    assert not gradient.any()


def test_the_order_of_a_masks_entries_does_not_matter():
    W, F, mask = knn_weights(40), values(40, 2), random_mask(40, 10)
    reversed_rows = np.concatenate(
        [mask.indices[a:b][::-1] for a, b in zip(mask.indptr, mask.indptr[1:], strict=False)]
    )
    shuffled = csr_array((mask.data, reversed_rows, mask.indptr), shape=mask.shape)
    assert SparseEngine(W, None, shuffled, SIGMA)(F)[0] == SparseEngine(W, None, mask, SIGMA)(F)[0]
    np.testing.assert_array_equal(shuffled.indices, reversed_rows)


def test_a_repeated_run_gives_the_same_bits():
    W, F, mask = knn_weights(300), values(300, 3), random_mask(300, 40)
    first, again = (SparseEngine(W, W.sum(axis=1), mask, SIGMA, n_jobs=2)(F) for _ in range(2))
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])


def test_one_and_two_threads_agree():
    W, F, mask = knn_weights(300), values(300, 3), random_mask(300, 40)
    one, two = (SparseEngine(W, W.sum(axis=1), mask, SIGMA, n_jobs=n_jobs)(F) for n_jobs in (1, 2))
    assert relative_error(one[0], two[0]) <= 1e-9
    assert relative_error(one[1], two[1]) <= 1e-9


@given(shift=st.floats(-50, 50))
@settings(max_examples=8, deadline=None)
def test_moving_all_values_together_changes_nothing(shift):
    W, F = knn_weights(40), values(40, 2)
    engine = SparseEngine(W, W.sum(axis=1), random_mask(40, 10), SIGMA)
    energy, gradient = engine(F)
    moved_energy, moved_gradient = engine(F + shift)
    assert relative_error(moved_energy, energy) <= 1e-10
    assert relative_error(moved_gradient, gradient) <= 1e-10


def test_a_full_mask_leaves_out_as_much_repulsion_as_the_full_form():
    W, F = knn_weights(40), values(40, 2)
    L = laplacian(W)
    engine = SparseEngine(W, W.sum(axis=1), csr_array(np.ones((40, 40))), SIGMA, repulsion=0.65)
    energy, gradient = engine(F)
    reference, slope = DenseEngine(csr_array(L - 0.35 * diags_array(L.sum(axis=1))), SIGMA)(F)
    assert relative_error(energy, reference) <= 1e-10
    assert relative_error(gradient, slope) <= 1e-10


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", RELATIONSHIPS)
def test_every_function_within_a_mask_is_the_triple_sum_and_its_slope(n, name):
    W, F, mask = knn_weights(14), values(14, n), random_mask(14, 8)
    engine = SparseEngine(W, W.sum(axis=1), mask, SIGMA, relationship=RELATIONSHIPS[name])
    energy, gradient = engine(F)
    assert relative_error(energy, masked_energy(W, W.sum(axis=1), mask, F, SIGMA, name)) <= 1e-12
    assert relative_error(gradient, central_differences(lambda moved: engine(moved)[0], F, step=1e-3)) <= 1e-6
