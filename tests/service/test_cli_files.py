"""Points and labels out of files, in every form that the command line takes."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pyarrow as pa
import pytest
from numpy.lib.format import write_array_header_1_0
from numpy.testing import assert_array_equal
from pyarrow import feather, parquet
from scipy import sparse

from homophily_client.tables import TableOptions
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.files import Data, is_file, read_data
from homophily_service.cli.labels import Ids, read_labels

X = np.array([[0.0, 1.5], [2.0, 0.0], [0.25, 3.0]])


def read_points(path: Path, label_column: str | None = None, n_features: int | None = None) -> Data:
    return read_data(path, TableOptions(label_column=label_column), n_features=n_features)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# -- points out of files -----------------------------------------------------------------------------------------------


def test_npy_files_are_mapped_and_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", X)
    assert_array_equal(read_points(tmp_path / "points.npy").points, X)
    np.save(tmp_path / "objects.npy", np.array([["a", None]], dtype=object), allow_pickle=True)
    with pytest.raises(WrongInput, match=r"objects\.npy: contains Python objects"):
        read_points(tmp_path / "objects.npy")
    (tmp_path / "bomb.npy").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(WrongInput, match=r"bomb\.npy: contains Python objects, or is not a NumPy file"):
        read_points(tmp_path / "bomb.npy")


def header(shape: tuple[int, ...], description: str = "<f8") -> bytes:
    file = io.BytesIO()
    write_array_header_1_0(file, {"descr": description, "fortran_order": False, "shape": shape})
    return file.getvalue()


def zipped(how: int, *parts: bytes) -> bytes:
    """An archive of one array."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive, archive.open("X.npy", "w") as member:
        for part in parts:
            member.write(part)
    return file.getvalue()


@contextmanager
def nothing_allocated() -> Iterator[None]:
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


