"""Graphs of one's own: as the points, or as edges beside their features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_wine

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily_client import Client, Edges, InvalidArgument, JobFailed
from homophily_client._pb import model_pb2
from homophily_client.edges import matrix_of

from .commands import Run
from .serving import Project, Service, refusal

AFFINITY, PRECOMPUTED = {"metric": "affinity"}, {"metric": "precomputed"}
#: Zachary's karate club (1977): who met whom outside the club, numbered from 1.
KARATE = """
2-1 3-1 3-2 4-1 4-2 4-3 5-1 6-1 7-1 7-5 7-6 8-1 8-2 8-3 8-4 9-1 9-3 10-3 11-1 11-5 11-6 12-1 13-1 13-4 14-1 14-2 14-3
14-4 17-6 17-7 18-1 18-2 20-1 20-2 22-1 22-2 26-24 26-25 28-3 28-24 28-25 29-3 30-24 30-27 31-2 31-9 32-1 32-25 32-26
32-29 33-3 33-9 33-15 33-16 33-19 33-21 33-23 33-24 33-30 33-31 33-32 34-9 34-10 34-14 34-15 34-16 34-19 34-20 34-21
34-23 34-24 34-27 34-28 34-29 34-30 34-31 34-32 34-33
"""
CLUB = np.array([[int(end) - 1 for end in edge.split("-")] for edge in KARATE.split()])
#: Who went with the instructor when the club split.
WITH_INSTRUCTOR = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21}


@pytest.fixture
def client(service: Service, project: Project) -> Any:
    with Client(service.target, project=project.id) as client:
        yield client


def planted(points: int = 300, classes: int = 3, seed: int = 0) -> tuple[Any, Any, Any]:
    """Edges of a planted partition, their weights, and the class of each node."""
    rng = np.random.default_rng(seed)
    truth = np.arange(points) % classes
    i, j = np.triu_indices(points, 1)
    linked = rng.random(len(i)) < np.where(truth[i] == truth[j], 0.08, 0.01)
    pairs = np.column_stack([i[linked], j[linked]])
    return pairs, rng.uniform(0.5, 2.0, len(pairs)), truth


def test_the_karate_club_splits_as_it_did(client: Client) -> None:
    """From the labels of its two leaders."""
    assert len(CLUB) == 78
    leaders, halves = {0: "instructor", 33: "president"}, {"class_prior": "balanced"}
    model = client.fit(Edges(CLUB), leaders, graph=AFFINITY, solver=halves).result()
    labels = client.read_solution(model).labels
    assert set(np.flatnonzero(labels == "instructor").tolist()) == WITH_INSTRUCTOR
    assert (model.points, model.dimensions, model.graph.edges) == (34, 34, 78)


@pytest.mark.parametrize("method", ["irr", "err"])
def test_answers_on_a_graph_are_those_of_the_core(client: Client, method: str) -> None:
    pairs, weights, truth = planted()
    few = {point: int(truth[point]) for point in range(12)}
    model = client.fit(Edges(pairs, weights), few, graph=AFFINITY, solver={"method": method}, calibrate=True).result()
    W = sparse.coo_array((weights, pairs.T), shape=(300, 300))
    core = (IRRClassifier if method == "irr" else ERRClassifier)(graph=KNNGraph(metric="affinity"))
    core.fit(sparse.csr_array(W + W.T), [few.get(point, -1) for point in range(300)])
    assert client.read_solution(model).labels.tolist() == core.transduction_.tolist()
    assert np.mean(core.transduction_ == truth) > 0.95
    # New nodes are told by their edges.
    new = sparse.csr_array((np.ones(4), ([0, 0, 1, 1], [3, 6, 4, 7])), shape=(2, 300))
    assert client.predict(model, new).labels.tolist() == core.predict(new).tolist() == [0, 1]
    # More labels, maps and questions work as with points.
    more = client.transduce(model, {100: int(truth[100])}).result()
    assert more.labelled == 13
    made = client.embed(model, must_link=[(0, 3)], solver={"max_iter": 3}, n_clusters=3).result()
    assert len(client.read_embedding(made).clusters) == 300
    assert client.suggest(model, 2).points
    assert client.explain(model, [50]).explanations[0].contributions


def test_distances_are_a_graph_too(client: Client) -> None:
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    distances = np.linalg.norm(X[:, None] - X, axis=2)
    few = {point: int(y[point]) for point in range(0, len(y), 12)}
    given = client.fit(distances, few, graph=PRECOMPUTED, solver={"method": "irr"}).result()
    searched = client.fit(X, few, solver={"method": "irr"}).result()
    values = [client.read_solution(model, ["values"]).values for model in (given, searched)]
    np.testing.assert_allclose(values[0], values[1], atol=1e-6)
    new = np.linalg.norm(X[:3] + 0.1 - X[:, None], axis=2).T
    assert client.predict(given, new).labels.tolist() == client.predict(searched, X[:3] + 0.1).labels.tolist()


def test_edges_count_besides_features(client: Client) -> None:
    pairs, weights, truth = planted()
    X = np.random.default_rng(1).normal(size=(300, 8))
    few = {point: int(truth[point]) for point in range(15)}
    edges = client.upload(Edges(pairs, weights, points=300), name="friends")
    with_edges = client.fit(X, few, edges=edges, graph={"edge_share": 0.8}).result()
    assert with_edges.graph.edges_dataset == edges.name
    core = ERRClassifier(graph=KNNGraph(edge_share=0.8))
    matrix = sparse.coo_array((weights, pairs.T), shape=(300, 300))
    graph = KNNGraph(edge_share=0.8).fit(X, edges=matrix + matrix.T)
    core = ERRClassifier().fit(graph, [few.get(point, -1) for point in range(300)])
    labels = client.read_solution(with_edges).labels
    assert labels.tolist() == core.transduction_.tolist()
    assert np.mean(labels == truth) > 0.9
    assert client.predict(with_edges, X[:2] + 0.01).labels.tolist() == core.predict(X[:2] + 0.01).tolist()
    # Without them it is another graph, and there is nothing to see in noise.
    alone = client.fit(X, few).result()
    assert alone.graph.digest != with_edges.graph.digest
    assert np.mean(client.read_solution(alone).labels == truth) < 0.6
    assert client.fit(X, few, edges=edges, graph={"edge_share": 0.8}).result().graph.reused
    assert client.embed(X, edges=Edges(pairs, points=300), solver={"max_iter": 2}).result().points == 300


def test_wrong_graphs_name_the_field(client: Client) -> None:
    pairs, _, truth = planted(60)
    few = {0: 0, 1: 1}
    table = {"a": [1.0, 2.0], "b": [1.0, 3.0]}
    small = Edges([(0, 1)])
    for data, arguments, field in (
        (np.ones((5, 4)), {"graph": AFFINITY}, "inline"),
        (table, {"graph": AFFINITY}, "inline"),
        (Edges(pairs), {"graph": AFFINITY, "search": 2}, "graph.metric"),
        (Edges(pairs), {"graph": AFFINITY, "edges": small}, "edges_dataset"),
        (np.ones((60, 2)), {"edges": small}, "edges_dataset"),
        (np.ones((60, 2)), {"edges": Edges(pairs, points=60), "search": 2}, "edges_dataset"),
        (np.ones((60, 2)), {"graph": {"edge_share": 0.5}}, "graph.edge_share"),
        (Edges(pairs), {"graph": AFFINITY | {"space": "principal"}}, "graph.space"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            client.fit(data, few, **arguments)
        assert [one.field for one in caught.value.violations] == [field], field
    one_way = sparse.csr_array(np.triu(np.random.default_rng(0).random((20, 20))))
    for data, arguments, field in (
        (one_way, {"graph": AFFINITY}, "points"),
        (-one_way, {"graph": AFFINITY}, "points"),
        (np.random.default_rng(0).normal(size=(20, 3)), {"edges": one_way}, "edges_dataset"),
    ):
        with pytest.raises(JobFailed) as failed:
            client.fit(data, few, **arguments).result()
        assert [one.field for one in failed.value.violations] == [field]
    model = client.fit(Edges(pairs), {0: 0, 1: 1, 2: 2}, graph=AFFINITY).result()
    with pytest.raises(InvalidArgument):
        client.predict(model, sparse.csr_array((1, 59)))
    assert truth.max() == 2


def test_edges_of_another_project_are_refused(project: Project, service: Service) -> None:
    with Client(service.target, project="somebody-else") as other:
        edges = other.upload(Edges([(0, 1), (1, 2)]))
    request = project.fit_request(np.ones((3, 2)), {0: "a", 1: "b"}, edges_dataset=edges.name)
    found = refusal(project.stub.Fit, request)
    assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["edges_dataset"])


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        (Edges([[0.5, 1.0]]), "integers"),
        (Edges([(0, 5)], points=3), r"pairs\[0\] must be of nodes from 0 to 2"),
        (Edges([(-1, 0)]), "nodes from 0"),
        (Edges([(0, 1)], weights=[1.0, 2.0]), "one for each of 1 pairs"),
    ],
)
def test_edges_that_are_none_are_refused_before_they_are_sent(edges: Edges, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        matrix_of(edges)


def test_edges_on_the_command_line(run: Run, tmp_path: Path) -> None:
    lines = [f"{i},{j}" for i, j in CLUB]
    (tmp_path / "club.csv").write_text("\n".join(["first,second", *lines]) + "\n")
    (tmp_path / "leaders.csv").write_text("point,label\n0,instructor\n33,president\n")
    shown = run("upload", "club.csv", "--edges", "--name", "club", "--json").json
    assert (shown["points"], shown["is_sparse"]) == (34, True)
    run("fit", "club", "--labels", "leaders.csv", "--metric", "affinity", "--model", "split")
    assert run("model", "split", "--json").json["graph"]["edges"] == 78
    np.save(tmp_path / "people.npy", np.random.default_rng(0).normal(size=(34, 3)))
    run("upload", "people.npy", "--name", "people")
    run("fit", "people", "--labels", "leaders.csv", "--edges", "club", "--edge-share", "0.9", "--model", "both")
    assert run("model", "both", "--json").json["graph"]["edges_dataset"].endswith("/club")
    (tmp_path / "names.csv").write_text("a,b\nAnn,Ben\n")
    assert "node numbers" in run("upload", "names.csv", "--edges", code=2).err
    assert "--nodes" in run("upload", "people.npy", "--nodes", "3", code=2).err


def test_digests_of_graphs_without_edges_are_what_they_were() -> None:
    from homophily_service.contract.values import graph_parameters

    parameters = graph_parameters(model_pb2.GraphParameters(), is_sparse=False, field="graph")
    assert list(parameters) == [
        *("n_neighbors", "metric", "weights", "sigma_x", "exponent", "symmetrize", "space", "n_directions")
    ]
