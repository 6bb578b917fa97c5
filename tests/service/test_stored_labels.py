"""Soft labels, and labels that are in a column of a dataset instead of the message."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily_client import Client, InvalidArgument, JobFailed, LabelColumn
from homophily_client._pb import model_pb2
from homophily_client.labels import to_labels
from homophily_client.tables import TableOptions, read_table

from .commands import Run
from .serving import Project, Service, labels_of, refusal

X, Y = load_wine(return_X_y=True)
X = (X - X.mean(axis=0)) / X.std(axis=0)
NAMES = np.array(["red", "rosé", "white"])
FEW = {point: int(Y[point]) for point in range(0, len(Y), 9)}


@pytest.fixture(scope="module")
def client(service: Service) -> Any:
    with Client(service.target, project="stored-labels") as client:
        yield client


def frame(**labels: Any) -> pd.DataFrame:
    return pd.DataFrame({f"c{column}": X[:, column] for column in range(X.shape[1])} | labels)


def few_names() -> list[str]:
    return [NAMES[Y[point]] if point in FEW else "" for point in range(len(Y))]


# -- soft ------------------------------------------------------------------------------------------------------------


def soft(seed: int = 0) -> Any:
    """Shares of the classes for the labelled points, weights for some, as in the core."""
    shares = np.zeros((len(Y), 3))
    drawn = np.random.default_rng(seed).dirichlet(np.ones(3), size=len(FEW))
    for (point, one), row in zip(FEW.items(), drawn, strict=True):
        shares[point] = 0.3 * row + 0.7 * np.eye(3)[one]
    return shares


@pytest.mark.parametrize("method", ["irr", "err"])
def test_soft_labels_answer_as_they_do_in_the_core(client: Client, method: str) -> None:
    shares = soft()
    weights = np.where(np.arange(len(Y)) % 2, 1.0, 0.5)
    model = client.fit(X, shares, weights=weights, solver={"method": method}, calibrate=True).result()
    core = (IRRClassifier if method == "irr" else ERRClassifier)(graph=KNNGraph())
    core.fit(X, shares, sample_weight=np.where(shares.any(axis=1), weights, 0.0))
    found = client.read_solution(model, ["labels", "probabilities", "given"])
    assert found.labels.tolist() == core.transduction_.tolist()
    np.testing.assert_allclose(found.probabilities, core.label_distributions_, atol=1e-6)
    assert model.labelled == len(FEW)


def test_a_transduction_keeps_the_soft_labels_that_it_does_not_change(client: Client) -> None:
    shares = soft()
    first = client.fit(X, shares, solver={"method": "irr"}).result()
    changed = {0: {0: 0.6, 1: 0.4}, 1: 1}
    again = client.transduce(first, changed, withdrawn=[9]).result()
    shares[0], shares[1], shares[9] = [0.6, 0.4, 0.0], [0, 1, 0], 0.0
    expected = IRRClassifier(graph=KNNGraph()).fit(X, shares)
    values = client.read_solution(again, ["values"]).values
    np.testing.assert_allclose(values, expected.solution_, atol=1e-6)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"points": [0, 0], "shares": [0.5, 0.5, 1.0]}, "labels.shares"),
        ({"points": [0, 0, 1], "shares": [0.5, -0.5, 1.0]}, "labels.shares[1]"),
        ({"points": [0, 0, 1], "shares": [0.5, 0.5, 1.0], "weights": [1.0, 2.0, 1.0]}, "labels.weights[1]"),
        ({"points": [0, 0, 1], "classes": [1, 1, 0], "shares": [0.5, 0.5, 1.0]}, "labels.points[1]"),
        ({"points": [0, 0, 1]}, "labels.points[1]"),
    ],
)
def test_wrong_soft_labels_name_the_field(project: Project, message: dict[str, Any], field: str) -> None:
    classes = message.pop("classes", [0, 1, 0][: len(message["points"])])
    values = model_pb2.ClassValues(integers=model_pb2.IntegerValues(values=classes))
    labels = model_pb2.Labels(classes=values, **message)
    found = refusal(project.stub.Fit, project.fit_request(X, labels))
    assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


def test_only_the_labels_of_fits_without_a_search_may_be_soft(client: Client) -> None:
    few = {0: {0: 0.5, 1: 0.5}, 20: 0, 100: 1}
    for arguments, field in (
        ({"y": few, "search": 2}, "labels.shares"),
        ({"y": FEW, "validation": few}, "validation.shares"),
        ({"y": FEW, "test": few}, "test.shares"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            client.fit(X, **arguments)
        assert [one.field for one in caught.value.violations] == [field]
    with pytest.raises(InvalidArgument) as caught:
        client.embed(X, labels=few)
    assert [one.field for one in caught.value.violations] == ["labels.shares"]


def test_soft_labels_are_read_from_frames_and_dictionaries() -> None:
    rows = pd.DataFrame({"cat": [0.25, 0.0, np.nan], "dog": [0.75, 0.0, 1.0]})
    given = to_labels(rows)
    assert given.length == 3
    assert list(given.message.points) == [0, 0, 2]
    assert list(given.message.classes.strings.values) == ["cat", "dog", "dog"]
    assert list(given.message.shares) == [0.25, 0.75, 1.0]
    with pytest.raises(ValueError, match="must hold shares"):
        to_labels([[0.5, -0.5]])


# -- in a column -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(client: Client) -> Any:
    weight = np.where(np.arange(len(Y)) % 2, 2.0, 1.0)
    table = frame(kind=few_names(), cultivar=np.where(np.isin(np.arange(len(Y)), list(FEW)), Y, np.nan), weight=weight)
    return client.upload(table, table={"label_column": "kind", "drop": ["cultivar", "weight"]}, name="labelled")


def test_labels_that_were_uploaded_with_the_points_need_not_be_sent(client: Client, labelled: Any) -> None:
    model = client.fit(labelled).result()
    sent = client.fit(frame(), {point: str(NAMES[one]) for point, one in FEW.items()}).result()
    assert model.classes == tuple(NAMES)
    assert client.read_solution(model).labels.tolist() == client.read_solution(sent).labels.tolist()
    # The column is no feature, and new rows may have it or not.
    assert [column.name for column in model.schema.columns] == [f"c{column}" for column in range(X.shape[1])]
    answers = [client.predict(model, rows).labels.tolist() for rows in (frame()[:9], frame(kind="?")[:9])]
    assert answers[0] == answers[1] == client.read_solution(model).labels[:9].tolist()


def test_labels_and_weights_may_be_in_a_dataset_of_their_own(client: Client) -> None:
    weight = np.where(np.arange(len(Y)) % 2, 2.0, np.nan)
    few = np.where(np.isin(np.arange(len(Y)), list(FEW)), Y, np.nan)
    truth = client.upload({"y": few, "w": weight}, table={"label_column": "y"}, name="answers")
    assert [column.kind for column in truth.schema.columns] == ["number", "label"]
    points = client.upload(X, name="points")
    column = LabelColumn(truth, weight_column="w")
    model = client.fit(points, column, solver={"method": "irr"}).result()
    known = np.array(list(FEW))
    core = IRRClassifier(graph=KNNGraph())
    weights = np.where(np.isnan(weight), 1.0, weight)
    core.fit(X, [int(Y[point]) if point in FEW else -1 for point in range(len(Y))], sample_weight=weights)
    assert model.classes == (0, 1, 2)
    np.testing.assert_allclose(client.read_solution(model, ["values"]).values, core.solution_, atol=1e-6)
    # And beside a model: the labels of other points in another column.
    more = client.upload(
        {"label": ["" if point in FEW else one for point, one in enumerate(Y)]}, table={"label_column": "label"}
    )
    again = client.transduce(model, LabelColumn(more), test=column).result()
    assert again.labelled == len(Y)
    assert again.test.points == len(known)


def test_maps_take_labels_from_a_column(client: Client, labelled: Any) -> None:
    made = client.embed(labelled, labels=LabelColumn(), solver={"max_iter": 2}).result()
    assert made.labelled == len(FEW)


def test_references_that_lead_nowhere_name_the_field(client: Client, labelled: Any) -> None:
    plain = client.upload(X, name="plain")
    short = client.upload({"label": ["a", "b"]}, table={"label_column": "label"}, name="short")
    wrong = {
        "labels.column.dataset": [LabelColumn(), LabelColumn(plain), LabelColumn(short)],
        "labels.column.column": [LabelColumn(labelled, "cultivar")],
        "labels.column.weight_column": [LabelColumn(labelled, weight_column="kind")],
    }
    for field, columns in wrong.items():
        for column in columns:
            with pytest.raises(InvalidArgument) as caught:
                client.fit(plain, column)
            assert [one.field for one in caught.value.violations] == [field], column
    with pytest.raises(InvalidArgument) as caught:
        client.fit(short, {0: "a", 1: "b"})
    assert [one.field for one in caught.value.violations] == ["dataset"]
    with pytest.raises(ValueError, match="name it in LabelColumn"):
        client.fit(plain, LabelColumn(labelled), weights=[1.0] * len(X))


def test_a_reference_comes_alone(project: Project) -> None:
    labels = labels_of(FEW)
    labels.column.SetInParent()
    found = refusal(project.stub.Fit, project.fit_request(X, labels))
    assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["labels.points"])


def test_what_only_the_job_finds_ends_it_with_the_field(client: Client) -> None:
    one_class = client.upload(frame(kind=["a"] * len(X)), table={"label_column": "kind"}, name="one-class")
    words = client.upload({"kind": list(NAMES[Y])}, table={"label_column": "kind"}, name="words")
    with pytest.raises(JobFailed) as caught:
        client.fit(one_class).result()
    assert [one.field for one in caught.value.violations] == ["labels"]
    with pytest.raises(JobFailed) as caught:
        client.fit(X, FEW, test=LabelColumn(words)).result()
    assert [one.field for one in caught.value.violations] == ["test.classes"]


def test_labels_of_another_project_cannot_be_referred_to(project: Project, labelled: Any) -> None:
    labels = model_pb2.Labels(column=model_pb2.LabelColumn(dataset=labelled.name))
    found = refusal(project.stub.Fit, project.fit_request(X, labels))
    assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["labels.column.dataset"])


def test_integers_with_gaps_and_booleans_become_integers() -> None:
    for entries, expected in (
        ([1.0, np.nan, 2.0], ["1", "", "2"]),
        ([True, False], ["1", "0"]),
        ([3, -1], ["3", ""]),
        (["1.5", "x"], ["1.5", "x"]),
    ):
        table = read_table({"x": [0.0] * len(entries), "y": entries}, TableOptions(label_column="y"), keep_labels=True)
        assert table.columns["y"].tolist() == expected


def test_the_command_line_takes_labels_from_a_dataset(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "wine.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"c{column}" for column in range(X.shape[1])), "kind"])
        writer.writerows([*row, name] for row, name in zip(X.tolist(), few_names(), strict=True))
    run("upload", "wine.csv", "--label-column", "kind", "--name", "with-labels")
    run("fit", "with-labels", "--model", "first")
    run("upload", "wine.csv", "--drop", "kind", "--name", "without")
    run("fit", "without", "--labels", "datasets/with-labels:kind", "--model", "second")
    first, second = (run("model", name, "--json").json for name in ("first", "second"))
    assert first["classes"] == second["classes"] == list(NAMES)
    assert first["labelled"] == second["labelled"] == len(FEW)
    assert "this one has none" in run("fit", "without", code=2).err


def test_columns_of_few_labels_have_classes_of_the_kind_that_is_there(client: Client) -> None:
    """A column that happens to hold digits only is of strings beside one with names."""
    kinds = np.array(["1", "2", "a"])
    given = [kinds[Y[point]] if point in FEW else "" for point in range(len(Y))]
    digits = [kinds[Y[point]] if point % 9 == 4 and Y[point] < 2 else "" for point in range(len(Y))]
    dataset = client.upload(frame(kind=given), table={"label_column": "kind"})
    judged = client.upload({"judged": digits}, table={"label_column": "judged"})
    count = sum(map(bool, digits))
    model = client.fit(dataset, validation=LabelColumn(judged), test=LabelColumn(judged)).result()
    assert (model.validation.points, model.test.points) == (count, count)
    found = client.fit(dataset, validation=LabelColumn(judged), search={"trials": 2}).result()
    assert found.validation.points == count
    assert client.transduce(model, LabelColumn(judged)).result().labelled == len(FEW) + count
    first = client.embed(dataset, labels=LabelColumn(), solver={"max_iter": 2}).result()
    assert client.embed(first, labels=LabelColumn(judged), solver={"max_iter": 2}).result().labelled == len(FEW) + count


def test_a_column_of_a_dataset_that_took_the_name_of_the_points_is_refused(client: Client) -> None:
    options: dict[str, Any] = {"table": {"label_column": "kind"}, "name": "renewed"}
    dataset = client.upload(frame(kind=few_names()), **options)
    model = client.fit(dataset, solver={"method": "irr"}).result()
    made = client.embed(model, solver={"max_iter": 2}).result()
    assert client.transduce(model, LabelColumn()).result().labelled == len(FEW)
    client.delete_dataset(dataset)
    client.upload(frame(kind=few_names()[::-1]), **options)
    for start in (
        lambda: client.transduce(model, LabelColumn()),
        lambda: client.transduce(model, test=LabelColumn()),
        lambda: client.embed(model, labels=LabelColumn()),
        lambda: client.embed(made, labels=LabelColumn()),
    ):
        with pytest.raises(JobFailed, match="no longer holds the points of") as failed:
            start().result()
        assert failed.value.reason == "SOURCE_CHANGED"
    # Named, it is a dataset of labels.
    assert client.transduce(model, LabelColumn("renewed")).result().labelled > len(FEW)
