"""The ratio-of-differences scheme against all divisions of small graphs, and its parts against definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array

from homophily.baselines.ratio_dca import CutProblem, _balance_slope, _inner, _project_simplex


def small_problem(n=10, links=4, seed=0):
    rng = np.random.default_rng(seed)
    W = np.triu(rng.random((n, n)) * (rng.random((n, n)) < 0.5), k=1)
    W += W.T
    Q = np.zeros((n, n))
    for _ in range(links):
        i, j = rng.choice(n, 2, replace=False)
        Q[i, j] += 1
        Q[j, i] += 1
    return CutProblem(csr_array(W), W.sum(axis=1) + 0.1, csr_array(Q)), W, Q


def score(W, Q, masses, inside, gamma):
    """The definition: cut and penalty times volume over the product of volumes."""
    cut = W[inside][:, ~inside].sum()
    violated = (Q[inside][:, inside].sum() + Q[~inside][:, ~inside].sum()) / 2
    return (cut + gamma * violated) * masses.sum() / (masses[inside].sum() * masses[~inside].sum())


def all_divisions(n):
    for bits in itertools.product([False, True], repeat=n - 1):
        if any(bits):
            yield np.array([False, *bits])


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_best_level_is_the_best_of_all_levels(gamma):
    problem, W, Q = small_problem()
    f = np.round(np.random.default_rng(1).normal(size=10), 1)
    found = problem.best_level(f, gamma)
    levels = [f > t for t in np.unique(f)[:-1]]
    assert score(W, Q, problem.masses, found.inside, gamma) == pytest.approx(
        min(score(W, Q, problem.masses, level, gamma) for level in levels)
    )
    assert problem.total(found, gamma) == pytest.approx(score(W, Q, problem.masses, found.inside, gamma))
    assert any((found.inside == level).all() for level in levels)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 5.0])
def test_indicators_score_as_their_sets_do(gamma):
    problem, W, Q = small_problem(8)
    for inside in all_divisions(8):
        expected = score(W, Q, problem.masses, inside, gamma)
        assert problem._ratio(inside.astype(float), gamma) == pytest.approx(expected)


# With a large penalty the start decides which end of a link goes where, and ten starts do not try all ways.
@pytest.mark.parametrize(("gamma", "share"), [(0.0, 0.75), (0.3, 0.75), (5.0, 0.25)])
def test_the_best_division_of_a_small_graph_is_found_from_few_starts(gamma, share):
    best = []
    for seed in range(8):
        problem, W, Q = small_problem(seed=seed)
        lowest = min(score(W, Q, problem.masses, inside, gamma) for inside in all_divisions(10))
        rng = np.random.default_rng(seed)
        found = min(
            score(W, Q, problem.masses, problem.divide(rng.normal(size=10), gamma)[1].inside, gamma) for _ in range(10)
        )
        assert found >= lowest - 1e-12
        best.append(found <= lowest * (1 + 1e-9))
    assert np.mean(best) >= share


def test_a_step_never_raises_the_ratio():
    for seed in range(5):
        problem, _, _ = small_problem(30, 8, seed)
        f = np.random.default_rng(seed).normal(size=30)
        end, division = problem.divide(f, 0.4)
        assert problem._ratio(end, 0.4) <= problem._ratio(f, 0.4)
        assert problem.total(division, 0.4) <= problem._ratio(end, 0.4) + 1e-12


def test_the_slope_of_the_balance_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    f, d = rng.normal(size=12), rng.random(12) + 0.1

    def balance(x):
        return np.sum(np.outer(d, d) * np.abs(x[:, None] - x)) / 2 / d.sum()

    slope = _balance_slope(f, d)
    assert slope @ f == pytest.approx(balance(f))
    numeric = [(balance(f + 1e-6 * e) - balance(f - 1e-6 * e)) / 2e-6 for e in np.eye(12)]
    np.testing.assert_allclose(slope, numeric, atol=1e-7)


def test_the_inner_problem_is_solved():
    problem, _, _ = small_problem(12, 3)
    rng = np.random.default_rng(0)
    g = rng.normal(size=12)
    g -= g.mean()
    kappa = 0.3
    dual = np.zeros(len(problem.bounds)), np.full(12, 1 / 12), np.full(12, 1 / 12)
    f = _inner((problem.rows, problem.cols, problem.bounds), g, kappa, problem.lipschitz, *dual, 5000)

    def value(x):
        x = x / max(1.0, np.linalg.norm(x))
        return problem.bounds @ np.abs(x[problem.rows] - x[problem.cols]) + kappa * np.ptp(x) - g @ x

    others = min(minimize(value, rng.normal(size=12), method="Powell", options={"maxiter": 300}).fun for _ in range(5))
    assert value(f) < 0
    assert value(f) <= others + 0.03 * abs(others)
    assert np.linalg.norm(f) == pytest.approx(1.0)
    assert (np.abs(dual[0]) <= problem.bounds + 1e-12).all()


def test_the_simplex_projection_is_the_nearest_point():
    rng = np.random.default_rng(0)
    for total in (0.0, 0.7, 3.0):
        x = rng.normal(size=8)
        nearest = x.copy()
        _project_simplex(nearest, total)
        assert (nearest >= 0).all()
        assert nearest.sum() == pytest.approx(total, abs=1e-12)
        for _ in range(200):
            other = rng.random(8)
            other *= total / other.sum()
            assert np.sum((x - nearest) ** 2) <= np.sum((x - other) ** 2) + 1e-12


def test_violated_links_are_obeyed_by_moving_the_cheaper_end():
    W = np.zeros((5, 5))
    W[0, 1] = W[1, 0] = 1.0
    W[1, 2] = W[2, 1] = 0.1
    W[2, 3] = W[3, 2] = 0.1
    W[3, 4] = W[4, 3] = 1.0
    Q = np.zeros((5, 5))
    Q[0, 2] = Q[2, 0] = 1.0
    problem = CutProblem(csr_array(W), W.sum(axis=1), csr_array(Q))
    division = problem.best_level(np.array([1.0, 1.0, 1.0, 0.0, 0.0]), 0.0)
    assert division.violations == 1
    assert problem.obey(division).tolist() == [True, True, False, False, False]
