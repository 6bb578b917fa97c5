"""Values for new points: the minimum of the energy in one point's value, for any number of points anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import make_moons

from homophily import ERRClassifier, IRRClassifier, KNNGraph, UnlabelledComponentsWarning
from homophily.solve.new_points import Columns, RelationshipTerm, extend, gauss_sums

from .small_sets import ESTIMATORS, blobs, moons, new_points

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def new_values(model, new):
    """The values behind the decisions of new points that are no stored ones."""
    decided = model.decision_function(new).reshape(len(new), -1) - model.offsets_
    if not model.normalized:
        return decided
    return decided * np.sqrt(model.graph_.attach(new)[2].sum(axis=1) / model.graph_.degrees.mean())[:, None]


def relationships(F, others, sigma_f):
    return np.exp(-np.sum((F[:, None] - others) ** 2, axis=-1) / sigma_f**2)


class Attached:
    """A new point's energy from dense matrices: the whole energy (p = 1) with the point, less that without it.

    ``row`` is the point's row of the Laplacian beside its own entry ``own``. All else is fixed: the stored points'
    degrees and row sums. The point's relationship with itself, one of u + 1, is left out.
    """

    def __init__(self, F, L, row, own, repulsion, lambda1, weight, sigma_f):
        self.F, self.L, self.row, self.own, self.sigma_f = F, L, row, own, sigma_f
        self.lambda1, self.weight = lambda1, weight
        self.left_out = (1 - repulsion) * np.append(L.sum(axis=1), own + row.sum())
        self.K = relationships(F, F, sigma_f)
        self.G = L - np.diag(self.left_out[:-1])

    def __call__(self, f):
        k = relationships(f[None], self.F, self.sigma_f)[0]
        linear = self.own * f @ f + 2 * f @ (self.row @ self.F)
        added = (self.own - self.left_out[-1]) * k @ k + 2 * self.row @ (self.K @ k) + k @ self.G @ k
        return self.lambda1 * linear + self.weight * added

    def by_evaluating_twice(self, f):
        F = np.vstack([self.F, f])
        L = np.block([[self.L, self.row[:, None]], [self.row, self.own]])
        K = relationships(F, F, self.sigma_f)
        K[-1, -1] = 0.0
        with_point = self.whole(F, L, L - np.diag(self.left_out), K)
        return with_point - self.whole(self.F, self.L, self.G, self.K)

    def whole(self, F, L, G, K):
        return self.lambda1 * np.trace(F.T @ L @ F) + self.weight * np.trace(K.T @ G @ K)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("repulsion", [None, 1.0, 0.0, 1.5])
@pytest.mark.parametrize("data", [moons, blobs])
def test_a_new_points_value_minimises_its_energy(data, repulsion, normalized):
    X, y = data(150)
    new = new_points(X, 8)
    sigma_f = 1.2
    model = ERRClassifier(
        normalized=normalized, lambda1=1e-2, lambda2=1e-2, sigma_f=sigma_f, repulsion=repulsion, tol=1e-4
    ).fit(X, y)
    counted = ERRClassifier.REPULSION if repulsion is None else repulsion
    values = new_values(model, new)
    F, graph = model.solution_, model.graph_
    indices, _, weights = graph.attach(new)
    L = graph.laplacian(normalized=normalized).toarray()
    for value, neighbors, w in zip(values, indices, weights, strict=True):
        row, own = np.zeros(len(F)), 1.0 if normalized else w.sum()
        row[neighbors] = -w / np.sqrt(w.sum() * graph.degrees[neighbors]) if normalized else -w
        energy = Attached(F, L, row, own, counted, 1e-2, 1e-2 / len(F), sigma_f)
        assert energy(value) == pytest.approx(energy.by_evaluating_twice(value), abs=1e-13)
        start = -row @ F / own
        found = minimize(energy, start, method="BFGS", options={"gtol": 1e-9 * own})
        # The landmarks' Gauss sums are good to a few parts in a million.
        assert energy(value) <= found.fun + 1e-5 * abs(found.fun)
        assert energy(value) <= energy(start)
        np.testing.assert_allclose(value, found.x, atol=5e-3)


@pytest.mark.parametrize("normalized", [True, False])
def test_irrs_new_value_is_the_weighted_mean_of_its_neighbours(normalized):
    X, y = moons()
    new = new_points(X)
    model = IRRClassifier(normalized=normalized).fit(X, y)
    indices, _, weights = model.graph_.attach(new)
    degrees = model.graph_.degrees[indices]
    shares = weights / weights.sum(axis=1, keepdims=True)
    if normalized:
        shares = weights / np.sqrt(weights.sum(axis=1, keepdims=True) * degrees)
    expected = np.sum(shares * model.solution_[indices, 0], axis=1)
    np.testing.assert_allclose(new_values(model, new)[:, 0], expected, atol=1e-12)


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_landmark_sums_equal_the_full_ones(columns):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    graph, F = KNNGraph().fit(X), np.tanh(rng.normal(size=(200, columns)))
    L = graph.laplacian().toarray()
    sums = gauss_sums(F, graph.laplacian(), 1.2)
    middles = (F[:, None] + F) / 2
    phi = np.exp(-np.sum((F[:, None] - F) ** 2, axis=-1) / (2 * 1.2**2))
    for x in rng.uniform(-1, 1, size=(20, columns)):
        kernel = np.exp(-2 * np.sum((x - sums.landmarks) ** 2, axis=1) / 1.2**2)
        full = np.sum(np.exp(-2 * np.sum((x - F) ** 2, axis=1) / 1.2**2))
        adjoint = np.sum(L * phi * np.exp(-2 * np.sum((x - middles) ** 2, axis=-1) / 1.2**2))
        assert kernel @ sums.stored == pytest.approx(full / 200, abs=2e-3)
        assert kernel @ sums.edges == pytest.approx(adjoint / 200, abs=2e-3)


# -- any number of points, anywhere ------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("data", [moons, blobs])
def test_points_are_answered_alike_alone_and_together(estimator, data):
    X, y = data()
    new = new_points(X, 200)
    model = estimator(n_jobs=2).fit(X, y)
    together = model.decision_function(new)
    alone = np.concatenate([model.decision_function(point[None]) for point in new])
    np.testing.assert_allclose(alone, together, atol=1e-12)
    np.testing.assert_allclose(model.decision_function(new[::-1])[::-1], together, atol=1e-12)


def test_thread_count_of_the_answer_changes_no_bit():
    X, y = blobs()
    new = new_points(X, 300)
    model = ERRClassifier(n_jobs=2).fit(X, y)
    two = model.decision_function(new)
    assert (model.decision_function(new) == two).all()
    assert (model.set_params(n_jobs=1).decision_function(new) == two).all()


@pytest.mark.parametrize("data", [moons, blobs])
def test_models_of_one_and_two_threads_give_the_same_answer(data):
    X, y = data()
    new = new_points(X, 300)
    one, two = (ERRClassifier(n_jobs=n_jobs, power=1, tol=1e-4).fit(X, y).decision_function(new) for n_jobs in (1, 2))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("weights", ["local", "self-tuning", "global", "fixed"])
@pytest.mark.parametrize("normalized", [True, False])
def test_far_away_points_have_finite_answers(estimator, weights, normalized):
    X, y = moons()
    model = estimator(graph=KNNGraph(weights=weights, sigma_x=0.5), normalized=normalized).fit(X, y)
    for far in (1e3, 1e8, 1e30):
        new = np.array([[far, 0.0], [0.0, -far]])
        assert np.isfinite(model.decision_function(new)).all()
        np.testing.assert_allclose(model.predict_proba(new).sum(axis=1), 1.0)


def test_other_points_without_label_do_not_change_an_answer():
    X, y = blobs(classes=2)
    far = np.vstack([X, 1000.0 + np.random.default_rng(0).normal(size=(100, 3))])
    new = new_points(X)
    for estimator in ESTIMATORS:
        for normalized in (True, False):
            alone = estimator(normalized=normalized).fit(X, y)
            with pytest.warns(UnlabelledComponentsWarning):
                beside = estimator(normalized=normalized).fit(far, np.append(y, np.full(100, -1)))
            np.testing.assert_allclose(beside.decision_function(new), alone.decision_function(new), atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_new_points_near_a_component_without_label_get_the_prior(estimator):
    X, y = blobs(classes=2)
    X = np.vstack([X, 1000.0 + np.random.default_rng(0).normal(size=(50, 3))])
    with pytest.warns(UnlabelledComponentsWarning):
        model = estimator(class_prior=[0.3, 0.7]).fit(X, np.append(y, np.full(50, -1)))
    near = np.full((3, 3), 1000.0)
    assert (model.predict(near) == 1).all()
    np.testing.assert_allclose(model.predict_proba(near), [[0.3, 0.7]] * 3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_points_without_any_weight_get_the_prior(estimator):
    X, y = blobs(classes=2)
    W = KNNGraph().fit(X).W
    model = estimator(graph=KNNGraph(metric="affinity"), class_prior=[0.2, 0.8]).fit(W, y)
    nothing = np.zeros((2, len(X)))
    assert (model.predict(nothing) == 1).all()
    np.testing.assert_allclose(model.predict_proba(nothing), [[0.2, 0.8]] * 2)
    assert np.isfinite(model.decision_function(nothing)).all()


def test_new_points_of_the_same_classes_are_recognised():
    X, y = make_moons(700, noise=0.1, random_state=0)
    few = np.where(np.arange(500) < 20, y[:500], -1)
    for estimator in ESTIMATORS:
        model = estimator().fit(X[:500], few)
        assert model.score(X[500:], y[500:]) > 0.93


def test_without_relationships_the_extension_is_irrs():
    X, y = blobs()
    new = new_points(X)
    err = ERRClassifier(lambda2=0.0).fit(X, y)
    irr = IRRClassifier(tol=1e-12).fit(X, y)
    np.testing.assert_allclose(err.decision_function(new), irr.decision_function(new), atol=1e-9)


def test_the_function_keeps_to_its_arguments():
    X, y = moons()
    model = ERRClassifier(sharpen=False).fit(X, y)
    F = model.solution_.copy()
    known = np.ones(len(X), dtype=bool)
    term = RelationshipTerm(1.5, 1e-2, 1.0, gauss_sums(F, model.graph_.laplacian(), 1.5))
    values, degrees, reached = extend(
        X[:5] + 0.01, model.graph_, [Columns(F, term)], known, normalized=True, lambda1=1e-2
    )
    assert values.shape == (5, 1)
    assert (degrees > 0).all()
    assert reached.all()
    assert (model.solution_ == F).all()
