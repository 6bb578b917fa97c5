"""The push that row sums of the normalised Laplacian bring, and ρ, how much of it counts."""

from __future__ import annotations

import numpy as np
import pytest

from homophily import ERRClassifier, KNNGraph
from homophily.graph.laplacian import row_sums
from homophily.relationship.choose import make_engine
from homophily.relationship.dense import DenseEngine
from homophily.relationship.nystrom import NystromEngine, choose_landmarks
from homophily.solve.label_energy import LabelEnergy

from .oracle import (
    central_differences,
    knn_weights,
    laplacian,
    relationship_energy,
    relative_error,
    with_repulsion,
)
from .small_sets import blobs, moons

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SIGMA = 0.8
# Relative to the energy, and to the gradient's largest entry.
TOLERANCES = {
    "dense": (1e-12, 1e-12),
    "tiles": (1e-12, 1e-11),
    "chebyshev": (1e-12, 1e-9),
    "cells": (1e-9, 1e-8),
    "nufft": (1e-9, 1e-8),
    "nystrom": (1e-7, 1e-6),
}
CASES = [
    ("dense", 3),
    ("tiles", 1),
    ("tiles", 4),
    ("chebyshev", 1),
    ("cells", 2),
    ("cells", 3),
    ("nufft", 2),
    ("nystrom", 4),
]
engines = pytest.mark.parametrize(("name", "n"), CASES)
powers = pytest.mark.parametrize("power", [1, 2])
repulsions = pytest.mark.parametrize("repulsion", [0.0, 0.65, 1.7])


def values(u, n, scale=0.5):
    return scale * np.random.default_rng(0).normal(size=(u, n))


def engine_for(name, W, F, power, repulsion):
    """The engine of L^p and a diagonal of its own, as the classifier makes it."""
    L = laplacian(W)
    diagonal = (repulsion - 1) * row_sums(L, power)
    if name == "nystrom":
        # Every point a landmark: what is left is the rounding in the inverse.
        landmarks = choose_landmarks(F, SIGMA, tolerance=1e-10)
        return NystromEngine(L, SIGMA, landmarks=landmarks, power=power, diagonal=diagonal)
    made, engine = make_engine(
        L, F, SIGMA, engine=name, power=power, diagonal=diagonal, powered=lambda: laplacian(W, power=power)
    )
    assert made == name
    return engine


@engines
@powers
@repulsions
def test_energy_with_a_diagonal_is_the_triple_sum(name, n, power, repulsion):
    W, F = knn_weights(14), values(14, n)
    energy, _ = engine_for(name, W, F, power, repulsion)(F)
    expected = relationship_energy(with_repulsion(laplacian(W, power=power), repulsion), F, SIGMA)
    assert relative_error(energy, expected) <= TOLERANCES[name][0]


@engines
@powers
@repulsions
def test_engines_with_a_diagonal_agree_with_the_dense_form(name, n, power, repulsion):
    # Components and isolated points; and more points than a tile is wide.
    W, F = knn_weights(150, parts=3, isolated=4), values(150, n)
    energy, gradient = engine_for(name, W, F, power, repulsion)(F)
    reference, slope = DenseEngine(with_repulsion(laplacian(W, power=power), repulsion), SIGMA)(F)
    in_energy, in_gradient = TOLERANCES[name]
    assert relative_error(energy, reference) <= in_energy
    assert relative_error(gradient, slope) <= in_gradient


@engines
@powers
@pytest.mark.parametrize("repulsion", [0.0, 0.65])
def test_gradient_is_the_slope_of_the_whole_energy(name, n, power, repulsion):
    rng = np.random.default_rng(1)
    W, F = knn_weights(12), values(12, n)
    confidence = np.where(np.arange(12) < 4, 1.0, 0.0)
    targets = confidence[:, None] * rng.choice([-1.0, 1.0], size=F.shape)
    # So heavy that the relationships are most of the slope.
    energy = LabelEnergy(laplacian(W), power, confidence, targets, 0.05, engine_for(name, W, F, power, repulsion), 1.0)
    slope = central_differences(lambda moved: energy(moved)[0], F, step=1e-3)
    assert relative_error(energy(F)[1], slope) <= 1e-6


@powers
def test_the_low_rank_tells_its_error_of_the_energy_with_a_diagonal(power):
    W, F = knn_weights(200), values(200, 4)
    L = laplacian(W)
    diagonal = -0.35 * row_sums(L, power)
    landmarks = choose_landmarks(F, SIGMA, most=30)
    engine = NystromEngine(L, SIGMA, landmarks=landmarks, power=power, diagonal=diagonal)
    reference, _ = DenseEngine(with_repulsion(laplacian(W, power=power), 0.65), SIGMA)(F)
    assert engine.error(F, sample=200) == pytest.approx(abs(engine(F)[0] - reference) / reference, rel=1e-6)