ZEROS = bytes(1 << 20)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("shape.npy", header((10**9, 100)) + bytes(80)),
        ("nothing.npy", header((10**15, 1), "<U0")),
        ("shape.npz", zipped(zipfile.ZIP_STORED, header((10**9, 100)), bytes(80))),
        ("bomb.npz", zipped(zipfile.ZIP_DEFLATED, header((100, 1 << 17)), *[ZEROS] * 100)),
        ("bzip.npz", zipped(zipfile.ZIP_BZIP2, header((1, 1 << 17)), ZEROS)),
    ],
)
def test_files_that_would_fill_the_memory_are_refused_before_anything_is_allocated(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    place = "X" if name.endswith("z") else "0"
    refused = pytest.raises(WrongInput, match=re.escape(name))
    with nothing_allocated():
        with refused:
            read_points(path)
        with refused:
            read_points(path, place)
        with refused:
            read_labels(f"{path}:{place}")


def test_a_sparse_matrix_of_rows_that_are_not_in_the_file_is_refused(tmp_path: Path) -> None:
    huge = sparse.coo_array(([1.0], ([0], [0])), shape=(10**12, 2))
    sparse.save_npz(tmp_path / "rows.npz", huge)
    with nothing_allocated(), pytest.raises(WrongInput, match=r"rows\.npz"):
        read_points(tmp_path / "rows.npz")


@pytest.mark.parametrize("name", ["objects.npz", "joblib.npz", "joblib.npy"])
def test_what_would_be_unpickled_is_refused_and_nothing_of_it_runs(tmp_path: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    path = tmp_path / name
    if name == "objects.npz":
        np.savez(path, allow_pickle=True, X=np.array([[Bomb()]], dtype=object))
    else:
        joblib.dump([np.zeros((3, 2)), Bomb()], path)
    for read in (read_points, lambda path: read_labels(f"{path}:X" if name.endswith("z") else str(path))):
        with pytest.raises(WrongInput, match=re.escape(name)):
            read(path)
    assert not (tmp_path / "ran").exists()


def test_npz_files_hold_a_table_or_a_sparse_matrix_in_either_layout(tmp_path: Path) -> None:
    matrix = sparse.csr_array(X)
    sparse.save_npz(tmp_path / "scipy.npz", matrix)
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
    np.savez(tmp_path / "parts.npz", **parts, y=np.array([1, 0, 1]))
    np.savez(tmp_path / "dense.npz", X=X, y=np.array([1, 0, 1]), Z=X)
    assert_array_equal(read_points(tmp_path / "scipy.npz").points.toarray(), X)
    table = read_points(tmp_path / "parts.npz", "y")
    assert_array_equal(table.points.toarray(), X)
    assert table.labels == [1, 0, 1]
    assert_array_equal(read_points(tmp_path / "dense.npz").points, X)
    np.savez(tmp_path / "two.npz", A=X, B=X)
    with pytest.raises(WrongInput, match="Got A, B instead"):
        read_points(tmp_path / "two.npz")
    np.savez(tmp_path / "outside.npz", **(parts | {"indices": matrix.indices + 7}))
    with pytest.raises(WrongInput, match=r"outside\.npz: cannot be read"):
        read_points(tmp_path / "outside.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "dense.npz").read_bytes()[:200])
    with pytest.raises(WrongInput, match=r"cut\.npz"):
        read_points(tmp_path / "cut.npz")


@pytest.mark.parametrize(
    ("text", "column", "labels"),
    [
        ("0,1.5\n2,0\n0.25,3\n", None, None),
        # Without a header, although labels are words; a number is a place.
        ("cat,0,1.5\n?,2,0\ndog,0.25,3\n", "0", ["cat", "?", "dog"]),
        ("0,2,1.5\n2,7,0\n0.25,2,3\n", "1", ["2", "7", "2"]),
        ("0;1,5;a\n2;0,0;b\n0,25;3,0;a\n", "-1", ["a", "b", "a"]),
    ],
)
def test_numbers_without_names_are_an_array(
    tmp_path: Path, text: str, column: str | None, labels: list[str] | None
) -> None:
    data = read_points(written(tmp_path / "points.csv", text), column)
    assert data.table is None
    assert_array_equal(data.points, X)
    assert data.labels == labels


@pytest.mark.parametrize(
    ("text", "column", "labels"),
    [
        ('\ufeff"a","b"\n0,1.5\n\n2,0\n0.25,3e0\n', None, None),
        ("a,b,kind\n0,1.5,cat\n2,0,\n0.25,3,dog\n", "kind", ["cat", None, "dog"]),
        ("0,1,label\n0,1.5,4\n2,0,5\n0.25,3,4\n", "-1", ["4", "5", "4"]),
        ("a;b;kind\n0;1,5;007\n2;0;1.0\n0,25;3;x\n", "kind", ["007", "1.0", "x"]),
        ("a\tb\n0\t1.5\n2\t0\n0.25\t3\n", None, None),
        ('"a\nb"|b\n0|1.5\n2|0\n0.25|3\n', None, None),
    ],
)
def test_csv_files_with_names_are_tables(
    tmp_path: Path, text: str, column: str | None, labels: list[str] | None
) -> None:
    data = read_points(written(tmp_path / "points.csv", text), column)
    assert data.table is not None
    assert_array_equal(data.table.numbers(), X)
    assert data.labels == labels


@pytest.mark.parametrize("ending", [".csv.gz", ".tsv", ".parquet", ".arrow", ".feather", ".jsonl"])
def test_a_table_is_the_same_in_every_format(tmp_path: Path, ending: str) -> None:
    columns = {"a": X[:, 0], "city": ["Köln", None, "Ulm"], "b": X[:, 1]}
    path, table = tmp_path / f"t{ending}", pa.table(columns)
    if ending == ".parquet":
        parquet.write_table(table, path)
    elif ending in (".arrow", ".feather"):
        feather.write_feather(table, path)
    elif ending == ".jsonl":
        rows = [{name: column[row] for name, column in columns.items()} for row in range(3)]
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    else:
        mark = "\t" if ending == ".tsv" else ","
        rows = [
            mark.join(columns),
            *(mark.join([str(a), c or "", str(b)]) for a, c, b in zip(*columns.values(), strict=True)),
        ]
        text = "\n".join(rows).encode()
        path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    data = read_data(path, TableOptions(columns=["a", "city", "b"]))
    assert data.table is not None
    assert_array_equal(data.table.numbers(), X)
    assert data.table.columns["city"].tolist() == ["Köln", "", "Ulm"]


def test_ids_keep_their_zeros(tmp_path: Path) -> None:
    data = read_points(written(tmp_path / "t.csv", "id,x\n007,1.5\n008,2\n010,3.5\n"))
    assert data.table is not None
    assert data.table.ids == ["007", "008", "010"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n3,4,5\n", "Expected 2 columns, got 3"),
        ("", "is empty"),
        ("a,b\n", "holds no rows below its header"),
        ("a,day\n1,2020-01-02\n2,2020-01-03\n", "Column 'day' holds dates"),
        ("a,b\n" + "1,2\n" * 20 + "3,cat\n", "Column 'b' holds numbers, but 'cat' in row 21"),
        ("a,a\n1,2\n", "several columns 'a'"),
        ("a;b\n852;x\n1.523;y\n2.100;x\n1.001;y\n", "column 'a': is 1.523 a thousand and more"),
        ('a,b\n1,"1.234,56"\n2,"2.100,00"\n3,"3.000,10"\n', "Column 'b' holds numbers with separators or units"),
        ("a,b\n1,37 %\n2,12 %\n3,9 %\n", "Column 'b' holds numbers with separators or units, such as '37 %'"),
    ],
)
def test_tables_are_refused_by_what_is_wrong(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(WrongInput, match=re.escape(sentence)):
        read_points(written(tmp_path / "points.csv", text))


def test_names_that_are_expected_make_a_header(tmp_path: Path) -> None:
    data = read_points(written(tmp_path / "t.csv", "2019,2020,segment\n1.5,2,a\n2.5,3,b\n3.5,4,\n"), "segment")
    assert data.table is not None
    assert list(data.table.columns) == ["2019", "2020"]
    assert data.labels == ["a", "b", None]


def test_na_is_a_value_among_strings_and_missing_among_numbers(tmp_path: Path) -> None:
    text = "region,x,label\nEU,1.5,NA\nNA,NA,US\nNone,2.5,\nEU,na,NA\n"
    data = read_points(written(tmp_path / "t.csv", text), "label")
    assert data.table is not None
    assert data.table.columns["region"].tolist() == ["EU", "NA", "None", "EU"]
    assert np.isnan(data.table.columns["x"]).tolist() == [False, True, False, True]
    assert data.labels == ["NA", "US", None, "NA"]


def test_the_index_that_pandas_writes_is_the_id_and_a_trailing_comma_is_nothing(tmp_path: Path) -> None:
    data = read_points(written(tmp_path / "t.csv", ",x,y,\n0,1.5,2,\n1,2.5,2,\n2,0.5,3,\n"))
    assert data.table is not None
    assert (data.table.ids, list(data.table.columns)) == (["0", "1", "2"], ["Unnamed: 0", "x", "y"])


def test_ids_of_any_length_come_back_as_they_were(tmp_path: Path) -> None:
    ids = [9007199254740993 + row for row in range(30)]
    parquet.write_table(pa.table({"id": ids, "x": np.arange(30) % 7}), tmp_path / "t.parquet")
    data = read_points(tmp_path / "t.parquet")
    assert data.table is not None
    assert data.table.ids == list(map(str, ids))


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a,b\n1,Köln\n2,Ulm\n".encode("latin-1"))
    with pytest.raises(WrongInput, match="save it as UTF-8"):
        read_points(tmp_path / "t.csv")


def test_packed_text_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"1,2\n" * (20 << 20), 9))
    with pytest.raises(WrongInput, match="unpacks to more than 200 times its size"):
        read_points(tmp_path / "t.csv.gz")


@pytest.mark.parametrize("name", ["cut.parquet", "cut.arrow", "cut.csv.gz", "cut.jsonl"])
def test_damaged_tables_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1\x00\x01{")
    with pytest.raises(WrongInput, match=re.escape(name)):
        read_points(tmp_path / name)


def test_columns_of_arrays_cannot_be_chosen(tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", X)
    with pytest.raises(WrongInput, match="is an array, which has no named columns"):
        read_data(tmp_path / "points.npy", TableOptions(drop=["a"]))


def test_an_unknown_ending_is_named_and_a_dataset_has_none() -> None:
    assert not is_file("digits")
    assert is_file("digits.csv.gz")
    with pytest.raises(WrongInput, match=r"table\.xlsx: its ending says nothing .* must be one of \.csv"):
        is_file("table.xlsx")


def test_svmlight_files_are_sparse(tmp_path: Path) -> None:
    from sklearn.datasets import dump_svmlight_file

    dump_svmlight_file(X, [1, -1, 1], str(tmp_path / "points.svmlight"))
    assert_array_equal(read_points(tmp_path / "points.svmlight").points.toarray(), X)
    assert read_points(tmp_path / "points.svmlight", n_features=5).points.shape == (3, 5)
    assert read_labels(f"{tmp_path}/points.svmlight", "?").by_point == {0: 1, 1: -1, 2: 1}


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"its ending says nothing"):
        read_points(written(tmp_path / "points.xls", "1"))
    with pytest.raises(WrongInput, match="there is no such file"):
        read_points(tmp_path / "points.npy")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(WrongInput, match="is a folder"):
        read_points(tmp_path / "folder.csv")
    np.save(tmp_path / "flat.npy", np.arange(3))
    with pytest.raises(WrongInput, match="must have two dimensions"):
        read_points(tmp_path / "flat.npy")
    np.save(tmp_path / "words.npy", np.array([["a"]]))
    with pytest.raises(WrongInput, match="must hold real numbers"):
        read_points(tmp_path / "words.npy")


# -- labels out of files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("l.csv", "point,label\n3,1\n0,2\n", {3: 1, 0: 2}),
        ("l.csv", "label,point,who\n-1,3,me\n2,0,you\n", {3: -1, 0: 2}),
        ("l.csv", "3,cat\n0,dog\n", {3: "cat", 0: "dog"}),
        ("l.csv", "cat\n\n?\ndog\nNaN\n", {0: "cat", 3: "dog"}),
        ("l.csv", "label\n1\n-1\n2\n", {0: 1, 2: 2}),
        ("l.csv", "kind\n1.0\n-1.0\n2\n", {0: 1, 2: 2}),
        ("l.csv", "007\n7\n", {0: "007", 1: "7"}),
        ("l.csv:kind", "a,kind\n1,x\n2,\n3,y\n", {0: "x", 2: "y"}),
        ("l.csv:1", "1,4\n2,-1\n3,5\n", {0: 4, 2: 5}),
        ("l.json", '{"3": "cat", "0": "dog"}', {3: "cat", 0: "dog"}),
        ("l.json", '{"3": 12345678901234567, "0": -1}', {3: 12345678901234567, 0: -1}),
    ],
)
def test_labels_as_people_keep_them(tmp_path: Path, name: str, text: str, expected: dict[int, Any]) -> None:
    written(tmp_path / name.partition(":")[0], text)
    assert read_labels(f"{tmp_path}/{name}").by_point == expected


