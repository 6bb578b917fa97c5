"""What must not matter, or is legal: parts of the graph, the order of points, threads, precision."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily import KNNGraph, UnlabelledComponentsWarning
from homophily.estimators import transduction
from homophily.relationship import chebyshev

from .small_sets import blobs, both, moons, two_parts

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


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
        model = estimator(graph=KNNGraph(metric="affinity")).fit(W, y)
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
        model = estimator(graph=KNNGraph(metric="affinity")).fit(csr_array((4, 4)), y)
    assert model.transduction_[[0, 1, 3]].tolist() == [0, 1, 1]
    assert np.isfinite(model.label_distributions_).all()


@both
def test_every_component_with_a_label_makes_no_warning(estimator):
    X, y = two_parts()
    y[100:110] = y[:10]
    estimator().fit(X, y)


# -- order, threads, precision -----------------------------------------------------------------------------------------


@both
def test_the_order_in_which_many_points_are_worked_on_does_not_show(estimator, monkeypatch):
    X, y = two_parts()
    with pytest.warns(UnlabelledComponentsWarning):
        given = estimator(power=1).fit(X, y)
    monkeypatch.setattr(transduction, "CACHED_VALUES", 0)
    with pytest.warns(UnlabelledComponentsWarning):
        ordered = estimator(power=1).fit(X, y)
    np.testing.assert_allclose(ordered.solution_, given.solution_, atol=1e-8)
    np.testing.assert_allclose(ordered.decision_function(X + 0.01), given.decision_function(X + 0.01), atol=1e-6)


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
    monkeypatch.setattr("homophily.graph.laplacian.THREAD_WORK", 100)
    monkeypatch.setattr("homophily.graph.laplacian.BLOCK", 64)
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
