"""The energy of ERR classification, and the preconditioner of its minimisation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily.graph.laplacian import apply_power
from homophily.relationship.choose import make_engine
from homophily.relationship.masked import SparseEngine
from homophily.solve.irr import irr_energy, solve_irr
from homophily.solve.label_energy import LabelEnergy, PolynomialPreconditioner
from homophily.solve.nonlinear_cg import NonlinearCG

from .oracle import central_differences, knn_weights, laplacian, relationship_energy, relative_error

SIGMA = 0.8


def problem(u=30, n=1, power=1, *, engine="auto", normalized=True, weight=0.01, lambda1=0.05, seed=0, **graph):
    """A small label energy with its parts: (energy, G, confidence, targets, F)."""
    rng = np.random.default_rng(seed)
    L = laplacian(knn_weights(u, **graph), normalized=normalized)
    G = laplacian(knn_weights(u, **graph), normalized=normalized, power=power)
    confidence = np.where(rng.random(u) < 0.3, rng.uniform(0.5, 2.0, u), 0.0)
    targets = np.where(confidence[:, None] > 0, rng.choice([-1.0, 1.0], size=(u, n)), 0.0)
    F = rng.normal(size=(u, n))
    _, relationships = make_engine(G, F, SIGMA, engine=engine)
    return LabelEnergy(L, power, confidence, targets, lambda1, relationships, weight), G, confidence, targets, F


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_energy_is_the_sum_of_its_three_terms(n, power):
    energy, G, h, T, F = problem(20, n, power)
    expected = sum(h[i] * np.sum((F[i] - T[i]) ** 2) for i in range(20))
    expected += 0.05 * np.trace(F.T @ G.toarray() @ F) + 0.01 * relationship_energy(G, F, SIGMA)
    assert energy(F)[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize(("n", "engine"), [(1, "chebyshev"), (1, "dense"), (2, "tiles"), (5, "tiles")])
def test_gradient_is_the_slope_of_the_energy(n, engine, power, normalized):
    energy, *_, F = problem(16, n, power, engine=engine, normalized=normalized)
    slope = central_differences(lambda moved: energy(moved)[0], F, step=1e-3)
    assert relative_error(energy(F)[1], slope) <= 1e-6


@pytest.mark.parametrize("n", [1, 3])
def test_gradient_of_the_masked_form_is_its_slope(n):
    _, _, h, T, F = problem(30, n)
    W = knn_weights(30)
    mask = csr_array((W + W @ W + csr_array(np.eye(30))) != 0)
    relationships = SparseEngine(W, W.sum(axis=1), mask, SIGMA)
    energy = LabelEnergy(laplacian(W), 1, h, T, 0.05, relationships, 0.1)
    slope = central_differences(lambda moved: energy(moved)[0], F, step=1e-3)
    assert relative_error(energy(F)[1], slope) <= 1e-6


@pytest.mark.parametrize("power", [1, 2])
def test_without_relationships_the_energy_is_irrs(power):
    energy, _, h, T, F = problem(40, 2, power, weight=0.0)
    assert energy(F)[0] == pytest.approx(irr_energy(F, energy.laplacian, h, T, 0.05, power=power), rel=1e-12)
    solution = solve_irr(energy.laplacian, h, T, 0.05, power=power).solution
    assert np.abs(energy(solution)[1]).max() <= 1e-10


def test_values_are_left_as_they_were():
    energy, *_, F = problem()
    before = F.copy()
    energy(F)
    assert (before == F).all()


def test_out_of_range_values_have_infinite_energy():
    energy, *_, F = problem()
    F[0] = 1e9
    assert energy(F)[0] == np.inf


@pytest.mark.parametrize("power", [1, 2, 3])
def test_power_is_applied_by_products(power):
    L, F = laplacian(knn_weights(40)), np.random.default_rng(0).normal(size=(40, 3))
    np.testing.assert_allclose(apply_power(L, power, F, 1), np.linalg.matrix_power(L.toarray(), power) @ F, atol=1e-12)


# -- preconditioner ----------------------------------------------------------------------------------------------------


def preconditioner(u=60, power=1, scale=0.03, *, normalized=True, seed=0, **graph):
    W = knn_weights(u, **graph)
    L, G = laplacian(W, normalized=normalized), laplacian(W, normalized=normalized, power=power)
    confidence = np.where(np.random.default_rng(seed).random(u) < 0.2, 1.0, 0.0)
    return PolynomialPreconditioner(L, power, confidence, scale), G, confidence


def as_matrix(operator, u):
    return operator(np.eye(u))


GRAPHS = [{}, {"parts": 3}, {"isolated": 5}]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", [1e-4, 0.03, 10.0])
def test_preconditioner_is_linear_symmetric_and_positive(scale, power, normalized, graph):
    operator, *_ = preconditioner(power=power, scale=scale, normalized=normalized, **graph)
    P = as_matrix(operator, 60)
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 60, 3))
    np.testing.assert_allclose(
        operator(2.0 * a - 3.0 * b), 2.0 * operator(a) - 3.0 * operator(b), atol=1e-10 * abs(P).max()
    )
    np.testing.assert_allclose(operator(a), P @ a, atol=1e-10 * abs(P).max())
    assert np.abs(P - P.T).max() <= 1e-12 * np.abs(P).max()
    eigenvalues = np.linalg.eigvalsh((P + P.T) / 2)
    assert eigenvalues.min() > 0


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", [1e-4, 0.03, 10.0])
def test_preconditioner_is_near_the_inverse_of_what_it_approximates(scale, power):
    operator, G, confidence = preconditioner(power=power, scale=scale)
    shift = operator.SHIFT * G.diagonal().mean()
    M = np.diag(confidence) + scale * (G.toarray() + shift * np.eye(60))
    root = np.linalg.cholesky(M)
    eigenvalues = np.linalg.eigvalsh(root.T @ as_matrix(operator, 60) @ root)
    assert eigenvalues.min() > 0.5
    assert eigenvalues.max() < 1.5


def test_a_graph_without_edges_is_inverted_exactly():
    none = csr_array((4, 4))
    confidence = np.array([1.0, 2.0, 0.0, 0.0])
    operator = PolynomialPreconditioner(none, 1, confidence, 0.5)
    np.testing.assert_allclose(np.diag(as_matrix(operator, 4)), 1 / (confidence + 0.05), rtol=1e-6)


def test_columns_do_not_influence_each_other():
    operator, *_ = preconditioner()
    gradient = np.random.default_rng(0).normal(size=(60, 3))
    together = operator(gradient)
    apart = np.hstack([operator(gradient[:, c : c + 1]) for c in range(3)])
    np.testing.assert_allclose(together, apart, atol=1e-12 * abs(together).max())


def test_the_gradient_is_left_as_it_was():
    operator, *_ = preconditioner()
    gradient = np.ones((60, 1))
    operator(gradient)
    assert (gradient == 1.0).all()


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_preconditioning_reaches_the_same_energy_in_fewer_evaluations(n, power):
    energy, _, h, T, _ = problem(300, n, power, weight=0.01 / 300, lambda1=0.01)
    start = solve_irr(energy.laplacian, h, T, 0.01, power=power).solution
    operator = PolynomialPreconditioner(energy.laplacian, power, h, 0.01 + 0.01 / (2 * SIGMA**2))
    plain = NonlinearCG(energy, max_iter=50, tolerance=0.0).run(start)
    reached = []
    NonlinearCG(energy, max_iter=50, tolerance=0.0, precondition=operator).run(start, reached.append)
    first = next(state for state in reached if state.energy <= plain.energy)
    assert first.n_evaluations < plain.n_evaluations / 2
    assert reached[-1].energy <= plain.energy


@pytest.mark.parametrize("precondition", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_energy_never_rises(n, precondition):
    energy, _, h, T, F = problem(100, n, weight=0.01, lambda1=0.01)
    operator = PolynomialPreconditioner(energy.laplacian, 1, h, 0.02) if precondition else None
    energies = []
    for start in (F, solve_irr(energy.laplacian, h, T, 0.01).solution):
        energies.clear()
        NonlinearCG(energy, 50, 1e-6, operator).run(start, lambda state: energies.append(state.energy))
        assert len(energies) > 3
        assert (np.diff(energies) < 0).all()
