"""Datasets over gRPC: uploaded whole or in pieces, resumed, refused as they arrive, listed, deleted."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import csr_array

from homophily_client._pb import dataset_pb2 as pb
from homophily_client._pb import points_pb2
from homophily_client.names import DatasetName
from homophily_service.api.access import caller
from homophily_service.api.datasets import Datasets
from homophily_service.api.threads import FairThreads
from homophily_service.contract.errors import LimitExceeded, NotFound, ServiceError, Unavailable
from homophily_service.runtime.settings import load_settings
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import Uploads

from .serving import (
    PATIENCE,
    Matrix,
    Project,
    Service,
    bytes_of,
    chunk,
    chunks,
    end,
    eventually,
    open_stores,
    refusal,
    shape_of,
    start,
)

RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(300, 7))
SPARSE = csr_array(sparse.random(40, 9, 0.3, random_state=0, format="csr"))
INVALID, PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION


def wide(points: csr_array) -> csr_array:
    """The same points with indices of 64 bits."""
    other = points.copy()
    other.indices, other.indptr = points.indices.astype(np.int64), points.indptr.astype(np.int64)
    return other


def progress(project: Project, upload_id: str) -> tuple[int, int]:
    answer = project.stub.GetUpload(pb.GetUploadRequest(parent=project.name, upload_id=upload_id), timeout=PATIENCE)
    return answer.received_bytes, answer.total_bytes


class Stream:
    """An upload whose messages are sent one by one, and which stays open between them."""

    def __init__(self, project: Project, *messages: pb.UploadDatasetRequest) -> None:
        self._more = threading.Event()
        self._messages = list(messages)
        self.call = project.stub.UploadDataset.future(self._sent(), timeout=PATIENCE)

    def _sent(self) -> Iterator[pb.UploadDatasetRequest]:
        while True:
            while self._messages:
                yield self._messages.pop(0)
            if self._more.is_set():
                return
            self._more.wait(0.01)

    def send(self, *messages: pb.UploadDatasetRequest) -> None:
        self._messages.extend(messages)

    def cancel(self) -> None:
        self.call.cancel()
        self._more.set()

    def result(self) -> pb.Dataset:
        self._more.set()
        return self.call.result().dataset


# -- whole uploads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "points",
    [DENSE, DENSE.astype(np.float32), SPARSE, wide(SPARSE).astype(np.float32), csr_array((5, 3))],
    ids=["float64", "float32", "csr", "csr-int64-float32", "csr-without-values"],
)
def test_what_is_uploaded_is_what_is_stored(service: Service, project: Project, points: Matrix) -> None:
    dataset = project.upload(points, dataset_id="mine", description="for «people»")
    assert dataset.name == f"{project.name}/datasets/mine"
    assert dataset.shape == shape_of(points)
    assert dataset.sha256 == hashlib.sha256(bytes_of(points)).digest()
    assert dataset.size_bytes == len(bytes_of(points))
    assert dataset.description == "for «people»"
    assert dataset.HasField("create_time")
    stores = open_stores(service)
    arrays = stores.blobs.read(stores.catalog.get(DatasetName(project.id, "mine")).blob).arrays
    stored = (
        [arrays["points"]] if "points" in arrays else [arrays[n] for n in ("values", "column_indices", "row_starts")]
    )
    assert b"".join(array.tobytes() for array in stored) == bytes_of(points)
    stores.close()


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_chunks_may_have_any_size(project: Project, size: int) -> None:
    points = wide(SPARSE[:6])
    data = bytes_of(points)
    messages = [start(project.name, points), *chunks(data, size), chunk(len(data), b""), end(data)]
    assert project.stub.UploadDataset(iter(messages)).dataset.sha256 == hashlib.sha256(data).digest()


def test_ids_are_made_where_none_are_given(project: Project) -> None:
    first, second = project.upload(DENSE), project.upload(DENSE, upload_id="my-key")
    assert first.name != second.name
    assert second.name == f"{project.name}/datasets/my-key"


# -- broken uploads ----------------------------------------------------------------------------------------------------


def test_a_broken_upload_goes_on_where_it_was(project: Project) -> None:
    points = RNG.normal(size=(1000, 100))
    data = bytes_of(points)
    broken = Stream(project, start(project.name, points, "u"), *list(chunks(data, 100_000))[:5])

    def has_arrived() -> bool:
        try:
            return progress(project, "u") == (500_000, len(data))
        except grpc.RpcError as error:
            return error.code() is not grpc.StatusCode.NOT_FOUND

    eventually(has_arrived)
    broken.cancel()

    # The server may take a moment to see that the first connection is gone.
    def resumed() -> pb.Dataset | None:
        messages = [start(project.name, points, "u"), *chunks(data, begin=500_000), end(data)]
        try:
            return project.stub.UploadDataset(iter(messages)).dataset
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return None

    assert eventually(resumed).sha256 == hashlib.sha256(data).digest()


def test_the_end_may_be_sent_again_when_its_answer_was_lost(project: Project) -> None:
    made = project.upload(DENSE, "u", dataset_id="d")
    data = bytes_of(DENSE)
    assert progress(project, "u") == (len(data), len(data))
    again = iter([start(project.name, DENSE, "u", dataset_id="d"), end(data)])
    assert project.stub.UploadDataset(again).dataset == made
    other = [start(project.name, DENSE, "u", dataset_id="d"), end(b"other")]
    assert refusal(project.stub.UploadDataset, iter(other)).code is grpc.StatusCode.ALREADY_EXISTS
    empty = [start(project.name, DENSE, "u", dataset_id="d"), chunk(len(data), b""), end(data)]
    assert project.stub.UploadDataset(iter(empty)).dataset == made


def test_a_start_that_differs_from_the_first_is_refused(project: Project) -> None:
    refusal(project.stub.UploadDataset, iter([start(project.name, DENSE, "begun")]))
    project.upload(DENSE, "ended")
    for other in (
        start(project.name, DENSE.T, "begun"),
        start(project.name, DENSE, "begun", dataset_id="x"),
        start(project.name, DENSE.T, "ended"),
        start(project.name, DENSE, "ended", dataset_id="x"),
        start(project.name, DENSE, "another", dataset_id="ended"),
    ):
        assert refusal(project.stub.UploadDataset, iter([other])).code is grpc.StatusCode.ALREADY_EXISTS


def test_a_gap_or_an_overlap_is_refused_and_what_came_before_stays(project: Project) -> None:
    data = bytes_of(DENSE)
    for offset in (0, 99, 101, -1, 2**63 - 1):
        messages = [start(project.name, DENSE, f"u{offset % 1000}"), chunk(0, data[:100]), chunk(offset, data[100:200])]
        answer = refusal(project.stub.UploadDataset, iter(messages))
        assert (answer.code, answer.reason) == (PRECONDITION, "WRONG_OFFSET")
        assert "100 bytes are here" in answer.message
        assert progress(project, f"u{offset % 1000}") == (100, len(data))


def test_wrong_bytes_are_dropped(project: Project) -> None:
    messages = [start(project.name, DENSE, "u"), *chunks(bytes_of(DENSE)), end(b"other")]
    answer = refusal(project.stub.UploadDataset, iter(messages))
    assert (answer.code, answer.fields) == (INVALID, ["end.sha256"])
    gone = refusal(project.stub.GetUpload, pb.GetUploadRequest(parent=project.name, upload_id="u"))
    assert gone.code is grpc.StatusCode.NOT_FOUND
    assert project.upload(DENSE, "u").name.endswith("/u")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("points", [DENSE.astype(np.float32), SPARSE], ids=["dense", "csr"])
def test_values_that_are_not_finite_are_refused_while_the_upload_goes_on(
    project: Project, points: Matrix, value: float
) -> None:
    points = points.copy()
    values = points.data if isinstance(points, csr_array) else points.reshape(-1)
    values[40] = value
    first, second, *_ = chunks(bytes_of(points), 400)
    stream = Stream(project, start(project.name, points, "u"), first, second)
    answer = refusal(lambda timeout: stream.call.result(timeout))
    stream.cancel()
    assert (answer.code, answer.fields) == (INVALID, ["chunk.data"])
    assert f"element 40 is {value}" in answer.message
    # Nothing of it is of any use.
    gone = refusal(project.stub.GetUpload, pb.GetUploadRequest(parent=project.name, upload_id="u"))
    assert gone.code is grpc.StatusCode.NOT_FOUND


def test_one_connection_at_a_time_writes_to_an_upload(project: Project) -> None:
    data = bytes_of(DENSE)
    first = Stream(project, start(project.name, DENSE, "u"), chunk(0, data[:100]))
    eventually(lambda: not first._messages)
    second = eventually(
        lambda: (
            (found := refusal(project.stub.UploadDataset, iter([start(project.name, DENSE, "u")])))
            and found.code is grpc.StatusCode.UNAVAILABLE
            and found
        )
    )
    assert second.retry_seconds
    first.send(chunk(100, data[100:]), end(data))
    assert first.result().sha256 == hashlib.sha256(data).digest()


# -- messages that make no upload --------------------------------------------------------------------------------------


def test_the_messages_of_an_upload_have_an_order(project: Project) -> None:
    data = bytes_of(DENSE)
    begin = start(project.name, DENSE)
    whole = [begin, *chunks(data)]
    wrong = {
        "start": [[], [chunk(0, data)], [end(data)], [pb.UploadDatasetRequest()]],
        "part": [[begin, begin], [begin, pb.UploadDatasetRequest()]],
        "end": [[begin], whole],
        "chunk.data": [[begin, chunk(0, data + b"x")], [*whole, chunk(len(data), b"x")]],
    }
    for field, streams in wrong.items():
        for messages in streams:
            answer = refusal(project.stub.UploadDataset, iter(messages))
            assert (answer.code, answer.fields) == (INVALID, [field])
    unfinished = refusal(project.stub.UploadDataset, iter([begin, end(data)]))
    assert (unfinished.code, unfinished.reason) == (PRECONDITION, "INCOMPLETE")


def dense(rows: int, columns: int, data_type: int = points_pb2.DATA_TYPE_FLOAT32) -> points_pb2.PointsShape:
    return points_pb2.PointsShape(dense=points_pb2.DenseShape(rows=rows, columns=columns, data_type=data_type))


def csr(rows: int, columns: int, values: int, index_type: int = points_pb2.DATA_TYPE_INT32) -> points_pb2.PointsShape:
    return points_pb2.PointsShape(
        csr=points_pb2.CsrShape(
            rows=rows, columns=columns, values=values, data_type=points_pb2.DATA_TYPE_FLOAT32, index_type=index_type
        )
    )


@pytest.mark.parametrize(
    ("shape", "field"),
    [
        (points_pb2.PointsShape(), ""),
        (dense(0, 3), ".dense.rows"),
        (dense(3, 0), ".dense.columns"),
        (dense(-1, 3), ".dense.rows"),
        (dense(3, 3, 0), ".dense.data_type"),
        (dense(3, 3, points_pb2.DATA_TYPE_INT32), ".dense.data_type"),
        (dense(3, 3, 77), ".dense.data_type"),
        (csr(3, 3, -1), ".csr.values"),
        (csr(3, 3, 10), ".csr.values"),
        (csr(3, 3, 3, points_pb2.DATA_TYPE_FLOAT32), ".csr.index_type"),
    ],
    ids=str,
)
def test_shapes_that_no_points_have_name_their_field(
    project: Project, shape: points_pb2.PointsShape, field: str
) -> None:
    request = pb.UploadDatasetRequest(start=pb.UploadStart(parent=project.name, shape=shape))
    answer = refusal(project.stub.UploadDataset, iter([request]))
    assert (answer.code, answer.fields) == (INVALID, ["start.shape" + field])


@pytest.mark.parametrize(
    "shape", [dense(2**62, 4), dense(4, 2**62), dense(2**62, 2**62), csr(2**62, 4, 2**62)], ids=str
)
def test_shapes_beyond_the_limit_are_refused_before_anything_is_written(
    service: Service, project: Project, shape: points_pb2.PointsShape
) -> None:
    request = pb.UploadDatasetRequest(start=pb.UploadStart(parent=project.name, upload_id="u", shape=shape))
    answer = refusal(project.stub.UploadDataset, iter([request]))
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
    assert "the limit is" in answer.message
    assert not (service.settings.data_dir / "uploads" / project.id).exists()


@pytest.mark.parametrize(
    ("part", "place", "value", "field"),
    [
        ("indices", 3, 9, "csr.column_indices"),
        ("indices", 3, -1, "csr.column_indices"),
        ("indptr", 2, 10_000, "csr.row_starts"),
        ("indptr", 0, 1, "csr.row_starts"),
        ("indptr", -1, 5, "csr.row_starts"),
        ("indptr", 3, -5, "csr.row_starts"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused_at_the_end(
    project: Project, part: str, place: int, value: int, field: str
) -> None:
    points = SPARSE.copy()
    getattr(points, part)[place] = value
    data = bytes_of(points)
    answer = refusal(project.stub.UploadDataset, iter([start(project.name, SPARSE), *chunks(data), end(data)]))
    assert (answer.code, answer.fields) == (INVALID, [field])


@pytest.mark.parametrize("columns", [[1, 0, 2, 3], [0, 0, 2, 3], [0, 1, 3, 2], [0, 1, 2, 2]])
def test_columns_must_rise_within_a_row(project: Project, columns: list[int]) -> None:
    points = csr_array((np.ones(4), np.array(columns, np.int32), np.array([0, 2, 2, 4], np.int32)), shape=(3, 4))
    data = bytes_of(points)
    answer = refusal(project.stub.UploadDataset, iter([start(project.name, points), *chunks(data), end(data)]))
    assert (answer.code, answer.fields) == (INVALID, ["csr.column_indices"])


def test_ids_and_texts_are_checked(project: Project) -> None:
    wrong = {"upload_id": "../x", "dataset_id": "A", "description": "x" * 1001, "parent": "projects/.."}
    for field, value in wrong.items():
        given = pb.UploadStart(parent=project.name, shape=shape_of(DENSE))
        setattr(given, field, value)
        answer = refusal(project.stub.UploadDataset, iter([pb.UploadDatasetRequest(start=given)]))
        assert (answer.code, answer.fields) == (INVALID, [f"start.{field}"])
    answer = refusal(project.stub.GetUpload, pb.GetUploadRequest(parent=project.name, upload_id="../x"))
    assert (answer.code, answer.fields) == (INVALID, ["upload_id"])


# -- get, list, delete -------------------------------------------------------------------------------------------------


def test_datasets_are_got_and_listed_newest_first_page_by_page(project: Project) -> None:
    made = [project.upload(DENSE[:2], dataset_id=f"d{number}") for number in range(5)]
    assert project.stub.GetDataset(pb.GetDatasetRequest(name=made[0].name)).dataset == made[0]
    listed, token, pages = [], "", 0
    while pages == 0 or token:
        page = project.stub.ListDatasets(pb.ListDatasetsRequest(parent=project.name, page_size=2, page_token=token))
        listed += page.datasets
        token, pages = page.next_page_token, pages + 1
    assert listed == made[::-1]
    assert pages == 3
    everything = project.stub.ListDatasets(pb.ListDatasetsRequest(parent=project.name, page_size=2**31 - 1))
    assert (list(everything.datasets), everything.next_page_token) == (listed, "")


def test_pages_that_there_are_not_are_refused(project: Project) -> None:
    for field, value in {"page_size": -1, "page_token": "x"}.items():
        answer = refusal(project.stub.ListDatasets, pb.ListDatasetsRequest(parent=project.name, **{field: value}))
        assert (answer.code, answer.fields) == (INVALID, [field])


def test_a_deleted_dataset_is_gone_with_its_files(service: Service, project: Project) -> None:
    name = project.upload(DENSE, "u").name
    folder = service.settings.data_dir / "blobs" / "datasets" / project.id
    assert folder.exists()
    project.stub.DeleteDataset(pb.DeleteDatasetRequest(name=name))
    assert not folder.exists()
    for call, request in (
        (project.stub.GetDataset, pb.GetDatasetRequest(name=name)),
        (project.stub.DeleteDataset, pb.DeleteDatasetRequest(name=name)),
        (project.stub.GetUpload, pb.GetUploadRequest(parent=project.name, upload_id="u")),
    ):
        assert refusal(call, request).code is grpc.StatusCode.NOT_FOUND
    assert project.upload(DENSE, "u").name == name


# -- without a server --------------------------------------------------------------------------------------------------


@pytest.fixture
def uploads(tmp_path: Path) -> Iterator[Uploads]:
    settings = load_settings(data_dir=tmp_path)
    stores = Stores.open(settings)
    stores.database.migrate()
    yield Uploads(settings, stores)
    stores.close()


BEGIN = pb.UploadStart(parent="projects/p", upload_id="u", shape=shape_of(DENSE))


def test_a_full_disk_is_told_and_the_upload_goes_on_when_there_is_space(uploads: Uploads) -> None:
    data = bytes_of(DENSE)
    with uploads.begin("p", BEGIN) as upload:
        upload.write(0, data[:8000])
        full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
        upload._files, files = [full], upload._files
        with pytest.raises(LimitExceeded, match="no space"):
            upload.write(8000, data[8000:16000])
        upload._files = files
        full.close()
    assert uploads.received("p", "u")[0] == 8000
    with uploads.begin("p", BEGIN) as upload:
        upload.write(8000, data[8000:])
        assert upload.finish(hashlib.sha256(data).digest()).name == "projects/p/datasets/u"


def test_a_store_that_fails_at_the_end_leaves_the_upload_as_it_was(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise Unavailable("the store is away")

    data = bytes_of(DENSE)
    with monkeypatch.context() as patched, uploads.begin("p", BEGIN) as upload:
        patched.setattr(uploads.stores.blobs, "adopt", fails)
        upload.write(0, data)
        with pytest.raises(Unavailable):
            upload.finish(hashlib.sha256(data).digest())
    assert uploads.received("p", "u") == (len(data), len(data))
    with uploads.begin("p", BEGIN) as upload:
        assert upload.finish(hashlib.sha256(data).digest()).size_bytes == len(data)


def test_a_caller_who_goes_away_at_the_end_leaves_nobody_else_in(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, entered, go_on = bytes_of(DENSE), threading.Event(), threading.Event()
    adopt = uploads.stores.blobs.adopt

    def slow(*arguments: Any) -> int:
        entered.set()
        assert go_on.wait(PATIENCE)
        return adopt(*arguments)

    monkeypatch.setattr(uploads.stores.blobs, "adopt", slow)
    calls = Datasets()
    calls.stores, calls.uploads, calls.under_way = uploads.stores, uploads, set()
    calls.upload_threads = FairThreads(2, "upload")
    caller.set("p")

    async def sent() -> AsyncIterator[pb.UploadDatasetRequest]:
        for message in (pb.UploadDatasetRequest(start=BEGIN), chunk(0, data), end(data)):
            yield message

    async def broken_off() -> None:
        call = asyncio.create_task(calls.UploadDataset(sent(), None))
        await asyncio.to_thread(entered.wait, PATIENCE)
        call.cancel()
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="another connection"), uploads.begin("p", BEGIN):
            pass
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(broken_off())
    with uploads.begin("p", BEGIN) as upload:
        assert upload.finish(hashlib.sha256(data).digest()).name == "projects/p/datasets/u"


def test_what_a_killed_server_left_is_taken_up(uploads: Uploads) -> None:
    points = wide(SPARSE)
    begin, data = pb.UploadStart(parent="projects/p", upload_id="u", shape=shape_of(points)), bytes_of(points)
    with uploads.begin("p", begin) as upload:
        upload.write(0, data)
    # Each file is written by itself: the first may have lost bytes that the others have.
    with (uploads.root / "p" / "u" / "values.npy").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 20)
    received, total = uploads.received("p", "u")
    assert (received, total) == (points.data.nbytes - 20, len(data))
    with uploads.begin("p", begin) as upload:
        upload.write(received, data[received:])
        assert upload.finish(hashlib.sha256(data).digest()).sha256 == hashlib.sha256(data).digest()


def test_only_uploads_that_nobody_goes_on_with_are_swept(uploads: Uploads) -> None:
    with uploads.begin("p", BEGIN):
        assert uploads.sweep(-1.0) == 0
    assert uploads.sweep(1000.0) == 0
    assert uploads.received("p", "u")[0] == 0
    assert uploads.sweep(-1.0) == 1
    with pytest.raises(NotFound):
        uploads.received("p", "u")


@pytest.mark.parametrize("where", ["p", "p/u", "p/u/points.npy", "p/u/start.binpb"])
def test_symbolic_links_do_not_lead_out_of_the_folder_of_uploads(uploads: Uploads, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = uploads.root / where
    link.parent.mkdir(parents=True)
    link.symlink_to(outside if where in ("p", "p/u") else outside / "file")
    for exists in (False, True):
        with suppress(ServiceError), uploads.begin("p", BEGIN):
            assert not link.is_symlink()
        if exists:
            assert (outside / "file").read_bytes() == b"theirs"
        else:
            assert list(outside.iterdir()) == []
            (outside / "file").write_bytes(b"theirs")
