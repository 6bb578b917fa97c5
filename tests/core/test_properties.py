"""Algebra that holds for the answers whatever the data are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.solve.irr import irr_energy

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

few_examples = settings(max_examples=8, deadline=None, derandomize=True)
seeds = st.integers(0, 10_000)
powers = st.sampled_from([1, 2])


def data(seed, u=60, classes=2):
    """Points in general position (no two distances alike) around a centre for each class, five labels of each."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(u) % classes)
    X = rng.normal(size=(u, 3)) + 2.0 * rng.normal(size=(classes, 3))[truth]
    y = np.full(u, -1)
    for c in range(classes):
        y[np.flatnonzero(truth == c)[:5]] = c
    return X, y


def weights(X):
    """One component, so that every point is reached."""
    return csr_array(KNNGraph(n_neighbors=20, weights="global").fit(X).W)


def model(estimator, graph=None, **params):
    """ERR well past the default tolerance: its minimum is what the algebra is about, not the way to it."""
    if estimator is not IRRClassifier:
        params = {"tol": 1e-9, "max_iter": 400} | params
    return estimator(graph=graph or KNNGraph(n_neighbors=20), **params)


# A descent that stops when rounding hides any further decrease leaves √ε of the minimiser's size.
TOLERANCE = {IRRClassifier: 1e-8, ERRClassifier: 2e-5}
both = pytest.mark.parametrize("estimator", [IRRClassifier, ERRClassifier])


@both
@pytest.mark.parametrize("classes", [2, 3])
@few_examples
@given(seed=seeds, power=powers)
def test_permuted_points_permute_the_answer(estimator, classes, seed, power):
    X, y = data(seed, classes=classes)
    order = np.random.default_rng(seed).permutation(len(X))
    # A fixed number of steps: then the same path is walked, and only rounding differs.
    params = {"power": power} | ({"max_iter": 5, "tol": 0.0} if estimator is not IRRClassifier else {})
    straight = estimator(graph=KNNGraph(n_neighbors=20), **params).fit(X, y)
    permuted = estimator(graph=KNNGraph(n_neighbors=20), **params).fit(X[order], y[order])
    np.testing.assert_allclose(permuted.solution_, straight.solution_[order], rtol=0, atol=1e-8)
    np.testing.assert_allclose(permuted.offsets_, straight.offsets_, rtol=0, atol=1e-6)


