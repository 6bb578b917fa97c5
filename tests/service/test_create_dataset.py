"""Datasets from files elsewhere: what a worker reads is what an upload of the same would store; limits; changes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from obstore.store import from_url
from pyarrow import csv, feather, parquet

from homophily_client import (
    AlreadyExists,
    AsyncClient,
    Client,
    Dataset,
    InvalidArgument,
    JobCancelled,
    JobFailed,
    LimitExceeded,
    PermissionDenied,
)
from homophily_client._pb import job_pb2
from homophily_client.names import DatasetName
from homophily_service.jobs.table_files import _end_of_rows
from homophily_service.storage.quotas import stored_bytes

from .commands import Ended, environment
from .serving import PATIENCE, Project, Service, eventually, open_stores, running
from .site import Site, serving_files

BUCKET = "s3://homophily-test/addresses"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server by https, whose certificate the service trusts."""
    with serving_files(tmp_path_factory.mktemp("tls")) as (site, ca), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(ca))
        yield site


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory, s3_endpoint: str, web: Site) -> Iterator[Service]:
    """A service whose projects may read a bucket and a folder."""
    folder = tmp_path_factory.mktemp("reading")
    with pytest.MonkeyPatch.context() as patch:
        variables = {"ENDPOINT_URL": s3_endpoint, "ALLOW_HTTP": "true", "REGION": "us-east-1"}
        for name, value in (variables | {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}).items():
            patch.setenv(f"AWS_{name}", value)
        (folder / "shelf").mkdir()
        settings: dict[str, Any] = {
            "dataset_addresses": {"*": [BUCKET, f"file://{folder}/shelf", f"https://127.0.0.1:{web.port}"]},
            "max_points": 150_000,
            "max_dimensions": 50,
            "max_dataset_bytes": 40_000_000,
            "project_limits": {"small": {"max_project_bytes": 100_000}},
        }
        with running(folder / "data", predictors=0, **settings) as service:
            yield service


@pytest.fixture
def project(reading: Service) -> Project:
    return reading.project()


@pytest.fixture
def client(reading: Service, project: Project) -> Iterator[Client]:
    with Client(reading.target, project=project.id) as client:
        yield client


@pytest.fixture
def shelf(reading: Service, project: Project) -> Path:
    """A folder that the service may read."""
    folder = reading.settings.data_dir.parent / "shelf" / project.id
    folder.mkdir()
    return folder


