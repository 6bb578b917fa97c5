"""scikit-learn's model selection on partly labelled data."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.model_selection import AllPoints, HeldOutLabels
from homophily.supervision.calibration import label_folds

U, LABELLED = 240, 24


@pytest.fixture
def moons():
    X, y = make_moons(U, noise=0.15, random_state=1)
    few = y.copy()
    few[LABELLED:] = -1
    return X, few


def score_by_hand(make, X, y, n_folds=5):
    """Mask labels with −1 and fit again, fold by fold."""
    labelled = np.flatnonzero(y != -1)
    folds = label_folds(y[labelled], n_folds, 0)
    right = []
    for fold in range(n_folds):
        hidden = labelled[folds == fold]
        masked = y.copy()
        masked[hidden] = -1
        right += list(make().fit(X, masked).transduction_[hidden] == y[hidden])
    return np.mean(right)


@pytest.mark.parametrize("kind", [IRRClassifier, ERRClassifier])
def test_the_score_is_that_of_fits_with_masked_labels_on_all_points(moons, kind):
    X, y = moons
    (score,) = cross_val_score(kind(), X, y, cv=AllPoints(), scoring=HeldOutLabels())
    assert score == score_by_hand(kind, X, y)


def test_a_grid_search_prefers_what_generalises(moons):
    X, y = moons
    grid = {"lambda1": [1e-2, 1e6], "graph__n_neighbors": [10]}
    search = GridSearchCV(IRRClassifier(class_prior=[0.5, 0.5]), grid, cv=AllPoints(), scoring=HeldOutLabels())
    search.fit(X, y)
    assert search.best_params_["lambda1"] == 1e-2
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.transduction_.shape == (U,)


@pytest.mark.parametrize("graph", [None, KNNGraph(metric="euclidean")])
def test_a_grid_search_takes_parameters_of_the_graph(moons, graph):
    X, y = moons
    grid = {"graph__n_neighbors": [10, 60], "graph__weights": ["local", "global"]}
    search = GridSearchCV(IRRClassifier(graph=graph), grid, cv=AllPoints(), scoring=HeldOutLabels()).fit(X, y)
    for parameters, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        assert score == score_by_hand(lambda chosen=parameters: IRRClassifier().set_params(**chosen), X, y)
    assert set(search.best_params_) == set(grid)
    assert search.best_estimator_.graph_.n_neighbors == search.best_params_["graph__n_neighbors"]
    assert len(set(search.cv_results_["mean_test_score"])) > 1


def test_a_pipeline_is_fitted_as_a_whole(moons):
    X, y = moons
    X = X * (1.0, 1e4)

    def make():
        return make_pipeline(StandardScaler(), IRRClassifier())

    (score,) = cross_val_score(make(), X, y, cv=AllPoints(), scoring=HeldOutLabels())
    scaled = StandardScaler().fit_transform(X)
    assert score == score_by_hand(IRRClassifier, scaled, y)


def test_points_without_a_label_do_not_count_and_neither_do_classes_with_one_label(moons):
    X, y = moons
    words = np.array(["", "left", "right", "once"], dtype=object)[y + 1]
    words[LABELLED] = "once"
    seen = []

    def metric(true, answers):
        seen.append((list(true), list(answers)))
        return 0.5

    assert HeldOutLabels(metric)(IRRClassifier().fit(X, words), X, words) == 0.5
    ((true, answers),) = seen
    assert sorted(true) == sorted(words[:LABELLED])
    assert set(answers) <= {"left", "right", "once"}


def test_a_precomputed_graph_is_scored_too(moons):
    X, y = moons
    graph = KNNGraph(n_neighbors=8).fit(X)
    fitted = IRRClassifier().fit(graph, y)
    score = HeldOutLabels(balanced_accuracy_score, n_folds=3)(fitted, graph, y)
    assert 0.8 < score <= 1.0


def test_labels_that_cannot_be_held_out_are_refused(moons):
    X, y = moons
    y[2:] = -1
    y[:2] = 0, 1
    with pytest.raises(ValueError, match="No label can be held out: y must hold at least two labels of one class"):
        HeldOutLabels()(IRRClassifier().fit(X, y), X, y)