@both
@few_examples
@given(seed=seeds, power=powers)
def test_flipped_labels_flip_the_signs(estimator, seed, power):
    X, y = data(seed)
    flipped = np.where(y == -1, -1, 1 - y)
    params = {"power": power} | ({"max_iter": 5, "tol": 0.0} if estimator is not IRRClassifier else {})
    straight = estimator(graph=KNNGraph(n_neighbors=20), **params).fit(X, y)
    mirrored = estimator(graph=KNNGraph(n_neighbors=20), **params).fit(X, flipped)
    np.testing.assert_allclose(mirrored.solution_, -straight.solution_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(mirrored.offsets_, -straight.offsets_, rtol=0, atol=1e-6)


@few_examples
@given(seed=seeds, scale=st.floats(-100.0, 100.0), power=powers, normalized=st.booleans())
def test_the_null_vector_of_a_component_without_label_is_free(seed, scale, power, normalized):
    X, y = data(seed)
    both_parts = np.vstack([X, X + 1e4])
    graph = KNNGraph(n_neighbors=20, weights="global").fit(both_parts)
    labelled = np.append(y, np.full(len(X), -1))
    targets = np.where(labelled == -1, 0.0, 2.0 * labelled - 1.0)[:, None]
    confidence = (labelled != -1).astype(float)
    free = np.zeros((2 * len(X), 1))
    free[len(X) :, 0] = np.sqrt(graph.degrees[len(X) :]) if normalized else 1.0
    F = np.random.default_rng(seed).normal(size=free.shape)
    L = graph.laplacian(normalized=normalized)
    before = irr_energy(F, L, confidence, targets, 0.1, power=power)
    after = irr_energy(F + scale * free, L, confidence, targets, 0.1, power=power)
    assert after == pytest.approx(before, rel=1e-9, abs=1e-9)


@both
@few_examples
@given(seed=seeds, scale=st.floats(1e-3, 1e3), power=powers)
def test_scaling_the_weights_changes_nothing_for_the_normalised_laplacian(estimator, seed, scale, power):
    X, y = data(seed)
    W = weights(X)
    plain = model(estimator, KNNGraph(metric="affinity"), power=power).fit(W, y)
    scaled = model(estimator, KNNGraph(metric="affinity"), power=power).fit(scale * W, y)
    np.testing.assert_allclose(scaled.solution_, plain.solution_, rtol=0, atol=TOLERANCE[estimator])
    assert scaled.energy_ == pytest.approx(plain.energy_, rel=1e-9)
    assert (scaled.transduction_ == plain.transduction_).all()


@both
@few_examples
@given(seed=seeds, scale=st.floats(0.03, 30.0), power=powers)
def test_scaling_the_weights_is_scaling_the_lambdas_otherwise(estimator, seed, scale, power):
    X, y = data(seed)
    W = weights(X)
    W /= W.sum(axis=1).mean()
    lambdas = {"lambda1": 0.02} | ({"lambda2": 0.02} if estimator is not IRRClassifier else {})
    stronger = {name: value * scale**power for name, value in lambdas.items()}
    params = {"graph": KNNGraph(metric="affinity"), "normalized": False, "power": power}
    scaled = model(estimator, **params, **lambdas).fit(scale * W, y)
    plain = model(estimator, **params, **stronger).fit(W, y)
    np.testing.assert_allclose(scaled.solution_, plain.solution_, rtol=0, atol=20 * TOLERANCE[estimator])
    assert scaled.energy_ == pytest.approx(plain.energy_, rel=1e-7)


@both
@few_examples
@given(seed=seeds, unit=st.floats(1e-3, 1e3))
def test_the_unit_of_measurement_does_not_matter(estimator, seed, unit):
    X, y = data(seed)
    plain, other = (model(estimator).fit(points, y) for points in (X, unit * X))
    np.testing.assert_allclose(other.solution_, plain.solution_, rtol=0, atol=TOLERANCE[estimator])


@both
@few_examples
@given(seed=seeds, confidence=st.sampled_from([0.5, 2.0, 8.0]))
def test_confidence_scales_against_the_lambdas(estimator, seed, confidence):
    X, y = data(seed)
    lambdas = {"lambda1": 0.02} | ({"lambda2": 0.02} if estimator is not IRRClassifier else {})
    weaker = {name: value / confidence for name, value in lambdas.items()}
    weighted = model(estimator, **lambdas).fit(X, y, sample_weight=np.full(len(X), confidence))
    plain = model(estimator, **weaker).fit(X, y)
    np.testing.assert_allclose(weighted.solution_, plain.solution_, rtol=0, atol=TOLERANCE[estimator])
    assert weighted.energy_ == pytest.approx(confidence * plain.energy_, rel=1e-9)


@few_examples
@given(seed=seeds)
def test_labels_that_contradict_each_other_are_one_soft_label(seed):
    """Σ h‖f − t‖² over several labels of one point is, up to a constant, their mean with their joint weight."""
    X, y = data(seed)
    shares = (y[:, None] == np.arange(2)).astype(float)
    point = int(np.flatnonzero(y == 0)[0])
    shares[point] = [1.5, 0.5]
    weight = np.ones(len(X))
    weight[point] = 2.0
    soft = IRRClassifier(graph=KNNGraph(n_neighbors=20), power=1, lambda1=1e-2).fit(X, shares, sample_weight=weight)
    # Shares of 3/4 and 1/4 are the target 1/4 − 3/4.
    L = soft.graph_.laplacian().toarray()
    h = np.where(y == -1, 0.0, weight)
    t = np.where(y == -1, 0.0, 2.0 * y - 1.0)
    t[point] = -0.5
    expected = np.linalg.solve(np.diag(h) + 1e-2 * L, h * t)
    np.testing.assert_allclose(soft.solution_[:, 0], expected, rtol=0, atol=1e-7)


@few_examples
@given(seed=seeds, classes=st.sampled_from([2, 3]))
def test_err_never_ends_above_its_start(seed, classes):
    X, y = data(seed, classes=classes)
    irr = IRRClassifier(graph=KNNGraph(n_neighbors=20), tol=1e-10).fit(X, y)
    start = ERRClassifier(graph=KNNGraph(n_neighbors=20), sharpen=False, max_iter=0).fit(X, y)
    end = ERRClassifier(graph=KNNGraph(n_neighbors=20), sharpen=False).fit(X, y)
    np.testing.assert_allclose(start.solution_, irr.solution_, rtol=0, atol=1e-7)
    assert end.energy_ <= start.energy_
    assert start.n_evaluations_ == 1


@both
@few_examples
@given(seed=seeds)
def test_names_of_three_classes_may_be_exchanged(estimator, seed):
    X, y = data(seed, classes=3)
    exchange = np.array([2, 0, 1, -1])
    params = {"max_iter": 5, "tol": 0.0} if estimator is not IRRClassifier else {}
    plain = estimator(graph=KNNGraph(n_neighbors=20), **params).fit(X, y)
    other = estimator(graph=KNNGraph(n_neighbors=20), **params).fit(X, exchange[y])
    np.testing.assert_allclose(other.solution_[:, exchange[:3]], plain.solution_, rtol=0, atol=1e-8)
