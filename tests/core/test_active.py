"""Which points and pairs to ask about."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from homophily import ERRClassifier, ERREmbedding, IRRClassifier, KNNGraph, ParameterError
from homophily.active import PointSuggestion, suggest_pairs, suggest_points, suspicious_labels
from homophily.active.situation import LONGEST_WALK, Situation
from homophily.active.strategies import NOISE, SHIFT, STRATEGIES
from homophily.graph.spectral import spectral_vectors


def blobs(*sizes: int, seed: int = 0) -> tuple[Any, Any]:
    """Blobs far from each other, and the blob of each point."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).normal(size=(len(y), 2)) + 30.0 * y[:, None], y


def fitted(X: Any, y: Any, labelled: list[int], **parameters: Any) -> ERRClassifier:
    few = np.full(len(y), -1)
    few[labelled] = y[labelled]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ERRClassifier(**parameters).fit(X, few)


@pytest.fixture(scope="module")
def digits() -> ERRClassifier:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return fitted(X[:1000], y[:1000], list(range(20)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_suggestions_are_different_points_without_labels_and_the_same_every_time(
    digits: ERRClassifier, strategy: Any
) -> None:
    found = suggest_points(digits, 8, strategy=strategy, exclude=[300, 301])
    points = [one.point for one in found]
    assert len(set(points)) == 8
    assert not set(points) & {*range(20), 300, 301}
    assert found == suggest_points(digits, 8, strategy=strategy, exclude=[300, 301])
    assert all(str(one) for one in found)


@pytest.mark.parametrize("strategy", ["surroundings", "margin", "norm"])
def test_a_batch_is_spread_out(digits: ERRClassifier, strategy: Any) -> None:
    """Without taking turns, the best points are neighbours of each other."""
    situation = Situation(digits)
    points = [one.point for one in suggest_points(digits, 10, strategy=strategy)]
    scores = STRATEGIES[strategy](situation).scores().copy()
    scores[situation.labelled] = -np.inf
    at_once = np.argsort(-scores, kind="stable")[:10]

    def edges(among: Any) -> int:
        return int(digits.graph_.W[np.asarray(among)][:, np.asarray(among)].nnz)

    assert edges(points) < max(1, edges(at_once))


def test_a_large_component_without_a_label_comes_first_and_says_so() -> None:
    X, y = blobs(40, 40, 60, 6)
    model = fitted(X, y, [0, 40], graph=KNNGraph(n_neighbors=5))
    first = suggest_points(model, 1)[0]
    assert (first.reason, first.classes) == ("unlabelled component", ())
    assert y[first.point] == 2
    assert f"component of {first.component_size} points" in str(first)
    # Once it is taken, the other points of its component are asked about no more for a while.
    reasons = [one.reason for one in suggest_points(model, 144)]
    assert reasons.count("unlabelled component") == 66
    assert reasons[:20].count("unlabelled component") < 20


def test_reasons_tell_far_points_from_points_between_classes() -> None:
    # A chain: one end has a label of each class side by side, the other end is far from both.
    X = np.column_stack([np.arange(200.0), np.zeros(200)])
    y = np.r_[np.zeros(100, dtype=int), np.ones(100, dtype=int)]
    model = fitted(X, y, [95, 104], graph=KNNGraph(n_neighbors=2), sharpen=False)
    by_point = {one.point: one for one in suggest_points(model, 198, strategy="margin")}
    assert by_point[0].reason == "far"
    assert {by_point[99].reason, by_point[100].reason} == {"between"}
    assert str(by_point[99]) in ("between 0 and 1", "between 1 and 0")


def test_nearness_is_the_chance_of_a_walk_to_meet_a_label(digits: ERRClassifier) -> None:
    situation = Situation(digits)
    P = digits.graph_.W.toarray() / digits.graph_.degrees[:, None]
    expected = np.zeros(len(P))
    for _ in range(LONGEST_WALK):
        expected[situation.labelled] = 1.0
        expected = P @ expected / 1.02
    expected[situation.labelled] = 1.0
    np.testing.assert_allclose(situation.nearness, expected, atol=1e-12)


@pytest.mark.parametrize("total", [False, True])
def test_variance_strategies_condition_a_gaussian_field_on_each_label(digits: ERRClassifier, total: bool) -> None:
    """Against the dense formula: the covariance given noisy values at the labels and at points taken before."""
    situation = Situation(digits)
    values, V = spectral_vectors(digits.graph_, 100)
    C = V @ np.diag(1.0 / (values + SHIFT)) @ V.T
    taken = [*situation.labelled.tolist(), 700, 900]
    given = C - C[:, taken] @ np.linalg.solve(C[np.ix_(taken, taken)] + NOISE * np.eye(len(taken)), C[taken])
    strategy = STRATEGIES["sigma" if total else "variance"](situation)
    strategy.take(700)
    strategy.take(900)
    told = given.sum(axis=0) ** 2 if total else np.sum(given**2, axis=0)
    np.testing.assert_allclose(strategy.scores(), told / (NOISE + np.diag(given)), rtol=1e-6)


def test_labels_that_are_asked_for_help_more_than_labels_at_random() -> None:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    graph = KNNGraph().fit(X)

    def errors(choose: Any) -> float:
        labelled, found = [int(np.flatnonzero(y == c)[0]) for c in range(10)], []
        for turn in range(6):
            model = fitted(graph, y, labelled)
            found.append(np.mean(model.transduction_ != y))
            labelled += choose(model, turn)
        return float(np.mean(found))

    asked = errors(lambda model, _: [one.point for one in suggest_points(model, 5)])
    drawn = [
        errors(lambda _, turn, seed=seed: np.random.default_rng([seed, turn]).permutation(len(y))[:5].tolist())
        for seed in range(3)
    ]
    assert asked < 0.9 * np.mean(drawn)


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"n": 0}, "n"),
        ({"n": 2.5}, "n"),
        ({"n": 3, "strategy": "best"}, "strategy"),
        ({"n": 3, "exclude": [1797]}, "exclude"),
        ({"n": 3, "exclude": [-1]}, "exclude"),
        ({"n": 3, "exclude": [0.5]}, "exclude"),
    ],
)
def test_wrong_arguments_are_named(digits: ERRClassifier, arguments: Any, parameter: str) -> None:
    with pytest.raises(ParameterError) as caught:
        suggest_points(digits, **arguments)
    assert caught.value.parameter == parameter


