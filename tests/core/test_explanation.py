"""Which labels carry an answer."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from sklearn.base import clone
from sklearn.datasets import load_digits

from homophily import ERRClassifier, IRRClassifier, KNNGraph, ParameterError
from homophily.active import explain
from homophily.solve.sharpen import FLOOR, STEPS

X, Y = load_digits(return_X_y=True)
POINTS = [60, 1000, 1500]


@pytest.fixture(scope="module")
def graph() -> KNNGraph:
    return KNNGraph().fit(X)


def few_of(y: Any, count: int = 50) -> Any:
    few = y.copy()
    few[count:] = -1
    return few


def fit(graph: KNNGraph, estimator: Any, few: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clone(estimator).fit(graph, few)


def gap(model: Any, point: int, answer: Any, other: Any) -> float:
    """The decision's lead of one class over another, from the classifier's own scores."""
    scores = model.decision_scores_
    if scores.ndim == 1:
        scores = np.column_stack([np.zeros(len(scores)), scores])
    a, b = np.searchsorted(model.classes_, [answer, other])
    return float(scores[point, a] - scores[point, b])


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("power", [1, 2])
def test_contributions_of_irr_sum_to_the_score(graph: KNNGraph, classes: int, power: int) -> None:
    model = fit(graph, IRRClassifier(power=power), few_of(Y % classes))
    for one in explain(model, POINTS):
        total = sum(part.value for part in one.contributions) + one.offset
        assert one.answer == model.transduction_[one.point]
        assert one.score == pytest.approx(gap(model, one.point, one.answer, one.runner_up), abs=1e-12)
        assert total == pytest.approx(one.score, abs=1e-6)
        assert one.remainder == pytest.approx(0.0, abs=1e-6)
        assert sum(part.share for part in one.contributions) == pytest.approx(1.0)
        assert all(part.label == Y[part.point] % classes for part in one.contributions)


@pytest.mark.parametrize("classes", [2, 10])
def test_withdrawing_the_largest_contributor_of_irr_does_what_was_said(graph: KNNGraph, classes: int) -> None:
    few = few_of(Y % classes)
    # Offsets depend on the labels as well: the values alone are linear.
    estimator = IRRClassifier(class_prior="balanced")
    model = fit(graph, estimator, few)
    for one in explain(model, POINTS):
        left = few.copy()
        left[one.contributions[0].point] = -1
        again = fit(graph, estimator, left)
        again.offsets_ = model.offsets_
        assert one.without_largest == pytest.approx(gap(again, one.point, one.answer, one.runner_up), abs=1e-6)


@pytest.mark.parametrize("parameters", [{}, {"relationship_neighbors": 30, "power": 1}], ids=["all", "masked"])
def test_withdrawing_the_largest_contributor_of_err_changes_the_score_about_as_said(
    graph: KNNGraph, parameters: dict[str, Any]
) -> None:
    """ERR is not linear, so the change is stated to a third of itself or 0.02, at a converged solution."""
    few = few_of(Y % 2)
    estimator = ERRClassifier(sharpen=False, tol=1e-6, max_iter=3000, class_prior="balanced", **parameters)
    model = fit(graph, estimator, few)
    for one in explain(model, POINTS):
        left = few.copy()
        left[one.contributions[0].point] = -1
        again = fit(graph, estimator, left)
        again.offsets_ = model.offsets_
        change = gap(again, one.point, one.answer, one.runner_up) - one.score
        said = one.without_largest - one.score
        assert said == pytest.approx(change, abs=max(0.02, abs(change) / 3))


def test_err_one_against_the_rest_is_linearised_and_its_vector_form_is_not(graph: KNNGraph) -> None:
    vector = fit(graph, ERRClassifier(sharpen=False), few_of(Y))
    alone = fit(graph, ERRClassifier(sharpen=False, multiclass="one-vs-rest"), few_of(Y))
    for model, has_formula in ((vector, False), (alone, True)):
        for one in explain(model, POINTS):
            total = sum(part.value for part in one.contributions) + one.offset + one.remainder
            assert total == pytest.approx(one.score)
            assert (one.without_largest is not None) is has_formula


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_contributions_to_sharp_answers_are_where_walks_meet_labels(
    graph: KNNGraph, classes: int, weight: float
) -> None:
    """Against a dense walk that is followed step by step, then within the point's class."""
    few = few_of(Y % classes)
    model = ERRClassifier(sharpen=True).fit(graph, few, sample_weight=np.where(few >= 0, weight, 0.0))
    W = graph.W.toarray()
    P = W / graph.degrees[:, None]
    labelled = np.flatnonzero(few >= 0)
    decided = np.searchsorted(model.classes_, model.transduction_)
    hold = 1.0 - (1.0 - weight) ** (1.0 / STEPS)
    for one in explain(model, POINTS):
        here, met = np.zeros(len(W)), np.zeros(len(W))
        here[one.point] = 1.0
        for _ in range(STEPS):
            met[labelled] += hold * here[labelled]
            here[labelled] *= 1.0 - hold
            here = 0.5 * here + 0.5 * P.T @ here
        expected, kept = np.zeros(len(W)), 0.0
        for sign, name in ((1.0, one.answer), (-1.0, one.runner_up)):
            inside = np.flatnonzero(decided == np.searchsorted(model.classes_, name))
            ends = inside[np.isin(inside, labelled) & (few[inside] == name)]
            free = np.setdiff1d(inside, ends)
            expected[labelled] += sign * met[labelled] * (few[labelled] == name)
            expected[ends] += sign * here[ends]
            L = np.diag(W[np.ix_(free, inside)].sum(axis=1)) - W[np.ix_(free, free)]
            z = np.linalg.lstsq(L, here[free], rcond=None)[0]
            expected[ends] += sign * W[np.ix_(ends, free)] @ z
            # Parts of the class without a label keep what ends there.
            part = connected_components(csr_array(W[np.ix_(inside, inside)]), directed=False)[1]
            kept += sign * here[inside[~np.isin(part, part[np.isin(inside, ends)])]].sum()
        found = np.zeros(len(W))
        for part in one.contributions:
            found[part.point] = part.value
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert found.sum() + kept == pytest.approx(one.score, abs=2e-3)
        assert one.remainder == pytest.approx(kept, abs=2e-3)


