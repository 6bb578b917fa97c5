"""A whole search, and the classifier that searches."""

from __future__ import annotations

import json
import pickle
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from homophily import ERRClassifier, IRRClassifier, KNNGraph, ParameterError, TunedClassifier
from homophily.selection.driver import find
from homophily.storage import classifier_state, restore_classifier
from tests.core.small_sets import blobs, both, moons

FOUND_BY_ERR = {"lambda1", "sigma_f", "lambda2", "repulsion"}


def test_a_search_finds_parameters_fits_and_tells():
    X, y = moons(300, labels=60)
    seen = []
    validation = np.arange(30, 60)
    chosen = ERRClassifier(graph=KNNGraph(symmetrize="max"))
    tuned = TunedClassifier(chosen, trials=16, n_jobs=2, callback=seen.append).fit(X, y, validation=validation)
    assert sorted(seen, key=lambda trial: trial.number) == tuned.results_
    assert len(tuned.results_) == 16
    assert {trial.parameters["symmetrize"] for trial in tuned.results_} == {"max"}
    few = np.where(np.arange(300) < 30, y, -1)
    again = clone(chosen).set_params(**tuned.best_params_).fit(X, few)
    assert tuned.best_estimator_.graph_.symmetrize == again.graph_.symmetrize == "max"
    assert_allclose(tuned.best_estimator_.solution_, again.solution_, atol=1e-9)
    json.dumps([trial._asdict() for trial in tuned.results_])


def test_what_is_best_is_a_trial():
    X, y = moons(300, labels=60)
    found = find(X, y, trials=16, n_jobs=2, symmetrize="max")
    (best,) = [trial for trial in found.search.trials if trial.number == found.best.trial]
    assert best.parameters == found.best.parameters


def test_the_number_of_threads_changes_no_choice():
    X, y = moons(300, labels=40)
    one, two = (TunedClassifier(trials=12, n_jobs=jobs).fit(X, y) for jobs in (1, 2))
    assert one.best_params_ == two.best_params_
    assert [trial[:6] for trial in one.results_] == [trial[:6] for trial in two.results_]


def test_a_callback_that_raises_ends_the_search():
    X, y = moons(200, labels=40)
    calls = []

    def stop(trial):
        calls.append(trial)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TunedClassifier(trials=20, n_jobs=1, callback=stop).fit(X, y)
    assert len(calls) == 3


def test_without_time_a_search_ends_where_it_begins():
    X, y = moons(300, labels=40)
    began = time.perf_counter()
    tuned = TunedClassifier(trials=100_000, seconds=1e-6).fit(X, y)
    assert time.perf_counter() - began < 30
    assert all(trial.error is None for trial in tuned.results_)
    graph = {"n_neighbors": 6, "weights": "global", "sigma_x": 0.75, "space": "input"}
    solver = {"lambda1": 3.0, "sigma_f": 1.3, "lambda2": 0.3, "repulsion": 1.0}
    assert tuned.best_params_ == {**{f"graph__{name}": value for name, value in graph.items()}, **solver}
    again = ERRClassifier(graph=KNNGraph(**graph), **solver).fit(X, y)
    assert_allclose(tuned.best_estimator_.solution_, again.solution_)


def test_seconds_end_a_search_that_has_trials_left():
    X, y = moons(300, labels=40)
    TunedClassifier(trials=4).fit(X, y)
    began = time.perf_counter()
    vary = ["n_neighbors", "lambda1", "sigma_f", "lambda2"]
    tuned = TunedClassifier(trials=100_000, seconds=2.0, vary=vary).fit(X, y)
    assert time.perf_counter() - began < 20
    assert {trial.stage for trial in tuned.results_} == {"graph", "relationships"}


