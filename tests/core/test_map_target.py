"""Where maps start: evenly filled, with the components of a graph side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import block_diag, csr_array
from sklearn.datasets import load_digits

from homophily import ERREmbedding, KNNGraph, SpectralEmbedding
from homophily.estimators.map_target import FEW, folded

RNG = np.random.default_rng(0)


def filled(T: Any, cells: int = 32) -> float:
    """Share of the cells of the map's frame that have a point."""
    place = (T - T.min(axis=0)) / np.ptp(T, axis=0)
    return len(np.unique(np.minimum((place * cells).astype(int), cells - 1), axis=0)) / cells**2


@pytest.fixture(scope="module")
def digits() -> Any:
    return KNNGraph(symmetrize="max").fit(load_digits().data)


@pytest.fixture(scope="module")
def parts() -> Any:
    """A graph of components with 200, 100, 40, 5, 2 and 1 points, in random order."""
    clusters = [KNNGraph(n_neighbors=5).fit(RNG.normal(size=(size, 3))).W for size in (200, 100, 40)]
    small = [np.ones((size, size)) - np.eye(size) for size in (5, 2, 1)]
    order = np.random.default_rng(1).permutation(348)
    W = csr_array(block_diag([*clusters, *small], format="csr"))[order][:, order]
    component = np.repeat(np.arange(6), (200, 100, 40, 5, 2, 1))[order]
    return KNNGraph(metric="affinity").fit(csr_array(W)), component


def test_map_is_filled_better_than_the_spectral_map(digits: Any) -> None:
    T = ERREmbedding(max_iter=0).fit(digits).target_
    assert filled(T) > 2 * filled(SpectralEmbedding().fit(digits).embedding_)
    np.testing.assert_allclose((T**2).mean(axis=0), 1.0)
    np.testing.assert_allclose(T.mean(axis=0), 0.0, atol=1e-9)


def test_more_vectors_than_points_are_not_asked_for() -> None:
    graph = KNNGraph(n_neighbors=2).fit(np.arange(5.0)[:, None])
    for n_vectors in (2, 8):
        assert ERREmbedding(n_vectors=n_vectors).fit(graph).embedding_.shape == (5, 2)


def test_few_vectors_are_the_spectral_map(digits: Any) -> None:
    T = ERREmbedding(max_iter=0, n_vectors=2).fit(digits).target_
    np.testing.assert_allclose(T, SpectralEmbedding().fit(digits).embedding_, atol=1e-9)


def test_directions_that_lie_on_a_line_are_not_folded() -> None:
    vectors = np.outer(RNG.choice([-1.0, 1.0], 50), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(folded(np.ones(3), vectors, 2), vectors[:, :2])


@pytest.mark.parametrize("n_components", [1, 2, 3])
def test_components_lie_side_by_side(parts: Any, n_components: int) -> None:
    graph, component = parts
    T = ERREmbedding(n_components, max_iter=0).fit(graph).target_
    assert np.isfinite(T).all()
    boxes = [(T[component == part].min(axis=0), T[component == part].max(axis=0)) for part in range(6)]
    for first in range(6):
        for second in range(first):
            (low, high), (other_low, other_high) = boxes[first], boxes[second]
            # In one of the two coordinates that components are laid out in, one ends before the other begins.
            assert ((high < other_low) | (other_high < low))[:2].any()
    assert FEW <= 40
    widths = [float((high - low).max()) for low, high in boxes]
    assert widths[0] > widths[1] > widths[2] > widths[3]


def test_components_with_fewer_points_than_vectors_are_discs(parts: Any) -> None:
    graph, component = parts
    T = ERREmbedding(45, n_vectors=60, max_iter=0).fit(graph).target_
    assert T.shape == (348, 45)
    spread = [np.ptp(T[component == part][:, 2:], axis=0).max() for part in (1, 2)]
    assert spread[0] > 0.1
    assert spread[1] == 0.0


def test_a_link_joins_components(parts: Any) -> None:
    graph, component = parts
    one, other = np.flatnonzero(component == 0)[0], np.flatnonzero(component == 1)[0]
    apart, joined = (ERREmbedding(max_iter=0).fit(graph, must_link=links).target_ for links in ([], [(one, other)]))
    assert np.linalg.norm(joined[one] - joined[other]) < np.linalg.norm(apart[one] - apart[other])