def test_a_label_explains_its_own_point(graph: KNNGraph) -> None:
    one = explain(fit(graph, ERRClassifier(), few_of(Y)), [3])[0]
    assert (one.contributions[0].point, one.contributions[0].share) == (3, pytest.approx(1.0))
    assert one.path(3) == [3]


@pytest.mark.parametrize("estimator", [IRRClassifier(), ERRClassifier(), ERRClassifier(sharpen=False)], ids=str)
def test_new_points_are_explained_by_the_stored_ones_next_to_them(graph: KNNGraph, estimator: Any) -> None:
    model = fit(graph, estimator, few_of(Y % 2))
    new, copy = explain(model, X=np.vstack([X[1000] + 0.1, X[60]]))
    assert (new.point, copy.point) == (None, None)
    assert new.answer == model.predict(X[1000:1001] + 0.1)[0]
    assert new.path(new.contributions[0].point)[0] == new.nearest
    stored = explain(model, [60])[0]
    assert copy.score == pytest.approx(stored.score)
    assert [part.point for part in copy.contributions[:3]] == [part.point for part in stored.contributions[:3]]
    if not isinstance(model, ERRClassifier):
        assert new.remainder == pytest.approx(0.0, abs=1e-6)


def test_paths_are_shortest_and_go_along_edges(graph: KNNGraph) -> None:
    from scipy.sparse.csgraph import shortest_path

    one = explain(fit(graph, IRRClassifier(), few_of(Y)), [1000])[0]
    hops = shortest_path(graph.W, unweighted=True, indices=1000)
    labels = [part.point for part in one.contributions[:5]]
    for label, path in zip(labels, one.paths(labels), strict=True):
        assert (path[0], path[-1], len(path) - 1) == (1000, label, hops[label])
        assert all(graph.W[i, j] > 0 for i, j in pairwise(path))


