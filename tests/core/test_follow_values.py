"""Landmarks that follow the values of a solve."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from homophily import ERRClassifier
from homophily.estimators.classifiers import Start
from homophily.relationship import choose, nystrom
from homophily.relationship.nystrom import WANTED_ERROR, WANTED_GRADIENT_ERROR


@pytest.fixture(scope="module")
def classes():
    X, y = make_blobs(1200, centers=6, n_features=5, cluster_std=2.2, random_state=1)
    return X, np.where(np.arange(1200) < 36, y, -1)


@pytest.fixture
def low_rank(monkeypatch):
    """The low-rank engine, with so few landmarks at first that values soon leave them."""
    monkeypatch.setattr(choose, "TILES_BEAT_NYSTROM", 0)
    monkeypatch.setattr(nystrom, "LANDMARKS", ((24, 64), (256, 1024)))
    monkeypatch.setattr(choose, "FEW_LANDMARKS", 24)
    monkeypatch.setattr(nystrom, "PLACED_ERROR", 9e-4)


@pytest.mark.usefixtures("low_rank")
def test_a_solve_that_leaves_its_landmarks_ends_where_exact_tiles_end(classes):
    seen = []
    followed = ERRClassifier(callback=seen.append, tol=1e-3, sharpen=False).fit(*classes)
    exact = ERRClassifier(engine="tiles", tol=1e-3, sharpen=False).fit(*classes)
    assert followed.engine_ == "nystrom"
    assert followed.engine_error_ <= WANTED_ERROR
    assert followed.engine_gradient_error_ <= WANTED_GRADIENT_ERROR
    assert followed.energy_ == pytest.approx(exact.energy_, rel=2e-3)
    assert np.mean(followed.transduction_ == exact.transduction_) > 0.99
    # The steps of all starts are counted on.
    steps = [state.iteration for state in seen if not isinstance(state, Start)]
    assert steps == list(range(followed.n_iter_ + 1))


@pytest.mark.usefixtures("low_rank")
def test_exact_tiles_take_over_where_no_number_of_landmarks_is_enough(classes, monkeypatch):
    monkeypatch.setattr(nystrom, "LANDMARKS", ((24,),))
    monkeypatch.setattr(choose, "WANTED_ERROR", 1.0)
    followed = ERRClassifier(sharpen=False).fit(*classes)
    assert (followed.engine_, followed.engine_error_, followed.engine_gradient_error_) == ("tiles", None, None)