def test_fewer_suggestions_where_fewer_points_are_open() -> None:
    X, y = blobs(20, 20)
    model = fitted(X, y, [0, 20])
    assert len(suggest_points(model, 100)) == 38
    assert all(isinstance(one, PointSuggestion) for one in suggest_points(model, 3))


# -- pairs


@pytest.fixture(scope="module")
def graph() -> KNNGraph:
    from sklearn.datasets import load_digits

    return KNNGraph().fit(load_digits().data)


def test_pairs_join_different_regions_and_are_spread_out(graph: KNNGraph) -> None:
    found = suggest_pairs(graph, 10)
    assert len({(one.first, one.second) for one in found}) == 10
    assert all(one.first != one.second and 0.0 < one.together < 1.0 for one in found)
    # Other points of the same groups are asked about each time.
    most = max(np.unique([end for one in found for end in (one.first, one.second)], return_counts=True)[1])
    assert most <= 2
    assert found == suggest_pairs(graph, 10)
    assert "points around one" in str(found[0])


def test_what_links_say_or_imply_is_not_asked_again(graph: KNNGraph) -> None:
    first = suggest_pairs(graph, 12)
    ends = [(one.first, one.second) for one in first]
    for answered in ({"must_link": ends}, {"cannot_link": ends}, {"exclude": ends}):
        again = {(one.first, one.second) for one in suggest_pairs(graph, 12, **answered)}
        assert not again & set(ends)
    # Of a chain a–b, b–c that belongs together, a–c follows.
    (a, b), c = ends[0], next(end for pair in ends[1:] for end in pair if end not in ends[0])
    implied = suggest_pairs(graph, 10_000, must_link=[(a, b), (b, c)])
    assert {(a, c), (c, a)}.isdisjoint((one.first, one.second) for one in implied)


