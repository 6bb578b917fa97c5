"""Spectral vectors against LAPACK and closed forms, and the map made of them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from scipy.sparse import block_diag, coo_array, csr_array
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import homophily.graph.spectral as module
from homophily import KNNGraph, SpectralEmbedding
from homophily.exceptions import DisconnectedGraphWarning
from homophily.graph.spectral import smallest_eigenpairs, spectral_coordinates, spectral_vectors

from . import oracle

both_forms = pytest.mark.parametrize("normalized", [True, False])


def ring(u):
    i = np.arange(u)
    half = coo_array((np.ones(u), (i, (i + 1) % u)), shape=(u, u)).tocsr()
    return csr_array(half + half.T)


def path(u):
    i = np.arange(u - 1)
    half = coo_array((np.ones(u - 1), (i, i + 1)), shape=(u, u)).tocsr()
    return csr_array(half + half.T)


def check_pairs(W, values, vectors, *, normalized=True, atol=1e-7):
    L = oracle.laplacian(W, normalized=normalized)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(values)), atol=1e-10)
    np.testing.assert_allclose(L @ vectors, vectors * values, atol=atol * max(1.0, abs(L).max()))
    exact = np.linalg.eigvalsh(L.toarray())[: len(values)]
    np.testing.assert_allclose(values, exact, atol=1e-9 * max(1.0, abs(L).max()))


@both_forms
@pytest.mark.parametrize("u", [30, 700])
@pytest.mark.parametrize("n", [1, 2, 11])
def test_eigenpairs_are_those_of_lapack(u, n, normalized):
    W = oracle.knn_weights(u, k=6, seed=u + n)
    values, vectors = spectral_vectors(W, n, normalized=normalized)
    check_pairs(W, values, vectors, normalized=normalized)
    assert values[0] == 0.0


@both_forms
@pytest.mark.parametrize("u", [60, 900])
def test_components_are_parted_exactly_and_large_ones_first(u, normalized):
    small, large, middle = ring(u // 10), ring(u), ring(u // 2)
    W = csr_array(block_diag([small, large, middle]))
    values, vectors = spectral_vectors(W, 5, normalized=normalized)
    check_pairs(W, values, vectors, normalized=normalized)
    assert (values[:3] == 0.0).all()
    assert values[3] > 0.0
    part = np.repeat([0, 1, 2], [u // 10, u, u // 2])
    first, second = vectors[:, 1], vectors[:, 2]
    for vector in (first, second):
        assert all(np.ptp(vector[part == p]) < 1e-12 for p in range(3))
    assert np.abs(first[part == 0]).max() < 1e-12
    assert first[part == 2].min() > 0.0 > first[part == 1].max()
    assert second[part == 0].min() > 0.0 > second[part != 0].max()


@both_forms
@pytest.mark.parametrize("u", [40, 600])
def test_isolated_points_are_components_of_their_own(u, normalized):
    W = oracle.knn_weights(u, isolated=3)
    values, vectors = spectral_vectors(W, 6, normalized=normalized)
    check_pairs(W, values, vectors, normalized=normalized)
    assert (values[:4] == 0.0).all()
    if normalized:
        # No degree, so no share in the constant vector.
        assert (vectors[-3:, 0] == 0.0).all()


def test_nothing_but_isolated_points_has_a_map_too():
    values, vectors = spectral_vectors(csr_array((5, 5)), 5)
    assert (values == 0.0).all()
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(5), atol=1e-12)


@pytest.mark.parametrize("u", [50, 2001])
def test_double_eigenvalues_are_both_found(u):
    # On a ring every eigenvalue but the first is double: 1 − cos(2πj/u).
    values, vectors = spectral_vectors(ring(u), 7)
    expected = 1 - np.cos(2 * np.pi * np.array([0, 1, 1, 2, 2, 3, 3]) / u)
    np.testing.assert_allclose(values, expected, atol=1e-12)
    angle = 2 * np.pi * np.arange(u) / u
    plane = np.column_stack([np.cos(angle), np.sin(angle)])
    assert subspace_angles(vectors[:, 1:3], plane).max() < 1e-6


def test_a_complete_graph_has_one_eigenvalue_many_times():
    u = 450
    values, vectors = spectral_vectors(csr_array(np.ones((u, u)) - np.eye(u)), 4)
    np.testing.assert_allclose(values, [0.0, *[u / (u - 1)] * 3], rtol=1e-9)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(4), atol=1e-10)


def test_a_long_path_needs_no_long_time():
    u = 20_000
    values, vectors = spectral_vectors(path(u), 4, normalized=False)
    exact = 2 - 2 * np.cos(np.pi * np.arange(4) / u)
    np.testing.assert_allclose(values, exact, rtol=1e-6, atol=1e-15)
    cosine = np.cos(np.pi * (np.arange(u) + 0.5) / u)
    assert abs(vectors[:, 1] @ cosine) / np.linalg.norm(cosine) == pytest.approx(1.0, abs=1e-9)


def test_the_filters_agree(monkeypatch):
    W = oracle.knn_weights(1500, k=8)
    L = oracle.laplacian(W)
    root = np.sqrt(W.sum(axis=1))
    known = csr_array((root / np.linalg.norm(root))[:, None])
    found = {}
    for method in ("cg", "direct"):
        monkeypatch.setattr(module, "choose_method", lambda *_, method=method: method)
        found[method] = smallest_eigenpairs(L, 4, known=known)
    monkeypatch.setattr(module, "DENSE_POINTS", 10_000)
    found["dense"] = smallest_eigenpairs(L, 4, known=known)
    for method in ("cg", "direct"):
        np.testing.assert_allclose(found[method][0], found["dense"][0], rtol=1e-8)
        np.testing.assert_allclose(found[method][1], found["dense"][1], atol=1e-5)


def test_an_indefinite_matrix_keeps_its_negative_eigenvalues():
    rng = np.random.default_rng(0)
    W = oracle.knn_weights(800, k=5)
    signs = csr_array(W * (rng.random(W.shape) < 0.5))
    A = csr_array(oracle.laplacian(W) - 2 * (signs + signs.T))
    A.sort_indices()
    values, vectors = smallest_eigenpairs(A, 3, semidefinite=False)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(A.toarray())[:3], rtol=1e-9)
    assert values[0] < -0.1
    np.testing.assert_allclose(A @ vectors, vectors * values, atol=1e-5)


def test_failing_to_converge_is_told(monkeypatch):
    monkeypatch.setattr("homophily.graph.subspace.MAX_ROUNDS", 1)
    with pytest.warns(ConvergenceWarning, match="eigenvectors are accurate to"):
        spectral_vectors(oracle.knn_weights(600), 3)


def test_the_result_does_not_depend_on_threads_or_repetition():
    X = np.random.default_rng(0).normal(size=(8_000, 5))
    graph = KNNGraph().fit(X)
    one, two, again = (spectral_vectors(graph, 4, n_jobs=jobs)[1] for jobs in (1, 2, 2))
    assert (one == two).all()
    assert (two == again).all()


@pytest.mark.parametrize("u", [50, 700])
def test_the_largest_entry_of_a_vector_is_positive(u):
    _, vectors = spectral_vectors(oracle.knn_weights(u), 6)
    largest = np.abs(vectors).argmax(axis=0)
    assert (vectors[largest, np.arange(6)] > 0).all()


def test_tiny_weights_between_clusters_do_no_harm():
    A = oracle.knn_weights(300)
    W = block_diag([A, A]).tolil()
    W[0, 300] = W[300, 0] = 1e-250
    values, vectors = spectral_vectors(csr_array(W), 3)
    check_pairs(csr_array(W), values, vectors)
    side = np.sign(vectors[:, 1] / np.sqrt(np.asarray(W.sum(axis=1)).ravel()))
    assert abs(side[:300].sum()) == abs(side[300:].sum()) == 300
    assert side[0] != side[300]


@pytest.mark.parametrize("n", [0, 31])
def test_an_impossible_number_of_vectors_is_refused(n):
    with pytest.raises(ValueError, match=r"The 'n' parameter of spectral_vectors must be between 1 and .* 30"):
        spectral_vectors(oracle.knn_weights(30), n)


def test_every_vector_can_be_had():
    W = oracle.knn_weights(30)
    values, vectors = spectral_vectors(W, 30)
    check_pairs(W, values, vectors)


# -- the estimator -----------------------------------------------------------------------------------------------


@parametrize_with_checks([SpectralEmbedding(n_components=1, graph=KNNGraph(n_neighbors=5))])
@pytest.mark.filterwarnings("ignore::homophily.exceptions.DisconnectedGraphWarning")
def test_scikit_learn_conventions_hold(estimator, check):
    check(estimator)


def moons(u=200):
    return make_moons(u, noise=0.15, random_state=0)[0]


@both_forms
def test_the_map_is_the_eigenvectors_in_unit_variance(normalized):
    model = SpectralEmbedding(n_components=3, normalized=normalized).fit(moons())
    _, vectors = spectral_vectors(model.graph_, 4, normalized=normalized)
    np.testing.assert_array_equal(model.embedding_, vectors[:, 1:] * np.sqrt(200))
    np.testing.assert_allclose((model.embedding_**2).mean(axis=0), 1.0)
    assert model.eigenvalues_.shape == (4,)
    np.testing.assert_array_equal(
        SpectralEmbedding(n_components=3, normalized=normalized).fit_transform(moons()), model.embedding_
    )


def test_a_graph_may_stand_for_its_points():
    X = moons()
    graph = KNNGraph(n_neighbors=7).fit(X)
    model = SpectralEmbedding().fit(graph)
    assert model.graph_ is graph
    np.testing.assert_array_equal(model.embedding_, SpectralEmbedding(graph=KNNGraph(n_neighbors=7)).fit(X).embedding_)
    np.testing.assert_allclose(model.transform(X[:5]), model.embedding_[:5])


def test_components_are_told_with_their_number():
    X = np.vstack([moons(), moons() + 100])
    with pytest.warns(DisconnectedGraphWarning, match="2 connected components: 1 of the 2 coordinates") as told:
        model = SpectralEmbedding().fit(X)
    assert told[0].filename == __file__
    side = model.embedding_[:, 0] > 0
    assert side[:200].all() != side[200:].all()
    assert (side[:200] == side[0]).all()
    assert (side[200:] == side[200]).all()


@both_forms
def test_a_stored_point_is_where_it_was_and_a_new_one_among_its_neighbours(normalized):
    X = moons(400)
    model = SpectralEmbedding(normalized=normalized).fit(X)
    np.testing.assert_array_equal(model.transform(X), model.embedding_)
    rng = np.random.default_rng(0)
    near = model.transform(X + 0.01 * rng.normal(size=X.shape))
    assert np.sqrt(((near - model.embedding_) ** 2).mean()) < 0.25
    far = model.transform(np.array([[50.0, 50.0]]))
    assert np.isfinite(far).all()


def test_a_held_out_point_lands_where_the_whole_map_has_it():
    X = moons(1000)
    whole = SpectralEmbedding().fit(X).embedding_
    part = SpectralEmbedding().fit(X[:900])
    placed = part.transform(X[900:])
    # The map of fewer points is the same one up to signs.
    signs = np.sign((part.embedding_ * whole[:900]).sum(axis=0))
    assert np.sqrt(((placed * signs - whole[900:]) ** 2).mean()) < 0.25


def test_sparse_precomputed_and_affinity_input_give_the_same_map():
    X = moons()
    graph = KNNGraph().fit(X)
    expected = SpectralEmbedding().fit(X).embedding_
    np.testing.assert_allclose(
        SpectralEmbedding(graph=KNNGraph(10, "euclidean")).fit(csr_array(X)).embedding_, expected, atol=1e-8
    )
    np.testing.assert_allclose(
        SpectralEmbedding(graph=KNNGraph(metric="affinity")).fit(graph.W).embedding_, expected, atol=1e-8
    )
    distances = np.linalg.norm(X[:, None] - X, axis=2)
    precomputed = SpectralEmbedding(graph=KNNGraph(metric="precomputed")).fit(distances)
    np.testing.assert_allclose(precomputed.embedding_, expected, atol=1e-6)
    np.testing.assert_allclose(precomputed.transform(distances[:3]), expected[:3], atol=1e-6)


def test_too_many_components_are_refused():
    with pytest.raises(ValueError, match="The 'n_components' parameter of SpectralEmbedding must be smaller than"):
        SpectralEmbedding(n_components=5, graph=KNNGraph(n_neighbors=2)).fit(moons()[:5])


def test_the_map_is_stored_cloned_and_asked_for_only_when_there():
    X = moons()
    model = SpectralEmbedding().fit(X)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.transform(X[:9] + 0.1), model.transform(X[:9] + 0.1))
    with pytest.raises(NotFittedError):
        clone(model).transform(X)
    assert model.get_feature_names_out().tolist() == ["spectralembedding0", "spectralembedding1"]


def test_the_plain_function_gives_what_the_estimator_has():
    graph = KNNGraph().fit(moons())
    values, T = spectral_coordinates(graph, 2)
    model = SpectralEmbedding().fit(graph)
    np.testing.assert_array_equal(T, model.embedding_)
    np.testing.assert_array_equal(values, model.eigenvalues_)
