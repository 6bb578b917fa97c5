"""ERREmbedding: links obeyed, warm starts, cancelling, new points, the paper's form."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array, diags_array
from scipy.spatial import cKDTree
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from homophily import (
    ContradictingLinksWarning,
    DisconnectedGraphWarning,
    ERRClustering,
    ERREmbedding,
    KNNGraph,
    LinkPenalty,
)
from homophily.estimators.clustering import default_embedding
from homophily.estimators.embedding import WIDTHS, falling_widths
from homophily.estimators.map_target import linked_coordinates
from homophily.graph.spectral import spectral_coordinates
from homophily.supervision.links import Links, draw_links

from .oracle import central_differences


def moons(count=200):
    X, y = make_moons(count, noise=0.1, random_state=0)
    return X, y, KNNGraph(symmetrize="max").fit(X)


def fit(estimator, graph, links, **more):
    return estimator.fit(graph, must_link=links.must, cannot_link=links.cannot, **more)


def one_nn_error(F, y):
    found = cKDTree(F).query(F, k=2)[1]
    nearest = np.where(found[:, 0] == np.arange(len(F)), found[:, 1], found[:, 0])
    return np.mean(y[nearest] != y)


@parametrize_with_checks([ERREmbedding(graph=KNNGraph(n_neighbors=3, symmetrize="max"), max_iter=5, n_components=1)])
def test_scikit_learn_conventions_hold(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContradictingLinksWarning)
        warnings.simplefilter("ignore", DisconnectedGraphWarning)
        check(estimator)


@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_links_are_obeyed_and_make_the_map_better(load):
    X, y = load(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DisconnectedGraphWarning)
        graph = KNNGraph(symmetrize="max").fit(X)
        without = ERREmbedding().fit(graph)
        links = draw_links(y, 125, 125, random_state=0)
        embedding = fit(ERREmbedding(), graph, links)
    assert len(embedding.violated_must_) <= 0.02 * len(links.must)
    assert len(embedding.violated_cannot_) <= 0.02 * len(links.cannot)
    assert one_nn_error(embedding.embedding_, y) < 0.5 * one_nn_error(without.embedding_, y)


def test_more_optimisation_does_not_scatter_the_map():
    _, y, graph = moons()
    links = draw_links(y, 10, 10, random_state=0)
    short, long = (fit(ERREmbedding(max_iter=steps, tol=0.0), graph, links) for steps in (60, 600))
    assert long.energy_ <= short.energy_ + 1e-9
    assert np.ptp(long.embedding_, axis=0).max() < 2 * np.ptp(short.embedding_, axis=0).max()
    assert one_nn_error(long.embedding_, y) <= one_nn_error(short.embedding_, y) + 0.02


def test_violated_links_are_listed_as_they_were_given():
    _, _, graph = moons()
    far = Links(np.array([[0, 1]]), np.empty((0, 2), dtype=np.int64))
    weak = fit(ERREmbedding(link_penalty=LinkPenalty(weight=0.0, edges=0.0)), graph, far)
    strong = fit(ERREmbedding(), graph, far)
    assert weak.violated_must_.tolist() == [[0, 1]]
    assert strong.violated_must_.tolist() == []


def test_without_weights_the_map_is_the_spectral_map():
    _, _, graph = moons()
    embedding = ERREmbedding(lambda2=0.0, n_vectors=2).fit(graph)
    np.testing.assert_allclose(embedding.embedding_, spectral_coordinates(graph, 2)[1], atol=1e-9)


def test_papers_form_is_within_reach():
    _, y, graph = moons(60)
    links = draw_links(y, 5, 5, random_state=1)
    u, sigma_f = 60, 0.1
    K_T = spectral_coordinates(graph, 2)[1] / np.sqrt(u)
    paper = ERREmbedding(
        data_weight=1 / u,
        n_vectors=2,
        lambda2=0.1,
        link_penalty=LinkPenalty(weight=10.0, closure=False, edges=0.0, loss="squared"),
        sigma_f=sigma_f * np.sqrt(u),
        repulsion=1.0,
        max_iter=50,
        tol=0.0,
    )
    F = fit(paper, graph, links).embedding_ / np.sqrt(u)
    K = np.exp(-np.sum((F[:, None] - F) ** 2, axis=2) / sigma_f**2)
    L = graph.laplacian().toarray()
    # ‖(K − T)∘Q‖² counts each pair in both orders.
    expected = np.sum((F - K_T) ** 2) + 0.1 * np.trace(K.T @ L @ K)
    expected += 20.0 * (np.sum((1 - K[tuple(links.must.T)]) ** 2) + np.sum(K[tuple(links.cannot.T)] ** 2))
    assert paper.energy_ == pytest.approx(expected, rel=1e-6)


def test_labels_are_links_between_all_labelled_points():
    _, y, graph = moons()
    few = np.full(200, -1)
    few[:20] = y[:20]
    embedding = ERREmbedding().fit(graph, few)
    distances = np.linalg.norm(embedding.embedding_[:20, None] - embedding.embedding_[:20], axis=2)
    together = y[:20, None] == y[:20]
    assert distances[together].max() < distances[~together].min()


def test_links_as_arrays_come_beside_labels():
    _, y, graph = moons()
    few = np.where(np.arange(len(y)) < 6, y, -1)
    beside = np.array([[20, 30], [40, 50]])
    labelled = ERREmbedding(max_iter=0).fit(graph, few).links_
    both = ERREmbedding(max_iter=0).fit(graph, few, must_link=beside[:1], cannot_link=beside[1:]).links_
    assert set(map(tuple, both.must)) == {*map(tuple, labelled.must), (20, 30)}
    assert set(map(tuple, both.cannot)) == {*map(tuple, labelled.cannot), (40, 50)}


def test_closure_obeys_what_follows():
    _, y, graph = moons()
    one, other = np.flatnonzero(y == 0)[:4], np.flatnonzero(y == 1)[0]
    chain = Links(np.column_stack([one[:-1], one[1:]]), np.array([[one[0], other]]))
    for closure, followed in ((True, 6), (False, 3)):
        embedding = fit(ERREmbedding(link_penalty=LinkPenalty(closure=closure)), graph, chain)
        assert len(embedding._obeyed_links(200).must) == followed
        assert len(embedding.links_.must) == 3


def test_contradicting_links_are_reported_and_weighed():
    _, _, graph = moons()
    with pytest.warns(ContradictingLinksWarning, match="0–1 must be together, yet 0–1 must be apart"):
        embedding = ERREmbedding().fit(graph, must_link=[(0, 1)], cannot_link=[(0, 1)])
    assert np.isfinite(embedding.embedding_).all()
    assert len(embedding.violated_must_) + len(embedding.violated_cannot_) == 1


def test_three_points_apart_are_reported_where_there_are_two_classes():
    _, _, graph = moons()
    triangle = [(0, 1), (1, 2), (0, 2)]
    ERREmbedding(max_iter=0).fit(graph, cannot_link=triangle)
    for estimator in (
        ERREmbedding(link_penalty=LinkPenalty(closure="two-class"), max_iter=0),
        ERRClustering(2, embedding=default_embedding().set_params(link_penalty__closure="two-class", max_iter=0)),
    ):
        with pytest.warns(ContradictingLinksWarning, match="0 apart from . apart from . apart from 0") as told:
            estimator.fit(graph, cannot_link=triangle)
        assert [warning.filename for warning in told] == [__file__]


def test_a_link_that_contradicts_labels_is_reported_once():
    _, _, graph = moons()
    few = np.full(200, -1)
    few[:3] = [0, 0, 1]
    with pytest.warns(ContradictingLinksWarning, match="0–1 must be together, yet 0–1 must be apart") as told:
        ERREmbedding(max_iter=0).fit(graph, few, cannot_link=[(0, 1)])
    assert len(told) == 1


def test_added_links_start_from_the_last_map_and_leave_the_rest_where_it_was():
    _, y, graph = moons()
    links = draw_links(y, 10, 10, random_state=0)
    first = fit(ERREmbedding(), graph, links)
    apart = np.flatnonzero(y == 0)[[5, 60]]
    more = Links(np.vstack([links.must, apart]), links.cannot)
    second = fit(ERREmbedding(), graph, more, init=first.embedding_)
    assert second.n_evaluations_ < first.n_evaluations_
    assert len(second.violated_must_) == 0
    moved = np.linalg.norm(second.embedding_ - first.embedding_, axis=1)
    assert np.median(moved) < 0.5 * np.linalg.norm(first.embedding_.std(axis=0))


def test_callback_sees_every_iterate_and_cancels_by_raising():
    _, _, graph = moons()
    seen = []
    embedding = ERREmbedding(callback=seen.append).fit(graph)
    assert [state.iteration for state in seen if state.iteration][-1] == embedding.n_iter_
    counts = [state.n_evaluations for state in seen]
    assert counts == sorted(counts)
    assert seen[-1].energy == embedding.energy_

    def cancel(state):
        if state.iteration == 3:
            raise KeyboardInterrupt

    embedding.set_params(callback=cancel)
    with pytest.raises(KeyboardInterrupt):
        embedding.fit(graph)
    with pytest.raises(NotFittedError):
        embedding.transform(np.zeros((1, 2)))


def test_repeated_fit_is_bitwise_equal():
    _, y, graph = moons()
    links = draw_links(y, 10, 10, random_state=0)
    one, two = (fit(ERREmbedding(n_jobs=1), graph, links).embedding_ for _ in range(2))
    assert np.array_equal(one, two)


def test_new_points_land_among_their_class():
    X, y = make_moons(500, noise=0.1, random_state=0)
    links = draw_links(y[:400], 20, 20, random_state=0)
    embedding = ERREmbedding().fit(X[:400], must_link=links.must, cannot_link=links.cannot)
    placed = embedding.transform(X[400:])
    nearest = cKDTree(embedding.embedding_).query(placed)[1]
    assert np.mean(y[nearest] != y[400:]) < 0.04
    assert np.array_equal(embedding.transform(X[:5]), embedding.embedding_[:5])


def test_new_point_without_links_nearly_stays_where_a_fit_had_it():
    X, _, _ = moons(300)
    embedding = ERREmbedding().fit(X)
    twins = X[:50] + 1e-9
    moved = np.linalg.norm(embedding.transform(twins) - embedding.embedding_[:50], axis=1)
    assert np.median(moved) < embedding.sigma_f_


def test_new_points_have_the_relationships_of_the_map():
    X, _, _ = moons(150)
    embedding = ERREmbedding(relationship="cauchy", sigma_f=falling_widths(0.5, 5.0), max_iter=20).fit(X[:120])
    F, u = embedding.embedding_, 120
    indices, _, weights = embedding.graph_.attach_validated(X[120:])
    G = embedding.graph_.laplacian() + diags_array(embedding._left_out(embedding.graph_.laplacian()))
    placed = embedding.transform(X[120:])
    slopes = []
    for x in range(30):
        shares = weights[x] / np.sqrt(weights[x].sum() * embedding.graph_.degrees[indices[x]])
        own = 1.0 - 0.35 * (1.0 - shares.sum())
        row = np.zeros(u)
        row[indices[x]] = -shares
        larger = np.block([[G.toarray(), row[:, None]], [row, own]])

        def energy(f, larger=larger, shares=shares, near=indices[x]):
            """The map's energy with one point more, at f, where a place for it only counts off the diagonal."""
            values = np.vstack([F, f])
            K = 1.0 / (1.0 + np.sum((values[:, None] - values) ** 2, axis=2) / 0.5**2)
            K[-1, -1] = 0.0
            return np.sum((f - shares @ embedding.target_[near]) ** 2) + 0.5 * np.trace(K.T @ larger @ K)

        here, at_neighbour = placed[x], F[indices[x, 0]]
        slopes.append([np.linalg.norm(central_differences(energy, place, step=1e-4)) for place in (here, at_neighbour)])
    here, at_neighbour = np.median(slopes, axis=0)
    assert here < 1e-3 * at_neighbour