def test_a_map_knows_its_links(graph: KNNGraph) -> None:
    embedding = ERREmbedding(max_iter=3, sigma_f=1.0).fit(graph)
    asked = suggest_pairs(embedding, 5)
    pairs = [(one.first, one.second) for one in asked]
    obeyed = ERREmbedding(max_iter=3, sigma_f=1.0).fit(graph, must_link=pairs)
    assert not {(one.first, one.second) for one in suggest_pairs(obeyed, 5)} & set(pairs)
    assert {one.together > 0.5 for one in suggest_pairs(obeyed, 200)} == {True, False}


def test_answered_pairs_that_are_suggested_make_better_clusters_than_pairs_at_random(graph: KNNGraph) -> None:
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits
    from sklearn.metrics import adjusted_rand_score

    y = load_digits().target % 2

    def agreement(pairs: list[tuple[int, int]]) -> float:
        links = {
            "must_link": [(i, j) for i, j in pairs if y[i] == y[j]],
            "cannot_link": [(i, j) for i, j in pairs if y[i] != y[j]],
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            places = ERREmbedding().fit(graph, **links).embedding_
        return float(adjusted_rand_score(y, KMeans(2, n_init=3, random_state=0).fit_predict(places)))

    asked = agreement([(one.first, one.second) for one in suggest_pairs(graph, 80)])
    drawn = [
        agreement([tuple(pair) for pair in np.random.default_rng(seed).integers(len(y), size=(80, 2))])
        for seed in range(3)
    ]
    assert asked > np.mean(drawn)


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [({"n": 0}, "n"), ({"n": 1, "exclude": [(0, 0)]}, "exclude"), ({"n": 1, "must_link": [(0, 5000)]}, "must_link")],
)
def test_wrong_arguments_of_pairs_are_named(graph: KNNGraph, arguments: Any, parameter: str) -> None:
    with pytest.raises(ParameterError) as caught:
        suggest_pairs(graph, **arguments)
    assert caught.value.parameter == parameter


def test_pairs_need_a_map_or_a_graph(digits: ERRClassifier) -> None:
    with pytest.raises(ParameterError, match="ERREmbedding or a KNNGraph"):
        suggest_pairs(digits, 1)  # type: ignore[arg-type]


# -- suspicious labels


def test_flipped_labels_are_the_most_suspicious() -> None:
    X, y = blobs(60, 60, 60)
    X = X / 10.0
    given = y.copy()
    flipped = [5, 70, 130]
    given[flipped] = (given[flipped] + 1) % 3
    few = np.where(np.arange(180) % 3 == 0, given, -1)
    few[flipped] = given[flipped]
    found = suspicious_labels(IRRClassifier().fit(X, few))
    assert {one.point for one in found[:3]} == set(flipped)
    assert all(one.answer == y[one.point] and one.label == given[one.point] for one in found[:3])


def test_what_other_labels_say_is_the_fit_without_the_label() -> None:
    """Each label is really left out, by the formula and by a fit."""
    X, y = blobs(30, 30, seed=3)
    X = X / 15.0
    few = np.where(np.arange(60) % 6 == 0, y, -1)
    model = IRRClassifier(normalized=False, tol=1e-13).fit(X, few)
    for one in suspicious_labels(model, all_labels=True):
        left = few.copy()
        left[one.point] = -1
        value = IRRClassifier(power=1, normalized=False, tol=1e-13).fit(X, left).solution_[one.point, 0]
        shares = np.maximum([(1.0 - value) / 2.0, (1.0 + value) / 2.0], 0.0)
        shares /= shares.sum()
        own = int(one.label)
        assert one.suspicion == pytest.approx(shares[1 - own] - shares[own], abs=2e-3)


def test_the_only_label_of_a_component_is_not_judged() -> None:
    X, y = blobs(20, 20)
    model = fitted(X, y, [0, 20], graph=KNNGraph(n_neighbors=5))
    assert suspicious_labels(model, all_labels=True) == []
