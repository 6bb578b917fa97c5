"""A search among spaces: principal directions, how many of them, whitened or not."""

from __future__ import annotations

import numpy as np
import pytest

from homophily import IRRClassifier, TunedClassifier
from homophily.selection import Outcome, Result, Search


def test_points_with_many_columns_are_compared_along_principal_directions_or_whitened():
    few_points, many_points = Search(100, 2, n_features=60), Search(1000, 2, n_features=60)
    assert {group.graph["space"] for group in few_points.ask()} == {"principal"}
    assert {group.graph["space"] for group in many_points.ask()} == {"principal", "whitened"}
    assert {group.graph["space"] for group in Search(1000, 2, n_features=10).ask()} == {"input", "whitened"}


@pytest.mark.parametrize(("points", "most"), [(100, 20), (5_000, 80), (60_000, 40), (1_000_000, 10)])
def test_neighbours_are_searched_as_far_as_points_and_memory_allow(points, most):
    search = Search(points, 2, method="irr", fixed={"metric": "cosine"}, trials=60)
    assert search.ranges.dimensions("graph")["n_neighbors"].high == most
    asked = [group.graph["n_neighbors"] for group in search.ask()]
    assert max(asked) <= most
    assert Search(60_000, 2, n_features=60).ranges.spaces == ("principal",)


def test_the_space_of_sparse_points_or_too_many_columns_is_not_searched():
    assert all("space" not in group.graph for group in Search(1000, 2, fixed={"metric": "cosine"}).ask())
    for columns in (None, 8193):
        assert all("space" not in group.graph for group in Search(1000, 2, n_features=columns).ask())
        with pytest.raises(ValueError, match="leave out 'space'"):
            Search(1000, 2, vary=["space"], n_features=columns)


def test_classes_that_differ_where_points_vary_little_are_found_by_whitening():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    X = rng.normal(size=(300, 8)) * 30.0
    X[:, 0] = 3.0 * y + 0.3 * rng.normal(size=300)
    few = np.where(np.arange(300) < 40, y, -1)
    tuned = TunedClassifier(IRRClassifier(), trials=12, n_jobs=1).fit(X, few)
    assert tuned.best_params_["graph__space"] == "whitened"
    assert np.mean(tuned.transduction_ == y) > 0.9


def test_how_many_directions_count_is_searched_where_there_are_many():
    graphs = [group.graph for group in Search(1000, 2, n_features=241).ask()]
    assert {graph["n_directions"] for graph in graphs if graph["space"] == "principal"} == {10, 20, 50}
    assert 80 in {graph["n_directions"] for graph in graphs if graph["space"] == "whitened"}
    assert all("n_directions" not in group.graph for group in Search(1000, 2, n_features=20).ask())
    for fixed in ({"space": "input"}, {"space": "principal", "n_directions": 30}):
        search = Search(1000, 2, n_features=241, fixed=fixed)
        assert "n_directions" not in search.ranges.vary
        assert search.fixed == fixed


@pytest.mark.parametrize("columns", [3, 8, 15, 25])
@pytest.mark.parametrize("space", ["principal", "whitened"])
def test_directions_are_never_more_than_columns(columns, space):
    search = Search(1000, 2, n_features=columns, fixed={"space": space}, vary=["n_directions"])
    asked = {group.graph["n_directions"] for group in search.ask()}
    assert 1 <= min(asked) <= max(asked) <= columns


def test_many_classes_begin_with_more_neighbours_for_the_squared_laplacian():
    begins = [
        Search(2000, 10, n_features=60, fixed=fixed).ask()[0].graph["n_neighbors"]
        for fixed in ({}, {"power": 2}, {"power": 1}, {"relationship_neighbors": 50})
    ]
    assert begins == [20, 20, 10, 10]


def test_angles_are_tried_along_principal_directions():
    asked = {(group.graph["space"], group.graph["metric"]) for group in Search(1000, 2, n_features=60).ask()}
    assert {("principal", "euclidean"), ("principal", "cosine"), ("whitened", "euclidean")} <= asked
    assert Search(1000, 2, n_features=60).ask()[0].graph["metric"] == "euclidean"
    for given in ({"n_features": 10}, {}, {"n_features": 60, "fixed": {"metric": "euclidean"}}, {"graph": False}):
        assert "metric" not in Search(1000, 2, **given).ranges.vary
    named = Search(1000, 2, n_features=10, vary=["metric"])
    assert {group.graph["metric"] for group in named.ask()} == {"euclidean", "cosine"}
    with pytest.raises(ValueError, match="leave out 'metric' unless points are dense"):
        Search(1000, 2, vary=["metric"])


def test_angles_are_chosen_where_they_do_better():
    search = Search(1000, 2, n_features=60, method="irr", trials=24)
    for group in search.ask():
        error = 0.1 if group.graph["metric"] == "cosine" else 0.4
        search.tell([Outcome(group, (Result(error, 3 * error, 500, 0.1),) * len(group.trials), 0.1)])
    assert search.best.graph["metric"] == "cosine"
    assert search.best.graph["space"] == "principal"


def test_whitened_directions_have_points_enough():
    search = Search(60, 2, n_features=100, fixed={"space": "whitened"})
    assert max(group.graph["n_directions"] for group in search.ask()) == 20


@pytest.mark.parametrize("columns", [10, 60])
def test_given_directions_are_kept_while_the_space_is_searched(columns):
    for vary in (None, ["space"]):
        graphs = [
            group.graph for group in Search(1000, 2, n_features=columns, fixed={"n_directions": 5}, vary=vary).ask()
        ]
        assert {(graph["space"], graph["n_directions"]) for graph in graphs} == {("principal", 5), ("whitened", 5)}
    with pytest.raises(ValueError, match="'n_directions' parameter of Search must be neither varied nor given"):
        Search(1000, 2, n_features=columns, fixed={"n_directions": 5}, vary=["lambda1"])


def test_directions_are_searched_in_spaces_that_have_them():
    named = Search(1000, 2, n_features=60, vary=["space", "n_directions"])
    assert {group.graph["space"] for group in named.ask()} == {"principal", "whitened"}
    with pytest.raises(ValueError, match="'n_directions' parameter of Search must be neither varied nor given"):
        Search(1000, 2, n_features=60, vary=["n_directions"])
    with pytest.raises(ValueError, match="leave out 'n_directions' unless points are dense"):
        Search(1000, 2, vary=["n_directions"], fixed={"space": "principal"})


def test_classes_hidden_in_noise_are_found_by_few_directions():
    rng = np.random.default_rng(0)
    y = np.arange(600) % 2
    X = rng.normal(size=(600, 400))
    X[:, :8] += 0.75 * (2 * y - 1)[:, None]
    few = np.where(np.arange(600) < 30, y, -1)
    assert np.mean(IRRClassifier().fit(X, few).transduction_ != y) > 0.15
    tuned = TunedClassifier(IRRClassifier(), trials=12, n_jobs=1).fit(X, few)
    assert tuned.best_params_["graph__n_directions"] <= 20
    assert np.mean(tuned.transduction_ != y) < 0.1


def test_trials_of_before_a_field_was_searched_are_passed_over():
    search = Search(1000, 2, n_features=60, method="irr")
    first = search.ask()[0]
    old = first._replace(graph={name: value for name, value in first.graph.items() if name != "n_directions"})
    search.tell([Outcome(old, (Result(0.0, 0.0, 50, 0.1),) * len(old.trials), 0.1)])
    assert search.best.trial is None