def table_of(rows: int = 1000) -> pa.Table:
    rng = np.random.default_rng(rows)
    numbers = rng.normal(size=rows)
    return pa.table(
        {
            "name": [f"r{row}" for row in range(rows)],
            "x": pa.array(numbers, mask=np.arange(rows) % 10 == 3),
            "n": rng.integers(0, 9, rows),
            "small": rng.normal(size=rows).astype(np.float32),
            "flag": rng.integers(0, 2, rows).astype(bool),
            "kind": pa.array(np.array(["ant", "béé", None], dtype=object)[rng.integers(0, 3, rows)]),
            "coded": pa.array(np.array(["u", "v"])[rng.integers(0, 2, rows)]).dictionary_encode(),
            "zip": rng.integers(0, 5, rows),
            "vector": pa.FixedSizeListArray.from_arrays(rng.normal(size=3 * rows).astype(np.float32), 3),
            "listed": pa.array(list(rng.normal(size=(rows, 2)))),
            "words": [f"one {row % 7} two" for row in range(rows)],
            "label": ["yes", "no"] * (rows // 2),
        }
    )


OPTIONS = {"label_column": "label", "categories": ["zip"], "text": ["words"], "scale": "none", "missing": "mean"}


def written(table: pa.Table, path: Path, **more: Any) -> Path:
    writers: dict[str, Callable[..., Any]] = {
        ".parquet": parquet.write_table,
        ".arrow": feather.write_feather,
        ".csv": csv.write_csv,
    }
    writers[path.suffix](table, path, **more)
    return path


def created(client: Client, address: str, **more: Any) -> Dataset:
    return client.create_dataset(address, **more).result(PATIENCE)


def failure(client: Client, address: str, **more: Any) -> JobFailed:
    with pytest.raises(JobFailed) as failed:
        created(client, address, **more)
    return failed.value


# -- the same as an upload ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "parquet in groups", "arrow", "several", "bucket"])
def test_a_worker_reads_a_table_as_an_upload_stores_it(
    client: Client, shelf: Path, project: Project, kind: str
) -> None:
    table = table_of()
    address = f"file://{shelf}/a.parquet"
    if kind == "arrow":
        written(table, shelf / "a.arrow")
        address = f"file://{shelf}/a.arrow"
    elif kind == "several":
        for part in range(4):
            written(table.slice(250 * part, 250), shelf / f"{part}.parquet")
        address = f"file://{shelf}/"
    else:
        written(table, shelf / "a.parquet", row_group_size=300 if "groups" in kind else 1000)
    if kind == "bucket":
        address = f"{BUCKET}/{project.id}/a.parquet"
        from_url(BUCKET).put(f"{project.id}/a.parquet", shelf / "a.parquet")
    read = created(client, address, table=OPTIONS, description="for people, äöü")
    sent = client.upload(table, table=OPTIONS)
    assert (read.sha256, read.schema, read.string_bytes) == (sent.sha256, sent.schema, sent.string_bytes)
    assert (read.points, read.dimensions, read.dtype, read.size_bytes) == (1000, 9, "float64", sent.size_bytes)
    assert read.description == "for people, äöü"
    assert read.source is not None
    assert (read.source.address, read.source.files) == (address, 4 if kind == "several" else 1)
    labels = dict.fromkeys(range(0, 20, 2), "yes") | dict.fromkeys(range(1, 20, 2), "no")
    assert client.fit(read, labels, solver={"max_iter": 2}).result(PATIENCE).points == 1000
    # Its labels are stored with it.
    assert client.fit(read, solver={"method": "irr"}).result(PATIENCE).labelled == 1000


def test_csv_is_read_as_the_command_line_reads_it(
    client: Client, shelf: Path, project: Project, reading: Service
) -> None:
    text = "name;size;code;kind;note\n" + "".join(
        f'r{row};{row % 17},{row % 7}5;0{row % 3}7;{"NA" if row % 2 else "be"};"a;{row % 5}"\n' for row in range(40_000)
    )
    # More than a block of the reader's.
    path = shelf / "a.csv"
    path.write_text(text.replace("NA", "NA" * 90))
    read = created(client, f"file://{path}")
    assert read.schema is not None
    assert {column.name: column.kind for column in read.schema.columns} == {
        "name": "id",
        "size": "number",
        "code": "category",
        "kind": "category",
        "note": "category",
    }
    assert command(reading, project, "upload", path, "--name", "sent").code == 0
    assert read.sha256 == client.get_dataset("sent").sha256


def test_the_end_of_the_last_row_is_found_however_many_lines_are_in_quotes() -> None:
    cells = [b"a", b'"b"', b'"c\nd"', b'"\n"', b"e\n", b'"', b"\n"]
    rng = np.random.default_rng(0)
    for _ in range(500):
        content = b"".join(cells[place] for place in rng.integers(0, len(cells), 12))
        ends = [place + 1 for place in range(len(content)) if content[place : place + 1] == b"\n"]
        outside = [end for end in ends if content.count(b'"', 0, end) % 2 == 0]
        assert _end_of_rows(content, "x.csv") == max(outside, default=0)
    # One look at each of these took minutes when every line was counted from the beginning.
    assert _end_of_rows(b'a,b\n"' + b"\n" * (8 << 20), "x.csv") == 4


def test_numbers_without_names_are_an_array(client: Client, shelf: Path) -> None:
    X = np.random.default_rng(0).normal(size=(50, 3))
    np.savetxt(shelf / "a.csv", X, delimiter=",")
    read = created(client, f"file://{shelf}/a.csv")
    assert read.schema is None
    assert read.sha256 == client.upload(X).sha256


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool", ">f8"])
def test_npy_files_of_every_type_are_read_as_they_are_uploaded(client: Client, shelf: Path, dtype: str) -> None:
    X = (10 * np.random.default_rng(0).normal(size=(3000, 7))).astype(dtype)
    for part in range(3):
        np.save(shelf / f"{part}.npy", X[1000 * part : 1000 * (part + 1)])
    read = created(client, f"file://{shelf}/*.npy")
    sent = client.upload(X.astype(np.dtype(dtype).newbyteorder("=")))
    assert (read.sha256, read.dtype) == (sent.sha256, sent.dtype)


def test_what_was_concluded_about_columns_is_said(client: Client, shelf: Path) -> None:
    written(table_of().select(["name", "x"]), shelf / "a.parquet")
    job = client.create_dataset(f"file://{shelf}/a.parquet")
    job.result(PATIENCE)
    assert any("'name' is taken as the id" in note for note in job.info.notes)


async def _asynchronously(reading: Service, project: Project, address: str) -> Dataset:
    async with AsyncClient(reading.target, project=project.id) as client:
        return await (await client.create_dataset(address)).result(PATIENCE)


def test_an_async_client_does_the_same(client: Client, reading: Service, project: Project, shelf: Path) -> None:
    np.save(shelf / "a.npy", np.eye(3))
    found = asyncio.run(_asynchronously(reading, project, f"file://{shelf}/a.npy"))
    assert client.get_dataset(found) == found


# -- the same again, and changes ---------------------------------------------------------------------------------------


def test_the_same_files_are_not_read_twice_and_changed_ones_are_noticed(client: Client, shelf: Path) -> None:
    path = written(table_of(), shelf / "a.parquet")
    address = f"file://{path}"
    first = created(client, address, name="a", table=OPTIONS)
    again = client.create_dataset(address, name="a", table=OPTIONS)
    assert again.result(PATIENCE) == first
    assert again.info.unchanged
    assert failure(client, address, name="a").reason == "SOURCE_CHANGED"
    written(table_of(900), path)
    changed = failure(client, address, name="a", table=OPTIONS)
    assert changed.reason == "SOURCE_CHANGED"
    assert "delete it, or give another dataset_id" in changed.message
    assert client.get_dataset("a") == first
    client.delete_dataset("a")
    assert created(client, address, name="a", table=OPTIONS).points == 900
    written(table_of(), shelf / "b.parquet")
    with pytest.raises(AlreadyExists):
        client.create_dataset(f"file://{shelf}/b.parquet", name="a")
    client.upload(np.eye(3), name="uploaded")
    with pytest.raises(AlreadyExists):
        client.create_dataset(address, name="uploaded")


# -- refused -----------------------------------------------------------------------------------------------------------


def test_requests_that_are_wrong_in_themselves_are_refused_at_once(client: Client, shelf: Path) -> None:
    with pytest.raises(PermissionDenied, match="dataset_addresses"):
        client.create_dataset("s3://homophily-test/elsewhere/a.parquet")
    for address in ("s3://homophily-test/addresses/../a.parquet", "a.parquet", f"file://{shelf}/a.txt"):
        with pytest.raises(InvalidArgument, match="address"):
            client.create_dataset(address)
    with pytest.raises(InvalidArgument, match="npy"):
        client.create_dataset(f"file://{shelf}/a.npy", table={"drop": ["x"]})
    with pytest.raises(InvalidArgument, match="description"):
        client.create_dataset(f"file://{shelf}/a.npy", description=1001 * "x")
    request = job_pb2.CreateDatasetRequest(parent=client._parent, address=f"file://{shelf}/a.npy", dataset_id="No!")
    with pytest.raises(InvalidArgument, match="dataset_id"):
        client._connection.call("CreateDataset", request)
    with pytest.raises(LimitExceeded, match="table"):
        client.create_dataset(f"file://{shelf}/a.csv", table={"drop": [300_000 * "x"]})


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


WRONG: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "not parquet": ("a.parquet", lambda: b"PAR1 not at all", "cannot be read"),
    "empty parquet": ("a.parquet", lambda: b"", "cannot be read"),
    "not arrow": ("a.arrow", lambda: bytes(100), "cannot be read"),
    "pickled": ("a.npy", lambda: npy(np.array([[{}]], dtype=object)), "must hold real numbers"),
    "strings": ("a.npy", lambda: npy(np.array([["a"]])), "must hold real numbers"),
    "one axis": ("a.npy", lambda: npy(np.zeros(3)), "two dimensions"),
    "by columns": ("a.npy", lambda: npy(np.asfortranarray(np.ones((3, 2)))), "row by row"),
    "false shape": ("a.npy", lambda: npy(np.zeros((3, 2)))[:-1], "do not hold exactly"),
    "no npy": ("a.npy", lambda: b"hello", "cannot be read"),
    "infinity": ("a.npy", lambda: npy(np.array([[1.0], [np.inf]])), "must be finite"),
    "infinity in a table": ("a.csv", lambda: b"x,y\n1,2\n1e999,3\n", "must be finite or NaN"),
    "empty csv": ("a.csv", lambda: b"", "is empty"),
    "no rows": ("a.csv", lambda: b"x,y\n", "no rows"),
    "ragged": ("a.csv", lambda: b"x,y\n1,2\n1,2,3\n", "cannot be read"),
    "latin": ("a.csv", lambda: "x,y\n1,é\n".encode("latin-1"), "UTF-8"),
    "thousands": ("a.csv", lambda: b"x;y\n1.523;a\n1.524;b\n852;c\n1.525;d\n", "a thousand and more"),
    "mixed": (
        "a.csv",
        lambda: b"x,y\n" + b"".join(b"%d,b\n" % (i % 5) for i in range(20)) + b"oops,b\n",
        "holds numbers",
    ),
    "late text": ("a.csv", lambda: b"x,y\n" + 300_000 * b"1,b\n" + b"oops,b\n", "cannot be read"),
    "two names": ("a.csv", lambda: b"x,x\n1,2\n3,4\n", "several columns"),
}


