"""A whole search, and estimators that search."""

from __future__ import annotations

import json
import pickle
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.selection import Best, select
from homophily.storage import classifier_state, restore_classifier
from tests.core.small_sets import blobs, moons


def test_select_finds_parameters_fits_and_tells():
    X, y = moons(300, labels=60)
    seen = []
    validation = np.arange(30, 60)
    found = select(X, y, validation=validation, trials=16, n_jobs=2, callback=seen.append, symmetrize="max")
    assert isinstance(found.best, Best)
    assert sorted(seen, key=lambda trial: trial.number) == found.trials
    assert len(found.trials) == 16
    assert found.best.trial in [trial.number for trial in found.trials]
    few = np.where(np.arange(300) < 30, y, -1)
    again = ERRClassifier(**found.best.parameters).fit(X, few)
    assert again.symmetrize == "max"
    assert_allclose(found.estimator_.solution_, again.solution_, atol=1e-9)
    json.dumps([trial._asdict() for trial in found.trials])


def test_the_number_of_threads_changes_no_choice():
    X, y = moons(300, labels=40)
    one, two = (select(X, y, trials=12, n_jobs=jobs) for jobs in (1, 2))
    assert one.best == two.best
    assert [trial[:6] for trial in one.trials] == [trial[:6] for trial in two.trials]


def test_a_callback_that_raises_ends_the_search():
    X, y = moons(200, labels=40)
    calls = []

    def stop(trial):
        calls.append(trial)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        select(X, y, trials=20, n_jobs=1, callback=stop)
    assert len(calls) == 3


def test_without_time_a_search_ends_where_it_begins():
    X, y = moons(300, labels=40)
    began = time.perf_counter()
    found = select(X, y, trials=100_000, seconds=1e-6)
    assert time.perf_counter() - began < 30
    assert found.best.trial is None
    graph = {"n_neighbors": 6, "weights": "global", "sigma_x": 0.75, "space": "input"}
    assert found.best.parameters == {**graph, "lambda1": 3.0, "sigma_f": 1.3, "lambda2": 0.3, "repulsion": 1.0}
    assert_allclose(found.estimator_.solution_, ERRClassifier(**found.best.parameters).fit(X, y).solution_)


def test_seconds_end_a_search_that_has_trials_left():
    X, y = moons(300, labels=40)
    select(X, y, trials=4)
    began = time.perf_counter()
    found = select(X, y, trials=100_000, seconds=2.0, vary=["n_neighbors", "lambda1", "sigma_f", "lambda2"])
    assert time.perf_counter() - began < 20
    assert {trial.stage for trial in found.trials} == {"graph", "relationships"}


@pytest.mark.parametrize("estimator", [IRRClassifier, ERRClassifier])
def test_a_fit_that_searches_is_the_fit_with_the_parameters_it_chose(estimator):
    X, y = blobs(240, classes=3, labels=40)
    names = np.array(["ant", "bee", "cow", ""])[y]
    model = estimator(search=10, symmetrize="max")
    before = model.get_params()
    model.fit(X, names)
    assert model.get_params() == before
    assert len(model.search_) == 10
    assert set(model.chosen_) >= {"n_neighbors", "lambda1"}
    assert "symmetrize" not in model.chosen_
    plain = estimator(symmetrize="max", **model.chosen_).fit(X, names)
    assert_allclose(model.solution_, plain.solution_, atol=1e-9)
    new = X[:30] + 0.1
    assert_allclose(model.predict_proba(new), plain.predict_proba(new), atol=1e-6)
    assert (model.predict(new) == plain.predict(new)).all()
    assert not hasattr(clone(model), "chosen_")
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict(new) == model.predict(new)).all()


def test_parameters_that_are_given_stay():
    X, y = moons(200, labels=40)
    model = ERRClassifier(search={"trials": 12, "n_neighbors": 9}, lambda1=0.02, lambda2=0.001).fit(X, y)
    assert {trial.parameters["n_neighbors"] for trial in model.search_} == {9}
    assert {trial.parameters["lambda1"] for trial in model.search_} == {0.02}
    assert not {"lambda1", "lambda2"} & set(model.chosen_)
    assert model.graph_.n_neighbors == 9


def test_on_a_graph_only_the_solver_is_searched():
    X, y = moons(200, labels=40)
    graph = KNNGraph(n_neighbors=7).fit(X)
    model = ERRClassifier(search=8).fit(graph, y)
    assert model.graph_ is graph
    assert set(model.chosen_) <= {"lambda1", "sigma_f", "lambda2", "repulsion"}


def test_searched_and_validation_points_are_not_fitted():
    X, y = moons(200, labels=40)
    validation = np.arange(20, 40)
    model = IRRClassifier(search={"trials": 4, "validation": validation}).fit(X, y)
    few = np.where(np.arange(200) < 20, y, -1)
    assert_allclose(model.solution_, IRRClassifier(**model.chosen_).fit(X, few).solution_, atol=1e-9)


def test_a_fit_without_search_forgets_an_earlier_one():
    X, y = moons(200, labels=40)
    model = ERRClassifier(search=8).fit(X, y)
    model.set_params(search=None).fit(X, y)
    assert not hasattr(model, "chosen_")
    assert_allclose(model.solution_, ERRClassifier().fit(X, y).solution_)


def test_a_stored_model_keeps_the_parameters_that_were_chosen():
    X, y = moons(200, labels=40)
    model = ERRClassifier(search=8, class_prior=np.array([0.5, 0.5])).fit(X, y)
    again = restore_classifier(classifier_state(model), model.graph_)
    assert again.search is None
    for name, value in model.chosen_.items():
        assert getattr(again, name) == value
    assert_allclose(again.decision_function(X + 0.05), model.decision_function(X + 0.05))


@pytest.mark.parametrize("search", [0.5, "yes", -3])
def test_a_wrong_search_is_refused(search):
    X, y = moons(100, labels=20)
    with pytest.raises(ValueError, match="'search' parameter of ERRClassifier"):
        ERRClassifier(search=search).fit(X, y)
