"""Which column of a table is what, how it is sent, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from homophily_client import TableError, TableOptions, TableWarning
from homophily_client._pb import points_pb2 as pb
from homophily_client.points import Points
from homophily_client.tables import as_points, is_table, new_rows, read_table
from homophily_service.contract.arrays import Limits, from_points, parts_of

KINDS = {
    "number": pb.COLUMN_KIND_NUMBER,
    "vector": pb.COLUMN_KIND_VECTOR,
    "category": pb.COLUMN_KIND_CATEGORY,
    "text": pb.COLUMN_KIND_TEXT,
    "id": pb.COLUMN_KIND_ID,
}
LIMITS = Limits(10**6, 10**4, 10**9)


def frame(rows: int = 30) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "customer": np.arange(rows) + 1000,
            "age": np.arange(rows) % 7,
            "city": [["Köln", "Ulm", None][row % 3] for row in range(rows)],
            "income": [None if row == 4 else 10.5 * (row % 11) for row in range(rows)],
            "label": [["yes", "no"][row % 2] if row < 6 else "" for row in range(rows)],
        }
    )


def forms(table: pd.DataFrame) -> dict[str, object]:
    return {
        "pandas": table,
        "pandas' own types": table.convert_dtypes(),
        "arrow": pa.Table.from_pandas(table),
        "mapping": {name: table[name].tolist() for name in table},
    }


@pytest.mark.parametrize("form", forms(frame()))
def test_a_table_is_the_same_in_every_form(form):
    table = read_table(forms(frame())[form], TableOptions(label_column="label"))
    assert table.kinds == {
        "customer": KINDS["id"],
        "age": KINDS["number"],
        "city": KINDS["category"],
        "income": KINDS["number"],
    }
    assert table.ids == [str(1000 + row) for row in range(30)]
    assert table.labels is not None
    assert [label or None for label in table.labels[:7]] == ["yes", "no"] * 3 + [None]
    assert table.columns["city"].tolist()[:3] == ["Köln", "Ulm", ""]
    assert np.isnan(table.columns["income"][4])
    assert table.unused == ("label",)
    assert table.notes == (
        "Column 'customer' is taken as the id, as all its values differ; `columns` makes it a feature.",
    )


def test_what_is_sent_is_what_the_server_reads():
    table = read_table(frame(), TableOptions(label_column="label", scale="none", missing="mean"))
    points = Points(table)
    message = points.message()
    rows = from_points(message, LIMITS, "points")
    np.testing.assert_array_equal(rows.numbers, table.numbers())
    assert [column.decode().tolist() for column in rows.strings] == [table.ids, table.columns["city"].tolist()]
    assert (rows.schema.scale, rows.schema.missing) == (pb.SCALE_NONE, pb.MISSING_VALUES_MEAN)
    parts = parts_of(points.shape_message(), LIMITS, "shape")
    assert sum(part.bytes for part in parts) == points.bytes
    assert points.read(0, points.bytes) == b"".join(
        [rows.numbers.tobytes(), *(column[part].tobytes() for part in (0, 1) for column in rows.strings)]
    )


def test_some_rows_are_a_message_of_their_own():
    table = new_rows(frame())
    points = Points(table)
    pieces = [points.message(start, stop) for start, stop in points.batches(500, 10**6)]
    assert len(pieces) > 2
    cities = [city for piece in pieces for city in from_points(piece, LIMITS, "points").strings[0].decode().tolist()]
    assert cities == table.columns["city"].tolist()


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ({"drop": ["age"]}, ["city", "income"]),
        ({"columns": ["age", "customer"]}, ["customer", "age"]),
        ({"id_column": "city"}, ["age", "income"]),
        ({"columns": ["income"], "id_column": "customer"}, ["income"]),
        ({"text": ["city"]}, ["age", "city", "income"]),
    ],
)
def test_columns_are_chosen(options, features):
    table = read_table(frame(), TableOptions(label_column="label", **options))
    assert [name for name, kind in table.kinds.items() if kind != KINDS["id"]] == features
    assert set(table.unused) == set(frame()) - set(table.kinds)


def test_numbers_may_be_categories():
    table = read_table({"zip": [1067, 80331, 1067], "x": [1.0, 2.0, 3.0]}, TableOptions(categories=["zip"]))
    assert table.columns["zip"].tolist() == ["1067", "80331", "1067"]
    assert table.kinds["zip"] == KINDS["category"]


def test_ids_that_are_mostly_numbers_are_ids():
    ids = [*map(str, range(1000, 1040)), "A17"]
    assert read_table({"id": ids, "x": np.arange(41) % 5}, TableOptions()).ids == ids


def test_integers_in_a_short_table_are_an_id_only_by_name():
    columns = {"age": [31, 45, 27], "x": [0.5, 0.1, 0.9]}
    assert read_table(columns, TableOptions()).ids is None
    assert read_table({"row_id": [31, 45, 27], **columns}, TableOptions()).ids == ["31", "45", "27"]


def test_several_columns_like_an_id_are_left_out_and_named():
    table = read_table({"id": list("abcd"), "mail": list("efgh"), "x": [1.0, 2.0, 3.0, 4.0]}, TableOptions())
    assert list(table.kinds) == ["id", "x"]
    assert table.notes[1] == "Left out, as all values differ: 'mail'; `columns` makes them features."


def test_weights_are_read_and_a_missing_one_counts_as_one():
    table = read_table(
        {"x": [1.0, 2.0], "y": ["a", "b"], "w": [0.5, None]}, TableOptions(label_column="y", weight_column="w")
    )
    assert table.weights is not None
    assert table.weights.tolist() == [0.5, 1.0]


def test_vectors_keep_their_width():
    lists = pa.array([[1.0, 2.0, 3.0]] * 4, pa.list_(pa.float32(), 3))
    table = read_table(pa.table({"embedding": lists, "x": [1, 2, 1, 2]}), TableOptions())
    assert [(column.name, column.width) for column in table.schema().columns] == [("embedding", 3), ("x", 0)]
    assert table.numbers().shape == (4, 4)
    assert read_table({"v": [[1.0, 2.0], [3.0, 4.0]]}, TableOptions()).numbers().tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"x": [1.0, 2.0]}, {"label_column": "y"}, "label_column: the table has no column 'y', only 'x'"),
        ({"x": [1.0, 2.0]}, {"drop": ["z"]}, "drop: the table has no column 'z'"),
        ({"x": [1.0, 2.0]}, {"text": ["x"]}, "text: column 'x' holds numbers, no words"),
        ({"d": pd.to_datetime(["2020-01-01", "2020-01-02"])}, {}, "Column 'd' holds dates"),
        ({"d": pa.chunked_array([pa.array([1, 2], pa.date32())])}, {}, "Column 'd' holds dates"),
        ({"h": [*map(str, range(20)), "n/a"]}, {"columns": ["h"]}, "Column 'h' holds numbers, but 'n/a' in row 21"),
        ({"v": [[1.0], [1.0, 2.0]]}, {}, "Column 'v' must hold vectors of one length"),
        ({"v": [{"a": 1}, {"a": 2}]}, {}, "Column 'v' must hold"),
        ({"id": ["a", "b"]}, {}, "no column left that is a feature"),
        ({"r": ["it was very good", "not at all bad", "I like it much"]}, {}, "Column 'r' holds texts, each another"),
        ({"p": ["$1,234", "$2,000", "$1,100"]}, {}, "Column 'p' holds numbers with separators or units, such as"),
        (
            {"x": [1.0], "y": ["a"]},
            {"label_column": "y", "columns": ["x", "y"]},
            "Column 'y' is named for two purposes",
        ),
        ({"x": [1.0], "y": ["a"]}, {"label_column": "y", "id_column": "y"}, "Column 'y' is named for two purposes"),
        ({"x": [1.0, 2.0], "w": ["a", "b"]}, {"weight_column": "w"}, "weight_column: 'w' must hold numbers"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(columns, options, sentence):
    with pytest.raises(TableError, match=sentence):
        read_table(columns, TableOptions(**options))


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(TableError, match="several columns 'x'"):
        read_table(pd.DataFrame([[1, 2]], columns=["x", "x"]), TableOptions())


@pytest.mark.parametrize("array", [np.zeros((2, 2)), pd.DataFrame(np.zeros((2, 2))), [[1.0, 2.0]]])
def test_data_without_names_stay_arrays(array):
    assert not is_table(array)
    assert as_points(array) is array
    with pytest.raises(ValueError, match="named columns"):
        as_points(array, {"drop": ["x"]})


def test_a_measurement_that_is_taken_as_the_id_is_warned_of():
    cents = {"income": np.arange(30) * 37, "age": np.arange(30) % 9}
    with pytest.warns(TableWarning, match="Column 'income' is taken as the id"):
        assert as_points(cents).ids is not None
    with pytest.warns(TableWarning, match="Left out, as all values differ: 'mail'"):
        as_points({"id": list("abcd"), "mail": list("efgh"), "x": [1.0, 2.0, 1.0, 2.0]})
    # Warnings are errors here: plain ids, and columns that are named, give none.
    as_points({"id": np.arange(30), "age": np.arange(30) % 9})
    as_points({"name": [f"n{n}" for n in range(30)], "age": np.arange(30) % 9})
    as_points(cents, {"columns": ["income", "age"]})


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match="table has no option 'labels'"):
        TableOptions.of({"labels": "y"})
    with pytest.raises(ValueError, match="scale must be one of 'auto', 'none', 'standard'"):
        read_table({"x": [1.0]}, TableOptions(scale="log")).schema()