@pytest.mark.parametrize("case", WRONG)
def test_damaged_and_unclear_files_end_the_job_with_the_reason(client: Client, shelf: Path, case: str) -> None:
    name, content, sentence = WRONG[case]
    (shelf / name).write_bytes(content())
    failed = failure(client, f"file://{shelf}/{name}")
    assert sentence in failed.message
    assert failed.code.name == "INVALID_ARGUMENT"
    assert not list(client.list_datasets())


def test_columns_that_only_look_like_ids_at_first_are_not_taken_for_them(client: Client, shelf: Path) -> None:
    rows = 100_000
    almost = pa.array([*range(70_000), *range(rows - 70_000)])
    x = np.random.default_rng(0).normal(size=rows)
    written(pa.table({"key": almost, "x": x}), shelf / "a.parquet")
    assert "name it in drop" in failure(client, f"file://{shelf}/a.parquet").message
    assert created(client, f"file://{shelf}/a.parquet", table={"drop": ["key"]}).points == rows
    assert created(client, f"file://{shelf}/a.parquet", table={"columns": ["key", "x"]}).dimensions == 2
    written(pa.table({"key": range(rows), "other": almost, "x": x}), shelf / "b.parquet")
    assert "'other'" in failure(client, f"file://{shelf}/b.parquet").message


