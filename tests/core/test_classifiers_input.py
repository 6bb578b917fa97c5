"""Bad input is refused by name; small and odd input is answered."""

from __future__ import annotations

import numpy as np
import pytest

from homophily import ERRClassifier, KNNGraph, NeighborsWarning, UnlabelledComponentsWarning

from .small_sets import blobs, both, moons

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


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
        ({"graph": KNNGraph(n_neighbors=0)}, {}, "'n_neighbors' parameter of KNNGraph"),
        ({"graph": KNNGraph(n_neighbors=2.5)}, {}, "'n_neighbors' parameter of KNNGraph"),
        ({"power": 0}, {}, "'power' parameter of .*Classifier"),
        ({"lambda1": 0.0}, {}, "'lambda1' parameter of .*Classifier"),
        ({"lambda1": np.nan}, {}, "'lambda1' parameter of .*Classifier"),
        ({"lambda1": np.inf}, {}, "'lambda1' parameter"),
        ({"graph": KNNGraph(metric="manhattan")}, {}, "'metric' parameter of KNNGraph"),
        ({"graph": KNNGraph(weights="heavy")}, {}, "'weights' parameter of KNNGraph"),
        ({"graph": KNNGraph(weights="fixed")}, {}, "'sigma_x' parameter"),
        ({"graph": KNNGraph(sigma_x=-1.0)}, {}, "'sigma_x' parameter of KNNGraph"),
        ({"graph": KNNGraph(exponent=3)}, {}, "'exponent' parameter of KNNGraph"),
        ({"graph": KNNGraph(symmetrize="min")}, {}, "'symmetrize' parameter of KNNGraph"),
        ({"normalized": "yes"}, {}, "'normalized' parameter of .*Classifier"),
        ({"backend": "torch"}, {}, "'backend' parameter of .*Classifier"),
        ({"callback": 3}, {}, "'callback' parameter of .*Classifier"),
        ({"n_jobs": "all"}, {}, "'n_jobs' parameter of .*Classifier"),
        ({"graph": KNNGraph(metric="precomputed")}, {}, "square"),
        ({"graph": KNNGraph(metric="affinity")}, {"X": np.triu(np.ones((60, 60)))}, "symmetric"),
        ({"graph": KNNGraph(metric="precomputed")}, {"X": np.full((60, 60), -1.0)}, "negative"),
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
        ({"repulsion": -0.1}, "'repulsion' parameter of ERRClassifier"),
        ({"repulsion": np.nan}, "'repulsion' parameter of ERRClassifier"),
        ({"repulsion": np.inf}, "'repulsion' parameter"),
        ({"max_iter": -1}, "'max_iter' parameter of ERRClassifier"),
        ({"tol": -1.0}, "'tol' parameter of ERRClassifier"),
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

    monkeypatch.setattr("homophily.device.operations.solve_irr", work)
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
        model = estimator(graph=KNNGraph(n_neighbors=200)).fit(X0, Y0)
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
    model = estimator(graph=KNNGraph(n_neighbors=29)).fit(np.zeros((30, 2)), y)
    assert np.isfinite(model.solution_).all()
    assert np.isfinite(model.predict_proba(np.ones((2, 2)))).all()


@both
def test_two_points_are_enough(estimator):
    with pytest.warns(NeighborsWarning):
        model = estimator().fit([[0.0], [1.0]], [0, 1])
    assert model.transduction_.tolist() == [0, 1]
    assert model.predict([[0.1], [0.9]]).tolist() == [0, 1]
