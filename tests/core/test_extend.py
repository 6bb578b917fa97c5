"""Values for new points: the minimum of the energy in one point's value, and the stored values for stored points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.datasets import make_blobs, make_moons

from homophily import ERRClassifier, IRRClassifier, KNNGraph, UnlabelledComponentsWarning
from homophily.extend import RelationshipTerm, extend, gauss_sums

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ESTIMATORS = [IRRClassifier, ERRClassifier]


def two_moons(u=300, labels=10, seed=0):
    X, y = make_moons(u, noise=0.1, random_state=seed)
    return X, np.where(np.arange(u) < labels, y, -1)


def blobs(u=300, classes=4, labels=40, seed=0, spread=1.5):
    X, y = make_blobs(u, centers=classes, n_features=3, cluster_std=spread, random_state=seed)
    return X, np.where(np.arange(u) < labels, y, -1)


def new_points(X, m=40, seed=1):
    rng = np.random.default_rng(seed)
    return X[rng.integers(len(X), size=m)] + 0.3 * X.std(axis=0) * rng.normal(size=(m, X.shape[1]))


def scores(values, degrees, model):
    """Values in units of √(degree / mean degree), which the normalised Laplacian calls constant."""
    if not model.normalized:
        return values
    return values / np.sqrt(degrees / model.graph_.degrees.mean())[:, None]


def stored_decisions(model):
    decisions = scores(model.solution_, model.graph_.degrees, model) + model.offsets_
    return decisions[:, 0] if decisions.shape[1] == 1 else decisions


def new_values(model, new):
    """The values behind the decisions of new points that are no stored ones."""
    decided = model.decision_function(new).reshape(len(new), -1) - model.offsets_
    if not model.normalized:
        return decided
    return decided * np.sqrt(model.graph_.attach(new)[2].sum(axis=1) / model.graph_.degrees.mean())[:, None]


def attached_energy(f, F, L, row, own, repulsion, lambda1, weight, sigma_f):
    """What a point of value f adds to the whole energy (p = 1), by evaluating it with the point and without.

    The point's row of the Laplacian is ``row`` beside its own entry ``own``. All else is fixed: the stored points'
    degrees and row sums. The point has no relationship with itself, which is one of u.
    """

    def whole(F, L, repulsion_of_rows, self_relationship):
        K = np.exp(-np.sum((F[:, None] - F) ** 2, axis=-1) / sigma_f**2)
        K[-1, -1] = self_relationship
        G = L - np.diag(repulsion_of_rows)
        return lambda1 * np.trace(F.T @ L @ F) + weight * np.trace(K.T @ G @ K)

    left_out = (1 - repulsion) * L.sum(axis=1)
    longer = np.block([[L, row[:, None]], [row, own]])
    left_out_longer = np.append(left_out, (1 - repulsion) * (own + row.sum()))
    return whole(np.vstack([F, f]), longer, left_out_longer, 0.0) - whole(F, L, left_out, 1.0)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("repulsion", [None, 1.0, 0.0, 1.5])
@pytest.mark.parametrize("data", [two_moons, blobs])
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
        rest = F, L, row, own, counted, 1e-2, 1e-2 / len(F), sigma_f
        start = -row @ F / own
        found = minimize(attached_energy, start, rest, method="BFGS", options={"gtol": 1e-9 * own})
        # The landmarks' Gauss sums are good to a few parts in a million.
        assert attached_energy(value, *rest) <= found.fun + 1e-5 * abs(found.fun)
        assert attached_energy(value, *rest) <= attached_energy(start, *rest)
        np.testing.assert_allclose(value, found.x, atol=5e-3)


@pytest.mark.parametrize("normalized", [True, False])
def test_irrs_new_value_is_the_weighted_mean_of_its_neighbours(normalized):
    X, y = two_moons()
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


# -- stored points -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("data", [two_moons, blobs])
@pytest.mark.parametrize("params", [{}, {"power": 2}, {"normalized": False}, {"class_prior": "estimate"}])
def test_stored_points_have_their_transduced_values(estimator, data, params):
    X, y = data()
    model = estimator(**params).fit(X, y)
    assert (model.predict(X) == model.transduction_).all()
    assert (model.decision_function(X) == stored_decisions(model)).all()
    assert (model.predict(X[17:23]) == model.transduction_[17:23]).all()


def test_stored_points_have_their_transduced_values_one_against_the_rest():
    X, y = blobs()
    model = ERRClassifier(multiclass="one-vs-rest").fit(X, y)
    assert (model.predict(X) == model.transduction_).all()
    assert (model.decision_function(X) == stored_decisions(model)).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_sparse_points_are_answered_as_dense_ones(estimator, metric):
    X, y = make_blobs(300, centers=4, n_features=8, cluster_std=3.0, random_state=0)
    X[np.abs(X) < 1.0] = 0.0
    y[40:] = -1
    new = new_points(X)
    new[np.abs(new) < 1.0] = 0.0
    dense = estimator(metric=metric).fit(X, y)
    sparse = estimator(metric=metric).fit(csr_array(X), y)
    np.testing.assert_allclose(sparse.solution_, dense.solution_, atol=1e-6)
    np.testing.assert_allclose(sparse.decision_function(csr_array(new)), dense.decision_function(new), atol=1e-5)
    assert (sparse.predict(csr_array(X)) == sparse.transduction_).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_distances_are_answered_as_points(estimator):
    X, y = blobs()
    new = new_points(X)
    distances = np.linalg.norm(X[:, None] - X, axis=2)
    points = estimator().fit(X, y)
    model = estimator(metric="precomputed").fit(distances, y)
    np.testing.assert_allclose(model.solution_, points.solution_, atol=1e-6)
    to_new = np.linalg.norm(new[:, None] - X, axis=2)
    np.testing.assert_allclose(model.decision_function(to_new), points.decision_function(new), atol=1e-5)
    assert (model.predict(distances) == model.transduction_).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weights_are_answered_as_points(estimator):
    X, y = blobs()
    new = new_points(X)
    points = estimator().fit(X, y)
    model = estimator(metric="affinity").fit(points.graph_.W, y)
    np.testing.assert_allclose(model.solution_, points.solution_, atol=1e-9)
    indices, _, weights = points.graph_.attach(new)
    to_new = np.zeros((len(new), len(X)))
    np.put_along_axis(to_new, indices, weights, axis=1)
    np.testing.assert_allclose(model.decision_function(to_new), points.decision_function(new), atol=1e-6)
    np.testing.assert_allclose(model.decision_function(csr_array(to_new)), model.decision_function(to_new), atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_graph_stands_for_its_points(estimator):
    X, y = blobs()
    new = new_points(X)
    points = estimator(n_neighbors=7).fit(X, y)
    model = estimator().fit(KNNGraph(n_neighbors=7).fit(X), y)
    assert (model.solution_ == points.solution_).all()
    assert (model.decision_function(new) == points.decision_function(new)).all()
    assert (model.predict(X) == model.transduction_).all()
    assert model.n_features_in_ == 3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_point_with_copies_takes_the_value_of_the_first(estimator):
    X, y = two_moons()
    X[200] = X[100]
    y[100], y[200] = 0, 1
    model = estimator().fit(X, y)
    assert model.solution_[100] != model.solution_[200]
    assert model.decision_function(X[[200]])[0] == stored_decisions(model)[100]


# -- any number of points, anywhere ------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("data", [two_moons, blobs])
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


@pytest.mark.parametrize("data", [two_moons, blobs])
def test_models_of_one_and_two_threads_give_the_same_answer(data):
    X, y = data()
    new = new_points(X, 300)
    one, two = (ERRClassifier(n_jobs=n_jobs, power=1, tol=1e-4).fit(X, y).decision_function(new) for n_jobs in (1, 2))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("weights", ["local", "self-tuning", "global", "fixed"])
@pytest.mark.parametrize("normalized", [True, False])
def test_far_away_points_have_finite_answers(estimator, weights, normalized):
    X, y = two_moons()
    model = estimator(weights=weights, sigma_x=0.5, normalized=normalized).fit(X, y)
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
    model = estimator(metric="affinity", class_prior=[0.2, 0.8]).fit(W, y)
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
    X, y = two_moons()
    model = ERRClassifier().fit(X, y)
    F = model.solution_.copy()
    known = np.ones(len(X), dtype=bool)
    term = RelationshipTerm(1.5, 1e-2, 1.0, gauss_sums(F, model.graph_.laplacian(), 1.5))
    values, degrees, reached = extend(
        X[:5] + 0.01, model.graph_, F, known, normalized=True, lambda1=1e-2, relationships=term
    )
    assert values.shape == (5, 1)
    assert (degrees > 0).all()
    assert reached.all()
    assert (model.solution_ == F).all()