def test_a_sparse_map_takes_only_relationships_of_near_points():
    _, y, graph = moons()
    links = draw_links(y, 20, 20, random_state=0)
    for relationship in ("gaussian", "cauchy"):
        how = {"relationship": relationship, "sigma_f": falling_widths(0.5, 5.0), "max_iter": 5, "n_jobs": 1}
        whole = fit(ERREmbedding(**how), graph, links)
        every = fit(ERREmbedding(**how, relationship_neighbors=200), graph, links)
        some = fit(ERREmbedding(**how, relationship_neighbors=30), graph, links)
        assert every.engine_ == "sparse"
        assert every.energy_ == pytest.approx(whole.energy_, rel=1e-6)
        np.testing.assert_allclose(every.embedding_, whole.embedding_, atol=1e-4)
        assert not np.allclose(some.embedding_, whole.embedding_, atol=1e-2)
        assert len(some.violated_must_) == 0


def test_graph_in_parts_and_isolated_points_are_legal():
    W = np.zeros((9, 9))
    for i, j in ((0, 1), (1, 2), (3, 4), (4, 5), (6, 7)):
        W[i, j] = W[j, i] = 1.0
    graph = KNNGraph(metric="affinity").fit(csr_array(W))
    embedding = ERREmbedding().fit(graph, must_link=[(0, 3)], cannot_link=[(0, 8)])
    with pytest.warns(DisconnectedGraphWarning):
        ERREmbedding(n_vectors=2).fit(graph)
    assert np.isfinite(embedding.embedding_).all()
    assert len(embedding.violated_must_) == len(embedding.violated_cannot_) == 0


