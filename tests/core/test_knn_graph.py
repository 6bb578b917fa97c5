import pickle

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from homophily import IRRClassifier
from homophily.exceptions import NeighborsWarning, ParameterError
from homophily.graph.knn_graph import KNNGraph

WEIGHTS = ["local", "self-tuning", "global", "fixed"]


def points(u=60, columns=4, seed=0):
    return np.random.default_rng(seed).normal(size=(u, columns))


def distance_matrix(X, Y=None):
    return np.linalg.norm(X[:, None] - (X if Y is None else Y), axis=2)


def oracle_weights(D, k, weights, q, sigma_x, symmetrize):
    """The formulas of the docstring, pair by pair."""
    u = len(D)
    near = [sorted((j for j in range(u) if j != i), key=lambda j: (D[i, j], j))[:k] for i in range(u)]
    sigma = [D[i, near[i][-1]] for i in range(u)]
    mean = np.mean([D[i, j] ** q for i in range(u) for j in near[i]])
    W = np.zeros((u, u))
    for i in range(u):
        for j in near[i]:
            W[i, j] = {
                "local": np.exp(-4 * (D[i, j] / (sigma_x * sigma[i])) ** q),
                "self-tuning": np.exp(-((D[i, j] ** 2 / (sigma_x**2 * sigma[i] * sigma[j])) ** (q / 2))),
                "global": np.exp(-((D[i, j] / sigma_x) ** q) / mean),
                "fixed": np.exp(-(D[i, j] ** q) / sigma_x**2),
            }[weights]
    return np.maximum(W, W.T) if symmetrize == "max" else (W + W.T) / 2


def assert_sound(W):
    """Symmetric to the bit, zero diagonal, canonical, positive and finite."""
    assert isinstance(W, sparse.csr_array)
    assert W.has_canonical_format
    assert W.indices.dtype == W.indptr.dtype == np.int32
    assert (W != W.T).nnz == 0
    assert not W.diagonal().any()
    assert (W.data > 0).all()
    assert np.isfinite(W.data).all()


@parametrize_with_checks([KNNGraph(n_neighbors=3)])
def test_scikit_learn_conventions_hold(estimator, check):
    check(estimator)


