import pickle

import faiss
import numpy as np
import pytest
from scipy import sparse

from homophily.exceptions import NeighborsWarning
from homophily.graph import index_base
from homophily.graph.dense_index import DenseIndex
from homophily.graph.neighbors import neighbor_index
from homophily.graph.sparse_index import SparseIndex

EXACT = ["kd-tree", "exact"]


def points(u=120, columns=6, seed=0):
    return np.random.default_rng(seed).normal(size=(u, columns))


def sparse_points(u=90, columns=40, density=0.15, seed=0):
    X = points(u, columns, seed)
    X[np.random.default_rng(seed + 1).random(X.shape) > density] = 0.0
    return X


def brute_force(Q, X, k, metric="euclidean", without_self=False):
    """All distances, sorted by (distance, index)."""
    if metric == "cosine":
        Q, X = (np.hstack([M, ~M.any(axis=1, keepdims=True)]) for M in (Q, X))
        Q, X = (M / np.linalg.norm(M, axis=1, keepdims=True) for M in (Q, X))
        D = 1 - Q @ X.T
    else:
        D = np.linalg.norm(Q[:, None] - X, axis=2)
    if without_self:
        np.fill_diagonal(D, np.inf)
    order = np.argsort(D.round(12), axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, axis=1), order


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("method", EXACT)
def test_dense_search_equals_brute_force(method, metric):
    X, Q = points(), points(30, seed=1)
    index = DenseIndex(X, metric, method)
    for found, true in (
        (index.query(Q, 7), brute_force(Q, X, 7, metric)),
        (index.self_query(7), brute_force(X, X, 7, metric, without_self=True)),
    ):
        np.testing.assert_array_equal(found[1], true[1])
        np.testing.assert_allclose(found[0], true[0], rtol=1e-12, atol=2e-14)
    assert index.recall == 1.0


