"""Clusters from coordinates, and their measures."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import make_blobs

from benchmarks.link_sets import dominant_label_error
from homophily import KNNGraph
from homophily.estimators.partition import (
    in_order_of_appearance,
    kmeans_by_cut,
    normalized_cut,
    suggest_n_clusters,
)
from homophily.graph.spectral import spectral_vectors


def test_the_normalised_cut_is_what_its_definition_says():
    rng = np.random.default_rng(0)
    W = rng.random((12, 12)) * (rng.random((12, 12)) < 0.4)
    W = W + W.T
    np.fill_diagonal(W, 0)
    labels = rng.integers(0, 3, size=12)
    expected = sum(W[labels == c][:, labels != c].sum() / W[labels == c].sum() for c in range(3))
    assert normalized_cut(csr_array(W), labels) == pytest.approx(expected, rel=1e-12)


def test_a_division_by_components_cuts_nothing():
    W = csr_array(np.kron(np.eye(3), np.ones((4, 4)) - np.eye(4)))
    assert normalized_cut(W, np.repeat([5, 1, 9], 4)) == 0.0
    assert normalized_cut(csr_array((3, 3)), [0, 1, 1]) == 0.0


def test_kmeans_finds_blobs_and_repeats_itself():
    X, y = make_blobs(300, centers=4, cluster_std=0.4, random_state=1)
    W = KNNGraph().fit(X).W
    labels = kmeans_by_cut(X, 4, W, random_state=0)
    assert dominant_label_error(labels, y) == 0.0
    np.testing.assert_array_equal(labels, kmeans_by_cut(X, 4, W, random_state=0))
    np.testing.assert_array_equal(labels, in_order_of_appearance(labels))


def test_the_start_with_the_smallest_cut_is_chosen():
    # Six groups in a ring: many starts of k-means end in poor divisions into six.
    X, _ = make_blobs(240, centers=[(np.cos(a), np.sin(a)) for a in np.arange(6)], cluster_std=0.1, random_state=0)
    W = KNNGraph().fit(X).W
    chosen = normalized_cut(W, kmeans_by_cut(X, 6, W, n_init=20, random_state=3))
    singles = [normalized_cut(W, kmeans_by_cut(X, 6, W, n_init=1, random_state=seed)) for seed in range(20)]
    assert chosen <= np.median(singles)
    assert chosen <= min(singles) * 1.05


def test_clusters_are_numbered_by_their_first_point():
    assert in_order_of_appearance(np.array([5, 5, 2, 7, 2])).tolist() == [0, 0, 1, 2, 1]


def test_the_widest_gap_tells_the_number_of_clusters():
    X, _ = make_blobs(400, centers=5, cluster_std=0.3, random_state=2)
    values, _ = spectral_vectors(KNNGraph().fit(X), 9)
    assert suggest_n_clusters(values) == 5
    # One cluster is no division: the gap behind the first eigenvalue does not count.
    assert suggest_n_clusters([0.0, 0.5, 0.6, 0.9]) == 3
    with pytest.raises(ValueError, match="at least 3 numbers"):
        suggest_n_clusters([0.0, 0.1])


def test_the_error_counts_what_is_not_of_the_dominant_label():
    assert dominant_label_error([0, 0, 0, 1, 1, 1], [2, 2, 3, 3, 3, 3]) == pytest.approx(1 / 6)
    assert dominant_label_error(["a", "a", "b"], [1, 1, 1]) == 0.0
    assert dominant_label_error([0, 0, 0, 0], [1, 1, 2, 2]) == 0.5
    with pytest.raises(ValueError, match="inconsistent"):
        dominant_label_error([0, 1], [0, 1, 1])