@pytest.mark.parametrize("symmetrize", ["max", "mean"])
@pytest.mark.parametrize("exponent", [1, 2])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights_follow_their_formula(weights, exponent, symmetrize):
    X = points()
    graph = KNNGraph(5, weights=weights, sigma_x=0.8, exponent=exponent, symmetrize=symmetrize).fit(X)
    assert_sound(graph.W)
    expected = oracle_weights(distance_matrix(X), 5, weights, exponent, 0.8, symmetrize)
    np.testing.assert_allclose(graph.W.toarray(), expected, rtol=1e-12)
    np.testing.assert_allclose(graph.degrees, expected.sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_precomputed_distances_give_the_graph_of_the_points(weights, form):
    X = points()
    params = {"n_neighbors": 5, "weights": weights, "sigma_x": 0.8}
    computed = KNNGraph(**params).fit(X)
    given_graph = KNNGraph(metric="precomputed", **params).fit(form(distance_matrix(X)))
    np.testing.assert_allclose(given_graph.W.toarray(), computed.W.toarray(), rtol=1e-12)
    np.testing.assert_array_equal(given_graph.indices_, computed.indices_)
    new = points(7, seed=1)
    for a, b in zip(given_graph.attach(form(distance_matrix(new, X))), computed.attach(new), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert given_graph.index_ is None


def test_sparse_distances_leave_out_strangers_and_keep_stored_zeros():
    # 0 and 1 coincide, 2 is known to 1 alone, 3 knows nobody.
    D = sparse.csr_array(
        (np.array([0.0, 0.0, 2.0, 2.0]), np.array([1, 0, 2, 1]), np.array([0, 1, 3, 4, 4])), shape=(4, 4)
    )
    graph = KNNGraph(n_neighbors=3, metric="precomputed").fit(D)
    assert_sound(graph.W)
    np.testing.assert_allclose(graph.W.toarray()[0], [0, 1, 0, 0])
    np.testing.assert_allclose(graph.W.toarray()[1, 2], np.exp(-4))
    assert graph.degrees[3] == 0
    assert graph.n_components == 2
    np.testing.assert_array_equal(graph.distances_[3], np.inf)
    np.testing.assert_array_equal(
        graph.neighborhoods(2).toarray(), [[1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    )


def test_affinity_is_taken_as_it_is_without_its_diagonal():
    A = np.array([[5.0, 0.5, 0.0], [0.5, 0.0, 0.25], [0.0, 0.25, 1.0]])
    for X in (A, sparse.csr_array(A), sparse.csc_matrix(A)):
        graph = KNNGraph(metric="affinity").fit(X)
        assert_sound(graph.W)
        np.testing.assert_array_equal(graph.W.toarray(), A - np.diag(A.diagonal()))
        assert graph.distances_ is None
    indices, distances, weights = graph.attach(np.array([[0.0, 0.3, 0.7], [0.0, 0.0, 0.0]]))
    np.testing.assert_array_equal(indices, [[2, 1], [0, 0]])
    np.testing.assert_array_equal(weights, [[0.7, 0.3], [0, 0]])
    assert np.isinf(distances).all()
    with pytest.raises(ValueError, match="Neighbourhoods need distances"):
        graph.neighborhoods(2)


def test_sparse_and_dense_points_give_the_same_graph():
    X = points(80, 15)
    X[X < 0.5] = 0
    for metric in ("euclidean", "cosine"):
        dense, stored = (KNNGraph(4, metric).fit(form) for form in (X, sparse.csr_matrix(X)))
        np.testing.assert_allclose(stored.W.toarray(), dense.W.toarray(), rtol=1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), columns=st.sampled_from([3, 12]), weights=st.sampled_from(WEIGHTS))
def test_permuting_the_points_permutes_the_graph(seed, columns, weights):
    X = points(40, columns, seed)
    order = np.random.default_rng(seed).permutation(40)
    graph = KNNGraph(4, weights=weights, sigma_x=1.0)
    expected = graph.fit(X).W.toarray()[np.ix_(order, order)]
    np.testing.assert_allclose(graph.fit(X[order]).W.toarray(), expected, rtol=1e-12)


@pytest.mark.parametrize("factor", [1e-170, 1e-3, 1e3, 1e170])
@pytest.mark.parametrize("weights", ["local", "self-tuning", "global"])
@pytest.mark.parametrize("exponent", [1, 2])
def test_adaptive_weights_do_not_depend_on_the_unit_of_measurement(weights, factor, exponent):
    X = points()
    graph = KNNGraph(5, weights=weights, exponent=exponent)
    np.testing.assert_allclose(graph.fit(X * factor).W.toarray(), graph.fit(X).W.toarray(), rtol=1e-9)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("exponent", [1, 2])
def test_copies_of_a_point_weigh_one_and_make_no_nan(weights, exponent):
    X = np.vstack([np.repeat(points(3), 8, axis=0), points(10, seed=1)])
    graph = KNNGraph(5, weights=weights, sigma_x=1.0, exponent=exponent, symmetrize="max").fit(X)
    assert_sound(graph.W)
    W = graph.W.toarray()
    assert (W[:8, :8][W[:8, :8] > 0] == 1).all()
    assert np.isfinite(graph.laplacian().data).all()
    _, distances, weights_of_new = graph.attach(X[:2])
    assert (distances == 0).all()
    assert (weights_of_new[distances == 0] >= 0.5).all()


@pytest.mark.parametrize("weights", WEIGHTS)
def test_all_points_equal_is_a_graph_of_weight_one(weights):
    graph = KNNGraph(3, weights=weights, sigma_x=1.0, symmetrize="max").fit(np.ones((9, 4)))
    np.testing.assert_array_equal(graph.W.data, 1)
    assert graph.n_components == 1


def test_no_edge_vanishes_by_underflow():
    X = points()
    graph = KNNGraph(5, weights="fixed", sigma_x=1e-9).fit(X)
    assert_sound(graph.W)
    assert graph.W.nnz == KNNGraph(5).fit(X).W.nnz
    for normalized in (True, False):
        assert np.isfinite(graph.laplacian(2, normalized).data).all()


@pytest.mark.parametrize("normalized", [True, False])
def test_laplacian_and_its_powers_equal_the_dense_ones(normalized):
    graph = KNNGraph(4).fit(points())
    W = graph.W.toarray()
    d = W.sum(axis=1)
    dense = np.eye(60) - W / np.sqrt(np.outer(d, d)) if normalized else np.diag(d) - W
    for power in (1, 2, 3, 4):
        L = graph.laplacian(power, normalized)
        assert isinstance(L, sparse.csr_array)
        assert (L != L.T).nnz == 0
        np.testing.assert_allclose(L.toarray(), np.linalg.matrix_power(dense, power), atol=1e-12)
        assert graph.laplacian(power, normalized) is L
    null = np.sqrt(d) if normalized else np.ones(60)
    np.testing.assert_allclose(graph.laplacian(1, normalized) @ null, 0, atol=1e-12)


@pytest.mark.parametrize("power", [0, -1, 1.5, "two"])
def test_laplacian_refuses_powers_that_are_no_positive_integer(power):
    with pytest.raises(ValueError, match="The 'power' parameter of laplacian must be"):
        KNNGraph(4).fit(points()).laplacian(power)


def test_isolated_points_have_zero_rows_in_every_laplacian():
    A = np.zeros((4, 4))
    A[0, 1] = A[1, 0] = 2.0
    graph = KNNGraph(metric="affinity").fit(A)
    assert graph.n_components == 3
    for normalized in (True, False):
        for power in (1, 2):
            L = graph.laplacian(power, normalized).toarray()
            assert np.isfinite(L).all()
            assert not L[2:].any()
    np.testing.assert_allclose(graph.laplacian().toarray()[:2, :2], [[1, -1], [-1, 1]], rtol=1e-15)


def test_components_are_counted_and_labelled():
    X = np.vstack([points(20), points(20, seed=1) + 100])
    graph = KNNGraph(4).fit(X)
    assert graph.n_components == 2
    assert len(np.unique(graph.component_labels[:20])) == len(np.unique(graph.component_labels[20:])) == 1
    assert graph.n_points == 40


def test_a_single_point_is_isolated_and_can_be_attached_to():
    with pytest.warns(NeighborsWarning, match="only 0 exist"):
        graph = KNNGraph().fit(points(1))
    assert graph.n_components == 1
    np.testing.assert_array_equal(graph.laplacian().toarray(), [[0]])
    indices, _, weights = graph.attach(points(2, seed=1))
    assert indices.tolist() == [[0], [0]]
    assert (weights > 0).all()
    assert graph.neighborhoods(1).toarray().tolist() == [[1]]


def test_more_neighbours_than_points_are_cut_with_a_warning():
    with pytest.warns(NeighborsWarning, match="only 4 exist"):
        graph = KNNGraph(n_neighbors=10).fit(points(5))
    assert graph.W.nnz == 20


@pytest.mark.parametrize("symmetrize", ["max", "mean"])
@pytest.mark.parametrize("weights", ["local", "self-tuning", "fixed"])
def test_attached_point_weighs_as_it_would_in_the_graph(weights, symmetrize):
    # A point that comes as nobody else's neighbour leaves the others' σ as they were.
    X = np.vstack([points(40), [[3.5, 3.5, 3.5, 3.5]]])
    params = {"n_neighbors": 4, "weights": weights, "sigma_x": 1.0, "symmetrize": symmetrize}
    whole = KNNGraph(**params).fit(X)
    assert (whole.indices_[:40] != 40).all()
    indices, distances, edge_weights = KNNGraph(**params).fit(X[:40]).attach(X[40:])
    np.testing.assert_array_equal(indices, whole.indices_[40:])
    np.testing.assert_array_equal(distances, whole.distances_[40:])
    np.testing.assert_allclose(edge_weights[0], whole.W[[40]].toarray()[0, indices[0]], rtol=1e-12)


def test_attached_point_uses_the_stored_global_width():
    graph = KNNGraph(4, weights="global", symmetrize="max").fit(points())
    _, distances, weights = graph.attach(points(5, seed=1))
    np.testing.assert_allclose(weights, np.exp(-(distances**2) / np.mean(graph.distances_**2)), rtol=1e-12)


def test_attached_point_inside_the_others_reach_counts_both_ways():
    X = np.arange(6.0)[:, None]
    _, distances, weights = KNNGraph(2, symmetrize="mean").fit(X).attach([[2.25]])
    # Nearest are 2 and 3, both with reach 1; the new point's own reach is 0.75.
    np.testing.assert_allclose(distances, [[0.25, 0.75]])
    expected = [(np.exp(-4 * d**2 / 0.75**2) + np.exp(-4 * d**2)) / 2 for d in (0.25, 0.75)]
    np.testing.assert_allclose(weights, [expected])


def test_neighborhoods_hold_each_point_and_its_nearest():
    X = points()
    for graph in (KNNGraph(3).fit(X), KNNGraph(3, "precomputed").fit(distance_matrix(X))):
        mask = graph.neighborhoods(8)
        assert mask.has_canonical_format
        expected = np.argsort(distance_matrix(X), axis=1)[:, :8]
        np.testing.assert_array_equal(mask.indices.reshape(60, 8), np.sort(expected, axis=1))
        np.testing.assert_array_equal(mask.data, 1)
    np.testing.assert_array_equal(graph.neighborhoods(1).toarray(), np.eye(60))


def test_fit_repeats_to_the_bit_for_any_thread_count():
    for columns in (4, 20):
        X = points(500, columns)
        first = KNNGraph(n_jobs=1).fit(X)
        for n_jobs in (1, 2, None):
            again = KNNGraph(n_jobs=n_jobs).fit(X)
            np.testing.assert_array_equal(again.W.data, first.W.data)
            np.testing.assert_array_equal(again.W.indices, first.W.indices)
            np.testing.assert_array_equal(again.laplacian(2).data, first.laplacian(2).data)


def test_large_data_report_the_recall_of_their_search(monkeypatch):
    monkeypatch.setattr("homophily.graph.dense_index._EXACT_POINTS", 100)
    graph = KNNGraph().fit(points(1500, 12))
    assert graph.index_.method == "regions"
    assert 0.99 <= graph.recall_ <= 1
    assert KNNGraph().fit(points()).recall_ == 1


@pytest.mark.parametrize("limit", [100, 10_000])
def test_a_callback_follows_the_search_and_may_cancel_it(limit, monkeypatch):
    monkeypatch.setattr("homophily.graph.dense_index._EXACT_POINTS", limit)
    X, shares = points(9000, 12), []
    KNNGraph().fit(X, callback=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 3

    def cancel(share):
        if share > 0.3:
            raise KeyboardInterrupt

    graph = KNNGraph()
    with pytest.raises(KeyboardInterrupt):
        graph.fit(X, callback=cancel)
    with pytest.raises(NotFittedError):
        _ = graph.W


def test_images_of_bytes_are_kept_in_float32():
    X = np.random.default_rng(0).integers(256, size=(300, 20)).astype(np.uint8)
    graph, wide = KNNGraph().fit(X), KNNGraph().fit(X.astype(np.float64))
    assert graph.index_.points.dtype == np.float32
    np.testing.assert_array_equal(graph.indices_, wide.indices_)
    np.testing.assert_array_equal(graph.attach(X[:5])[0], wide.attach(X[:5].astype(np.float64))[0])


def test_graph_survives_pickle_joblib_and_clone(tmp_path):
    X, new = points(60, 12), points(5, 12, seed=1)
    graph = KNNGraph(4, weights="self-tuning").fit(X)
    graph.laplacian(2)
    joblib.dump(graph, tmp_path / "graph")
    for again in (pickle.loads(pickle.dumps(graph)), joblib.load(tmp_path / "graph")):
        assert not again._laplacians
        np.testing.assert_array_equal(again.laplacian(2).toarray(), graph.laplacian(2).toarray())
        for a, b in zip(again.attach(new), graph.attach(new), strict=True):
            np.testing.assert_array_equal(a, b)
    fresh = clone(graph)
    assert fresh.get_params() == graph.get_params()
    with pytest.raises(NotFittedError):
        _ = fresh.W


def test_the_metric_is_that_of_the_kind_of_points():
    X = points()
    for form, metric in ((np.asarray, "euclidean"), (sparse.csr_array, "cosine"), (sparse.csc_matrix, "cosine")):
        graph, named = KNNGraph(4).fit(form(X)), KNNGraph(4, metric).fit(form(X))
        assert (graph.metric, graph.metric_, named.metric_) == ("auto", metric, metric)
        assert graph.resolved_params_ == named.resolved_params_ == {**graph.get_params(), "metric": metric}
        np.testing.assert_array_equal(graph.W.toarray(), named.W.toarray())
        for a, b in zip(graph.attach(form(X[:5])), named.attach(form(X[:5])), strict=True):
            np.testing.assert_array_equal(a, b)
    assert graph.fit(X).metric_ == "euclidean"


def test_sparse_points_have_more_neighbours_by_default():
    X = np.abs(points(60, 12))
    for form, k in ((np.asarray, 10), (sparse.csr_array, 20)):
        graph, named = KNNGraph().fit(form(X)), KNNGraph(n_neighbors=k).fit(form(X))
        assert (graph.n_neighbors, graph.n_neighbors_) == (None, k)
        assert graph.indices_.shape == (60, k)
        assert graph.resolved_params_ == named.resolved_params_ == {**graph.get_params(), **named.resolved_params_}
        np.testing.assert_array_equal(graph.W.toarray(), named.W.toarray())
    distances = sparse.csr_array(np.abs(X[:, :1] - X[:, 0]))
    assert KNNGraph(metric="precomputed").fit(distances).n_neighbors_ == 10


def test_the_default_number_of_neighbours_agrees_with_a_graph_of_that_number_only():
    X, y = sparse.csr_array(np.abs(points(60, 12))), np.r_[0, 1, np.full(58, -1)]
    IRRClassifier(graph=KNNGraph()).fit(KNNGraph(n_neighbors=20).fit(X), y)
    with pytest.raises(ParameterError, match="n_neighbors=20, but X has n_neighbors=10"):
        IRRClassifier(graph=KNNGraph()).fit(KNNGraph(n_neighbors=10).fit(X), y)


def test_refit_forgets_the_old_graph():
    graph = KNNGraph(4).fit(points())
    old = graph.laplacian()
    assert graph.fit(points(seed=1)).laplacian() is not old
    assert graph.set_params(metric="affinity").fit(np.ones((3, 3))).index_ is None


def test_data_frames_integers_and_float32_are_points_too():
    pandas = pytest.importorskip("pandas")
    X = np.random.default_rng(0).integers(0, 1000, size=(50, 12))
    expected = KNNGraph(4).fit(X.astype(float)).W.toarray()
    frame = pandas.DataFrame(X, columns=[f"c{i}" for i in range(12)])
    for form in (X, frame, X.astype(np.float32), X.astype(np.int16)):
        np.testing.assert_allclose(KNNGraph(4).fit(form).W.toarray(), expected, rtol=1e-12)
    assert KNNGraph(4).fit(frame).attach(frame[:3])[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("params", "X", "message"),
    [
        ({}, np.array([[0.0, np.nan]] * 3), "contains NaN"),
        ({}, np.array([[0.0, np.inf]] * 3), "infinity"),
        ({}, np.ones((3, 2), dtype=complex), "Complex data not supported"),
        ({}, np.empty((0, 2)), "0 sample"),
        ({"metric": "precomputed"}, np.ones((3, 2)), r"'X' parameter of KNNGraph must be square.*\(3, 2\)"),
        ({"metric": "precomputed"}, -np.ones((3, 3)), "no negative entry with metric='precomputed'"),
        ({"metric": "precomputed"}, sparse.csr_array(-np.ones((3, 3))), "no negative entry"),
        ({"metric": "precomputed"}, np.full((3, 3), np.nan), "contains NaN"),
        ({"metric": "affinity"}, -np.ones((3, 3)), "no negative entry with metric='affinity'"),
        ({"metric": "affinity"}, np.triu(np.ones((3, 3))), "must be symmetric"),
        ({"n_neighbors": 0}, points(), "The 'n_neighbors' parameter of KNNGraph must be"),
        ({"n_neighbors": 2.5}, points(), "The 'n_neighbors' parameter of KNNGraph must be"),
        ({"metric": "manhattan"}, points(), "The 'metric' parameter of KNNGraph must be"),
        ({"weights": "heavy"}, points(), "The 'weights' parameter of KNNGraph must be"),
        ({"weights": "fixed"}, points(), "The 'sigma_x' parameter of KNNGraph must be given"),
        ({"weights": "fixed", "sigma_x": 0}, points(), "The 'sigma_x' parameter of KNNGraph must be"),
        ({"exponent": 3}, points(), "The 'exponent' parameter of KNNGraph must be"),
        ({"symmetrize": "min"}, points(), "The 'symmetrize' parameter of KNNGraph must be"),
    ],
)
def test_bad_input_is_refused_by_name(params, X, message):
    with pytest.raises(ValueError, match=message):
        KNNGraph(**params).fit(X)


def test_attach_refuses_points_of_another_width():
    with pytest.raises(ValueError, match="X has 3 features, but KNNGraph is expecting 4"):
        KNNGraph(3).fit(points()).attach(points(5, 3))
