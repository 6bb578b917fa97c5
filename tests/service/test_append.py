"""Datasets that grow: graphs, models and maps go on from those of the earlier points."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily_client import Client, Edges, InvalidArgument, JobFailed, LabelColumn
from homophily_client._pb import dataset_pb2, job_pb2

from .commands import Run
from .serving import Project, Service, inline, refusal, running

X, Y = load_digits(return_X_y=True)
X, Y = X[:300], Y[:300]
FEW = {point: int(Y[point]) for point in range(40)}


@pytest.fixture
def client(service: Service, project: Project) -> Any:
    with Client(service.target, project=project.id) as client:
        yield client


def few(length: int, classes: Any = FEW) -> Any:
    y = np.full(length, -1)
    y[list(classes)] = list(classes.values())
    return y


def test_a_model_goes_on_with_more_points(client: Client) -> None:
    old = client.upload(X[:280], name="old")
    model = client.fit(old, FEW).result()
    new = client.append_points(old, X[280:], name="new", description="this week").result()
    assert (new.points, new.description, new.base.dataset, new.base.points) == (300, "this week", old.name, 280)
    more = client.transduce(model, {290: int(Y[290])}, dataset=new, test={295: int(Y[295])}).result()
    assert (more.points, more.labelled, more.dataset, more.parent_model) == (300, 41, new.name, model.name)
    # The graph was extended, not searched for anew; it is that of all points all the same, and so are the answers.
    assert (more.graph.searched, more.graph.reused, model.graph.searched) == (280, False, 280)
    core = ERRClassifier(graph=KNNGraph()).fit(X, few(300, FEW | {290: int(Y[290])}))
    assert client.read_solution(more).labels.tolist() == core.transduction_.tolist()
    assert client.predict(more, X[280:285]).labels.tolist() == core.transduction_[280:285].tolist()
    # A fit on the new dataset finds the extended graph; one with another graph has no graph to extend.
    again = client.fit(new, FEW).result()
    assert (again.graph.digest, again.graph.reused) == (more.graph.digest, True)
    other = client.fit(new, FEW, graph={"n_neighbors": 5}).result()
    assert other.graph.searched == 300


def test_datasets_grow_step_by_step_until_they_are_searched_anew(client: Client) -> None:
    dataset = client.upload(X[:100])
    searched = [client.fit(dataset, FEW, solver={"method": "irr"}).result().graph.searched]
    for stop in (120, 150, 151):
        dataset = client.append_points(dataset, X[dataset.points : stop]).result()
        searched.append(client.fit(dataset, FEW, solver={"method": "irr"}).result().graph.searched)
    # More than half as many again.
    assert searched == [100, 100, 100, 151]


def test_a_map_keeps_its_points_and_takes_new_ones_in(client: Client) -> None:
    old = client.upload(X[:280])
    links = {"must_link": [(0, 10), (1, 11)], "cannot_link": [(0, 1)]}
    first = client.embed(old, **links, solver={"max_iter": 20}, n_clusters=3).result()
    new = client.append_points(old, X[280:]).result()
    made = client.embed(first, dataset=new).result()
    before, after = client.read_embedding(first), client.read_embedding(made)
    assert (made.points, made.dataset, made.parent_embedding) == (300, new.name, first.name)
    np.testing.assert_array_equal(after.coordinates[:280], before.coordinates)
    assert after.must_link.tolist() == before.must_link.tolist()
    assert len(after.clusters) == 300
    # New points lie among their own kind.
    distances = np.linalg.norm(after.coordinates[280:, None] - before.coordinates, axis=2)
    assert np.mean(Y[:280][distances.argmin(axis=1)] == Y[280:]) > 0.7
    # Then more links continue the larger map.
    assert client.embed(made, must_link=[(290, 0)], solver={"max_iter": 2}).result().links.must == 3
    for arguments, field in (({"must_link": [(0, 5)]}, "links"), ({"labels": FEW}, "labels")):
        with pytest.raises(InvalidArgument) as caught:
            client.embed(first, dataset=new, **arguments)
        assert [one.field for one in caught.value.violations] == [field]


def test_sparse_points_are_appended_with_their_layout(client: Client) -> None:
    points = sparse.random_array((200, 50), density=0.2, format="csr", rng=0)
    old = client.upload(points[:190])
    new = client.append_points(old, points[190:]).result()
    assert (new.points, new.is_sparse, new.sha256) == (200, True, client.upload(points).sha256)
    labels = {0: "a", 1: "b"}
    models = [client.fit(data, labels, solver={"method": "irr"}).result() for data in (old, new)]
    assert [model.graph.searched for model in models] == [190, 190]
    core = IRRClassifier(graph=KNNGraph()).fit(points, ["a", "b"] + [""] * 198)
    np.testing.assert_allclose(client.read_solution(models[1], ["values"]).values, core.solution_, atol=1e-9)


def table_of(rows: slice, **more: Any) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "name": [f"p{row}" for row in range(300)],
            "vector": list(X),
            "parity": np.array(["even", "odd"])[Y % 2],
            "zip": Y,
        }
        | more
    )
    return frame.iloc[rows]


TABLE = {"id_column": "name", "categories": ["zip"], "label_column": "kind"}


def test_tables_are_matched_by_name_and_keep_their_recipe(client: Client, run: Run, tmp_path: Any) -> None:
    kind = np.where(np.arange(300) < 40, np.char.add("k", Y.astype(str)), "")
    old = client.upload(table_of(slice(0, 280), kind=kind), table=TABLE, name="old")
    model = client.fit(old).result()
    # Without labels, and in another order.
    new = client.append_points(old, table_of(slice(280, 300))[["zip", "vector", "name", "parity"]]).result()
    whole = client.upload(table_of(slice(0, 300), kind=kind), table=TABLE)
    assert (new.schema, new.sha256) == (whole.schema, whole.sha256)
    more = client.transduce(model, dataset=new).result()
    assert (more.graph.searched, more.labelled) == (280, 40)
    assert client.read_solution(more, ["labels", "ids"]).ids[-1] == "p299"
    again = client.fit(new, LabelColumn()).result()
    assert client.read_solution(again).labels.tolist() == client.read_solution(more).labels.tolist()
    # On the command line, from a file.
    pairs = pd.DataFrame({"name": [f"p{row}" for row in range(300)], "x": X[:, 20], "y": X[:, 30], "kind": kind})
    pairs[:280].to_csv(tmp_path / "old.csv", index=False)
    pairs[280:].drop(columns="kind").to_csv(tmp_path / "more.csv", index=False)
    run("upload", "old.csv", "--label-column", "kind", "--name", "pairs")
    run("fit", "pairs", "--model", "first")
    run("append", "pairs", "more.csv", "--name", "pairs-2")
    run("transduce", "first", "--dataset", "pairs-2", "--model", "second")
    assert run("model", "second", "--json").json["points"] == 300
    run("embed", "models/first", "--name", "map", "--max-iter", "2")
    run("embed", "embeddings/map", "--dataset", "pairs-2", "--name", "map-2")
    assert run("embedding", "map-2", "--json").json["points"] == 300


def test_a_table_that_is_uploaded_as_a_whole_has_a_recipe_of_its_own(client: Client) -> None:
    """Although its rows are those of one that grew, whose graph has the recipe of the first rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=120), "b": rng.normal(size=120)})
    frame.loc[100:, "a"] *= 1000
    old = client.upload(frame[:100])
    client.fit(old, FEW, solver={"method": "irr"}).result()
    new = client.append_points(old, frame[100:]).result()
    whole = client.upload(frame)
    assert new.sha256 == whole.sha256
    found = [client.fit(data, FEW, solver={"method": "irr"}).result().graph for data in (new, whole)]
    assert [(graph.searched, graph.reused) for graph in found] == [(100, False), (120, False)]


