"""ERRClustering: clusters that obey links."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_blobs, make_moons
from sklearn.utils.estimator_checks import parametrize_with_checks

from benchmarks.link_sets import dominant_label_error
from homophily import ContradictingLinksWarning, DisconnectedGraphWarning, ERRClustering, KNNGraph
from homophily.estimators.clustering import default_embedding
from homophily.supervision.links import draw_links


def quick(**parameters):
    """The map of clusters by default, with other parameters."""
    return default_embedding().set_params(**parameters)


@parametrize_with_checks(
    [ERRClustering(n_clusters=2, embedding=quick(graph__n_neighbors=3, max_iter=5), random_state=0)]
)
def test_scikit_learn_conventions_hold(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContradictingLinksWarning)
        warnings.simplefilter("ignore", DisconnectedGraphWarning)
        check(estimator)


def test_links_correct_what_the_graph_alone_gets_wrong():
    X, y = load_iris(return_X_y=True)
    links = draw_links(y, 250, 250, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DisconnectedGraphWarning)
        graph = KNNGraph(symmetrize="max").fit(X)
        alone = ERRClustering(3, random_state=0).fit(graph)
        linked = ERRClustering(3, random_state=0).fit(graph, must_link=links.must, cannot_link=links.cannot)
    assert dominant_label_error(alone.labels_, y) > 0.05
    assert dominant_label_error(linked.labels_, y) == 0.0
    assert len(linked.divided_must_) == len(linked.joined_cannot_) == 0


def test_number_of_clusters_is_suggested_by_the_gap():
    X, y = make_blobs(300, centers=4, n_features=10, random_state=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DisconnectedGraphWarning)
        clusters = ERRClustering(random_state=0).fit(X)
    assert clusters.n_clusters_ == 4
    assert dominant_label_error(clusters.labels_, y) < 0.02


def test_links_that_no_cluster_obeys_are_listed():
    X, _ = make_moons(100, noise=0.05, random_state=0)
    clusters = ERRClustering(2, embedding=quick(link_penalty__weight=0.0, link_penalty__edges=0.0), random_state=0)
    clusters.fit(X, must_link=[(0, 1), (2, 3)], cannot_link=[(4, 5), (6, 7)])
    together = clusters.labels_[[0, 2, 4, 6]] == clusters.labels_[[1, 3, 5, 7]]
    assert len(clusters.divided_must_) == np.count_nonzero(~together[:2])
    assert len(clusters.joined_cannot_) == np.count_nonzero(together[2:])


def test_labels_are_numbered_by_appearance_and_repeat():
    X, _ = make_moons(100, noise=0.05, random_state=0)
    one, two = (ERRClustering(2, random_state=seed).fit_predict(X, must_link=[(0, 5)]) for seed in (0, 0))
    assert np.array_equal(one, two)
    assert one[0] == 0


def test_more_clusters_than_points_are_refused():
    with pytest.raises(ValueError, match="The 'n_clusters' parameter of ERRClustering must be smaller"):
        ERRClustering(20).fit(np.random.default_rng(0).normal(size=(20, 2)))


def test_parameters_of_the_map_are_set_by_their_names():
    X, _ = make_moons(100, noise=0.05, random_state=0)
    clusters = ERRClustering(2, random_state=0)
    clusters.set_params(embedding__graph__n_neighbors=7, embedding__link_penalty__weight=5.0, embedding__max_iter=3)
    assert clusters.embedding.lambda2 == default_embedding().lambda2
    clusters.fit(X, must_link=[(0, 5)])
    assert (clusters.map_.graph_.n_neighbors, clusters.map_.max_iter, clusters.map_.link_penalty.weight) == (7, 3, 5.0)
    assert not hasattr(clusters.embedding, "embedding_")


def test_the_map_that_was_divided_is_there():
    X, _ = make_moons(100, noise=0.05, random_state=0)
    clusters = ERRClustering(2, n_components=3, random_state=0).fit(X, must_link=[(0, 5)])
    assert clusters.map_.embedding_ is clusters.embedding_
    assert clusters.embedding_.shape == (100, 3)
    assert clusters.map_.graph_ is clusters.graph_
    assert clusters.graph_.symmetrize == "max"
    assert np.isfinite(clusters.map_.energy_)
    assert clusters.map_.n_iter_ > 0
    assert clusters.links_.must.tolist() == [[0, 5]]
    np.testing.assert_array_equal(clusters.transform(X[:5]), clusters.embedding_[:5])


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ({"n_components": 100}, {}),
        ({}, {"cannot_link": [(3, 999)]}),
        ({}, {"init": np.zeros((100, 5))}),
    ],
)
def test_messages_name_the_estimator_that_was_called(parameters, arguments):
    X, _ = make_moons(100, noise=0.05, random_state=0)
    with pytest.raises(ValueError, match="parameter of ERRClustering"):
        ERRClustering(2, **parameters).fit(X, **arguments)


def test_names_of_columns_are_kept():
    pandas = pytest.importorskip("pandas")
    X, _ = make_moons(100, noise=0.05, random_state=0)
    clusters = ERRClustering(2, random_state=0).fit(pandas.DataFrame(X, columns=["a", "b"]))
    assert clusters.feature_names_in_.tolist() == ["a", "b"]
    assert clusters.n_features_in_ == 2