# -- what the push is --------------------------------------------------------------------------------------------------


@powers
@pytest.mark.parametrize("normalized", [True, False])
def test_row_sums_are_those_of_the_power(power, normalized):
    W = knn_weights(60, isolated=2)
    G = laplacian(W, normalized=normalized, power=power)
    sums = row_sums(laplacian(W, normalized=normalized), power)
    np.testing.assert_allclose(sums, G.sum(axis=1), atol=1e-13)
    assert (np.abs(sums).max() > 0.01) == normalized


@powers
@repulsions
def test_the_energy_is_differences_over_edges_and_the_push_of_row_sums(power, repulsion):
    G, F = laplacian(knn_weights(20), power=power), values(20, 2)
    K = np.exp(-np.sum((F[:, None] - F) ** 2, axis=-1) / SIGMA**2)
    dense = G.toarray()
    edges = sum(-dense[j, k] * np.sum((K[j] - K[k]) ** 2) for j in range(20) for k in range(j))
    push = sum(dense[j].sum() * np.sum(K[j] ** 2) for j in range(20))
    assert abs(push) > 0.01 * abs(edges)
    energy, _ = DenseEngine(G, SIGMA)(F)
    assert energy == pytest.approx(edges + push, rel=1e-12)
    energy, _ = DenseEngine(with_repulsion(G, repulsion), SIGMA)(F)
    assert energy == pytest.approx(edges + repulsion * push, rel=1e-12)


# -- the parameter -----------------------------------------------------------------------------------------------------


@powers
def test_all_of_the_push_is_the_papers_energy(power):
    X, y = moons(24)
    model = ERRClassifier(
        power=power, repulsion=1.0, lambda1=0.03, lambda2=0.02, sigma_f=0.9, graph=KNNGraph(n_neighbors=4)
    ).fit(X, y)
    F, G = model.solution_, model.graph_.laplacian(power)
    T = np.where(y == -1, 0.0, 2.0 * y - 1.0)[:, None]
    expected = np.sum((y != -1)[:, None] * (F - T) ** 2) + 0.03 * np.trace(F.T @ (G @ F))
    expected += 0.02 / len(X) * relationship_energy(G, F, 0.9)
    assert model.energy_ == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("data", [moons, blobs])
def test_unnormalised_rows_do_not_push(data):
    X, y = data()
    given, default = (
        ERRClassifier(sharpen=False, normalized=False, repulsion=repulsion).fit(X, y) for repulsion in (0.1, None)
    )
    paper = ERRClassifier(normalized=False, repulsion=1.0).fit(X, y)
    for model in (given, default):
        assert (model.solution_ == paper.solution_).all()
        assert (model.decision_function(X + 0.05) == paper.decision_function(X + 0.05)).all()


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("multiclass", ["vector", "one-vs-rest"])
def test_the_default_counts_a_part_of_the_push(data, multiclass):
    X, y = data()
    default, given, paper = (
        ERRClassifier(sharpen=False, multiclass=multiclass, repulsion=repulsion).fit(X, y)
        for repulsion in (None, 0.65, 1.0)
    )
    assert (default.solution_ == given.solution_).all()
    assert (default.decision_function(X + 0.05) == given.decision_function(X + 0.05)).all()
    assert np.abs(default.solution_ - paper.solution_).max() > 1e-3


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("repulsion", [0.0, 0.65, 1.0, 1.5])
def test_the_sparse_form_over_all_points_is_the_full_form_with_the_same_repulsion(repulsion, normalized):
    X, y = moons(60)
    sparse, full = (
        ERRClassifier(power=1, repulsion=repulsion, normalized=normalized, relationship_neighbors=size).fit(X, y)
        for size in (len(X), None)
    )
    assert sparse.energy_ == pytest.approx(full.energy_, rel=1e-8)
    np.testing.assert_allclose(sparse.solution_, full.solution_, atol=1e-6)


def test_the_sparse_form_counts_all_of_the_push_by_default():
    X, y = moons()
    none, one, part = (
        ERRClassifier(relationship_neighbors=20, repulsion=repulsion).fit(X, y) for repulsion in (None, 1, 0.65)
    )
    assert (none.solution_ == one.solution_).all()
    assert np.abs(none.solution_ - part.solution_).max() > 1e-6