def clusters_far_apart(u, columns=50, width=1e-5, dtype=np.float64):
    """Clusters whose points differ only in digits that float32 products of them do not have."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-1, 1, (10, columns))
    return (centres[rng.integers(0, 10, u)] + width * rng.normal(size=(u, columns))).astype(dtype)


@pytest.mark.parametrize(
    ("method", "u", "width", "dtype"),
    [
        ("kd-tree", 500, 1e-5, np.float64),
        ("exact", 500, 1e-5, np.float64),
        ("exact", 500, 1e-3, np.float32),
        ("regions", 4000, 1e-5, np.float64),
    ],
)
def test_neighbours_in_tight_clusters_far_apart_are_found(method, u, width, dtype):
    X = clusters_far_apart(u, 2 if method == "kd-tree" else 50, width, dtype)
    index = DenseIndex(X, method=method)
    distances, _ = index.self_query(10)
    asked = np.arange(0, u, u // 50)
    true = brute_force(X[asked].astype(np.float64), X.astype(np.float64), 11)[0][:, 1:]
    # Distances that rounding alone tells apart may be in either order.
    recall = np.mean(distances[asked] <= true[:, -1:] * (1 + 1e-12))
    assert recall == pytest.approx(index.recall, abs=0.01)
    assert recall >= (0.99 if method == "regions" else 1.0)


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_redone_is_the_same_whatever_the_thread_count(threads):
    X = np.repeat(clusters_far_apart(200), 15, axis=0)
    found = DenseIndex(X, method="exact", n_jobs=threads).self_query(9)
    for one, other in zip(found, DenseIndex(X, method="exact", n_jobs=2).self_query(9), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_sparse_search_equals_brute_force(metric):
    X, Q = sparse_points(), sparse_points(20, seed=5)
    # Long rows have large inner products with everything: they must not pass for near.
    X[::7] *= 30
    index = SparseIndex(sparse.csr_array(X), metric)
    for found, true in (
        (index.query(sparse.csr_array(Q), 7), brute_force(Q, X, 7, metric)),
        (index.self_query(7), brute_force(X, X, 7, metric, without_self=True)),
    ):
        np.testing.assert_array_equal(found[1], true[1])
        np.testing.assert_allclose(found[0], true[0], rtol=1e-12, atol=2e-14)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_sparse_and_dense_search_agree(metric):
    X = sparse_points(200, 30)
    dense, stored = DenseIndex(X, metric).self_query(5), SparseIndex(sparse.csr_matrix(X), metric).self_query(5)
    np.testing.assert_allclose(dense[0], stored[0], rtol=1e-12, atol=2e-14)
    np.testing.assert_array_equal(dense[1], stored[1])


@pytest.mark.parametrize("method", [*EXACT, "regions", "hnsw"])
def test_copies_are_neighbours_at_distance_zero_and_a_point_is_not_its_own(method):
    X = np.repeat(points(20, 12) * 1e3 + 1e5, 6, axis=0)
    distances, indices = DenseIndex(X, method=method).self_query(5)
    assert (distances == 0).all()
    assert (indices // 6 == np.arange(120)[:, None] // 6).all()
    assert (indices != np.arange(120)[:, None]).all()


@pytest.mark.parametrize("method", EXACT)
def test_lowest_index_comes_first_among_equally_near_points(method):
    X = np.zeros((300, 3))
    _, indices = DenseIndex(X, method=method).self_query(3)
    np.testing.assert_array_equal(indices[0], [1, 2, 3])
    np.testing.assert_array_equal(indices[299], [0, 1, 2])
    _, stored = SparseIndex(sparse.csr_matrix(X)).self_query(3)
    np.testing.assert_array_equal(stored, indices)


@pytest.mark.parametrize("method", EXACT)
def test_grid_points_take_their_ties_in_order_of_index(method):
    X = np.stack(np.meshgrid(np.arange(9.0), np.arange(9.0)), axis=-1).reshape(-1, 2)
    found, true = DenseIndex(X, method=method).self_query(3), brute_force(X, X, 3, without_self=True)
    np.testing.assert_array_equal(found[1], true[1])


@pytest.mark.parametrize("index", [lambda X: DenseIndex(X), lambda X: SparseIndex(sparse.csr_matrix(X))])
def test_more_neighbours_than_points_are_cut_with_a_warning(index):
    X = points(5)
    with pytest.warns(NeighborsWarning, match="only 4 exist"):
        distances, indices = index(X).self_query(10)
    assert distances.shape == (5, 4)
    np.testing.assert_array_equal(np.sort(np.hstack([indices, np.arange(5)[:, None]])), np.tile(np.arange(5), (5, 1)))
    with pytest.warns(NeighborsWarning, match="only 5 exist"):
        assert index(X).query(X, 6)[0].shape == (5, 5)


def test_fewer_than_one_neighbour_is_refused():
    with pytest.raises(ValueError, match="Got 0 instead"):
        DenseIndex(points()).self_query(0)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_rows_of_zeros_are_at_cosine_distance_one_from_all_but_each_other(form):
    X = np.vstack([abs(points(30, 12)) + 0.1, np.zeros((2, 12))])
    distances, indices = neighbor_index(form(X), "cosine").self_query(4)
    assert np.isfinite(distances).all()
    np.testing.assert_array_equal(distances[30], [0, 1, 1, 1])
    np.testing.assert_array_equal(indices[30], [31, 0, 1, 2])
    assert (indices[:30] < 30).all()
    np.testing.assert_allclose(neighbor_index(form(X[:30]), "cosine").query(form(X[30:]), 2)[0], 1.0)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_constant_columns_change_nothing(form):
    X = points(80, 12)
    wide = np.hstack([X, np.full((80, 3), 7.0)])
    np.testing.assert_array_equal(neighbor_index(form(wide)).self_query(5)[1], neighbor_index(form(X)).self_query(5)[1])


@pytest.mark.parametrize("factor", [1e-170, 1e-30, 1e30, 1e170])
@pytest.mark.parametrize("index", [*EXACT, "regions", "hnsw", "sparse"])
def test_unit_of_measurement_does_not_matter(index, factor):
    def search(X):
        if index == "sparse":
            return SparseIndex(sparse.csr_matrix(X)).self_query(5)
        return DenseIndex(X, method=index).self_query(5)

    X = points(80, 12)
    plain, scaled = search(X), search(X * factor)
    np.testing.assert_array_equal(scaled[1], plain[1])
    np.testing.assert_allclose(scaled[0], plain[0] * factor, rtol=1e-12)


def test_large_mean_costs_float32_search_no_accuracy():
    X = points(200, 20) + 1e6
    np.testing.assert_array_equal(DenseIndex(X).self_query(5)[1], brute_force(X, X, 5, without_self=True)[1])


def test_far_new_points_still_get_neighbours():
    distances, indices = DenseIndex(points(50, 12)).query(np.full((1, 12), 1e100), 3)
    assert np.isfinite(distances).all()
    assert (indices >= 0).all()


def test_float32_points_are_kept_and_measured_in_float64():
    X = points(60, 12).astype(np.float32)
    index = DenseIndex(X)
    assert index.points.dtype == np.float32
    np.testing.assert_allclose(
        index.self_query(3)[0], brute_force(X.astype(float), X.astype(float), 3, without_self=True)[0], rtol=1e-13
    )


def test_method_follows_columns_and_points(monkeypatch):
    assert DenseIndex(points(50, 5)).method == "kd-tree"
    assert DenseIndex(points(50, 6)).method == "exact"
    monkeypatch.setattr("homophily.graph.dense_index._EXACT_POINTS", 49)
    assert DenseIndex(points(50, 8)).method == "kd-tree"
    assert DenseIndex(points(50, 9)).method == "regions"


@pytest.mark.parametrize("method", ["regions", "hnsw"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_approximate_search_reports_the_recall_it_has(metric, method):
    X = points(3000, 16)
    index = DenseIndex(X, metric, method)
    exact = DenseIndex(X, metric, "exact").self_query(10)
    found = index.self_query(10)
    assert index.recall >= 0.99
    np.testing.assert_allclose(np.mean(found[0] <= exact[0][:, -1:]), index.recall, atol=0.01)


def test_poor_recall_is_reported_with_a_warning(monkeypatch):
    monkeypatch.setattr("homophily.graph.faiss_search._LINKS", 2)
    monkeypatch.setattr("homophily.graph.faiss_search._BUILD_DEPTH", 2)
    monkeypatch.setattr("homophily.graph.dense_index._SEARCH_DEPTHS", (10,))
    with pytest.warns(NeighborsWarning, match="of the nearest points, less than 99%"):
        index = DenseIndex(points(3000, 64), method="hnsw")
    assert 0 < index.recall < 0.99


@pytest.mark.parametrize("method", ["regions", "hnsw"])
def test_approximate_search_is_the_same_to_the_bit_for_any_thread_count(method):
    X = points(9000, 40) * np.linspace(1, 0, 40) ** 4
    first = DenseIndex(X, method=method, n_jobs=1).self_query(8)
    for n_jobs in (1, 2, 4):
        again = DenseIndex(X, method=method, n_jobs=n_jobs).self_query(8)
        np.testing.assert_array_equal(again[1], first[1])
        np.testing.assert_array_equal(again[0], first[0])


@pytest.mark.parametrize("method", ["regions", "hnsw"])
def test_approximate_search_survives_many_copies_of_one_point(method):
    X = np.vstack([np.zeros((500, 12)), points(100, 12)])
    distances, indices = DenseIndex(X, method=method).self_query(10)
    assert (indices >= 0).all()
    assert (distances[:500] == 0).all()
    assert (indices != np.arange(600)[:, None]).all()


@pytest.mark.parametrize("method", ["kd-tree", "exact", "regions", "hnsw", "sparse"])
def test_few_rows_are_searched_by_one_thread_and_to_the_same_bits(method, monkeypatch):
    X = np.random.default_rng(0).normal(size=(300, 6))
    index = SparseIndex(sparse.csr_array(X), n_jobs=2) if method == "sparse" else DenseIndex(X, "euclidean", method, 2)
    asked = []
    monkeypatch.setattr(index_base, "thread_count", lambda n_jobs: asked.append(n_jobs) or n_jobs)
    rows = X[:64] + 0.1
    together = index.query(rows, 5)
    assert set(asked) == {2}
    asked.clear()
    fewer = index.query(rows[:63], 5)
    assert set(asked) == {1}
    for a, b in zip(fewer, together, strict=True):
        assert (a == b[:63]).all()


def test_thread_count_of_faiss_is_restored():
    before = faiss.omp_get_max_threads()
    DenseIndex(points(60, 12), n_jobs=1).self_query(3)
    assert faiss.omp_get_max_threads() == before


@pytest.mark.parametrize(
    "make",
    [
        lambda X: DenseIndex(X, method="hnsw"),
        lambda X: DenseIndex(X, method="regions"),
        DenseIndex,
        lambda X: SparseIndex(sparse.csr_matrix(X)),
    ],
)
def test_pickled_index_searches_the_same(make):
    X = points(400, 12)
    index = make(X)
    expected = index.self_query(5)
    again = pickle.loads(pickle.dumps(index))
    assert again._built is None
    assert again.recall == index.recall
    for a, b in zip(again.self_query(5), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def steep(u=6000, columns=200, rank=12, seed=0):
    """Points near a few directions of a high-dimensional space, as images and embeddings are."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(u, rank)) @ rng.normal(size=(rank, columns)) + 0.02 * rng.normal(size=(u, columns))
    return X.astype(np.float32)


