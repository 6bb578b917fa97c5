"""The compared systems on cases with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eig
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_moons
from sklearn.utils.estimator_checks import parametrize_with_checks

import homophily.baselines.csp as csp_module
from benchmarks.link_sets import dominant_label_error
from homophily import KNNGraph
from homophily.baselines import CCSR, COSC, CSP, SL, Original
from homophily.baselines.ccsr import fit_metric
from homophily.baselines.csp import _dense_solutions, _link_matrix
from homophily.baselines.sl import linked_weights
from homophily.estimators.partition import normalized_cut
from homophily.exceptions import ContradictingLinksWarning
from homophily.graph.spectral import null_vectors
from homophily.supervision.links import Links, draw_links

ALL = [Original, SL, CCSR, CSP, COSC]
LINKED = [SL, CCSR, CSP, COSC]
MANY = [Original, SL, CCSR, COSC]


def obeyed(labels, links):
    together = labels[links.must[:, 0]] == labels[links.must[:, 1]]
    apart = labels[links.cannot[:, 0]] != labels[links.cannot[:, 1]]
    return together.mean(), apart.mean()


def planted(sizes, inside=0.3, outside=0.02, seed=0):
    """A random graph with more edges inside blocks than between them."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    share = np.where(y[:, None] == y, inside, outside)
    upper = np.triu(rng.random(share.shape) < share, k=1).astype(float)
    return KNNGraph(metric="affinity").fit(csr_array(upper + upper.T)), y