def test_files_that_do_not_fit_together_are_refused(client: Client, shelf: Path) -> None:
    written(table_of().select(["x", "n"]), shelf / "1.parquet")
    written(table_of().select(["x", "kind"]), shelf / "2.parquet")
    assert "2.parquet: column 'n' is missing" in failure(client, f"file://{shelf}/").message
    assert created(client, f"file://{shelf}/", table={"columns": ["x"]}).points == 2000
    np.save(shelf / "a.npy", np.eye(3))
    assert "files of one kind" in failure(client, f"file://{shelf}/").message
    np.save(shelf / "b.npy", np.eye(4))
    assert "4 columns" in failure(client, f"file://{shelf}/*.npy").message
    assert failure(client, f"file://{shelf}/*.csv").code.name == "NOT_FOUND"
    unknown = failure(client, f"file://{shelf}/1.parquet", table={"drop": ["none"]})
    assert [one.field for one in unknown.violations] == ["table"]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_are_those_of_uploads_and_hold_before_rows_are_read(client: Client, shelf: Path) -> None:
    constant = pa.table({"x": np.zeros(200_000), "y": np.arange(200_000) % 2})
    written(constant, shelf / "rows.parquet")
    assert "200000 points, the limit is 150000" in failure(client, f"file://{shelf}/rows.parquet").message
    written(pa.table({f"x{place}": [0.0, 1.0] for place in range(60)}), shelf / "wide.parquet")
    assert "60 features, the limit is 50" in failure(client, f"file://{shelf}/wide.parquet").message
    written(pa.table({f"x{place}": np.zeros(120_000) for place in range(50)}), shelf / "bytes.parquet")
    assert "the limit is 40000000" in failure(client, f"file://{shelf}/bytes.parquet").message
    with (shelf / "large.npy").open("wb") as sparse:
        sparse.truncate(50_000_000)
    assert "has 50000000 bytes, the limit is 40000000" in failure(client, f"file://{shelf}/large.npy").message
    (shelf / "rows.csv").write_bytes(b"x,y\n" + 160_000 * b"1,2\n")
    assert "more than 150000 points" in failure(client, f"file://{shelf}/rows.csv").message


