"""Graphs of more points: by what changes, against a new search among all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from homophily import ERRClassifier, KNNGraph, ParameterError
from homophily.graph import dense_index, grow
from homophily.storage import graph_state, restore_graph

DIGITS, Y = load_digits(return_X_y=True)
RNG = np.random.default_rng(0)
POINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "all pairs": (DIGITS, {}),
    "all pairs, float32": (DIGITS.astype(np.float32), {"n_neighbors": 3, "symmetrize": "max"}),
    "cosine": (DIGITS, {"metric": "cosine", "weights": "self-tuning"}),
    "tree": (RNG.normal(size=(2000, 3)), {"weights": "global"}),
    "tree, cosine": (RNG.normal(size=(2000, 3)), {"metric": "cosine"}),
    "sparse": (sparse.random_array((800, 100), density=0.1, format="csr", rng=1), {}),
    "sparse, euclidean": (
        sparse.random_array((800, 100), density=0.1, format="csr", rng=2),
        {"metric": "euclidean", "weights": "fixed", "sigma_x": 2.0},
    ),
    "copies": (np.repeat(DIGITS[:300], 4, axis=0), {"n_neighbors": 6}),
}


def assert_same(found: KNNGraph, expected: KNNGraph) -> None:
    np.testing.assert_array_equal(found.indices_, expected.indices_)
    np.testing.assert_array_equal(found.distances_, expected.distances_)
    assert (found.W != expected.W).nnz == 0
    np.testing.assert_array_equal(found.component_labels, expected.component_labels)
    assert found.n_points == expected.n_points


@pytest.mark.parametrize("added", [1, 40])
@pytest.mark.parametrize("name", POINTS)
def test_a_graph_with_more_points_is_that_of_a_fit_to_all(name: str, added: int) -> None:
    X, parameters = POINTS[name]
    old = X.shape[0] - added
    base = KNNGraph(**parameters).fit(X[:old])
    before = base.W.copy(), base.indices_.copy()
    found = base.append(X[old:])
    assert_same(found, KNNGraph(**parameters).fit(X))
    # The graph that it came from is as it was.
    assert (before[0] != base.W).nnz == 0
    np.testing.assert_array_equal(base.indices_, before[1])
    for ours, theirs in zip(found.attach(X[:5]), KNNGraph(**parameters).fit(X).attach(X[:5]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_graphs_grow_step_by_step_and_after_loading() -> None:
    whole = KNNGraph().fit(DIGITS)
    graph = KNNGraph().fit(DIGITS[:1700])
    for start in (1700, 1701, 1760):
        stop = {1700: 1701, 1701: 1760, 1760: 1797}[start]
        graph = restore_graph(graph_state(graph)).append(DIGITS[start:stop])
    assert_same(graph, whole)
    assert (graph.n_searched_, whole.n_searched_) == (1700, 1797)


def test_regions_take_new_points_in_and_find_nearly_all_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_index, "_EXACT_POINTS", 1000)
    base = KNNGraph().fit(DIGITS[:1750])
    assert base.index_.method == "regions"
    found = base.append(DIGITS[1750:])
    assert found.index_.method == "regions"
    monkeypatch.undo()
    exact = KNNGraph().fit(DIGITS)
    is_found = (found.indices_[:, :, None] == exact.indices_[:, None, :]).any(axis=1)
    assert is_found.mean() > 0.99
    again = restore_graph(graph_state(found))
    np.testing.assert_array_equal(again.index_.self_query(5)[1], found.index_.self_query(5)[1])
    assert np.mean(found.attach(DIGITS)[0][:, 0] == np.arange(1797)) > 0.99


def test_no_lower_bound_hides_a_near_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """In regions, old and new points are bounded in a few coordinates: every pair within the limit is allowed."""
    monkeypatch.setattr(dense_index, "_EXACT_POINTS", 500)
    for metric in ("euclidean", "cosine"):
        index = KNNGraph(metric=metric).fit(DIGITS[:1600]).index_
        limits = np.random.default_rng(0).uniform(0.0, 40.0 if metric == "euclidean" else 0.3, 1600)
        ((old, new),) = grow._possible(index, index._prepare(DIGITS[1600:]), limits)
        names = np.tile(np.arange(1600), (197, 1))
        distances = index._distances(index._prepare(DIGITS[1600:]), names)
        near = {(i, j) for j, i in zip(*np.nonzero(distances < limits), strict=True)}
        assert len(near) > 1000
        assert near <= set(zip(old.tolist(), new.tolist(), strict=True))


def test_few_points_get_the_neighbours_that_they_lacked() -> None:
    X = RNG.normal(size=(30, 4))
    with pytest.warns(UserWarning, match="only 5 exist"):
        base = KNNGraph().fit(X[:6])
    assert_same(base.append(X[6:]), KNNGraph().fit(X))
    with pytest.warns(UserWarning, match="only 7 exist"):
        expected = KNNGraph().fit(X[:8])
    assert_same(base.append(X[6:8]), expected)


def test_points_that_need_another_search_are_searched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    base = KNNGraph().fit(DIGITS[:990])
    monkeypatch.setattr(dense_index, "_EXACT_POINTS", 1000)
    found = base.append(DIGITS[990:1100])
    assert found.index_.method == "regions"
    assert_same(found, KNNGraph().fit(DIGITS[:1100]))


def test_the_space_stays_that_of_the_first_points() -> None:
    base = KNNGraph(space="principal", n_directions=10).fit(DIGITS[:1700])
    found = base.append(DIGITS[1700:])
    np.testing.assert_array_equal(found._space.directions, base._space.directions)
    assert_same(found, _with(found, KNNGraph().fit(base._space(DIGITS, None))))


def _with(found: KNNGraph, expected: KNNGraph) -> KNNGraph:
    expected.n_features_in_ = found.n_features_in_
    return expected


def test_answers_on_a_grown_graph_are_those_of_a_fit_to_all() -> None:
    few = np.full(len(Y), -1)
    few[:60] = Y[:60]
    grown = ERRClassifier().fit(KNNGraph().fit(DIGITS[:1780]).append(DIGITS[1780:]), few)
    np.testing.assert_array_equal(grown.transduction_, ERRClassifier().fit(DIGITS, few).transduction_)


def test_graphs_of_given_distances_and_wrong_columns_do_not_grow() -> None:
    given = KNNGraph(metric="affinity").fit(np.ones((4, 4)))
    with pytest.raises(ParameterError) as caught:
        given.append(np.ones((1, 4)))
    assert caught.value.parameter == "metric"
    with pytest.raises(ValueError, match="64 features"):
        KNNGraph().fit(DIGITS[:100]).append(DIGITS[:2, :3])


def test_new_points_in_the_middle_of_the_old_ones_take_no_more_memory_than_a_part_of_all_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There every new point is nearer to every old one than its neighbours are."""
    monkeypatch.setattr(grow, "_LOOKED_AT", 1 << 12)
    monkeypatch.setattr(grow, "_KEPT", 1 << 11)
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(600, 200)), 0.3 * rng.normal(size=(100, 200))])
    base = KNNGraph(n_jobs=1).fit(X[:600])
    most = []
    possible = grow._possible

    def counted(*arguments: Any) -> Any:
        for old, new in possible(*arguments):
            most.append(len(old))
            yield old, new

    monkeypatch.setattr(grow, "_possible", counted)
    assert_same(base.append(X[600:]), KNNGraph().fit(X))
    assert sum(most) == 600 * 100
    assert max(most) < (1 << 12) + (1 << 11)