@both
def test_a_fit_that_searches_is_the_fit_with_the_parameters_it_chose(estimator):
    X, y = blobs(240, classes=3, labels=40)
    names = np.array(["ant", "bee", "cow", ""])[y]
    chosen = estimator(graph=KNNGraph(symmetrize="max"))
    tuned = TunedClassifier(chosen, trials=10)
    before = repr(tuned)
    tuned.fit(X, names)
    assert repr(tuned) == before
    assert tuned.estimator is chosen
    assert not hasattr(chosen, "classes_")
    assert len(tuned.results_) == 10
    assert set(tuned.best_params_) >= {"graph__n_neighbors", "lambda1"}
    assert "graph__symmetrize" not in tuned.best_params_
    plain = clone(chosen).set_params(**tuned.best_params_).fit(X, names)
    assert_allclose(tuned.best_estimator_.solution_, plain.solution_, atol=1e-9)
    new = X[:30] + 0.1
    assert_allclose(tuned.predict_proba(new), plain.predict_proba(new), atol=1e-6)
    assert (tuned.predict(new) == plain.predict(new)).all()
    assert not hasattr(clone(tuned), "best_params_")
    copy = pickle.loads(pickle.dumps(tuned))
    assert (copy.predict(new) == tuned.predict(new)).all()


@both
def test_a_search_answers_as_its_best_estimator_does(estimator):
    X, y = moons(200, labels=40)
    tuned = TunedClassifier(estimator(), trials=4, n_jobs=1).fit(X, y)
    best, new = tuned.best_estimator_, X[:30] + 0.05
    assert type(best) is type(estimator())
    assert best.get_params().items() >= tuned.best_params_.items()
    assert (tuned.predict(new) == best.predict(new)).all()
    assert (tuned.predict_proba(new) == best.predict_proba(new)).all()
    assert (tuned.decision_function(new) == best.decision_function(new)).all()
    assert (tuned.transduction_ == best.transduction_).all()
    assert (tuned.label_distributions_ == best.label_distributions_).all()
    assert (tuned.classes_ == best.classes_).all()
    assert tuned.n_features_in_ == 2
    assert tuned.score(X, y) == best.score(X, y)


def test_names_of_what_was_found_are_those_of_the_estimator():
    X, y = moons(200, labels=40)
    tuned = TunedClassifier(trials=8, n_jobs=1).fit(X, y)
    graph = {"graph__n_neighbors", "graph__weights", "graph__sigma_x", "graph__space"}
    assert set(tuned.best_params_) == graph | FOUND_BY_ERR
    assert set(tuned.best_params_) <= set(ERRClassifier(graph=KNNGraph()).get_params())


def test_parameters_that_are_given_stay():
    X, y = moons(200, labels=40)
    given = ERRClassifier(graph=KNNGraph(n_neighbors=9), lambda1=0.02, lambda2=0.001)
    tuned = TunedClassifier(given, trials=12).fit(X, y)
    assert {trial.parameters["n_neighbors"] for trial in tuned.results_} == {9}
    assert {trial.parameters["lambda1"] for trial in tuned.results_} == {0.02}
    assert not {"lambda1", "lambda2", "graph__n_neighbors"} & set(tuned.best_params_)
    best = tuned.best_estimator_
    assert (best.graph_.n_neighbors, best.lambda1, best.lambda2) == (9, 0.02, 0.001)


def test_on_a_graph_only_the_solver_is_searched():
    X, y = moons(200, labels=40)
    graph = KNNGraph(n_neighbors=7).fit(X)
    tuned = TunedClassifier(trials=8).fit(graph, y)
    assert tuned.best_estimator_.graph_ is graph
    assert set(tuned.best_params_) <= FOUND_BY_ERR
    assert all("n_neighbors" not in trial.parameters for trial in tuned.results_)


def test_a_graph_that_is_not_the_one_asked_for_is_refused():
    X, y = moons(100, labels=20)
    tuned = TunedClassifier(ERRClassifier(graph=KNNGraph(n_neighbors=9)), trials=2, n_jobs=1)
    with pytest.raises(ParameterError, match="X has n_neighbors=7") as told:
        tuned.fit(KNNGraph(n_neighbors=7).fit(X), y)
    assert told.value.parameter == "graph"


