"""The search for neighbours on the device: exact, as the CPU's."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily import IRRClassifier, KNNGraph
from homophily.device.backend import get_backend
from homophily.device.gpu.neighbors import DeviceSearch
from homophily.exceptions import NeighborsWarning
from homophily.graph.dense_index import DenseIndex
from homophily.graph.sparse_index import SparseIndex
from homophily.storage import graph_state, restore_graph

from .standin import counters


def points(u=300, d=12, dtype=np.float64):
    return np.random.default_rng(0).normal(size=(u, d)).astype(dtype)


def clusters_far_apart(u=600, d=50, width=1e-5, dtype=np.float64):
    """Clusters whose points differ only in digits that float32 products of them do not have."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-1, 1, (5, d))
    return (centres[rng.integers(0, 5, u)] + width * rng.normal(size=(u, d))).astype(dtype)


def with_copies():
    X = points(80)
    X[40:60] = X[0]
    return X


def by_differences(X, metric, k):
    """The nearest others, by float64 differences from all points."""
    index, everybody = DenseIndex(X, metric, "exact"), np.arange(len(X))
    return index._first(index.points, everybody, k, np.tile(everybody, (len(X), 1)))[:2]


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize(
    ("X", "parameters"),
    [
        (points(), {}),
        (points(dtype=np.float32), {"n_neighbors": 40}),
        (points(), {"metric": "cosine"}),
        (with_copies(), {"n_neighbors": 7}),
        (points() * 1e-9 + 1e3, {}),
        (points(3), {"n_neighbors": 2}),
        (clusters_far_apart(), {}),
        (clusters_far_apart(width=1e-3, dtype=np.float32), {}),
        (clusters_far_apart(), {"metric": "cosine"}),
    ],
)
def test_the_graph_is_that_of_an_exact_search(X, parameters):
    host = KNNGraph(**parameters)
    device = KNNGraph(**parameters, backend="cupy").fit(X)
    distances, indices = by_differences(X, host.metric, device.n_neighbors_)
    np.testing.assert_array_equal(device.indices_, indices)
    np.testing.assert_array_equal(device.distances_, distances)
    assert (device.W != host.fit(X).W).nnz == 0
    assert device.recall_ == 1.0


