"""Tables through the real service: columns by name at upload, fit, Predict, and in the answers."""

from __future__ import annotations

import json
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from homophily_client import Client, InvalidArgument, Model
from homophily_client._pb import dataset_pb2, model_pb2, points_pb2
from homophily_client.names import DatasetName
from homophily_client.points import Points
from homophily_client.tables import new_rows
from homophily_service.contract.arrays import Limits, parts_of
from homophily_service.tracking.records import Data

from .serving import PATIENCE, Service, open_stores


def customers(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    """Two groups that differ in a category and in a number of small scale, beside a number of large scale."""
    rng = np.random.default_rng(seed)
    group = np.arange(rows) % 2
    return pd.DataFrame(
        {
            "customer": [f"k{row:04d}" for row in range(rows)],
            "income": rng.normal(40e3, 9e3, rows),
            "rate": rng.normal(0.1 + 0.05 * group, 0.01, rows),
            "city": np.where(rng.random(rows) < 0.05, "Ulm", np.where(group == 1, "Kiel", "Bonn")),
            "note": ["left the shop", "bought much again"] * (rows // 2),
            "group": np.where(np.arange(rows) < 12, np.where(group == 1, "b", "a"), None),
        }
    )


TRUTH = np.array(["a", "b"] * 60)
OPTIONS = {"label_column": "group", "drop": ["note"]}
FEATURES = ["income", "rate", "city"]


@pytest.fixture(scope="module")
def client(service: Service) -> Any:
    with Client(service.target, project=service.project().id) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: Client) -> Model:
    return client.fit(customers(), table=OPTIONS).result(PATIENCE)


def test_a_table_is_labelled_by_all_of_its_columns(client: Client, model: Model) -> None:
    solution = client.read_solution(model, ["labels", "given", "ids"])
    assert solution.labels is not None
    assert np.mean(solution.labels != TRUTH) < 0.02
    assert solution.given is not None
    assert solution.given.tolist() == [row < 12 for row in range(120)]
    assert solution.ids is not None
    assert solution.ids.tolist() == customers()["customer"].tolist()


def test_a_model_says_what_its_columns_are_and_what_was_done_to_them(model: Model) -> None:
    assert model.schema is not None
    assert [(column.name, column.kind) for column in model.schema.columns] == [
        ("customer", "id"),
        ("income", "number"),
        ("rate", "number"),
        ("city", "category"),
    ]
    assert model.schema.unused_columns == ("note", "group")
    assert model.preprocessing_steps[0] == "2 numbers standardised; 1 category one-hot (city: 3)."
    assert model.dimensions == 5


def test_columns_at_predict_are_matched_by_name(client: Client, model: Model) -> None:
    new = customers(40, seed=1)
    expected = client.predict(model, new[FEATURES])
    assert np.mean(expected.labels != TRUTH[:40]) < 0.05
    for other in (new[FEATURES[::-1]], new, new.drop(columns=["group"]), pa.Table.from_pandas(new)):
        np.testing.assert_array_equal(client.predict(model, other).scores, expected.scores)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda table: table.drop(columns="rate"), "Missing: 'rate'"),
        (lambda table: table.rename(columns={"rate": "Rate"}), "Missing: 'rate'. Unexpected: 'Rate'"),
        (lambda table: table.assign(more=1.0), "Unexpected: 'more'"),
        (lambda table: table.assign(city=3.0), "Column 'city' must hold strings"),
        (lambda table: table[FEATURES].to_numpy()[:, :2].astype(float), "must be a table with the columns"),
    ],
)
def test_other_columns_at_predict_are_refused_by_name(client: Client, model: Model, change: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence) as refused:
        client.predict(model, change(customers(10)))
    assert refused.value.violations[0].field == "points"


def test_raw_calls_with_names_are_matched_too(service: Service, client: Client, model: Model) -> None:
    new = customers(10, seed=2)
    swapped = Points(new_rows(new[["city", "rate", "income"]])).message()
    answer = service.project().stub.Predict(model_pb2.PredictRequest(name=model.name, points=swapped))
    expected = client.predict(model, new[FEATURES])
    assert list(answer.class_indices) == expected.class_indices.tolist()


def test_a_category_that_the_model_does_not_know_is_told(client: Client, model: Model) -> None:
    answer = client.predict(model, customers(10).assign(city="Rom"))
    assert answer.warnings == (
        "Column 'city' has 1 value that 'fit' has not seen, such as 'Rom'; these rows belong to no category of the "
        "column.",
    )


def test_numbers_by_position_are_taken_where_all_columns_are_numbers(client: Client) -> None:
    table = customers()[["rate", "income"]]
    model = client.fit(table, dict(enumerate(TRUTH[:12]))).result(PATIENCE)
    np.testing.assert_array_equal(
        client.predict(model, table.to_numpy()).scores, client.predict(model, table[["income", "rate"]]).scores
    )


def test_missing_values_and_large_calls(client: Client, model: Model) -> None:
    new = customers(400, seed=3)
    new.loc[::7, "income"] = np.nan
    new.loc[::11, "city"] = None
    assert np.mean(client.predict(model, new).labels != np.tile(["a", "b"], 200)) < 0.05


def test_a_table_that_is_uploaded_is_used_by_its_name_and_its_ids_outlive_it(client: Client) -> None:
    dataset = client.upload(customers(), table=OPTIONS, name="customers")
    assert dataset.schema is not None
    assert dataset.schema.columns[0].kind == "id"
    model = client.fit(dataset, dict(enumerate(TRUTH[:12]))).result(PATIENCE)
    client.delete_dataset(dataset)
    second = client.transduce(model, {20: "a"}).result(PATIENCE)
    for one in (model, second):
        ids = client.read_solution(one, ["ids"]).ids
        assert ids is not None
        assert ids[-1] == "k0119"
    assert second.schema == model.schema