def test_a_steep_spectrum_is_searched_in_few_directions_and_found_exactly():
    X = steep()
    index = DenseIndex(X, method="regions")
    found, exact = index.self_query(10), DenseIndex(X, method="exact").self_query(10)
    assert 16 <= index._layout.directions.shape[1] <= 32
    assert np.mean(found[1] == exact[1]) > 0.995
    new = steep(seed=1)[:50]
    np.testing.assert_allclose(index.query(new, 5)[0], DenseIndex(X, method="exact").query(new, 5)[0], rtol=0.05)


def test_a_flat_spectrum_is_searched_in_all_columns():
    X = points(3000, 64)
    index = DenseIndex(X, method="regions")
    assert index._layout.directions.shape == (64, 0)
    index.self_query(10)
    assert index.recall > 0.99


def test_large_regions_of_copies_are_divided():
    X = np.vstack([np.repeat(points(2, 12), 3000, axis=0), points(500, 12)])
    index = DenseIndex(X, method="regions")
    assert np.bincount(index._layout.regions).max() < 1000
    distances, indices = index.self_query(5)
    assert (distances[:6000] == 0).all()
    assert (indices != np.arange(6500)[:, None]).all()


def test_a_search_far_below_the_wanted_recall_warns(monkeypatch):
    monkeypatch.setattr("homophily.graph.region_search._MOST_COMPARED", 10)
    monkeypatch.setattr("homophily.graph.region_search._VISITED", 1)
    index = DenseIndex(points(6000, 64), method="regions")
    with pytest.warns(NeighborsWarning, match="of the nearest points, less than 99%"):
        index.self_query(10)
    assert 0 < index.recall < 0.99


def test_float32_directions_are_compared_without_a_copy_in_float64():
    X = points(500, 12).astype(np.float32)
    X[3] = 0.0
    X[4] = 2 * X[5]
    index = DenseIndex(X, "cosine")
    assert index.points.dtype == np.float32
    assert index.points.shape == (500, 12)
    distances, indices = index.self_query(4)
    assert (distances[3] == 1).all()
    assert (indices[4, 0], distances[4, 0]) == (5, 0)


def test_a_single_point_has_no_neighbours():
    with pytest.warns(NeighborsWarning, match="only 0 exist"):
        distances, indices = DenseIndex(points(1)).self_query(3)
    assert distances.shape == indices.shape == (1, 0)
    assert DenseIndex(points(1)).query(points(4, seed=1), 1)[1].tolist() == [[0]] * 4


def test_sparse_input_is_left_as_it_was():
    X = sparse.csr_matrix((np.array([2.0, 1.0, 3.0]), np.array([1, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    before = X.copy()
    SparseIndex(X, "cosine").self_query(1)
    np.testing.assert_array_equal(X.indices, before.indices)
    np.testing.assert_array_equal(X.data, before.data)
