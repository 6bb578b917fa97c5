"""The space in which near points are looked for: principal directions, whitened or not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA

from homophily import ERRClassifier, ERREmbedding, KNNGraph
from homophily.graph.coordinates import MOST_COLUMNS, PRINCIPAL_DIRECTIONS, Space
from homophily.storage import State, classifier_state, graph_state, restore_classifier, restore_graph


def stretched(points=200, columns=70, seed=0):
    """Points that vary more along some columns than along others, far from the origin."""
    rng = np.random.default_rng(seed)
    return 100.0 + rng.normal(size=(points, columns)) * np.geomspace(10.0, 0.1, columns)


def nearest(distances, k):
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1)


def test_principal_distances_are_those_of_principal_components():
    X = stretched()
    graph = KNNGraph(n_neighbors=7, space="principal").fit(X)
    seen = PCA(PRINCIPAL_DIRECTIONS, svd_solver="full").fit_transform(X)
    assert_allclose(graph.distances_, nearest(cdist(seen, seen), 7), rtol=1e-8)


def test_whitened_distances_are_mahalanobis_distances():
    X = stretched(columns=12)
    graph = KNNGraph(n_neighbors=7, space="whitened").fit(X)
    inverse = np.linalg.inv(np.cov(X.T, bias=True))
    assert_allclose(graph.distances_, nearest(cdist(X, X, "mahalanobis", VI=inverse), 7), rtol=1e-7)


@pytest.mark.parametrize("space", ["principal", "whitened"])
def test_fewer_directions_may_count(space):
    X = stretched()
    seen = PCA(9, svd_solver="full", whiten=space == "whitened").fit_transform(X)
    # scikit-learn divides variances by one point less.
    seen *= np.sqrt(200 / 199) if space == "whitened" else 1.0
    graph = KNNGraph(n_neighbors=7, space=space, n_directions=9).fit(X)
    assert_allclose(graph.distances_, nearest(cdist(seen, seen), 7), rtol=1e-8)
    model = ERRClassifier(graph=KNNGraph(space=space, n_directions=9)).fit(
        X, np.where(np.arange(200) < 20, np.arange(200) % 2, -1)
    )
    assert_array_equal(model.predict(X), model.transduction_)


def test_points_as_they_come_have_no_directions():
    with pytest.raises(ValueError, match="'n_directions' parameter of KNNGraph must be None with space='input'"):
        KNNGraph(n_directions=9).fit(stretched())


def test_few_columns_are_only_turned():
    X = stretched(columns=5)
    assert_allclose(KNNGraph(space="principal").fit(X).distances_, KNNGraph().fit(X).distances_, rtol=1e-9)


def test_whitening_leaves_out_columns_that_say_the_same_or_nothing():
    X = stretched(columns=4)
    more = np.column_stack([X, X[:, 0], np.full(len(X), 7.0)])
    wide = KNNGraph(space="whitened").fit(more)
    assert wide.index_.points.shape[1] == 4
    assert_allclose(wide.distances_, KNNGraph(space="whitened").fit(X).distances_, rtol=1e-6)


@pytest.mark.parametrize("space", ["principal", "whitened"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_stored_point_has_distance_zero_alone_and_among_others(space, dtype):
    X = stretched().astype(dtype)
    graph = KNNGraph(space=space).fit(X)
    assert graph.index_.points.dtype == dtype
    together = graph.attach(X)
    assert_array_equal(together[1][:, 0], 0.0)
    for i in (0, 17):
        alone = graph.attach(X[i : i + 1])
        assert alone[0][0, 0] == i
        assert alone[1][0, 0] == 0.0


def test_points_that_are_all_one_are_legal():
    graph = KNNGraph(n_neighbors=3, space="whitened").fit(np.full((10, 4), 2.5))
    assert_array_equal(graph.distances_, 0.0)


def test_classes_hidden_in_a_direction_of_little_variance_are_found():
    rng = np.random.default_rng(3)
    y = np.arange(400) % 2
    X = 30.0 * rng.normal(size=(400, 6))
    X[:, 2] = 3.0 * y + 0.3 * rng.normal(size=400)
    few = np.where(np.arange(400) < 40, y, -1)

    def error(space):
        return np.mean(ERRClassifier(graph=KNNGraph(n_neighbors=20, space=space)).fit(X, few).transduction_ != y)

    assert error("whitened") < 0.1 < 0.3 < error("input")


@pytest.mark.parametrize("space", ["principal", "whitened"])
def test_angles_are_seen_from_the_mean_of_the_points(space):
    X = stretched(columns=12)
    seen = PCA(5, svd_solver="full", whiten=space == "whitened").fit_transform(X)
    graph = KNNGraph(n_neighbors=7, metric="cosine", space=space, n_directions=5).fit(X)
    assert_allclose(graph.distances_, nearest(cdist(seen, seen, "cosine"), 7), rtol=1e-6, atol=1e-12)
    assert_array_equal(graph.attach(X)[1][:, 0], 0.0)


def test_sparse_points_and_other_metrics_are_refused():
    X = stretched(20, 3)
    for metric, wrong in ("euclidean", csr_array(X)), ("precomputed", cdist(X, X)):
        with pytest.raises(ValueError, match="'space' parameter of KNNGraph must be 'input' unless"):
            KNNGraph(n_neighbors=2, metric=metric, space="principal").fit(wrong)


def test_variances_and_columns_beyond_what_can_be_computed_are_refused():
    with pytest.raises(ValueError, match="finite variances"):
        Space.learn(np.array([[1e200], [-1e200]]), "principal")
    with pytest.raises(ValueError, match="for more than"):
        Space.learn(np.zeros((2, MOST_COLUMNS + 1), dtype=np.float32), "whitened")


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("space", ["principal", "whitened"])
def test_stored_graphs_and_models_answer_the_same(space, metric):
    X = stretched()
    y = (X[:, 0] > 100.0).astype(int)
    few = np.where(np.arange(len(y)) < 30, y, -1)
    model = ERRClassifier(graph=KNNGraph(space=space, metric=metric)).fit(X, few)
    arrays, document = graph_state(model.graph_)
    restored = restore_classifier(classifier_state(model), restore_graph(State(arrays, document)))
    new = X + 0.01
    assert_array_equal(restored.decision_function(new), model.decision_function(new))
    with pytest.raises(ValueError, match="space_origin"):
        restore_graph(State({**arrays, "space_origin": arrays["space_origin"][1:]}, document))


def test_maps_take_the_space_as_well():
    X = stretched(60, 60)
    model = ERREmbedding(graph=KNNGraph(n_neighbors=5, space="principal", symmetrize="max"), max_iter=2).fit(
        X, must_link=[(0, 1)], cannot_link=[(0, 2)]
    )
    assert model.graph_.index_.points.shape[1] == PRINCIPAL_DIRECTIONS
    assert model.transform(X[:3]).shape == (3, 2)