def test_text_is_compared_by_its_words(client: Client) -> None:
    table = customers()[["note", "group"]]
    model = client.fit(table, table={"label_column": "group", "text": ["note"]}).result(PATIENCE)
    assert "1 text as TF-IDF (note: 6 terms)" in model.preprocessing_steps[0]
    assert client.predict(model, {"note": ["bought again"]}).labels.tolist() == ["b"]


def test_a_map_of_a_table_comes_with_its_ids(client: Client) -> None:
    embedding = client.embed(customers(), table=OPTIONS).result(PATIENCE)
    found = client.read_embedding(embedding)
    assert found.ids is not None
    assert found.ids.tolist() == customers()["customer"].tolist()
    assert embedding.schema is not None
    assert embedding.preprocessing_steps[0].startswith("2 numbers standardised")


def test_weights_of_labels_come_from_their_column(client: Client) -> None:
    table = customers().assign(sure=1.0, wrong=customers()["group"])
    table.loc[0, "wrong"] = "b"
    table.loc[0, "sure"] = 1e-6
    options = {"label_column": "wrong", "weight_column": "sure", "drop": ["note", "group"]}
    solution = client.read_solution(client.fit(table, table=options).result(PATIENCE))
    assert solution.labels is not None
    assert solution.labels[0] == "a"


def test_a_search_uses_the_table(client: Client) -> None:
    search = {"trials": 3, "vary": ["n_neighbors"]}
    model = client.fit(customers(), table=OPTIONS, search=search, solver={"method": "irr"}).result(PATIENCE)
    assert model.search is not None
    assert model.schema is not None


def column(name: str, kind: str = "", width: int = 0) -> points_pb2.Column:
    number = points_pb2.ColumnKind.Value(f"COLUMN_KIND_{kind or 'unspecified'}".upper())
    return points_pb2.Column(name=name, kind=number, width=width)


def schema(**changes: Any) -> points_pb2.Points:
    """A table of a number and a string, changed."""
    message = Points(new_rows({"x": [1.0, 2.0], "s": ["aé", "b"]})).message()
    for field, value in changes.items():
        if field == "column":
            message.schema.columns.append(value)
        elif field == "starts":
            message.strings[0].row_starts.data = np.array(value, dtype="<i8").tobytes()
        elif field == "csr":
            message.csr.columns = 2
        else:
            getattr(message, field).MergeFrom(value)
    return message


@pytest.mark.parametrize(
    ("points", "field"),
    [
        (
            schema(column=column("x", "number")),
            "points.schema.columns[2].name",
        ),
        (
            schema(column=column("", "number")),
            "points.schema.columns[2].name",
        ),
        (schema(column=column("z")), "points.schema.columns[2].kind"),
        (
            schema(column=column("z", "vector")),
            "points.schema.columns[2].width",
        ),
        (schema(column=column("z", "number")), "points.schema.columns"),
        (schema(column=column("z", "text")), "points.schema.columns"),
        (schema(starts=[0, 9, 4]), "points.strings[0].row_starts"),
        (schema(starts=[0, 2, 4]), "points.strings[0].row_starts"),
        (schema(csr=True), "points.schema"),
    ],
)
def test_schemas_that_are_wrong_name_their_field(service: Service, model: Model, points: Any, field: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        service.project().stub.Predict(model_pb2.PredictRequest(name=model.name, points=points))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in refused.value.details()


def many(kind: str, count: int) -> points_pb2.PointsShape:
    columns = [column(f"c{number}", kind) for number in range(count)]
    dense = points_pb2.DenseShape(rows=2, columns=0, data_type=points_pb2.DATA_TYPE_FLOAT64)
    return points_pb2.PointsShape(dense=dense, schema=points_pb2.TableSchema(columns=columns), string_bytes=[4] * count)


@pytest.mark.parametrize(("kind", "most"), [("category", 1000), ("text", 10)])
def test_columns_of_strings_are_limited_before_anything_is_written(service: Service, kind: str, most: int) -> None:
    project = service.project()
    limits = Limits(10**6, 10**5, 10**9)
    assert len(parts_of(many(kind, most), limits, "start.shape")) == 3
    start = dataset_pb2.UploadStart(parent=project.name, upload_id="many", shape=many(kind, most + 1))
    with pytest.raises(grpc.RpcError) as refused:
        project.stub.UploadDataset(iter([dataset_pb2.UploadDatasetRequest(start=start)]))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"the limit is {most}" in refused.value.details()
    assert not (service.settings.data_dir / "uploads" / project.id).exists()


def test_a_string_that_is_too_long_is_refused_with_its_row(client: Client, model: Model) -> None:
    with pytest.raises(InvalidArgument, match="at most 65536 bytes in a row; row 1 has more"):
        client.predict(model, customers(2).assign(city=["a", "b" * 70_000]))


def test_the_tracking_run_of_a_table_names_its_columns(service: Service, client: Client) -> None:
    dataset = client.upload(customers(), table=OPTIONS, name="tracked")
    stores = open_stores(service)
    record = stores.catalog.get(DatasetName.parse(dataset.name, "name"))
    stores.close()
    columns = json.loads(Data.of(dataset_pb2.Dataset.FromString(record.message)).schema)["mlflow_colspec"]
    assert [(one["name"], one["type"]) for one in columns] == [
        ("customer", "string"),
        ("income", "double"),
        ("rate", "double"),
        ("city", "string"),
        ("group", "string"),
    ]
