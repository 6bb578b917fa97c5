"""The energy of a map, term by term, against the naive form."""

from __future__ import annotations

import numpy as np
import pytest

from homophily.relationship.choose import make_engine
from homophily.relationship.functions import RELATIONSHIPS
from homophily.solve.lbfgs import LBFGS
from homophily.solve.map_energy import MapEnergy, violated_links
from homophily.supervision.links import Links

from . import oracle

LINKS = Links(np.array([[0, 3], [1, 2]]), np.array([[0, 1], [4, 9]]))


def naive(F, T, L, links, sigma_f, alpha, lambda2, lambda3, loss, relationship):
    function = oracle.FUNCTIONS[relationship]

    def K(pair):
        return function(np.sum((F[pair[0]] - F[pair[1]]) ** 2) / sigma_f**2)

    must = sum((1 - K(pair)) ** 2 if loss == "squared" else -np.log(K(pair)) for pair in links.must)
    cannot = sum(K(pair) ** 2 for pair in links.cannot)
    energy = alpha * np.sum((F - T) ** 2) + lambda2 * oracle.relationship_energy(L, F, sigma_f, relationship)
    return energy + 2 * lambda3 * (must + cannot)


@pytest.mark.parametrize("name", RELATIONSHIPS)
@pytest.mark.parametrize("loss", ["log", "squared"])
def test_energy_is_the_sum_of_its_terms_and_the_gradient_its_slope(loss, name):
    relationship = RELATIONSHIPS[name]
    rng = np.random.default_rng(0)
    L = oracle.laplacian(oracle.knn_weights(12))
    F, T = rng.normal(size=(2, 12, 2))
    _, engine = make_engine(L, F, 0.7, engine="dense", relationship=relationship)
    energy = MapEnergy(T, 0.3, engine, 0.2, LINKS, 1.5, 0.7, link_loss=loss, relationship=relationship)
    value, gradient = energy(F)
    expected = naive(F, T, L, LINKS, 0.7, 0.3, 0.2, 1.5, loss, name)
    assert value == pytest.approx(expected, rel=1e-10)
    assert oracle.relative_error(gradient, oracle.central_differences(lambda G: energy(G)[0], F)) < 1e-7


def test_far_must_link_pulls_and_the_squared_one_does_not():
    F = np.array([[0.0, 0.0], [50.0, 0.0]])
    links = Links(np.array([[0, 1]]), np.empty((0, 2), dtype=np.int64))

    def nothing(G):
        return 0.0, np.zeros_like(G)

    pulls = {
        loss: MapEnergy(F, 0.0, nothing, 0.0, links, 1.0, 1.0, link_loss=loss)(F)[1] for loss in ("log", "squared")
    }
    assert pulls["log"][1, 0] > 1.0
    assert np.abs(pulls["squared"]).max() < 1e-100


@pytest.mark.parametrize(("relationship", "half"), [("gaussian", np.sqrt(np.log(2))), ("cauchy", 1.0)])
def test_links_are_violated_on_the_wrong_side_of_one_half(relationship, half):
    near, far = 0.999 * half, 1.001 * half
    F = 3.0 * np.array([[0.0], [near], [far]])
    pairs = np.array([[0, 1], [0, 2]])
    violated = violated_links(F, Links(pairs, pairs), 3.0, RELATIONSHIPS[relationship])
    assert violated.must.tolist() == [[0, 2]]
    assert violated.cannot.tolist() == [[0, 1]]


def test_lbfgs_finds_the_minimum_of_a_stiff_quadratic_and_never_rises():
    scales = np.geomspace(1, 1e3, 20)[:, None]
    target = np.linspace(-1, 1, 20)[:, None]

    def objective(x):
        return float(np.sum(scales * (x - target) ** 2)), 2 * scales * (x - target)

    energies = []
    state = LBFGS(objective, 300, 1e-9).run(np.zeros((20, 1)), lambda state: energies.append(state.energy))
    assert state.finished
    np.testing.assert_allclose(state.x, target, atol=1e-6)
    assert (np.diff(energies) <= 0).all()
    assert state.n_evaluations < 300
