"""The client's maps: from every source, read as arrays, gone on from, and what it refuses by itself."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from homophily_client import Client, Embedding, InvalidArgument, MapOptions, Unavailable

from ..service.serving import Service

TRUTH = np.arange(60) % 3
X = np.random.default_rng(0).normal(size=(60, 4)) + 8 * np.eye(3, 4)[TRUTH]
FEW = MapOptions(max_iter=3)


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with Client(service.target, project=service.project().id) as client:
        yield client


@pytest.fixture(scope="module")
def embedding(client: Client) -> Embedding:
    return client.embed(X, must_link=[(0, 3)], cannot_link=np.array([[1, 0]]), n_clusters=3, solver=FEW).result(120)


def test_a_map_comes_as_arrays(client: Client, embedding: Embedding) -> None:
    found = client.read_embedding(embedding)
    assert found.coordinates is not None
    assert found.clusters is not None
    assert (found.coordinates.shape, found.coordinates.dtype) == ((60, 2), np.float64)
    assert (found.clusters.shape, len(set(found.clusters.tolist()))) == ((60,), 3)
    assert_array_equal(found.must_link, [[0, 3]])
    assert_array_equal(found.cannot_link, [[0, 1]])
    assert found.violated_must is not None
    assert found.violated_cannot is not None
    assert found.violated_must.shape == (embedding.links.violated_must, 2)
    assert found.violated_cannot.shape == (embedding.links.violated_cannot, 2)
    some = client.read_embedding(embedding.name.rpartition("/")[2], ["clusters"])
    assert_array_equal(some.clusters, found.clusters)
    assert some.coordinates is None


def test_what_is_told_of_a_map_are_plain_values(client: Client, embedding: Embedding) -> None:
    assert pickle.loads(pickle.dumps(embedding)) == embedding == client.get_embedding(embedding)
    assert (embedding.points, embedding.dimensions, embedding.components, embedding.clusters) == (60, 4, 2, 3)
    assert (embedding.solver_parameters, embedding.parent_embedding, embedding.model) == (
        {"max_iter": 3, "n_vectors": 8},
        None,
        None,
    )
    assert (embedding.links.must, embedding.links.cannot) == (1, 1)
    assert embedding.graph.edges > 60
    assert set(embedding.seconds) == {"load", "graph", "solve", "cluster", "save"}
    assert embedding.name in {one.name for one in client.list_embeddings()}


def test_every_source_is_mapped(client: Client, embedding: Embedding) -> None:
    dataset = client.upload(X, name="points")
    model = client.fit(dataset, {0: "a", 1: "b"}).result(120)
    for data in (dataset, "points", X.tolist(), model, model.name):
        made = client.embed(data, must_link=[(0, 3)], n_components=3, solver=FEW).result(120)
        assert (made.points, made.components, made.clusters) == (60, 3, 0)
        assert made.model == (model.name if data in (model, model.name) else None)
        assert client.read_embedding(made).clusters is None
    for data in (embedding, embedding.name):
        made = client.embed(data, must_link=[(6, 9)], withdrawn_cannot=[(0, 1)]).result(120)
        assert (made.parent_embedding, made.links.must, made.links.cannot) == (embedding.name, 2, 0)
        assert (made.clusters, made.solver_parameters) == (3, {"max_iter": 3, "n_vectors": 8})


def test_labels_make_links_and_clusters_are_suggested(client: Client) -> None:
    few = np.where(np.arange(60) < 9, TRUTH, -1)
    made = client.embed(X, labels=few, n_clusters="suggest", solver={"closure": True}).result(120)
    assert (made.labelled, made.clusters, made.solver_parameters) == (9, 3, {"closure": True, "n_vectors": 8})
    clusters = client.read_embedding(made, ["clusters"]).clusters
    assert clusters is not None
    assert len(set(zip(TRUTH.tolist(), clusters.tolist(), strict=True))) == 3


def test_parameters_have_the_core_s_names_and_words(client: Client) -> None:
    given = {
        "link_edges": 0.0,
        "link_loss": "squared",
        "relationship": "cauchy",
        "lambda2_per_link": True,
        "max_iter": 3,
        "n_vectors": 4,
    }
    graph: dict[str, Any] = {"space": "principal", "n_directions": 2}
    made = client.embed(X, must_link=[(0, 3)], graph=graph, solver=given).result(120)
    assert (made.solver_parameters, made.graph_parameters) == (given, graph)


def test_the_service_names_what_is_wrong(client: Client) -> None:
    with pytest.raises(InvalidArgument) as caught:
        client.embed(X, must_link=[(0, 1)], cannot_link=[(0, 2), (1, 0)], solver={"closure": True})
    assert caught.value.violations[0].field == "links.cannot[1]"
    assert "chain of must-links 1–0" in caught.value.message


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"must_link": [(0, 1, 2)]}, "must_link must be pairs of row numbers"),
        ({"cannot_link": [(0.5, 1)]}, "cannot_link must be pairs of row numbers"),
        ({"withdrawn_must": [3]}, "withdrawn_must must be pairs of row numbers"),
        ({"n_clusters": 1}, "n_clusters must be at least 2"),
        ({"n_clusters": "many"}, "n_clusters must be a number, 'suggest' or None"),
        ({"solver": {"link_loss": "linear"}}, "link_loss must be one of 'log', 'squared'"),
        ({"solver": {"closure": "three"}}, "closure must be one of False, True, 'two-class'"),
        ({"labels": [1, 2]}, "labels must have an entry for each of 60 points"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    client: Client, embedding: Embedding, arguments: dict[str, Any], sentence: str
) -> None:
    for data in (X, embedding):
        with pytest.raises(ValueError, match=sentence):
            client.embed(data, **arguments)


def test_a_broken_stream_is_taken_up_where_it_stopped(
    client: Client, embedding: Embedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = client.read_embedding(embedding, ["coordinates"]).coordinates
    connection, asked = client._connection, []
    stream = connection.stream

    def breaking(method: Any, request: Any) -> Iterator[Any]:
        asked.append(request.start)
        if request.start < 40:
            request.count = 20
            yield from stream(method, request)
            request.count = 0
            raise Unavailable("gone")
        yield from stream(method, request)

    monkeypatch.setattr(connection, "stream", breaking)
    assert_array_equal(client.read_embedding(embedding, ["coordinates"]).coordinates, whole)
    assert asked == [0, 20, 40]
