"""What counts towards a project's limits: also what it has only begun, and what its jobs keep for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from sqlalchemy import select, update

from homophily_client._pb import dataset_pb2
from homophily_client.names import DatasetName
from homophily_service.contract.errors import LimitExceeded
from homophily_service.runtime.settings import load_settings
from homophily_service.storage.database import Database
from homophily_service.storage.quotas import stored_bytes
from homophily_service.storage.stores import Stores
from homophily_service.storage.tables import uploads
from homophily_service.storage.uploads import Uploads

from .serving import Project, bytes_of, refusal, start

X = np.random.default_rng(0).normal(size=(60, 3))
PROJECT = "p"


@pytest.fixture
def stores(database: Database, tmp_path: Path) -> Iterator[Stores]:
    settings = load_settings(data_dir=tmp_path, database_url=database.url)
    stores = Stores.open(settings)
    yield stores
    stores.close()


def uploads_of(stores: Stores, folder: Path, **limits: int) -> Uploads:
    return Uploads(load_settings(data_dir=folder, database_url=stores.database.url, **limits), stores)


def begin(uploads: Uploads, upload_id: str, *, finish: bool = False) -> None:
    described = start(f"projects/{PROJECT}", X, upload_id).start
    with uploads.begin(PROJECT, described) as upload:
        if finish:
            upload.write(0, bytes_of(X))
            upload.finish(hashlib.sha256(bytes_of(X)).digest())


def stored(stores: Stores) -> int:
    with stores.database.read() as connection:
        return stored_bytes(connection, PROJECT)


def test_bytes_that_uploads_promise_count_until_they_are_given_up(stores: Stores, tmp_path: Path) -> None:
    """Uploads that were begun and left cost nothing, however large."""
    staging = uploads_of(stores, tmp_path, max_project_bytes=2 * X.nbytes)
    begin(staging, "first")
    begin(staging, "second")
    with pytest.raises(LimitExceeded, match="would get 1440 more, the limit max_project_bytes is 2880"):
        begin(staging, "third")
    # Resumed or finished, an upload is not counted twice.
    begin(staging, "first")
    begin(staging, "first", finish=True)
    assert stored(stores) == 2 * X.nbytes
    assert stores.catalog.has(DatasetName(PROJECT, "first"))
    with stores.database.write() as connection:
        connection.execute(update(uploads).values(last_used=0.0))
    assert staging.sweep(-1.0) == 1
    assert stored(stores) == X.nbytes
    begin(staging, "third")


def test_bytes_of_an_upload_that_is_dropped_count_no_longer(stores: Stores, tmp_path: Path) -> None:
    staging = uploads_of(stores, tmp_path)
    with staging.begin(PROJECT, start(f"projects/{PROJECT}", X, "wrong").start) as upload:
        assert stored(stores) == X.nbytes
        upload.write(0, bytes_of(X))
        with pytest.raises(Exception, match=r"end\.sha256"):
            upload.finish(bytes(32))
    assert stored(stores) == 0


def test_a_project_has_so_many_unfinished_uploads(stores: Stores, tmp_path: Path) -> None:
    staging = uploads_of(stores, tmp_path, max_uploads=2)
    begin(staging, "first")
    begin(staging, "second")
    begin(staging, "second")
    with pytest.raises(LimitExceeded, match="2 unfinished uploads, the limit max_uploads is 2") as caught:
        begin(staging, "third")
    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    begin(staging, "first", finish=True)
    begin(staging, "third")
    with stores.database.read() as connection:
        assert set(connection.scalars(select(uploads.c.id))) == {"second", "third"}


def test_graphs_count_towards_their_project(stores: Stores) -> None:
    """Graphs belonged to nobody, and were the way to fill the disk."""
    stores.catalog.add_graph("a" * 64, "graphs/a", 1000, PROJECT)
    stores.catalog.add_graph("b" * 64, "graphs/b", 1000, "other")
    stores.catalog.add_graph("c" * 64, "graphs/c", 1000)
    assert stored(stores) == 1000


def test_points_of_a_job_that_a_full_queue_refuses_are_not_stored(idle_project: Project) -> None:
    """Each refusal wrote the points to the disk first."""
    labels = {0: "a", 1: "b"}
    for _ in range(5):
        idle_project.stub.Fit(idle_project.fit_request(X, labels))
    for other in (X + 1, X + 2):
        answer = refusal(idle_project.stub.Fit, idle_project.fit_request(other, labels))
        assert answer.reason == "QUEUE_FULL"
    stored = idle_project.stub.ListDatasets(dataset_pb2.ListDatasetsRequest(parent=idle_project.name)).datasets
    assert len(stored) == 1