def test_models_of_given_graphs_do_not_go_on(client: Client) -> None:
    pairs = np.array([(i, (i + 1) % 60) for i in range(60)])
    points, ring = client.upload(X[:60]), client.upload(Edges(pairs, points=60))
    labels = {0: 0, 1: 1}
    besides = client.fit(points, labels, edges=ring).result()
    alone = client.fit(ring, labels, graph={"metric": "affinity"}).result()
    row = sparse.csr_array((np.ones(1), ([0], [3])), shape=(1, 60))
    for model, more in ((besides, X[60:65]), (alone, row)):
        grown = client.append_points(model.dataset, more).result()
        made = client.embed(model, solver={"max_iter": 2}).result()
        for start in (partial(client.transduce, model), partial(client.embed, made)):
            with pytest.raises(InvalidArgument, match="no edges of new points are known") as caught:
                start(dataset=grown)
            assert [one.field for one in caught.value.violations] == ["appended_dataset"]


def test_appends_that_wait_together_share_what_the_project_may_store(tmp_path: Path) -> None:
    """When they were queued, there was room for each of them."""
    settings: dict[str, Any] = {"predictors": 0, "project_limits": {"small": {"max_project_bytes": 5 * X[:100].nbytes}}}
    with running(tmp_path, workers=0, **settings) as service, Client(service.target, project="small") as client:
        first, more = client.upload(X[:100]), client.upload(X[100:200])
        names = [client.append_points(first, more, name=name).info.name for name in ("one", "two")]
    with running(tmp_path, workers=1, **settings) as service, Client(service.target, project="small") as client:
        assert client.job(names[0]).result().points == 200
        with pytest.raises(JobFailed, match="max_project_bytes") as failed:
            client.job(names[1]).result()
        assert failed.value.reason == "PROJECT_FULL"


