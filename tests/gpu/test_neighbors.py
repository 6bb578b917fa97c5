"""The search for neighbours on the device: exact, as the CPU's."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily import KNNGraph
from homophily.device.backend import get_backend
from homophily.device.gpu.neighbors import DeviceSearch
from homophily.graph.dense_index import DenseIndex
from homophily.graph.sparse_index import SparseIndex
from homophily.storage import graph_state, restore_graph

from .standin import counters


def points(u=300, d=12, dtype=np.float64):
    return np.random.default_rng(0).normal(size=(u, d)).astype(dtype)


def with_copies():
    X = points(80)
    X[40:60] = X[0]
    return X


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
    ],
)
def test_the_graph_is_that_of_an_exact_search(X, parameters):
    host = KNNGraph(**parameters)
    device = KNNGraph(**parameters, backend="cupy").fit(X)
    exact = DenseIndex(X, host.metric, "exact").self_query(device.n_neighbors_)
    np.testing.assert_array_equal(device.indices_, exact[1])
    np.testing.assert_array_equal(device.distances_, exact[0])
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


@pytest.mark.usefixtures("standin_cupy")
def test_sparse_points_stay_on_the_cpu():
    X = csr_array(np.where(points() > 1, points(), 0.0))
    graph = KNNGraph(backend="cupy").fit(X)
    assert isinstance(graph.index_, SparseIndex)
    assert counters.launches == 0


@pytest.mark.usefixtures("standin_cupy")
def test_blocks_shrink_where_memory_is_short():
    X = points(200, 8, np.float32)
    search = DeviceSearch(get_backend("cupy"), X)
    whole = search.nearest(X, 9)
    counters.largest_allocation = 200 * 4 * 40
    np.testing.assert_array_equal(search.nearest(X, 9), whole)
    counters.largest_allocation = 200 * 4 * 20
    with pytest.raises(MemoryError):
        search.nearest(X, 9)