def test_labels_by_id_are_placed_by_the_ids_of_the_data(tmp_path: Path) -> None:
    read = read_labels(str(written(tmp_path / "l.csv", "customer,segment\nc7,plus\n008,basic\n")))
    ids = ["c1", "008", "c7"]
    assert read.checked(3, "l.csv", Ids("customer", ids)).by_point == {2: "plus", 1: "basic"}
    for known, sentence in (
        (None, "its first column is called 'customer'. Call it point"),
        (Ids("id", ids), "or 'id' if it holds the ids"),
        (Ids("customer", ["c1", "c7", "c2"]), "no row of the data has the customer '008'"),
        (Ids("customer", ["c7", "c7", "008"]), "several rows of the data have the same customer"),
    ):
        with pytest.raises(WrongInput, match=sentence):
            read.checked(3, "l.csv", known)
    with pytest.raises(WrongInput, match="row 2: c7 is labelled twice"):
        read_labels(str(written(tmp_path / "l.csv", "customer,segment\nc7,plus\nc7,basic\n")))


def test_labels_in_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "l.npy", np.array([-1, 3, -1, 5]))
    assert read_labels(f"{tmp_path}/l.npy")[:2] == ({1: 3, 3: 5}, 4)
    np.save(tmp_path / "f.npy", np.array([np.nan, 3.0, 0.0]))
    assert read_labels(f"{tmp_path}/f.npy", "0").by_point == {1: 3}
    np.savez(tmp_path / "l.npz", y=np.array(["a", "", "b"]))
    assert read_labels(f"{tmp_path}/l.npz:y").by_point == {0: "a", 2: "b"}
    parquet.write_table(pa.table({"x": [1.0, 2.0], "y": ["a", None]}), tmp_path / "l.parquet")
    assert read_labels(f"{tmp_path}/l.parquet:y").by_point == {0: "a"}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("l.csv", "point,label\n3,1\n3,2\n", "row 2: point 3 is labelled twice"),
        ("l.csv", "point,label\n-3,1\n", "row 1: a point must be a row number"),
        ("l.csv", "point,label\n3,\n", "row 1 has no label"),
        ("l.csv", "a,b,c\n1,2,3\n", "must have the columns point and label, or one column. Got 3 columns"),
        ("l.csv:z", "a,b\n1,2\n", "has no column 'z', only a, b"),
        ("l.json", "[1, 2]", 'must be {"point": label'),
        ("l.json", '{"1": 2', "cannot be read"),
        ("l.json", '{"1": 2.5}', "labels must be integers or words. Got 2.5 instead."),
        ("l.txt", "1", "must be in a file that ends in one of"),
    ],
)
def test_wrong_labels_are_refused(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    written(tmp_path / name.partition(":")[0], text)
    with pytest.raises(WrongInput, match=re.escape(sentence)):
        read_labels(f"{tmp_path}/{name}")