def test_points_of_another_kind_are_refused_with_the_field(client: Client) -> None:
    old, table = client.upload(X[:20]), client.upload(table_of(slice(0, 50)), table={"drop": ["zip"]})
    for dataset, points, words in (
        (old, X[20:30].astype(np.float32), "data_type DATA_TYPE_FLOAT64, like the dataset"),
        (old, X[20:30, :5], "columns 64"),
        (old, sparse.csr_array(X[20:30]), "must be dense"),
        (table, X[50:60], "'name', 'vector', 'parity'"),
    ):
        with pytest.raises(InvalidArgument, match=words) as caught:
            client.append_points(dataset, points)
        assert [one.field for one in caught.value.violations] == ["added_dataset"]
    with pytest.raises(ValueError, match="has no named columns"):
        client.append_points(old, table_of(slice(50, 60)))
    with pytest.raises(ValueError, match="lacks the column 'name'"):
        client.append_points(table, pd.DataFrame({"other": [1.0, 2.0]}))
    with pytest.raises(ValueError, match="lacks the column 'parity'"):
        client.append_points(table, table_of(slice(50, 60)).drop(columns="parity"))


def test_models_do_not_go_on_with_other_points(client: Client) -> None:
    old, other = client.upload(X[:100], name="old"), client.upload(X[100:200])
    model = client.fit(old, FEW, solver={"method": "irr"}).result()
    grown = client.append_points(other, X[:10]).result()
    for dataset in (old, other, grown):
        with pytest.raises(InvalidArgument, match="must be made by AppendPoints from") as caught:
            client.transduce(model, dataset=dataset)
        assert [one.field for one in caught.value.violations] == ["appended_dataset"]
    # A dataset that took the name of the model's.
    client.delete_dataset(old)
    client.upload(X[100:200], name="old")
    grown = client.append_points("old", X[:10]).result()
    with pytest.raises(JobFailed, match="must begin with the points of") as failed:
        client.transduce(model, dataset=grown).result()
    assert [one.field for one in failed.value.violations] == ["appended_dataset"]
    with pytest.raises(InvalidArgument, match="must come with embedding"):
        client.embed(model, dataset=grown)


def test_a_name_that_is_taken_and_points_that_are_missing_are_refused(client: Client, project: Project) -> None:
    old = client.upload(X[:20], name="old")
    request = job_pb2.AppendPointsRequest(dataset=old.name)
    assert refusal(project.stub.AppendPoints, request).fields == ["points"]
    request.inline.CopyFrom(inline(X[20:30]))
    request.dataset_id = "old"
    assert refusal(project.stub.AppendPoints, request).code is grpc.StatusCode.ALREADY_EXISTS
    request.dataset_id = ""
    made = project.ended(project.stub.AppendPoints(request).job).append_points.dataset
    assert made.base == dataset_pb2.DatasetBase(dataset=old.name, row_count=20, digest=made.base.digest)


def test_a_limit_on_points_or_bytes_holds_for_the_whole(idle: Service) -> None:
    """With workers it would be the job that fails."""
    project = idle.project(idle.token("*"))
    first = project.upload(X[:20])
    foreign = f"projects/other/datasets/{first.name.rpartition('/')[2]}"
    request = job_pb2.AppendPointsRequest(dataset=first.name, added_dataset=foreign)
    found = refusal(project.stub.AppendPoints, request)
    assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["added_dataset"])