def test_the_projects_quota_counts_while_a_job_reads_and_no_longer_than_that(reading: Service, shelf: Path) -> None:
    written(pa.table({"x": np.arange(10_000) % 7, "y": np.arange(10_000) % 5}), shelf / "a.parquet")
    (shelf / "a.csv").write_bytes(b"x,y\n" + 10_000 * b"1,2\n")
    np.save(shelf / "a.npy", np.zeros((1000, 10)))
    stores = open_stores(reading)
    with Client(reading.target, project="small") as client:
        for name in ("a.parquet", "a.csv"):
            assert failure(client, f"file://{shelf}/{name}").reason == "PROJECT_FULL"
        with stores.database.read() as connection:
            assert stored_bytes(connection, "small") == 0
        dataset = created(client, f"file://{shelf}/a.npy")
        with stores.database.read() as connection:
            assert stored_bytes(connection, "small") == dataset.size_bytes == 80_000
        assert failure(client, f"file://{shelf}/a.npy").reason == "PROJECT_FULL"
        client.delete_dataset(dataset)
    stores.close()


def test_a_file_on_the_web_is_read(client: Client, web: Site) -> None:
    web.content = b"x,y\n" + 1000 * b"1,2\n3,4\n"
    web.headers = {"Last-Modified": "yesterday"}
    dataset = created(client, f"https://127.0.0.1:{web.port}/a.csv")
    assert (dataset.points, dataset.dimensions) == (2000, 2)


def test_a_job_can_be_cancelled_and_leaves_nothing_behind(
    client: Client, reading: Service, project: Project, web: Site
) -> None:
    # The first pieces are answered, and the others are not.
    web.content = b"x,y\n" + 300_000 * (b"1," + 100 * b" " + b"2\n")
    web.headers, web.holds_after = {"ETag": "large"}, 1
    job = client.create_dataset(f"https://127.0.0.1:{web.port}/b.csv", name="gone")
    assert web.held.wait(PATIENCE)
    job.cancel()
    with pytest.raises(JobCancelled):
        job.result(PATIENCE)
    stores = open_stores(reading)
    assert not stores.catalog.has(DatasetName(project.id, "gone"))
    with stores.database.read() as connection:
        assert stored_bytes(connection, project.id) == 0
    stores.close()
    # The next process of the worker removes what the killed one left.
    imports = reading.settings.data_dir / "imports"
    eventually(lambda: not list(imports.glob("*")))


# -- the command line --------------------------------------------------------------------------------------------------


def command(reading: Service, project: Project, *arguments: str | Path) -> Ended:
    variables = os.environ | environment(reading.target, project)
    run = subprocess.run(
        [sys.executable, "-m", "homophily_service", *map(str, arguments)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(run.returncode, run.stdout, run.stderr)


def test_the_command_line_uploads_from_an_address(
    client: Client, reading: Service, project: Project, shelf: Path
) -> None:
    path = written(table_of(), shelf / "Some points.parquet")
    columns = ["--label-column", "label", "--text", "words"]
    first = command(reading, project, "upload", f"file://{path}", *columns)
    assert first.code == 0, first
    assert "some-points" in first.out
    assert "1 file" in first.out
    assert "'name' is taken as the id" in first.err
    assert client.get_dataset("some-points").points == 1000
    again = command(reading, project, "upload", f"file://{path}", *columns, "--json")
    assert json.loads(again.out)["unchanged"]
    started = command(reading, project, "upload", f"file://{path}", "--detach", "--name", "later")
    assert client.job(started.out.strip()).kind == "create-dataset"
    refused = command(reading, project, "upload", "s3://secret/a.parquet")
    assert refused.code != 0
    assert "dataset_addresses" in refused.err
    assert "need an address" in command(reading, project, "upload", path, "--detach").err
    labels = written(pa.table({"point": [0, 1], "label": ["yes", "no"]}), shelf / "labels.csv")
    assert "homophily upload" in command(reading, project, "fit", f"file://{path}", "--labels", labels).err