def test_a_point_that_no_label_reaches_has_the_prior_for_a_reason() -> None:
    apart = np.concatenate([np.random.default_rng(0).normal(size=(30, 2)) + 50.0 * blob for blob in range(3)])
    few = np.full(90, -1)
    few[[0, 1, 30]] = [0, 0, 1]
    model = fit(KNNGraph(n_neighbors=5).fit(apart), IRRClassifier(), few)
    one = explain(model, [70])[0]
    assert one.contributions == ()
    assert one.score == pytest.approx(one.offset)
    assert one.path(0) == []
    new = explain(model, X=apart[70:71] + 0.01)[0]
    assert (new.contributions, new.nearest, new.paths([0, 1])) == ((), -1, [[], []])
    assert new.answer == model.predict(apart[70:71] + 0.01)[0]


def test_it_needs_points_or_new_points(graph: KNNGraph) -> None:
    model = fit(graph, IRRClassifier(), few_of(Y))
    for arguments in ({}, {"points": [0], "X": X[:1]}, {"points": [1797]}, {"points": ["a"]}):
        with pytest.raises(ParameterError) as caught:
            explain(model, **arguments)
        assert caught.value.parameter == "points"


@pytest.mark.parametrize("estimator", [ERRClassifier(), ERRClassifier(sharpen=False, max_iter=10)], ids=str)
@pytest.mark.parametrize("classes", [2, 10])
def test_a_refit_says_what_the_score_is_without_the_largest_label(
    graph: KNNGraph, estimator: Any, classes: int
) -> None:
    few = few_of(Y % classes)
    model = fit(graph, estimator, few)
    for one in explain(model, POINTS, refit=True):
        few_left = few.copy()
        few_left[one.contributions[0].point] = -1
        again = fit(graph, estimator, few_left)
        a, b = np.searchsorted(model.classes_, [one.answer, one.runner_up])
        if model.sharp_shares_ is None:
            expected = gap(again, one.point, one.answer, one.runner_up)
        else:
            expected = again.sharp_shares_[one.point, a] - again.sharp_shares_[one.point, b]
        assert one.without_largest == pytest.approx(expected, abs=1e-9)


def test_a_refit_serves_new_points_and_soft_labels_of_given_confidence(graph: KNNGraph) -> None:
    shares, weights = np.zeros((len(Y), 2)), np.ones(len(Y))
    shares[:40] = np.where((Y[:40] % 2)[:, None] == [0, 1], 0.9, 0.1)
    weights[:20] = 0.5
    model = ERRClassifier(sharpen=True).fit(graph, shares, sample_weight=weights)
    one = explain(model, X=X[1000:1001] + 0.1, refit=True)[0]
    shares[one.contributions[0].point] = 0.0
    again = ERRClassifier(sharpen=True).fit(graph, shares, sample_weight=weights)
    z = again.decision_function(X[1000:1001] + 0.1)[0] - again.offsets_[0]
    # Of two shares that add up to 1, from the log odds of share + FLOOR.
    lead = (1.0 + 2.0 * FLOOR) * np.tanh(z / 2.0)
    assert one.without_largest == pytest.approx(lead if one.answer else -lead, abs=1e-4)


def test_without_its_only_label_a_class_has_no_score(graph: KNNGraph) -> None:
    few = np.full(len(Y), -1)
    few[:10] = Y[:10]
    assert [one.without_largest for one in explain(fit(graph, ERRClassifier(), few), POINTS, refit=True)] == [None] * 3


def test_a_refit_after_loading_agrees_with_one_before(graph: KNNGraph) -> None:
    from homophily.storage import classifier_state, restore_classifier

    model = fit(graph, ERRClassifier(), few_of(Y))
    loaded = restore_classifier(classifier_state(model), graph)
    first, second = (explain(one, [1000], refit=True)[0] for one in (model, loaded))
    assert second.without_largest == pytest.approx(first.without_largest, abs=1e-12)