@pytest.mark.usefixtures("cupy")
def test_new_points_are_searched_for_on_the_cpu():
    X = points()
    host, device = (KNNGraph(backend=name).fit(X) for name in ("numpy", "cupy"))
    new = points(5) + 0.1
    for restored in (device, pickle.loads(pickle.dumps(device)), restore_graph(graph_state(device))):
        for found, expected in zip(restored.attach(new), host.attach(new), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("made_by", ["numpy", "cupy"])
@pytest.mark.parametrize("X", [points(), clusters_far_apart(), clusters_far_apart(d=2)], ids=["wide", "tight", "few"])
def test_many_new_points_are_searched_for_on_the_device(X, made_by, monkeypatch):
    monkeypatch.setattr("homophily.graph.dense_index._EXACT_POINTS", 200)
    y = np.where(np.arange(len(X)) % 9 == 0, np.arange(len(X)) // 9 % 2, -1)
    model = IRRClassifier(graph=KNNGraph(backend=made_by)).fit(X, y)
    new = X[:50] + 1e-3
    expected = model.answer(new, probabilities=True)
    for found, wanted in zip(model.answer(new, probabilities=True, backend="cupy"), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert model.graph_.index_._search is None


@pytest.mark.usefixtures("standin_cupy")
def test_sparse_points_stay_on_the_cpu():
    X = csr_array(np.where(points() > 1, points(), 0.0))
    graph = KNNGraph(backend="cupy").fit(X)
    assert isinstance(graph.index_, SparseIndex)
    assert counters.launches == 0


def search_of(X):
    return DeviceSearch(get_backend("cupy"), X, lambda part: X[part].astype(np.float64))


@pytest.mark.usefixtures("standin_cupy")
def test_blocks_shrink_where_memory_is_short():
    X = points(200, 8, np.float32)
    search = search_of(X)
    ways = [
        lambda: search.lowest_scores(X, 9)[0],
        lambda: search.nearest_below(np.full(200, np.inf), X, X.astype(np.float64), 9),
    ]
    whole = [way() for way in ways]
    counters.largest_allocation = 200 * 4 * 40
    for way, expected in zip(ways, whole, strict=True):
        np.testing.assert_array_equal(way(), expected)
    counters.largest_allocation = 200 * 4 * 20
    for way in ways:
        with pytest.raises(MemoryError):
            way()


@pytest.mark.usefixtures("standin_cupy")
@pytest.mark.parametrize(("X", "redone"), [(points(), False), (clusters_far_apart(), True)])
def test_only_rows_that_rounding_may_mislead_are_redone(X, redone, monkeypatch):
    asked, again = [], DeviceSearch.nearest_below
    monkeypatch.setattr(
        DeviceSearch, "nearest_below", lambda self, limits, *rest: asked.append(limits) or again(self, limits, *rest)
    )
    graph = KNNGraph(backend="cupy").fit(X)
    assert graph.index_._built is None, "the CPU's index was built for nothing"
    # The last time is for the recall, by differences from all points.
    assert np.isinf(asked.pop()).all()
    assert bool(asked) == redone


@pytest.mark.usefixtures("standin_cupy")
def test_exact_points_are_sent_in_parts_that_fit(monkeypatch):
    X = clusters_far_apart()
    monkeypatch.setattr("homophily.device.gpu.neighbors.PART_BYTES", 8 * 50 * 37)
    graph = KNNGraph(backend="cupy").fit(X)
    np.testing.assert_array_equal(graph.indices_, by_differences(X, "euclidean", 10)[1])
    assert max(counters.uploads) == X.size
    assert sum(size == 50 * 37 for size in counters.uploads) >= X.size // (50 * 37)


@pytest.mark.usefixtures("standin_cupy")
def test_the_recall_is_measured_on_the_device(monkeypatch):
    def any_points(self, rows, count):  # noqa: ARG001
        return np.tile(np.arange(count), (len(rows), 1)), np.full(len(rows), np.inf)

    monkeypatch.setattr(DeviceSearch, "lowest_scores", any_points)
    with pytest.warns(NeighborsWarning, match="of the nearest points, less than 99%"):
        graph = KNNGraph(backend="cupy").fit(points(600))
    assert graph.recall_ < 0.99


@pytest.mark.usefixtures("standin_cupy")
def test_few_columns_take_the_tree():
    graph = KNNGraph(backend="cupy").fit(clusters_far_apart(d=2))
    assert graph.index_.method == "kd-tree"
    assert counters.launches == 0


@pytest.mark.usefixtures("standin_cupy")
@pytest.mark.parametrize("first", [graph_state, lambda graph: graph.attach(points(5))])
def test_a_model_fitted_on_a_gpu_gets_the_index_of_one_fitted_on_the_cpu(first, monkeypatch):
    monkeypatch.setattr("homophily.graph.dense_index._EXACT_POINTS", 200)
    X, new = points(), points(40) + 0.1
    host, device = (KNNGraph(backend=name).fit(X) for name in ("numpy", "cupy"))
    assert host.index_.method == "regions"
    first(device)
    launches = counters.launches
    # What is asked of it later, the CPU finds.
    assert device.neighborhoods(15).shape == host.neighborhoods(15).shape
    assert counters.launches == launches
    stored, expected = (graph.index_.to_arrays() for graph in (device, host))
    assert stored.document == expected.document
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(stored.arrays[name], array)
    for found, wanted in zip(restore_graph(graph_state(device)).attach(new), host.attach(new), strict=True):
        np.testing.assert_array_equal(found, wanted)
