"""What a fitted classifier answers: stored values for stored points, the same for every form of the points."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError

from homophily import (
    ERRClassifier,
    ERREmbedding,
    IRRClassifier,
    KNNGraph,
    ParameterError,
    SpectralEmbedding,
    UnlabelledComponentsWarning,
)
from homophily.baselines import SL
from homophily.storage import classifier_state

from .small_sets import ESTIMATORS, SmoothERR, blobs, moons, new_points

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def scores(values, degrees, model):
    """Values in units of √(degree / mean degree), which the normalised Laplacian calls constant."""
    if not model.normalized:
        return values
    return values / np.sqrt(degrees / model.graph_.degrees.mean())[:, None]


def stored_decisions(model):
    decisions = scores(model.solution_, model.graph_.degrees, model) + model.offsets_
    return decisions[:, 0] if decisions.shape[1] == 1 else decisions


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("params", [{}, {"power": 2}, {"normalized": False}, {"class_prior": "estimate"}])
def test_stored_points_have_their_transduced_values(estimator, data, params):
    X, y = data()
    model = estimator(**params).fit(X, y)
    assert (model.predict(X) == model.transduction_).all()
    assert (model.decision_function(X) == stored_decisions(model)).all()
    assert (model.predict(X[17:23]) == model.transduction_[17:23]).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("params", [{}, {"normalized": False}, {"class_prior": "estimate"}])
def test_scores_of_the_stored_points_are_kept(estimator, data, params):
    X, y = data()
    model = estimator(**params).fit(X, y)
    scores = model.decision_scores_
    assert scores.shape == model.decision_function(X).shape
    assert (scores == model.decision_function(X)).all()


def test_scores_of_stored_points_that_no_label_reaches_are_the_priors():
    X, y = blobs(classes=2)
    X = np.vstack([X, 1000.0 + np.random.default_rng(0).normal(size=(50, 3))])
    with pytest.warns(UnlabelledComponentsWarning):
        model = ERRClassifier(sharpen=False, class_prior=[0.3, 0.7]).fit(X, np.append(y, np.full(50, -1)))
    assert (model.decision_scores_ == model.decision_function(X)).all()
    np.testing.assert_allclose(model.decision_scores_[200:], np.log(0.7 / 0.3))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_scores_need_a_fit(estimator):
    with pytest.raises(NotFittedError):
        _ = estimator().decision_scores_


def test_stored_points_have_their_transduced_values_one_against_the_rest():
    X, y = blobs()
    model = ERRClassifier(multiclass="one-vs-rest").fit(X, y)
    assert (model.predict(X) == model.transduction_).all()
    assert (model.decision_function(X) == stored_decisions(model)).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_point_with_copies_takes_the_value_of_the_first(estimator):
    X, y = moons(300)
    X[200] = X[100]
    y[100], y[200] = 0, 1
    model = estimator().fit(X, y)
    assert model.solution_[100] != model.solution_[200]
    assert model.decision_function(X[[200]])[0] == stored_decisions(model)[100]


# -- forms of the points -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_sparse_points_are_answered_as_dense_ones(estimator, metric):
    X, y = make_blobs(300, centers=4, n_features=8, cluster_std=3.0, random_state=0)
    X[np.abs(X) < 1.0] = 0.0
    y[40:] = -1
    new = new_points(X)
    new[np.abs(new) < 1.0] = 0.0
    dense = estimator(graph=KNNGraph(10, metric)).fit(X, y)
    sparse = estimator(graph=KNNGraph(10, metric)).fit(csr_array(X), y)
    np.testing.assert_allclose(sparse.solution_, dense.solution_, atol=1e-6)
    np.testing.assert_allclose(sparse.decision_function(csr_array(new)), dense.decision_function(new), atol=1e-5)
    assert (sparse.predict(csr_array(X)) == sparse.transduction_).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_distances_are_answered_as_points(estimator):
    X, y = blobs()
    new = new_points(X)
    distances = np.linalg.norm(X[:, None] - X, axis=2)
    points = estimator().fit(X, y)
    model = estimator(graph=KNNGraph(metric="precomputed")).fit(distances, y)
    np.testing.assert_allclose(model.solution_, points.solution_, atol=1e-6)
    to_new = np.linalg.norm(new[:, None] - X, axis=2)
    np.testing.assert_allclose(model.decision_function(to_new), points.decision_function(new), atol=1e-5)
    assert (model.predict(distances) == model.transduction_).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weights_are_answered_as_points(estimator):
    X, y = blobs()
    new = new_points(X)
    points = estimator().fit(X, y)
    model = estimator(graph=KNNGraph(metric="affinity")).fit(points.graph_.W, y)
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
    points = estimator(graph=KNNGraph(n_neighbors=7)).fit(X, y)
    model = estimator().fit(KNNGraph(n_neighbors=7).fit(X), y)
    assert (model.solution_ == points.solution_).all()
    assert (model.decision_function(new) == points.decision_function(new)).all()
    assert (model.predict(X) == model.transduction_).all()
    assert model.n_features_in_ == 3


@pytest.mark.parametrize("estimator", [IRRClassifier, ERRClassifier, SpectralEmbedding, ERREmbedding, SL])
def test_a_graph_that_is_not_the_one_asked_for_is_refused(estimator):
    X, y = blobs()
    fitted = KNNGraph(n_neighbors=7).fit(X)
    for other in (KNNGraph(), KNNGraph(n_neighbors=7, metric="cosine"), KNNGraph(n_neighbors=7, symmetrize="max")):
        with pytest.raises(ParameterError, match=f"The 'graph' parameter of {estimator.__name__} must be") as told:
            estimator(graph=other).fit(fitted, y)
        assert told.value.parameter == "graph"
    with pytest.raises(ParameterError, match="Got n_neighbors=10, but X has n_neighbors=7"):
        estimator(graph=KNNGraph()).fit(fitted, y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_graph_that_is_the_one_asked_for_is_taken(estimator):
    X, y = blobs()
    fitted = KNNGraph(n_neighbors=7).fit(X)
    expected = estimator().fit(fitted, y).solution_
    # Threads are no part of a graph, and "auto" is what it was for the points.
    for same in (KNNGraph(n_neighbors=7, n_jobs=1), KNNGraph(n_neighbors=7, metric="euclidean"), fitted):
        model = estimator(graph=same).fit(fitted, y)
        assert model.graph_ is fitted
        assert (model.solution_ == expected).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_sparse_points_are_compared_by_their_angles(estimator):
    X, y = blobs()
    stored, cosine = estimator().fit(csr_array(X), y), estimator(graph=KNNGraph(metric="cosine")).fit(csr_array(X), y)
    assert (stored.graph_.metric_, stored.graph_.metric) == ("cosine", "auto")
    assert (stored.solution_ == cosine.solution_).all()
    new = csr_array(new_points(X))
    assert (stored.decision_function(new) == cosine.decision_function(new)).all()


def test_columns_of_frames_are_matched_by_name_without_a_warning_of_the_graph():
    pandas = pytest.importorskip("pandas")
    X, y = blobs()
    frame, new = (pandas.DataFrame(points, columns=["a", "b", "c"]) for points in (X, new_points(X)))
    for model in (
        ERRClassifier(sharpen=False).fit(frame, y),
        ERRClassifier(sharpen=False).fit(KNNGraph().fit(frame), y),
    ):
        # Warnings are errors here.
        assert (model.predict(new) == SmoothERR().fit(X, y).predict(new.to_numpy())).all()
        assert (model.predict(new[["b", "a", "c"]]) == model.predict(new)).all()
        with pytest.raises(ValueError, match="feature names"):
            model.predict(new[["a", "b"]])


@pytest.mark.parametrize("metric", ["precomputed", "affinity"])
def test_negative_distances_and_weights_of_new_points_are_refused(metric):
    X, y = blobs()
    graph = KNNGraph().fit(X)
    known = graph.W if metric == "affinity" else np.linalg.norm(X[:, None] - X, axis=2)
    model = IRRClassifier(graph=KNNGraph(metric=metric)).fit(known, y)
    with pytest.raises(ValueError, match="no negative entry"):
        model.predict(np.full((1, len(X)), -1.0))


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("data", [moons, blobs])
def test_one_call_gives_classes_scores_and_probabilities(estimator, data):
    X, y = data()
    new = new_points(X)
    model = estimator().fit(X, y)
    answers = model.answer(new, probabilities=True)
    assert (answers.classes == model.predict(new)).all()
    assert (answers.scores == model.decision_function(new)).all()
    assert (answers.probabilities == model.predict_proba(new)).all()
    assert model.answer(new).probabilities is None
    assert (model.answer(new, validated=True).scores == answers.scores).all()


@pytest.mark.parametrize("multiclass", ["vector", "one-vs-rest"])
def test_neighbours_are_searched_once_for_all_classes(multiclass, monkeypatch):
    X, y = blobs()
    model = ERRClassifier(sharpen=False, multiclass=multiclass).fit(X, y)
    searched = []
    attach = KNNGraph.attach_validated
    monkeypatch.setattr(KNNGraph, "attach_validated", lambda graph, X: searched.append(len(X)) or attach(graph, X))
    model.predict(new_points(X, 7))
    assert searched == [7]


@pytest.mark.parametrize("multiclass", ["vector", "one-vs-rest"])
def test_answering_makes_a_pickle_no_larger_by_the_solution(multiclass):
    X, y = blobs(1000)
    model = ERRClassifier(multiclass=multiclass, max_iter=1).fit(X, y)
    # Makes the terms for new points, which are kept.
    assert classifier_state(model).document["terms"]
    small = len(pickle.dumps(model))
    new = new_points(X)
    answers = model.decision_function(new)
    # The search structure is not pickled either.
    assert len(pickle.dumps(model)) < small + 1000
    assert (pickle.loads(pickle.dumps(model)).decision_function(new) == answers).all()