def test_a_sparse_point_may_get_more_than_a_thousand_new_neighbours() -> None:
    X = sparse.random_array((1500, 50), density=0.5, format="csr", rng=3)
    with pytest.warns(UserWarning, match="only 199 exist"):
        base = KNNGraph(metric="euclidean", n_neighbors=1200).fit(X[:200])
    found, expected = base.append(X[200:]), KNNGraph(metric="euclidean", n_neighbors=1200).fit(X)
    np.testing.assert_array_equal(found.distances_, expected.distances_)


def test_a_far_point_does_not_make_all_other_pairs_possible() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1100, 20))
    X[1000] *= 1e4
    base = KNNGraph().fit(X[:1000])
    limits = base.distances_.max(axis=1)
    pairs = [len(old) for old, _ in grow._possible(base.index_, base.index_._prepare(X[1000:]), limits)]
    assert sum(pairs) < 10_000
    assert_same(base.append(X[1000:]), KNNGraph().fit(X))


@pytest.mark.parametrize("factor", [1e25, 1e150])
def test_points_beyond_the_range_of_float32_are_neighbours_if_there_are_few_others(factor: float) -> None:
    X = RNG.normal(size=(16, 10))
    X[8] *= factor
    with pytest.warns(UserWarning, match="only 7 exist"):
        base = KNNGraph().fit(X[:8])
    assert_same(base.append(X[8:]), KNNGraph().fit(X))


def test_points_of_another_type_are_appended_or_refused() -> None:
    base = KNNGraph().fit(DIGITS[:500].astype(np.float32))
    whole = KNNGraph().fit(DIGITS[:520].astype(np.float32))
    assert_same(base.append(sparse.csr_array(DIGITS[500:520])), whole)
    with pytest.raises(ParameterError, match="must fit into float32"):
        base.append(DIGITS[500:520] * 1e200)


@pytest.mark.parametrize("name", ["all pairs", "tree", "sparse"])
def test_appending_reports_its_progress_and_can_be_cancelled(name: str) -> None:
    X, parameters = POINTS[name]
    base, shares = KNNGraph(**parameters).fit(X[:-40]), []
    base.append(X[-40:], callback=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)

    def cancel(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        base.append(X[-40:], callback=cancel)
    assert base.n_points == X.shape[0] - 40
