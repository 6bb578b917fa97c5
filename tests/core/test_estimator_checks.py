"""The classifiers as scikit-learn estimators: its own checks, and the tools users put around estimators."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_iris, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from homophily import ERRClassifier, IRRClassifier, KNNGraph, ParameterError, TunedClassifier

ESTIMATORS = [IRRClassifier, ERRClassifier]
CHECKED = [estimator(graph=KNNGraph(n_neighbors=3)) for estimator in ESTIMATORS]
TUNED = [TunedClassifier(estimator, trials=1, vary=["lambda1"], n_jobs=1) for estimator in CHECKED]

_A_NODE_EACH = "a repeated or left-out point is a node more or less in the graph; a weight is confidence in its label"
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": _A_NODE_EACH,
    "check_sample_weight_equivalence_on_sparse_data": _A_NODE_EACH,
    "check_classifiers_classes": "it uses -1 as a class; here, as in sklearn.semi_supervised, -1 means 'unlabelled'",
}


def expected_failures(_estimator):
    return EXPECTED_FAILURES


# A TunedClassifier hands its data on in the same way to either estimator: the quicker one shows that.
@parametrize_with_checks([*CHECKED, TUNED[0]], expected_failed_checks=expected_failures)
def test_scikit_learn_conventions_hold(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", [*CHECKED, *TUNED], ids=repr)
def test_columns_are_matched_by_name(estimator):
    X, y = moons(labels=60)
    frame = pd.DataFrame(X, columns=["a", "b"])
    fitted = clone(estimator).fit(frame, y)
    assert fitted.feature_names_in_.tolist() == ["a", "b"]
    np.testing.assert_array_equal(fitted.predict(frame[["b", "a"]]), fitted.predict(frame))
    with pytest.raises(
        ValueError, match="unseen at fit time:\n- c\nFeature names seen at fit time, yet now missing:\n- a"
    ):
        fitted.predict(frame.rename(columns={"a": "c"}))


def moons(u=150, labels=10):
    X, y = make_moons(u, noise=0.1, random_state=0)
    return X, np.where(np.arange(u) < labels, y, -1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_parameters_are_stored_untouched_and_clone(estimator):
    prior = [0.4, 0.6]
    original = estimator(graph=KNNGraph(n_neighbors=4), power=2, lambda1=0.5, class_prior=prior)
    assert original.class_prior is prior
    copy = clone(original)
    assert repr(copy) == repr(original)
    assert copy.graph is not original.graph
    assert copy.set_params(lambda1=0.25).lambda1 == 0.25
    assert original.lambda1 == 0.5
    with pytest.raises(ValueError, match="Invalid parameter 'lamda1'"):
        original.set_params(lamda1=1.0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_clone_of_a_fitted_estimator_is_not_fitted(estimator):
    X, y = moons()
    with pytest.raises(NotFittedError):
        clone(estimator().fit(X, y)).predict(X)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_pipeline_scales_both_ways(estimator):
    X, y = moons()
    stretched = X * [1.0, 1000.0]
    pipeline = make_pipeline(StandardScaler(), estimator()).fit(stretched, y)
    bare = estimator().fit(StandardScaler().fit_transform(X), y)
    assert (pipeline.predict(stretched) == bare.transduction_).all()
    np.testing.assert_allclose(pipeline.predict_proba(stretched), bare.predict_proba(StandardScaler().fit_transform(X)))


@pytest.mark.parametrize("asked_before", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_stored_model_answers_the_same(estimator, asked_before, tmp_path):
    X, y = moons()
    new = X[:20] + 0.05
    model = estimator().fit(X, y)
    if asked_before:
        model.predict_proba(new)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (joblib.load(tmp_path / "model.joblib"), pickle.loads(pickle.dumps(model))):
        assert (copy.predict(new) == model.predict(new)).all()
        assert (copy.decision_function(new) == model.decision_function(new)).all()
        assert (copy.predict_proba(new) == model.predict_proba(new)).all()
        assert (copy.label_distributions_ == model.label_distributions_).all()
        assert (copy.fit(X, y).solution_ == model.solution_).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_cross_validation_and_search_work(estimator):
    X, y = load_iris(return_X_y=True)
    assert cross_val_score(estimator(), X, y, cv=3).mean() > 0.9
    search = GridSearchCV(estimator(), {"graph__n_neighbors": [3, 8]}, cv=3, n_jobs=2).fit(X, y)
    assert search.best_score_ > 0.9


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_several_models_in_threads_answer_as_one_does(estimator):
    X, y = moons()
    expected = estimator(n_jobs=1).fit(X, y).solution_
    fits = joblib.Parallel(n_jobs=2, prefer="threads")(joblib.delayed(estimator(n_jobs=1).fit)(X, y) for _ in range(4))
    assert all((model.solution_ == expected).all() for model in fits)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_an_unfitted_model_says_so(estimator, method):
    with pytest.raises(NotFittedError):
        getattr(estimator(), method)(np.zeros((3, 2)))
    assert not hasattr(estimator(), "label_distributions_")


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_pairwise_input_is_declared(estimator):
    for metric, pairwise in (("euclidean", False), ("precomputed", True), ("affinity", True)):
        tags = estimator(graph=KNNGraph(metric=metric)).__sklearn_tags__()
        assert tags.input_tags.pairwise is pairwise
        assert tags.input_tags.sparse


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("graph", [None, KNNGraph(metric="euclidean")])
def test_parameters_of_the_graph_are_set_by_their_names(estimator, graph):
    X, y = moons()
    model = clone(estimator(graph=graph)).set_params(graph__n_neighbors=4, lambda1=0.5)
    assert model.get_params()["graph__n_neighbors"] == 4
    assert model.lambda1 == 0.5
    model.fit(X, y)
    assert model.graph_.n_neighbors == 4
    expected = estimator(graph=KNNGraph(n_neighbors=4), lambda1=0.5).fit(X, y)
    assert (model.solution_ == expected.solution_).all()
    with pytest.raises(ValueError, match="Invalid parameter 'neighbours'"):
        model.set_params(graph__neighbours=3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_graph_that_was_given_is_not_fitted(estimator):
    X, y = moons()
    graph = KNNGraph(n_neighbors=4)
    model = estimator(graph=graph).fit(X, y)
    assert model.graph is graph
    assert model.graph_ is not graph
    with pytest.raises(NotFittedError):
        _ = graph.W


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_parameters_in_use_have_no_gaps(estimator):
    X, y = moons()
    for model in (estimator(), estimator(graph=KNNGraph(n_neighbors=4))):
        resolved = model.fit(X, y).resolved_params_
        assert resolved["power"] == (1 if resolved["sharpen"] else 2)
        assert resolved["graph__metric"] == "euclidean"
        assert resolved["graph__n_neighbors"] == model.graph_.n_neighbors_
        assert not {"graph", "callback"} & set(resolved)
        if estimator is ERRClassifier:
            assert (resolved["sigma_f"], resolved["repulsion"], resolved["sharpen"]) == (1.3, 0.65, True)
        again = estimator().set_params(**resolved).fit(X, y)
        assert (again.solution_ == model.solution_).all()
        assert again.resolved_params_ == resolved
    with pytest.raises(NotFittedError):
        _ = estimator().resolved_params_


def test_parameters_in_use_follow_from_one_another():
    X, y = load_iris(return_X_y=True)
    several = ERRClassifier(max_iter=1, tol=0.9).fit(X, y).resolved_params_
    assert several["sigma_f"] == pytest.approx(0.65 * np.sqrt(2.0))
    apart = ERRClassifier(max_iter=1, tol=0.9, multiclass="one-vs-rest").fit(X, y).resolved_params_
    assert apart["sigma_f"] == 1.3
    many = [ERRClassifier(**parameters).resolve_params(3, 5_000) for parameters in ({}, {"relationship_neighbors": 5})]
    assert [each["multiclass"] for each in (several, apart, *many)] == [
        "vector",
        "one-vs-rest",
        "one-vs-rest",
        "vector",
    ]
    masked = ERRClassifier(max_iter=1, tol=0.9, relationship_neighbors=5).fit(X, y).resolved_params_
    assert (masked["power"], masked["repulsion"]) == (1, 1.0)
    assert ERRClassifier(max_iter=1, tol=0.9).fit(csr_array(X), y).resolved_params_["graph__metric"] == "cosine"


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_score_leaves_out_points_without_a_label(estimator):
    X, truth = make_moons(150, noise=0.3, random_state=0)
    y = np.where(np.arange(150) < 10, truth, -1)
    model = estimator().fit(X, y)
    asked = np.where(np.arange(150) < 60, truth, -1)
    right = model.predict(X)[:60] == truth[:60]
    assert 0.5 < right.mean() < 1.0
    assert model.score(X, asked) == right.mean()
    assert model.score(X, asked.astype(float)) == right.mean()
    assert model.score(X, np.where(asked == -1, np.nan, asked)) == right.mean()
    weights = np.linspace(1.0, 3.0, 150)
    assert model.score(X, asked, weights) == pytest.approx(np.average(right, weights=weights[:60]))
    one_class = np.where(asked == 1, 1, -1)
    assert model.score(X, one_class) == right[truth[:60] == 1].mean()
    with pytest.raises(ParameterError, match="The 'y' parameter of score must hold a label") as told:
        model.score(X, np.full(150, -1))
    assert told.value.parameter == "y"


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_score_of_named_classes(estimator):
    X, y = moons()
    names = np.array(["left", "right", ""])[y]
    model = estimator().fit(X, names)
    assert model.score(X, names) == np.mean(model.transduction_[:10] == names[:10])
    assert model.score(X[:1], [model.transduction_[0]]) == 1.0