def test_target_tells_linked_classes_apart():
    _, y, graph = moons()
    links = draw_links(y, 40, 40, random_state=0)
    T = linked_coordinates(graph, links, 1.0, 1)[1][:, 0]
    assert T.shape == (200,)
    assert np.mean((T > 0) == (y == y[np.argmax(T)])) > 0.97
    np.testing.assert_allclose(np.mean(T**2), 1.0)


def test_cauchy_relationships_obey_far_links_too():
    _, y, graph = moons()
    links = draw_links(y, 20, 20, random_state=0)
    embedding = fit(ERREmbedding(relationship="cauchy", link_penalty=LinkPenalty(edges=0.0)), graph, links)
    assert embedding.engine_ == "tiles"
    assert len(embedding.violated_must_) == 0


@pytest.mark.parametrize(
    ("parameters", "arguments", "message"),
    [
        ({"sigma_f": (0.2, 0.4)}, {}, "The 'sigma_f' parameter of ERREmbedding must be"),
        ({"link_penalty": LinkPenalty(closure="three")}, {}, "The 'closure' parameter of LinkPenalty must be"),
        ({"sigma_f": 0.0}, {}, "The 'sigma_f' parameter of ERREmbedding must be"),
        ({"n_components": 60}, {}, "smaller than the number of points, n_samples=60"),
        ({}, {"must_link": [(0, 60)]}, "The 'must_link' parameter of ERREmbedding.fit must be pairs of positions"),
        ({}, {"y": np.zeros(60), "must_link": [(0.5, 1.5)]}, "must be pairs of integers"),
        ({}, {"init": np.zeros((60, 3))}, "The 'init' parameter of ERREmbedding.fit must be a finite array"),
    ],
)
def test_wrong_input_is_refused_in_words(parameters, arguments, message):
    _, _, graph = moons(60)
    with pytest.raises(ValueError, match=message):
        clone(ERREmbedding(**parameters)).fit(graph, **arguments)


