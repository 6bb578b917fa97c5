"""Maps, clusters and single energies with ``backend="cupy"``, on the stand-in, beside the same ones on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs, make_moons

from homophily import ERRClustering, ERREmbedding, KNNGraph, LinkPenalty, SpectralEmbedding, relationship_energy
from homophily.estimators.clustering import default_embedding
from homophily.exceptions import ApproximationWarning, DisconnectedGraphWarning

pytestmark = pytest.mark.usefixtures("cupy")


def cloud(u=450):
    """Points of many dimensions: a shallow graph, on which subspace iteration is what the CPU does too."""
    X, y = make_blobs(u, n_features=12, centers=3, cluster_std=6.0, random_state=0)
    return X, y


def links(y, count=12):
    pairs = np.random.default_rng(0).integers(len(y), size=(count, 2))
    same = y[pairs[:, 0]] == y[pairs[:, 1]]
    distinct = pairs[:, 0] != pairs[:, 1]
    return {"must_link": pairs[same & distinct], "cannot_link": pairs[~same]}


def test_the_spectral_map_is_that_of_the_cpu():
    X, _ = cloud()
    host, device = (SpectralEmbedding(n_components=3, backend=name).fit(X) for name in ("numpy", "cupy"))
    np.testing.assert_allclose(device.eigenvalues_, host.eigenvalues_, atol=1e-10)
    np.testing.assert_allclose(device.embedding_, host.embedding_, atol=1e-4)


@pytest.mark.parametrize("columns", [64, 1])
def test_the_spectral_map_of_a_graph_in_parts(columns, monkeypatch):
    monkeypatch.setattr("homophily.device.gpu.spectral.FULL_COLUMNS", columns)
    X = np.vstack([cloud(420)[0], cloud(30)[0] + 1e3])
    with pytest.warns(DisconnectedGraphWarning):
        host, device = (SpectralEmbedding(n_components=3, backend=name).fit(X) for name in ("numpy", "cupy"))
    np.testing.assert_allclose(device.embedding_, host.embedding_, atol=1e-4)


@pytest.mark.usefixtures("chosen_method")
def test_a_chain_is_left_to_the_factorisation_of_the_cpu():
    chain = np.linspace(0, 1, 500)[:, None]
    host, device = (
        SpectralEmbedding(graph=KNNGraph(n_neighbors=2, backend=name), backend=name).fit(chain)
        for name in ("numpy", "cupy")
    )
    np.testing.assert_allclose(device.embedding_, host.embedding_, atol=1e-6)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"n_components": 3, "sigma_f": 0.2},
        {"n_components": 1, "sigma_f": 0.2},
        {"n_components": 5, "sigma_f": 1.0},
        {"relationship": "cauchy", "sigma_f": 0.2, "link_penalty": LinkPenalty(loss="log")},
        {"link_penalty": LinkPenalty(loss="squared"), "sigma_f": 0.2},
    ],
)
def test_a_map_with_links_is_that_of_the_cpu(parameters):
    X, y = make_moons(120, noise=0.1, random_state=0)
    graph = KNNGraph(symmetrize="max").fit(X)
    parameters = {"max_iter": 3, "tol": 0.0, **parameters}
    host, device = (ERREmbedding(backend=name, **parameters).fit(graph, **links(y)) for name in ("numpy", "cupy"))
    assert device.energy_ == pytest.approx(host.energy_, rel=1e-5)
    np.testing.assert_allclose(device.embedding_, host.embedding_, atol=1e-3)
    assert device.n_evaluations_ == host.n_evaluations_


def test_a_callback_may_look_at_the_map():
    X, y = make_moons(100, noise=0.1, random_state=0)
    seen = []
    device = ERREmbedding(
        backend="cupy", max_iter=2, sigma_f=0.2, callback=lambda state: seen.append((state.iteration, state.x))
    )
    device.fit(X, **links(y))
    assert [iteration for iteration, _ in seen] == list(range(len(seen)))
    np.testing.assert_array_equal(seen[-1][1], device.embedding_)


def test_clusters_are_those_of_the_cpu():
    X, y = cloud(200)
    host, device = (
        ERRClustering(3, embedding=default_embedding().set_params(max_iter=5, backend=name), random_state=0).fit(
            X, **links(y)
        )
        for name in ("numpy", "cupy")
    )
    assert (host.labels_ == device.labels_).all()


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_a_single_energy(n):
    G = KNNGraph(5).fit(cloud(120)[0]).laplacian()
    F = np.random.default_rng(0).normal(size=(120, n))
    (energy, gradient), (found, slope) = (
        relationship_energy(F, G, sigma_f=0.8, backend=name) for name in ("numpy", "cupy")
    )
    assert found == pytest.approx(energy, rel=1e-9)
    np.testing.assert_allclose(slope, gradient, atol=1e-8 * np.abs(gradient).max())


def test_a_low_rank_energy_far_off_is_warned_of():
    G = KNNGraph(5).fit(cloud(600)[0]).laplacian()
    F = np.random.default_rng(0).normal(size=(600, 6))
    with pytest.warns(ApproximationWarning):
        relationship_energy(F, G, sigma_f=0.3, engine="nystrom", backend="cupy")


@pytest.mark.parametrize(("engine", "n"), [("chebyshev", 2), ("cells", 4), ("dense", 1)])
def test_engines_that_do_not_fit_are_refused(engine, n):
    G = KNNGraph(5).fit(cloud(50)[0]).laplacian()
    with pytest.raises(ValueError, match=f"The '{engine}' engine"):
        relationship_energy(np.zeros((50, n)), G, sigma_f=1.0, engine=engine, backend="cupy")


def test_maps_of_the_sparse_form_are_those_of_the_cpu():
    graph = KNNGraph(10).fit(cloud(120)[0])
    how = {"relationship_neighbors": 15, "max_iter": 5, "tol": 0.0}
    host, device = (ERREmbedding(backend=name, **how).fit(graph) for name in ("numpy", "cupy"))
    assert device.energy_ == pytest.approx(host.energy_, rel=1e-8)


def test_values_too_far_apart_for_modes_are_refused_by_that_engine():
    G = KNNGraph(5).fit(cloud(50)[0]).laplacian()
    with pytest.raises(ValueError, match="too far for the 'cells' engine"):
        relationship_energy(np.linspace(0, 1e5, 50), G, sigma_f=1.0, engine="cells", backend="cupy")
