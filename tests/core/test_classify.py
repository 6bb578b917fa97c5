"""The classifiers on small data: what labels, priors, parts of the graph and bad input do to the answer."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import make_blobs, make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import log_loss

from homophily import (
    ERRClassifier,
    IRRClassifier,
    KNNGraph,
    NeighborsWarning,
    UnlabelledComponentsWarning,
    transduction,
)
from homophily.calibration import DEFAULT_SLOPE, Calibration
from homophily.linear import solve_irr
from homophily.relationship import chebyshev, nufft, relationship_energy

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ESTIMATORS = [IRRClassifier, ERRClassifier]
both = pytest.mark.parametrize("estimator", ESTIMATORS)


def few(y, labels):
    return np.where(np.arange(len(y)) < labels, y, -1)


def moons(u=200, labels=10, seed=0):
    X, y = make_moons(u, noise=0.1, random_state=seed)
    return X, few(y, labels)


def blobs(u=200, classes=4, labels=40, seed=0, spread=1.5):
    X, y = make_blobs(u, centers=classes, n_features=3, cluster_std=spread, random_state=seed)
    return X, few(y, labels)


def two_parts(u=100, seed=0):
    """Two components, labels in the first only."""
    X, y = moons(u, seed=seed)
    return np.vstack([X, X + 1000.0]), np.append(y, np.full(u, -1))


# -- energy and optimiser ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_without_relationships_err_is_the_linear_solution(data, power, normalized):
    X, y = data()
    err = ERRClassifier(lambda2=0.0, power=power, normalized=normalized).fit(X, y)
    irr = IRRClassifier(power=power, normalized=normalized, tol=1e-12).fit(X, y)
    np.testing.assert_allclose(err.solution_, irr.solution_, rtol=0, atol=1e-10 * np.abs(irr.solution_).max())
    assert (err.transduction_ == irr.transduction_).all()
    assert err.energy_ == pytest.approx(irr.energy_, rel=1e-10)


@pytest.mark.parametrize("power", [1, 2])
def test_without_relationships_the_descent_itself_finds_the_linear_solution(power):
    X, y = moons()
    irr = IRRClassifier(power=power, tol=1e-12).fit(X, y)
    err = ERRClassifier(lambda2=0.0, power=power, lambda1=0.5, max_iter=2000, tol=1e-12)
    irr.set_params(lambda1=0.5).fit(X, y)
    found = err.fit(X, y, init=np.zeros((len(X), 1)))
    np.testing.assert_allclose(found.solution_, irr.solution_, rtol=0, atol=1e-6)


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("power", [1, 2])
def test_the_energy_told_is_the_energy_of_the_solution(data, power):
    X, y = data()
    model = ERRClassifier(power=power, lambda1=0.03, lambda2=0.02, sigma_f=0.9).fit(X, y)
    F, G = model.solution_, model.graph_.laplacian(power)
    one_hot = (y[:, None] == np.arange(y.max() + 1)).astype(float)
    T = one_hot if data is blobs else one_hot[:, 1:] - one_hot[:, :1]
    expected = np.sum((y != -1)[:, None] * (F - T) ** 2) + 0.03 * np.trace(F.T @ (G @ F))
    expected += 0.02 / len(X) * relationship_energy(F, G, sigma_f=0.9, engine="dense")[0]
    assert model.energy_ == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("precondition", [True, False])
def test_energy_never_rises(data, precondition):
    X, y = data()
    energies = []
    model = ERRClassifier(precondition=precondition, callback=lambda state: energies.append(state.energy)).fit(X, y)
    assert len(energies) > 3
    assert (np.diff(energies) < 0).all()
    start = IRRClassifier().fit(X, y).solution_
    assert energies[0] == pytest.approx(ERRClassifier(max_iter=0).fit(X, y, init=start).energy_, rel=1e-8)
    assert model.energy_ <= energies[-1]


def test_the_callback_sees_the_start_and_every_step():
    X, y = moons()
    states = []
    model = ERRClassifier(callback=states.append).fit(X, y)
    assert [state.iteration for state in states] == list(range(model.n_iter_ + 1))
    assert states[-1].energy == model.energy_
    assert states[-1].n_evaluations <= model.n_evaluations_


def test_every_evaluation_is_counted(monkeypatch):
    X, y = moons()
    calls = []
    evaluate = chebyshev.ChebyshevEngine.__call__
    monkeypatch.setattr(chebyshev.ChebyshevEngine, "__call__", lambda engine, F: calls.append(1) or evaluate(engine, F))
    for params in ({}, {"precondition": False}, {"max_iter": 3}, {"max_iter": 0}, {"tol": 0.0}):
        calls.clear()
        model = ERRClassifier(**params).fit(X, y)
        assert model.engine_ == "chebyshev"
        assert model.n_evaluations_ == len(calls)


@pytest.mark.parametrize("data", [moons, blobs])
def test_preconditioning_reaches_a_lower_energy_in_fewer_evaluations(data):
    X, y = data()
    plain = ERRClassifier(precondition=False, power=1, tol=1e-6).fit(X, y)
    short = ERRClassifier(precondition=True, power=1, tol=1e-6).fit(X, y)
    assert short.energy_ <= plain.energy_ + 1e-9 * abs(plain.energy_)
    assert short.n_evaluations_ < plain.n_evaluations_


@pytest.mark.parametrize("data", [moons, blobs])
def test_a_start_at_the_solution_stays_there(data):
    X, y = data()
    model = ERRClassifier(tol=0.05).fit(X, y)
    again = ERRClassifier(tol=0.07).fit(X, y, init=model.solution_)
    assert again.n_iter_ == 0
    assert again.n_evaluations_ == 1
    assert again.energy_ <= model.energy_
    np.testing.assert_allclose(again.solution_, model.solution_, atol=1e-3)


def test_a_start_near_the_solution_is_shorter_than_one_from_scratch():
    X, y = moons(labels=20)
    model = ERRClassifier(tol=1e-4).fit(X, y)
    changed = y.copy()
    changed[3] = -1
    scratch = ERRClassifier(tol=1e-4).fit(X, changed)
    warm = ERRClassifier(tol=1e-4).fit(X, changed, init=model.solution_)
    assert warm.n_evaluations_ <= scratch.n_evaluations_
    assert warm.energy_ == pytest.approx(scratch.energy_, rel=1e-3)


@both
def test_a_start_may_be_a_vector_for_two_classes(estimator):
    X, y = moons()
    start = np.linspace(-1, 1, len(X))
    a, b = estimator().fit(X, y, init=start), estimator().fit(X, y, init=start[:, None])
    assert (a.solution_ == b.solution_).all()


class Cancelled(Exception):
    pass


def cancel(*_):
    raise Cancelled


@both
def test_a_cancelled_fit_leaves_no_fitted_model(estimator, monkeypatch):
    # Iterations, not a factorisation, so that IRR's callback is asked.
    monkeypatch.setattr("homophily.linear.choose_method", lambda *_: "cg")
    X, y = moons()
    model = estimator(callback=cancel)
    with pytest.raises(Cancelled):
        model.fit(X, y)
    for method in ("predict", "predict_proba", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(model, method)(X)
    assert not hasattr(model, "transduction_")
    assert not hasattr(model, "label_distributions_")


def test_a_cancelled_refit_does_not_answer_from_a_mixture():
    X, y = moons()
    model = ERRClassifier().fit(X, y)
    before = model.predict(X)
    with pytest.raises(Cancelled):
        model.set_params(callback=cancel).fit(X[:100] + 5.0, y[:100])
    model.set_params(callback=None)
    # Either the old model still answers whole, or there is none.
    try:
        assert (model.predict(X) == before).all()
    except NotFittedError:
        assert not hasattr(model, "transduction_")


# -- labels ------------------------------------------------------------------------------------------------------------


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
        if estimator is ERRClassifier
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
    vector = ERRClassifier().fit(X, few(y, 40))
    rest = ERRClassifier(multiclass="one-vs-rest").fit(X, few(y, 40))
    assert rest.engine_ == "chebyshev"
    assert rest.solution_.shape == vector.solution_.shape == (300, 4)
    assert (vector.transduction_ == rest.transduction_).mean() > 0.93
    assert (rest.transduction_ == y).mean() > 0.85


@both
def test_the_order_in_which_many_points_are_worked_on_does_not_show(estimator, monkeypatch):
    X, y = two_parts()
    with pytest.warns(UnlabelledComponentsWarning):
        given = estimator(power=1).fit(X, y)
    monkeypatch.setattr(transduction, "CACHED_POINTS", 0)
    with pytest.warns(UnlabelledComponentsWarning):
        ordered = estimator(power=1).fit(X, y)
    np.testing.assert_allclose(ordered.solution_, given.solution_, atol=1e-8)
    np.testing.assert_allclose(ordered.decision_function(X + 0.01), given.decision_function(X + 0.01), atol=1e-6)


def test_steps_that_do_not_reach_the_tolerance_warn():
    X, y = moons()
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        ERRClassifier(max_iter=1).fit(X, y)


def test_one_against_the_rest_is_one_problem_a_class():
    X, y = blobs()
    rest = ERRClassifier(multiclass="one-vs-rest").fit(X, y)
    for c in range(4):
        single = ERRClassifier().fit(X, np.where(y == -1, -1, (y == c).astype(int)))
        np.testing.assert_allclose(rest.solution_[:, [c]], single.solution_, atol=1e-6)


def test_two_classes_are_one_problem_either_way():
    X, y = moons()
    a, b = (ERRClassifier(multiclass=form).fit(X, y) for form in ("vector", "one-vs-rest"))
    assert (a.solution_ == b.solution_).all()


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_many_points_of_few_classes_find_an_engine(classes):
    X, y = blobs(1200, classes=classes)
    model = ERRClassifier(max_iter=2).fit(X, y)
    assert model.engine_ == {2: "chebyshev", 3: "tiles", 4: "tiles"}[classes]
    dense = ERRClassifier(max_iter=2, engine="dense").fit(X, y)
    assert model.energy_ == pytest.approx(dense.energy_, rel=1e-7)


def test_a_trial_step_out_of_an_engines_range_is_backed_off_from(monkeypatch):
    X, y = blobs(200, classes=3)
    # The engine's grid holds little more than the start's spread.
    spread = np.ptp(IRRClassifier().fit(X, y).solution_, axis=0)
    monkeypatch.setattr(nufft, "MOST_MODES", int(1.1 * prod(nufft._box(spread, 0.5, nufft._accuracy(1e-9))[1])))
    model = ERRClassifier(sigma_f=0.5, lambda2=10.0, engine="nufft", max_iter=5).fit(X, y)
    assert np.isfinite(model.energy_)


def test_a_start_out_of_an_engines_range_is_refused_by_name():
    X, y = blobs(classes=3)
    with pytest.raises(ValueError, match="engine"):
        ERRClassifier(sigma_f=1e-4, engine="nufft").fit(X, y)
    X, y = moons()
    with pytest.raises(ValueError, match="engine"):
        ERRClassifier(sigma_f=1e-9, engine="chebyshev").fit(X, y)


@pytest.mark.parametrize("engine", ["dense", "tiles", "chebyshev", "nufft", "nystrom"])
def test_every_engine_finds_the_same_solution(engine):
    X, y = moons(150)
    model = ERRClassifier(engine=engine, power=1, sigma_f=1.5, tol=1e-6).fit(X, y)
    assert model.engine_ == engine
    # Low rank is worth a few percent of a value, the exact engines differ by where the descent stops.
    reference = ERRClassifier(power=1, sigma_f=1.5, tol=1e-6).fit(X, y)
    np.testing.assert_allclose(model.solution_, reference.solution_, atol=0.1 if engine == "nystrom" else 1e-3)
    assert (model.transduction_ == reference.transduction_).mean() > 0.98
    assert (model.engine_error_ is not None) == (engine == "nystrom")


# -- sparse relationships ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("normalized", [True, False])
def test_a_full_mask_is_the_full_form(data, normalized):
    X, y = data(150)
    masked = ERRClassifier(relationship_neighbors=150, normalized=normalized, power=1, tol=1e-4).fit(X, y)
    full = ERRClassifier(normalized=normalized, power=1, tol=1e-4).fit(X, y)
    assert masked.engine_ == "sparse"
    assert masked.energy_ == pytest.approx(full.energy_, rel=1e-8)
    np.testing.assert_allclose(masked.solution_, full.solution_, atol=1e-4)
    assert (masked.transduction_ == full.transduction_).all()


@pytest.mark.parametrize("data", [moons, blobs])
def test_a_small_mask_classifies_too(data):
    X, y = data()
    model = ERRClassifier(relationship_neighbors=30).fit(X, y)
    full = ERRClassifier(power=1).fit(X, y)
    assert (model.transduction_ == full.transduction_).mean() > 0.9
    assert np.isfinite(model.predict_proba(X[:10] + 0.01)).all()


def test_a_mask_with_another_power_is_refused_by_name():
    X, y = moons()
    with pytest.raises(ValueError, match=r"'power' parameter of ERRClassifier must be 1 when relationship_neighbors"):
        ERRClassifier(power=2, relationship_neighbors=10).fit(X, y)


def test_a_mask_on_weights_alone_is_refused():
    X, y = moons()
    W = KNNGraph().fit(X).W
    with pytest.raises(ValueError, match="affinity"):
        ERRClassifier(metric="affinity", relationship_neighbors=10).fit(W, y)


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
    model = estimator(n_neighbors=15).fit(X, labels)
    np.testing.assert_allclose(model.label_distributions_.sum(axis=1), 1.0)
    assert (model.classes_[model.label_distributions_.argmax(axis=1)] == model.transduction_).all()


# -- parts of the graph ------------------------------------------------------------------------------------------------


@both
def test_components_without_label_are_counted_and_get_the_prior(estimator):
    X, y = two_parts()
    X = np.vstack([X, X[:50] - 1000.0])
    y = np.append(y, np.full(50, -1))
    with pytest.warns(UnlabelledComponentsWarning, match=r"2 of 3 connected components .* 150 points") as caught:
        model = estimator(class_prior=[0.25, 0.75]).fit(X, y)
    assert caught[0].filename == __file__
    assert (model.transduction_[100:] == 1).all()
    np.testing.assert_allclose(model.label_distributions_[100:], np.tile([0.25, 0.75], (150, 1)))
    assert not model.solution_[100:].any()
    assert model.reached_.tolist() == [True] * 100 + [False] * 150


@both
def test_components_without_label_change_nothing_elsewhere(estimator):
    X, y = two_parts()
    with pytest.warns(UnlabelledComponentsWarning):
        beside = estimator().fit(X, y)
    alone = estimator().fit(X[:100], y[:100])
    np.testing.assert_allclose(beside.solution_[:100], alone.solution_, atol=1e-9)
    assert (beside.transduction_[:100] == alone.transduction_).all()
    np.testing.assert_allclose(beside.label_distributions_[:100], alone.label_distributions_, atol=1e-6)
    assert beside.energy_ == pytest.approx(alone.energy_, rel=1e-9)


@both
def test_isolated_points_are_legal(estimator):
    X, y = moons()
    W = KNNGraph().fit(X).W.toarray()
    W[[10, 60]] = 0.0
    W[:, [10, 60]] = 0.0
    y = np.where(np.arange(len(X)) < 11, np.where(y == -1, 0, y), -1)
    with pytest.warns(UnlabelledComponentsWarning, match=r"1 of \d+ connected components .* 1 points?"):
        model = estimator(metric="affinity").fit(W, y)
    assert np.isfinite(model.solution_).all()
    # Alone with its label, a point keeps it; alone without one, it has no value.
    assert model.transduction_[10] == y[10]
    assert model.solution_[10, 0] == pytest.approx(2 * y[10] - 1, abs=0.2)
    assert model.solution_[60, 0] == 0.0
    assert model.transduction_[60] == model.class_prior_.argmax()


@both
def test_a_graph_without_any_edge(estimator):
    y = np.array([0, 1, -1, 1])
    with pytest.warns(UnlabelledComponentsWarning, match=r"1 of 4"):
        model = estimator(metric="affinity").fit(csr_array((4, 4)), y)
    assert model.transduction_[[0, 1, 3]].tolist() == [0, 1, 1]
    assert np.isfinite(model.label_distributions_).all()


@both
def test_every_component_with_a_label_makes_no_warning(estimator):
    X, y = two_parts()
    y[100:110] = y[:10]
    estimator().fit(X, y)


# -- shapes, threads, precision ----------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("data", [moons, blobs])
def test_repeated_fits_give_the_same_bits(estimator, data):
    X, y = data()
    for n_jobs in (1, 2):
        a, b = (estimator(n_jobs=n_jobs).fit(X, y) for _ in range(2))
        assert (a.solution_ == b.solution_).all()
        assert (a.energy_, a.n_iter_, a.n_evaluations_) == (b.energy_, b.n_iter_, b.n_evaluations_)
        assert (a.label_distributions_ == b.label_distributions_).all()


@both
@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("power", [1, 2])
def test_one_and_two_threads_agree(monkeypatch, estimator, data, power):
    monkeypatch.setattr(chebyshev, "EDGES_WORTH_A_THREAD", 100)
    monkeypatch.setattr("homophily.linear.THREAD_WORK", 100)
    monkeypatch.setattr("homophily.linear.BLOCK", 64)
    X, y = data(400)
    one, two = (estimator(n_jobs=n_jobs, power=power).fit(X, y) for n_jobs in (1, 2))
    # With p = 2 the steps magnify the rounding of one evaluation (1e-15 of the energy) a little more.
    np.testing.assert_allclose(one.solution_, two.solution_, rtol=0, atol=1e-9 if power == 1 else 1e-8)
    assert one.energy_ == pytest.approx(two.energy_, rel=1e-9)
    assert (one.transduction_ == two.transduction_).all()


@both
def test_single_precision_points_cost_their_own_rounding_only(estimator):
    X, y = moons()
    single = X.astype(np.float32)
    model = estimator().fit(single, y)
    # The distances are measured in float64, so that only the rounding of the points themselves is left.
    np.testing.assert_allclose(model.solution_, estimator().fit(single.astype(np.float64), y).solution_, atol=1e-9)
    np.testing.assert_allclose(model.solution_, estimator().fit(X, y).solution_, atol=1e-4)
    assert model.solution_.dtype == np.float64
    assert (model.predict(single) == model.transduction_).all()


@both
def test_arguments_are_left_as_they_were(estimator):
    X, y = moons()
    weight, start = np.ones(len(X)), np.zeros((len(X), 1))
    kept = [array.copy() for array in (X, y, weight, start)]
    estimator().fit(X, y, sample_weight=weight, init=start).predict_proba(X)
    for array, before in zip((X, y, weight, start), kept, strict=True):
        assert (array == before).all()


# -- bad input ---------------------------------------------------------------------------------------------------------


def with_entry(array, value):
    array = array.astype(float)
    array[3] = value
    return array


X0, Y0 = moons(60)


@both
@pytest.mark.parametrize(
    ("params", "arguments", "message"),
    [
        ({}, {"X": with_entry(X0, np.nan)}, "Input X contains NaN"),
        ({}, {"X": with_entry(X0, np.inf)}, "Input X contains infinity"),
        ({}, {"X": np.empty((0, 2)), "y": []}, "0 sample"),
        ({}, {"X": np.empty((60, 0))}, "0 feature"),
        ({}, {"X": X0[:, 0]}, "Expected 2D array"),
        ({}, {"X": X0[:, :, None]}, "dim 3"),
        ({}, {"y": Y0[:-1]}, "inconsistent numbers of samples"),
        ({}, {"y": np.full(60, -1)}, "No labelled point"),
        ({}, {"y": np.where(Y0 == 1, -1, Y0)}, "number of classes has to be greater than one"),
        ({}, {"y": None}, "y"),
        ({}, {"y": with_entry(Y0, np.inf)}, "y"),
        ({}, {"y": with_entry(Y0, 0.5)}, "Unknown label type"),
        ({}, {"y": np.full((60, 2), np.nan)}, "'y' parameter"),
        ({}, {"y": np.full((60, 2), -1.0)}, "'y' parameter"),
        ({}, {"sample_weight": np.ones(59)}, "sample_weight"),
        ({}, {"sample_weight": with_entry(np.ones(60), -1.0)}, "sample_weight"),
        ({}, {"sample_weight": with_entry(np.ones(60), np.nan)}, "sample_weight"),
        ({}, {"sample_weight": with_entry(np.ones(60), np.inf)}, "sample_weight"),
        ({}, {"sample_weight": np.zeros(60)}, "weight"),
        ({}, {"init": np.zeros((60, 2))}, "'init' parameter of .*Classifier.fit"),
        ({}, {"init": np.zeros(59)}, "'init' parameter"),
        ({}, {"init": np.full(60, np.nan)}, "'init' parameter"),
        ({"class_prior": [0.5, 0.6]}, {}, "'class_prior' parameter"),
        ({"class_prior": [0.2, 0.3, 0.5]}, {}, "'class_prior' parameter"),
        ({"class_prior": [1.0, 0.0]}, {}, "'class_prior' parameter"),
        ({"class_prior": [np.nan, 0.5]}, {}, "'class_prior' parameter"),
        ({"class_prior": "guess"}, {}, "'class_prior' parameter of .*Classifier"),
        ({"n_neighbors": 0}, {}, "'n_neighbors' parameter of .*Classifier"),
        ({"n_neighbors": 2.5}, {}, "'n_neighbors' parameter of .*Classifier"),
        ({"power": 0}, {}, "'power' parameter of .*Classifier"),
        ({"lambda1": 0.0}, {}, "'lambda1' parameter of .*Classifier"),
        ({"lambda1": np.nan}, {}, "'lambda1' parameter of .*Classifier"),
        ({"lambda1": np.inf}, {}, "'lambda1' parameter"),
        ({"metric": "manhattan"}, {}, "'metric' parameter of .*Classifier"),
        ({"weights": "heavy"}, {}, "'weights' parameter of .*Classifier"),
        ({"weights": "fixed"}, {}, "'sigma_x' parameter"),
        ({"sigma_x": -1.0}, {}, "'sigma_x' parameter of .*Classifier"),
        ({"exponent": 3}, {}, "'exponent' parameter of .*Classifier"),
        ({"symmetrize": "min"}, {}, "'symmetrize' parameter of .*Classifier"),
        ({"normalized": "yes"}, {}, "'normalized' parameter of .*Classifier"),
        ({"backend": "torch"}, {}, "'backend' parameter of .*Classifier"),
        ({"callback": 3}, {}, "'callback' parameter of .*Classifier"),
        ({"n_jobs": "all"}, {}, "'n_jobs' parameter of .*Classifier"),
        ({"metric": "precomputed"}, {}, "square"),
        ({"metric": "affinity"}, {"X": np.triu(np.ones((60, 60)))}, "symmetric"),
        ({"metric": "precomputed"}, {"X": np.full((60, 60), -1.0)}, "negative"),
    ],
)
def test_bad_input_is_named(estimator, params, arguments, message):
    arguments = {"X": X0, "y": Y0} | arguments
    with pytest.raises(ValueError, match=message):
        estimator(**params).fit(arguments.pop("X"), arguments.pop("y"), **arguments)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lambda2": -1.0}, "'lambda2' parameter of ERRClassifier"),
        ({"lambda2": np.nan}, "'lambda2' parameter of ERRClassifier"),
        ({"lambda2": np.inf}, "'lambda2' parameter"),
        ({"sigma_f": 0.0}, "'sigma_f' parameter of ERRClassifier"),
        ({"sigma_f": np.inf}, "'sigma_f' parameter"),
        ({"max_iter": -1}, "'max_iter' parameter of ERRClassifier"),
        ({"tol": -1.0}, "'tol' parameter of ERRClassifier"),
        ({"precondition": 2}, "'precondition' parameter of ERRClassifier"),
        ({"relationship_neighbors": 0}, "'relationship_neighbors' parameter of ERRClassifier"),
        ({"multiclass": "pairs"}, "'multiclass' parameter of ERRClassifier"),
        ({"engine": "fast"}, "'engine' parameter of ERRClassifier"),
        ({"engine": None}, "'engine' parameter of ERRClassifier"),
    ],
)
def test_bad_parameters_of_relationships_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        ERRClassifier(**params).fit(X0, Y0)


def test_an_engine_for_one_column_refuses_more():
    X, y = blobs()
    with pytest.raises(ValueError, match="'chebyshev' engine works on F of at most 1 column"):
        ERRClassifier(engine="chebyshev").fit(X, y)
    ERRClassifier(engine="chebyshev", multiclass="one-vs-rest", max_iter=1).fit(X, y)


@both
def test_a_bad_prior_is_found_before_the_work(estimator, monkeypatch):
    def work(*_args, **_kwargs):
        raise AssertionError("solved before the prior was read")

    monkeypatch.setattr("homophily.classify.solve_irr", work)
    with pytest.raises(ValueError, match="'class_prior'"):
        estimator(class_prior=[0.2, 0.3, 0.5]).fit(X0, Y0)


@both
def test_new_points_of_the_wrong_form_are_refused(estimator):
    model = estimator().fit(X0, Y0)
    for X, message in [
        (X0[:, :1], "features"),
        (X0[0], "Expected 2D array"),
        (np.array([[np.nan, 0.0]]), "NaN"),
        (np.empty((0, 2)), "0 sample"),
    ]:
        for method in (model.predict, model.predict_proba, model.decision_function):
            with pytest.raises(ValueError, match=message):
                method(X)


@both
def test_more_neighbours_than_points_are_cut_with_a_warning(estimator):
    with pytest.warns(NeighborsWarning, match="59"):
        model = estimator(n_neighbors=200).fit(X0, Y0)
    assert model.graph_.indices_.shape == (60, 59)


@both
def test_duplicate_points_are_legal(estimator):
    X = np.repeat(X0, 15, axis=0)
    y = np.where(np.arange(len(X)) % 15 == 0, np.repeat(Y0, 15), -1)
    with pytest.warns(UnlabelledComponentsWarning):
        model = estimator().fit(X, y)
    assert np.isfinite(model.solution_).all()
    assert np.isfinite(model.label_distributions_).all()


@both
def test_all_points_equal_is_legal(estimator):
    y = np.array([0, 1, 1] + [-1] * 27)
    model = estimator(n_neighbors=29).fit(np.zeros((30, 2)), y)
    assert np.isfinite(model.solution_).all()
    assert np.isfinite(model.predict_proba(np.ones((2, 2)))).all()


@both
def test_two_points_are_enough(estimator):
    with pytest.warns(NeighborsWarning):
        model = estimator().fit([[0.0], [1.0]], [0, 1])
    assert model.transduction_.tolist() == [0, 1]
    assert model.predict([[0.1], [0.9]]).tolist() == [0, 1]


@pytest.mark.parametrize("lambda1", [1e-6, 1e3])
@pytest.mark.parametrize("power", [1, 2])
@both
def test_extreme_smoothing_converges(estimator, power, lambda1):
    X, y = moons()
    model = estimator(lambda1=lambda1, power=power).fit(X, y)
    assert np.isfinite(model.solution_).all()


def test_an_unreachable_tolerance_warns(monkeypatch):
    monkeypatch.setattr("homophily.linear.choose_method", lambda *_: "cg")
    X, y = moons()
    with pytest.warns(ConvergenceWarning):
        IRRClassifier(tol=1e-300).fit(X, y)
