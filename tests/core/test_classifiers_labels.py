"""From labels to answers: labels, class shares, several classes, probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs, make_moons
from sklearn.metrics import log_loss

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.solve.irr import solve_irr
from homophily.supervision.calibration import DEFAULT_SLOPE, Calibration

from .small_sets import blobs, both, few, moons

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@both
@pytest.mark.parametrize("data", [moons, blobs])
def test_names_of_classes_do_not_matter(estimator, data):
    X, y = data()
    names = np.array(["ant", "bee", "cat", "dog", ""])
    plain = estimator().fit(X, y)
    for labels in (
        names[y],
        names[y].astype(object),
        [None if label == -1 else names[label] for label in y],
        np.where(y == -1, np.nan, y + 7.0),
        np.where(y == -1, -1, y * 100 + 5),
    ):
        model = estimator().fit(X, labels)
        assert (model.solution_ == plain.solution_).all()
        assert (np.searchsorted(model.classes_, model.transduction_) == plain.transduction_).all()
        assert set(model.predict(X[:20])) <= set(model.classes_)
    assert estimator().fit(X, names[y]).classes_.tolist() == names[: y.max() + 1].tolist()


@both
@pytest.mark.parametrize("data", [moons, blobs])
def test_certain_shares_are_labels(estimator, data):
    X, y = data()
    shares = (y[:, None] == np.arange(y.max() + 1)).astype(float)
    model, plain = estimator().fit(X, shares), estimator().fit(X, y)
    np.testing.assert_allclose(model.solution_, plain.solution_, atol=1e-12)
    assert (model.transduction_ == plain.transduction_).all()


@both
def test_soft_labels_are_targets_between_the_classes(estimator):
    X, y = moons(labels=20)
    shares = (y[:, None] == np.arange(2)).astype(float)
    shares[:20] = 0.8 * shares[:20] + 0.1
    model = (
        estimator(lambda1=1e-6, lambda2=1e-6).fit(X, shares)
        if estimator is not IRRClassifier
        else estimator(lambda1=1e-6).fit(X, shares)
    )
    # With hardly any smoothing, labelled points keep their targets of ±0.8.
    np.testing.assert_allclose(model.solution_[:20, 0], 0.8 * (2 * y[:20] - 1), atol=1e-2)


@both
def test_confidence_is_a_weight_in_the_energy(estimator):
    X, y = moons(labels=20)
    weight = np.random.default_rng(0).uniform(0.2, 3.0, len(X))
    model = estimator(power=1, lambda1=1e-2).fit(X, y, sample_weight=weight)
    if estimator is IRRClassifier:
        T = np.where(y == -1, 0.0, 2.0 * y - 1.0)[:, None]
        h = np.where(y == -1, 0.0, weight)
        expected = solve_irr(model.graph_.laplacian(), h, T, 1e-2).solution
        np.testing.assert_allclose(model.solution_, expected, atol=1e-8)
    assert np.abs(model.solution_ - estimator().fit(X, y).solution_).max() > 1e-3


@both
def test_twice_the_confidence_is_half_of_both_lambdas(estimator):
    X, y = moons()
    lambdas = {"lambda1": 0.02} if estimator is IRRClassifier else {"lambda1": 0.02, "lambda2": 0.02, "tol": 1e-8}
    halves = {name: value / 2 if name != "tol" else value for name, value in lambdas.items()}
    doubled = estimator(**lambdas).fit(X, y, sample_weight=np.full(len(X), 2.0))
    plain = estimator(**halves).fit(X, y)
    np.testing.assert_allclose(doubled.solution_, plain.solution_, atol=1e-5)
    assert doubled.energy_ == pytest.approx(2 * plain.energy_, rel=1e-9)


@both
def test_no_confidence_is_no_label(estimator):
    X, y = moons(labels=20)
    weight = np.ones(len(X))
    weight[5] = 0.0
    without = y.copy()
    without[5] = -1
    a, b = estimator().fit(X, y, sample_weight=weight), estimator().fit(X, without)
    assert (a.solution_ == b.solution_).all()
    assert (a.offsets_ == b.offsets_).all()


@both
def test_withdrawn_label_no_longer_pulls_its_neighbours(estimator):
    X, y = moons(labels=20)
    wrong = y.copy()
    point = 50
    wrong[point] = 1 - estimator().fit(X, y).transduction_[point]
    pulled = estimator().fit(X, wrong)
    side = 2 * wrong[point] - 1
    neighbours = pulled.graph_.indices_[point, :3]
    free = estimator().fit(X, y)
    pull = side * (pulled.solution_ - free.solution_)[neighbours, 0]
    assert (pull > 0).all()
    assert pull[0] > 0.5
    # Withdrawn, also on a model that had it: nothing of it is left.
    again = pulled.fit(X, y)
    assert (again.solution_ == free.solution_).all()
    assert (again.predict(X) == free.predict(X)).all()


@both
def test_all_points_may_be_labelled(estimator):
    X, y = make_moons(100, noise=0.05, random_state=0)
    assert (estimator().fit(X, y).transduction_ == y).mean() > 0.95


# -- class priors ------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("data", "prior"), [(moons, [0.3, 0.7]), (blobs, [0.1, 0.2, 0.3, 0.4])])
def test_a_given_prior_sets_the_shares_of_the_classes(estimator, data, prior):
    X, y = data()
    model = estimator(class_prior=prior).fit(X, y)
    shares = np.bincount(model.transduction_, minlength=len(prior)) / len(X)
    np.testing.assert_allclose(shares, prior, atol=0.02)
    np.testing.assert_allclose(model.class_prior_, prior)


@both
def test_an_estimated_prior_is_that_of_the_labels(estimator):
    X, y = moons(labels=30)
    model = estimator(class_prior="estimate").fit(X, y)
    expected = (np.bincount(y[y != -1]) + 1) / (np.count_nonzero(y != -1) + 2)
    np.testing.assert_allclose(model.class_prior_, expected)
    np.testing.assert_allclose((model.transduction_ == 1).mean(), expected[1], atol=0.02)


@both
def test_the_prior_moves_the_decision_and_not_the_solution(estimator):
    X, y = moons()
    solutions = [estimator(class_prior=prior).fit(X, y).solution_ for prior in (None, "estimate", [0.2, 0.8])]
    assert (solutions[0] == solutions[1]).all()
    assert (solutions[0] == solutions[2]).all()


# -- several classes ---------------------------------------------------------------------------------------------------


def test_one_against_the_rest_mostly_agrees_with_the_vector_form():
    X, y = make_blobs(300, centers=4, n_features=3, cluster_std=1.2, random_state=0)
    vector = ERRClassifier(sharpen=False).fit(X, few(y, 40))
    rest = ERRClassifier(multiclass="one-vs-rest").fit(X, few(y, 40))
    assert rest.engine_ == "chebyshev"
    assert rest.solution_.shape == vector.solution_.shape == (300, 4)
    assert (vector.transduction_ == rest.transduction_).mean() > 0.93
    assert (rest.transduction_ == y).mean() > 0.85


def test_one_against_the_rest_is_one_problem_a_class():
    X, y = blobs()
    rest = ERRClassifier(multiclass="one-vs-rest").fit(X, y)
    for c in range(4):
        single = ERRClassifier(sharpen=False).fit(X, np.where(y == -1, -1, (y == c).astype(int)))
        np.testing.assert_allclose(rest.solution_[:, [c]], single.solution_, atol=1e-6)


def test_two_classes_are_one_problem_either_way():
    X, y = moons()
    a, b = (ERRClassifier(sharpen=False, multiclass=form).fit(X, y) for form in ("vector", "one-vs-rest"))
    assert (a.solution_ == b.solution_).all()


# -- probabilities -----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("prior", [None, "estimate"])
def test_probabilities_sum_to_one_and_agree_with_the_decision(estimator, data, prior):
    X, y = data()
    model = estimator(class_prior=prior).fit(X, y)
    new = np.vstack([X, X + 0.1, X[:20] * 3.0])
    p = model.predict_proba(new)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    assert (p >= 0).all()
    assert (model.classes_[p.argmax(axis=1)] == model.predict(new)).all()
    assert (model.predict_proba(X) == model.label_distributions_).all()
    assert model.label_distributions_.shape == (len(X), len(model.classes_))


@both
@pytest.mark.parametrize("classes", [2, 4])
def test_calibration_is_better_than_raw_scores(estimator, classes):
    losses = []
    for seed in range(6):
        X, y = make_blobs(300, centers=classes, cluster_std=2.5, center_box=(-4, 4), n_features=3, random_state=seed)
        model = estimator(power=1).fit(X, few(y, 80))
        calibrated = model.predict_proba(X)
        # Scores are what the calibration's slope multiplies: recover them from the model's own decisions.
        decisions = model.decision_function(X).reshape(300, -1)
        raw = [
            Calibration(slope, np.zeros(decisions.shape[1])).probabilities(decisions) for slope in (1.0, DEFAULT_SLOPE)
        ]
        losses.append([log_loss(y[80:], p[80:], labels=range(classes)) for p in (calibrated, *raw)])
    mean = np.mean(losses, axis=0)
    assert mean[0] < mean[1:].min()


@both
def test_calibrating_leaves_the_solution_alone(estimator):
    X, y = moons()
    model = estimator().fit(X, y)
    before = model.solution_.copy(), model.energy_, model.n_iter_
    model.predict_proba(X)
    assert (model.solution_ == before[0]).all()
    assert (model.energy_, model.n_iter_) == before[1:]


@both
def test_one_label_a_class_still_gives_probabilities(estimator):
    X, y = make_moons(100, noise=0.05, random_state=0)
    labels = np.full(100, -1)
    labels[[np.flatnonzero(y == 0)[0], np.flatnonzero(y == 1)[0]]] = [0, 1]
    model = estimator(graph=KNNGraph(n_neighbors=15)).fit(X, labels)
    np.testing.assert_allclose(model.label_distributions_.sum(axis=1), 1.0)
    assert (model.classes_[model.label_distributions_.argmax(axis=1)] == model.transduction_).all()
