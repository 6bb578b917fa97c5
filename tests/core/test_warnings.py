"""Warnings that people can act on, each once per fit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from homophily import ApproximationWarning, ERRClassifier, IRRClassifier, KNNGraph, NeighborsWarning, TunedClassifier
from homophily.model_selection import AllPoints, HeldOutLabels


@pytest.fixture
def clouds():
    rng = np.random.default_rng(0)
    y = np.arange(240) % 4
    X = 4.0 * rng.normal(size=(4, 5))[y] + rng.normal(size=(240, 5))
    few = np.where(np.arange(240) < 40, y, -1)
    return X, y, few


@pytest.mark.parametrize("multiclass", ["vector", "one-vs-rest"])
def test_a_fit_warns_once_however_often_its_calibration_repeats_it(clouds, multiclass):
    X, _, few = clouds
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = ERRClassifier(max_iter=1, tol=1e-9, multiclass=multiclass).fit(X, few)
        assert model.label_distributions_.shape == (240, 4)
    assert [one.category for one in seen] == [ConvergenceWarning]
    assert "pass max_iter=4" in str(seen[0].message)
    assert seen[0].filename == __file__


def test_a_grid_search_warns_once_for_each_fit_and_not_for_each_fold(clouds):
    X, _, few = clouds
    search = GridSearchCV(
        ERRClassifier(max_iter=1, tol=1e-9), {"lambda1": [0.1]}, cv=AllPoints(), scoring=HeldOutLabels(), refit=False
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        search.fit(X, few)
    assert [one.category for one in seen] == [ConvergenceWarning]


def test_the_remedy_for_a_poor_approximation_exists_and_helps(clouds, monkeypatch):
    # With more points than tiles are affordable for.
    monkeypatch.setattr("homophily.solve.follow_values.AFFORDABLE_TILES", 0)
    monkeypatch.setattr("homophily.relationship.nystrom.LANDMARKS", ((16,),))
    monkeypatch.setattr("homophily.relationship.choose.FEW_LANDMARKS", 16)
    X, y, few = clouds
    with pytest.warns(ApproximationWarning, match="multiclass='one-vs-rest'"):
        ERRClassifier(engine="nystrom", sigma_f=1e-3).fit(X, few)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ApproximationWarning)
        exact = ERRClassifier(multiclass="one-vs-rest").fit(X, few)
    assert np.mean(exact.transduction_ == y) > 0.9


def test_a_search_warns_once_of_the_graph_that_it_chose():
    X, y = np.arange(12.0)[:, None], np.arange(12) // 6
    few = np.where(np.arange(12) % 3, y, -1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        TunedClassifier(IRRClassifier(graph=KNNGraph(n_neighbors=50)), trials=6).fit(X, few)
    assert [one.category for one in seen] == [NeighborsWarning]
    assert seen[0].filename == __file__