def test_the_penalty_of_links_is_set_by_name():
    assert ERREmbedding().link_penalty is None
    embedding = ERREmbedding().set_params(link_penalty__weight=3.0, graph__n_neighbors=4)
    assert embedding.get_params()["link_penalty__weight"] == 3.0
    assert embedding.link_penalty.get_params() == LinkPenalty(weight=3.0).get_params()
    assert embedding.graph.get_params() == KNNGraph(n_neighbors=4, symmetrize="max").get_params()
    copy = clone(embedding).set_params(link_penalty__weight=5.0)
    assert (copy.link_penalty.weight, embedding.link_penalty.weight) == (5.0, 3.0)


def test_widths_fall_one_after_the_other():
    _, y, graph = moons()
    links = draw_links(y, 10, 10, random_state=0)
    assert falling_widths(0.2, 5.0) == WIDTHS
    assert falling_widths(0.2, 1.0) == (0.2,)
    np.testing.assert_allclose(falling_widths(0.5, 4.0), [2.0, 1.0, 0.5])
    narrow = fit(ERREmbedding(sigma_f=0.2, max_iter=5), graph, links)
    falling = fit(ERREmbedding(sigma_f=[0.8, 0.4, 0.2], max_iter=5, tol=0.0), graph, links)
    assert (narrow.sigma_f_, narrow.widths, falling.sigma_f_, falling.widths) == (0.2, (0.2,), 0.2, (0.8, 0.4, 0.2))
    assert (narrow.n_iter_, falling.n_iter_) == (5, 15)


def test_parameters_in_use_are_told():
    X, _, _ = moons()
    resolved = ERREmbedding(max_iter=1).fit(X).resolved_params_
    assert resolved["sigma_f"] == WIDTHS
    assert resolved["engine"] != "auto"
    assert (resolved["graph__metric"], resolved["graph__symmetrize"]) == ("euclidean", "max")
    assert (resolved["link_penalty__weight"], resolved["link_penalty__loss"]) == (30.0, "log")
    assert not {"graph", "link_penalty", "callback"} & set(resolved)