def four_corners(seed=0):
    """Four groups at the corners of an oblong: the cut of least weight parts left from right."""
    rng = np.random.default_rng(seed)
    corner = np.arange(240) % 4
    X = np.column_stack([4.0 * (corner % 2), 2.2 * (corner // 2)]) + 0.55 * rng.normal(size=(240, 2))
    return X, corner % 2, corner // 2


@pytest.mark.parametrize("estimator", MANY)
def test_planted_blocks_are_found(estimator):
    graph, y = planted([60, 50, 40, 30])
    links = draw_links(y, 60, 60, 0)
    model = estimator(n_clusters=4, random_state=0).fit(graph, must_link=links.must, cannot_link=links.cannot)
    assert dominant_label_error(model.labels_, y) <= 0.02
    assert len(np.unique(model.labels_)) == 4


@pytest.mark.parametrize("estimator", ALL)
def test_two_planted_blocks_are_found_without_links(estimator):
    graph, y = planted([80, 60])
    assert dominant_label_error(estimator(random_state=0).fit_predict(graph), y) == 0.0


@pytest.mark.parametrize("estimator", LINKED)
def test_moons_are_parted_with_the_help_of_links(estimator):
    X, y = make_moons(240, noise=0.12, random_state=3)
    links = draw_links(y, 80, 80, 1)
    model = estimator(random_state=0).fit(X, must_link=links.must, cannot_link=links.cannot)
    assert dominant_label_error(model.labels_, y) <= 0.05


@pytest.mark.parametrize("estimator", LINKED)
def test_links_overrule_the_smallest_cut(estimator):
    X, across, upright = four_corners()
    assert dominant_label_error(Original(random_state=0).fit_predict(X), across) < 0.05
    links = draw_links(upright, 200, 200, 0)
    labels = estimator(random_state=0).fit_predict(X, must_link=links.must, cannot_link=links.cannot)
    assert dominant_label_error(labels, upright) < 0.05


def test_the_original_ignores_links():
    X, _, upright = four_corners()
    links = draw_links(upright, 50, 50, 0)
    with_links = Original(random_state=0).fit(X, must_link=links.must, cannot_link=links.cannot)
    np.testing.assert_array_equal(with_links.labels_, Original(random_state=0).fit(X).labels_)


@pytest.mark.parametrize("count", [10, 60, 300])
def test_cosc_obeys_every_link_that_two_clusters_can(count):
    X, y = make_moons(200, noise=0.35, random_state=0)
    links = draw_links(y, count, count, 2)
    labels = COSC(random_state=0).fit_predict(X, must_link=links.must, cannot_link=links.cannot)
    assert obeyed(labels, links) == (1.0, 1.0)


def test_cosc_divides_again_until_there_are_enough_clusters():
    X, y = make_blobs(250, centers=5, cluster_std=1.2, random_state=4)
    links = draw_links(y, 100, 100, 0)
    model = COSC(n_clusters=5, random_state=0).fit(X, must_link=links.must, cannot_link=links.cannot)
    together, apart = obeyed(model.labels_, links)
    assert together == 1.0
    assert apart > 0.97
    assert dominant_label_error(model.labels_, y) < 0.03
    assert len(np.unique(model.labels_)) == 5


def test_cosc_never_cuts_worse_than_the_best_level_of_the_eigenvector():
    X, _ = make_moons(300, noise=0.25, random_state=1)
    graph = KNNGraph().fit(X)
    spectral = normalized_cut(graph.W, Original(random_state=0).fit_predict(graph))
    assert normalized_cut(graph.W, COSC(random_state=0).fit_predict(graph)) <= spectral + 1e-12


def test_cosc_gives_fewer_clusters_where_links_leave_no_more():
    X = np.arange(6.0)[:, None]
    must = [(0, 1), (1, 2), (3, 4), (4, 5)]
    labels = COSC(n_clusters=4, graph=KNNGraph(n_neighbors=2)).fit_predict(X, must_link=must)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_contradiction_is_told_and_survived():
    X, y = make_moons(100, noise=0.1, random_state=0)
    for estimator in LINKED:
        with pytest.warns(ContradictingLinksWarning, match="0–1 must be together, yet 0–1 must be apart"):
            labels = estimator(random_state=0).fit_predict(X, must_link=[(0, 1)], cannot_link=[(0, 1), (2, 3)])
        assert labels.shape == y.shape


def test_odd_cycles_do_not_stop_a_division_in_two():
    X, _ = make_moons(100, noise=0.1, random_state=0)
    labels = COSC(random_state=0).fit_predict(X, cannot_link=[(0, 1), (1, 2), (0, 2)])
    assert len(np.unique(labels)) == 2


@pytest.mark.parametrize("estimator", ALL)
def test_components_are_clusters(estimator):
    X = np.vstack([np.random.default_rng(0).normal(size=(40, 2)), 50 + np.random.default_rng(1).normal(size=(30, 2))])
    y = np.repeat([0, 1], [40, 30])
    assert dominant_label_error(estimator(random_state=0).fit_predict(X), y) == 0.0


@pytest.mark.parametrize("estimator", ALL)
def test_a_graph_may_stand_for_its_points_and_a_fit_repeats_itself(estimator):
    X, y = make_moons(150, noise=0.15, random_state=0)
    links = draw_links(y, 20, 20, 0)
    pairs = {"must_link": links.must, "cannot_link": links.cannot}
    model = estimator(graph=KNNGraph(n_neighbors=8), random_state=0).fit(X, **pairs)
    again = estimator(random_state=0).fit(KNNGraph(n_neighbors=8).fit(X), **pairs)
    np.testing.assert_array_equal(model.labels_, again.labels_)
    np.testing.assert_array_equal(model.links_.pairs, links.pairs)
    assert model.labels_[0] == 0
    assert repr(clone(model)) == repr(model)
    if estimator is not COSC:
        assert model.embedding_.shape[0] == 150
        assert np.isfinite(model.embedding_).all()


@pytest.mark.parametrize("estimator", ALL)
def test_wrong_links_are_refused_by_name(estimator):
    X, _ = make_moons(50, random_state=0)
    name = estimator.__name__
    with pytest.raises(ValueError, match=rf"The 'cannot_link' parameter of {name}.fit .* Got \(3, 99\) instead"):
        estimator().fit(X, cannot_link=[(3, 99)])


def test_csp_is_for_two_clusters():
    with pytest.raises(ValueError, match="The 'n_clusters' parameter of CSP must be 2"):
        CSP(n_clusters=3).fit(np.eye(20))


@parametrize_with_checks(
    [
        Original(graph=KNNGraph(n_neighbors=4), n_init=2, random_state=0),
        SL(graph=KNNGraph(n_neighbors=4), n_init=2, random_state=0),
        CCSR(graph=KNNGraph(n_neighbors=4), n_init=2, n_vectors=4, random_state=0),
        CSP(graph=KNNGraph(n_neighbors=4), random_state=0),
        COSC(graph=KNNGraph(n_neighbors=4), n_init=2, random_state=0),
    ],
    expected_failed_checks=lambda estimator: (
        {"check_clustering": "it asks for three clusters"} if isinstance(estimator, CSP) else {}
    ),
)
def test_scikit_learn_conventions_hold(estimator, check):
    check(estimator)


# -- formulas ----------------------------------------------------------------------------------------------------


def test_sl_writes_links_into_the_weights():
    W = csr_array(np.array([[0, 0.5, 0.2, 0], [0.5, 0, 0, 0.3], [0.2, 0, 0, 0.1], [0, 0.3, 0.1, 0]]))
    links = Links(np.array([[0, 1], [1, 2]]), np.array([[0, 2], [0, 3]]))
    expected = np.array([[0, 1.0, 0, 0], [1.0, 0, 1.0, 0.3], [0, 1.0, 0, 0.1], [0, 0.3, 0.1, 0]])
    np.testing.assert_allclose(linked_weights(W, links).toarray(), expected, atol=1e-15)


def test_sl_takes_the_leading_eigenvectors_of_the_additive_normalisation():
    graph, y = planted([20, 15, 15], inside=0.5, outside=0.1)
    links = draw_links(y, 10, 10, 0)
    model = SL(n_clusters=3, random_state=0).fit(graph, must_link=links.must, cannot_link=links.cannot)
    W = linked_weights(graph.W, links).toarray()
    degrees = W.sum(axis=1)
    N = (W + np.diag(degrees.max() - degrees)) / degrees.max()
    values, vectors = np.linalg.eigh(N)
    assert values[-1] == pytest.approx(1.0)
    rows = vectors[:, -3:] / np.linalg.norm(vectors[:, -3:], axis=1, keepdims=True)
    # The same up to a rotation: inner products of rows agree.
    np.testing.assert_allclose(model.embedding_ @ model.embedding_.T, rows @ rows.T, atol=1e-7)


def objective(M, F, links):
    own = np.einsum("ij,jk,ik->i", F, M, F) - 1
    i, j = links.pairs.T
    return np.sum(own**2) + np.sum((np.einsum("ij,jk,ik->i", F[i], M, F[j]) - links.targets) ** 2)


def test_the_metric_of_ccsr_cannot_be_improved():
    rng = np.random.default_rng(0)
    F = rng.normal(size=(60, 4))
    links = draw_links(rng.integers(0, 2, size=60), 20, 20, 0)
    M = fit_metric(F, links)
    assert np.linalg.eigvalsh(M).min() > -1e-10
    lowest = objective(M, F, links)
    for scale in (1e-1, 1e-3):
        for _ in range(200):
            values, vectors = np.linalg.eigh(M + scale * (lambda A: A + A.T)(rng.normal(size=(4, 4))))
            other = (vectors * np.maximum(values, 0)) @ vectors.T
            assert objective(other, F, links) >= lowest - 1e-7


def test_ccsr_embeds_by_the_root_of_its_metric():
    X, y = make_moons(80, noise=0.1, random_state=0)
    links = draw_links(y, 30, 30, 0)
    model = CCSR(n_vectors=6, random_state=0).fit(X, must_link=links.must, cannot_link=links.cannot)
    lengths = np.linalg.norm(model.embedding_, axis=1)
    assert abs(lengths - 1).mean() < 0.3
    i, j = links.cannot.T
    assert abs(np.einsum("ij,ij->i", model.embedding_[i], model.embedding_[j])).mean() < 0.3
    assert model.metric_.shape == (6, 6)


def test_the_solutions_of_csp_solve_its_equation():
    X, y = make_moons(60, noise=0.2, random_state=0)
    graph = KNNGraph().fit(X)
    links = draw_links(y, 15, 15, 0)
    Q = _link_matrix(links, np.sqrt(graph.degrees))
    B = csr_array(Q - 0.5 * np.linalg.eigvalsh(Q.toarray())[-1] * np.eye(60))
    L = graph.laplacian()
    v = _dense_solutions(L, B, null_vectors(graph))
    assert v.shape[1] >= 1
    lam = np.einsum("ij,ij->j", v, L @ v) / np.einsum("ij,ij->j", v, B @ v)
    assert (lam > 0).all()
    np.testing.assert_allclose(L @ v, (B @ v) * lam, atol=1e-8 * np.abs(v).max())
    # As many as LAPACK's general solver finds.
    everything = eig(L.toarray(), B.toarray(), right=False)
    assert np.sum(everything.real > 1e-8) == v.shape[1]


def test_csp_finds_the_same_in_large_graphs(monkeypatch):
    X, y = make_moons(300, noise=0.2, random_state=0)
    links = draw_links(y, 60, 60, 0)
    small = CSP().fit(X, must_link=links.must, cannot_link=links.cannot)
    monkeypatch.setattr(csp_module, "DENSE_POINTS", 10)
    large = CSP().fit(X, must_link=links.must, cannot_link=links.cannot)
    np.testing.assert_array_equal(small.labels_, large.labels_)


@pytest.mark.parametrize("beta", [-0.5, 0.2, 0.9])
def test_csp_obeys_by_beta_at_least(beta):
    X, y = make_moons(120, noise=0.25, random_state=0)
    links = draw_links(y, 40, 40, 0)
    model = CSP(beta=beta).fit(X, must_link=links.must, cannot_link=links.cannot)
    roots = np.sqrt(model.graph_.degrees)
    v = model.embedding_[:, 0] * roots
    v /= np.linalg.norm(v)
    Q = _link_matrix(links, roots)
    assert v @ (Q @ v) > beta * np.linalg.eigvalsh(Q.toarray())[-1]