def test_validation_points_are_not_fitted():
    X, y = moons(200, labels=40)
    tuned = TunedClassifier(IRRClassifier(), trials=4).fit(X, y, validation=np.arange(20, 40))
    few = np.where(np.arange(200) < 20, y, -1)
    again = IRRClassifier().set_params(**tuned.best_params_).fit(X, few)
    assert_allclose(tuned.best_estimator_.solution_, again.solution_, atol=1e-9)


def test_confidence_reaches_the_search_and_the_fit():
    X, y = moons(200, labels=40)
    weights = np.where(np.arange(200) < 20, 1.0, 0.0)
    few = np.where(np.arange(200) < 20, y, -1)
    weighed, masked = (
        TunedClassifier(IRRClassifier(), trials=4, n_jobs=1).fit(X, labels, sample_weight=weight)
        for labels, weight in ((y, weights), (few, None))
    )
    assert weighed.best_params_ == masked.best_params_
    assert_allclose(weighed.best_estimator_.solution_, masked.best_estimator_.solution_)


def test_sparse_points_are_searched_with_the_cosine():
    X, y = blobs(120, classes=2, labels=30)
    tuned = TunedClassifier(IRRClassifier(), trials=2, n_jobs=1).fit(csr_array(X), y)
    assert tuned.best_estimator_.graph_.metric_ == "cosine"
    near = TunedClassifier(IRRClassifier(graph=KNNGraph(metric="euclidean")), trials=2, n_jobs=1).fit(csr_array(X), y)
    assert near.best_estimator_.graph_.metric_ == "euclidean"


def test_a_search_that_is_cancelled_forgets_an_earlier_one():
    X, y = moons(100, labels=20)
    tuned = TunedClassifier(IRRClassifier(), trials=2, n_jobs=1).fit(X, y)

    def cancel(_trial):
        raise KeyboardInterrupt

    tuned.set_params(callback=cancel)
    with pytest.raises(KeyboardInterrupt):
        tuned.fit(X, y)
    with pytest.raises(NotFittedError):
        tuned.predict(X)


def test_a_copy_of_a_search_has_its_parameters_and_no_answers():
    X, y = moons(100, labels=20)
    tuned = TunedClassifier(IRRClassifier(graph=KNNGraph(n_neighbors=8)), trials=2, random_state=3, n_jobs=1).fit(X, y)
    copy = clone(tuned)
    assert repr(copy) == repr(tuned)
    assert copy.estimator is not tuned.estimator
    with pytest.raises(NotFittedError):
        copy.predict(X)
    copy.set_params(estimator__graph__n_neighbors=5)
    assert (copy.estimator.graph.n_neighbors, tuned.estimator.graph.n_neighbors) == (5, 8)
    assert copy.fit(X, y).best_estimator_.graph_.n_neighbors == 5


def test_a_stored_model_keeps_the_parameters_that_were_chosen():
    X, y = moons(200, labels=40)
    tuned = TunedClassifier(ERRClassifier(class_prior=np.array([0.5, 0.5])), trials=8).fit(X, y)
    model = tuned.best_estimator_
    again = restore_classifier(classifier_state(model), model.graph_)
    assert again.get_params().items() >= tuned.best_params_.items()
    assert_allclose(again.decision_function(X + 0.05), model.decision_function(X + 0.05))


@pytest.mark.parametrize(
    ("parameters", "parameter"),
    [
        ({"trials": 0.5}, "trials"),
        ({"trials": "yes"}, "trials"),
        ({"trials": -3}, "trials"),
        ({"seconds": 0.0}, "seconds"),
        ({"estimator": KNNGraph()}, "estimator"),
        ({"random_state": -1}, "random_state"),
        ({"vary": ["tol"]}, "vary"),
    ],
)
def test_a_wrong_search_is_refused(parameters, parameter):
    X, y = moons(100, labels=20)
    with pytest.raises(ParameterError, match=f"'{parameter}' parameter of") as told:
        TunedClassifier(**parameters).fit(X, y)
    assert told.value.parameter == parameter
