"""Going from one version to the next: stores of older versions, tables of every revision, programs of two versions."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Boolean, Float, Integer, LargeBinary, MetaData, Table, func, insert, inspect, select, text

from homophily_client._pb import dataset_pb2, job_pb2
from homophily_client.names import DatasetName, EmbeddingName, JobName, ModelName, new_id
from homophily_service.api.messages import job_message
from homophily_service.contract.arrays import parts_from_points, shape_of
from homophily_service.contract.errors import Unavailable
from homophily_service.contract.states import FINAL, QUEUED, SUCCEEDED
from homophily_service.contract.tasks import decode_trial, encode_trial
from homophily_service.runtime import processes
from homophily_service.runtime.settings import load_settings
from homophily_service.storage import database as database_module
from homophily_service.storage.catalog import Catalog
from homophily_service.storage.database import Database
from homophily_service.storage.queue import Queue
from homophily_service.storage.records import NewJob
from homophily_service.storage.stores import Stores
from homophily_service.storage.tables import metadata
from homophily_service.storage.uploads import publish_dataset
from homophily_service.worker.supervisor import Worker

from .samples import make
from .serving import PATIENCE, eventually

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.tar.gz"))
# Field 1000 of a message, which nobody has yet, with a text.
NOVELTY = b"\xc2\x3e\x05hello"
REVISIONS = sorted(
    revision.revision for revision in ScriptDirectory.from_config(database_module._alembic()).walk_revisions()
)


def upgrade_to(database: Database, revision: str) -> None:
    with database.write() as connection:
        config = database_module._alembic()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def rows_of(database: Database) -> dict[str, list[dict[str, Any]]]:
    """All that is in the tables that there are."""
    reflected = MetaData()
    found = {}
    with database.read() as connection:
        reflected.reflect(connection)
        for table in reflected.sorted_tables:
            if table.name != "alembic_version":
                keys = list(table.primary_key.columns)
                rows = connection.execute(select(table).order_by(*keys)).mappings()
                found[table.name] = [dict(row) for row in rows]
    return found


def assert_kept(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> None:
    """Every row is there with every value that it had."""
    for table, rows in before.items():
        assert len(after[table]) == len(rows)
        for old, new in zip(rows, after[table], strict=True):
            assert old.items() <= new.items()


# -- a store of an older version ---------------------------------------------------------------------------------------


def test_there_is_a_sample_of_every_revision_but_the_last() -> None:
    assert [path.name for path in SAMPLES] == [f"schema-{revision}.tar.gz" for revision in REVISIONS[:-1]]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name.partition(".")[0])
def test_a_store_of_an_older_version_opens_and_gives_the_same_answers(sample: Path, tmp_path: Path) -> None:
    with tarfile.open(sample) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "answers.json").read_text())
    settings = load_settings(data_dir=tmp_path / "data")
    worker = Worker(settings)
    stores = worker.stores
    before = rows_of(stores.database)
    assert all(before[table] for table in ("jobs", "events", "resources", "graphs", "tokens"))
    with pytest.raises(Unavailable, match="migrate it first"):
        stores.database.check_is_new_enough()
    stores.database.migrate()
    stores.database.check_version()
    assert_kept(before, rows_of(stores.database))

    # What was computed says the same.
    found = make.answers(worker)
    for model in ("irr", "err", "changed"):
        assert found[model]["classes"] == expected[model]["classes"]
        np.testing.assert_allclose(found[model]["scores"], expected[model]["scores"], rtol=1e-6, atol=1e-9)
    assert found["map"] == expected["map"]
    assert stores.tokens.look_up(expected["token"]).project == "old"
    # Sizes that were only inside messages are in the tables now.
    sizes = dict(stores.catalog.stored_bytes())
    assert sizes["datasets"] == make.X.nbytes
    assert sizes["models"] > 0
    assert sizes["embeddings"] > 0

    # So are the datasets of models and maps.
    listed = {row.id for row in stores.catalog.page("models", "old", dataset=make.DATASET)[0]}
    assert listed == {"irr", "err", "changed"}
    assert [row.id for row in stores.catalog.page("embeddings", "old", dataset=make.DATASET)[0]] == ["map"]

    # Jobs are shown, one that waits is the answer to its key, and is computed on the old graph.
    for row, place in stores.queue.page("old")[0]:
        assert job_message(row, place).name.startswith("projects/old/jobs/")
    assert stores.queue.get(JobName("old", "cancelled")).state == "cancelled"
    again = make.job_pb2.TransduceRequest(
        model="projects/old/models/irr", labels=make.labels({1: "a"}), model_id="later"
    ).SerializeToString()
    assert stores.queue.submit(NewJob(JobName("old", new_id()), "transduce", again, "the-key"), 100).id == "waiting"
    make.run_next(worker, settings, "transduce")
    done = stores.queue.get(JobName("old", "waiting"))
    assert (done.state, done.kind) == ("succeeded", "transduce")
    assert job_pb2.TransduceResult.FromString(done.outcome).model.graph.reused
    assert stores.catalog.has(ModelName("old", "later"))
    assert stores.catalog.has(DatasetName("old", "points"))
    assert stores.catalog.has(EmbeddingName("old", "map"))
    stores.close()


# -- the tables of every revision --------------------------------------------------------------------------------------


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    """A database without tables."""
    database = Database(empty_url)
    yield database
    database.close()


def some_row(table: Table, number: int) -> dict[str, Any]:
    """Values for every column, by its type; keys that refer to a job are those of the job of the same number."""
    row: dict[str, Any] = {}
    for column in table.columns:
        kind = column.type
        if isinstance(kind, Boolean):
            row[column.name] = False
        elif isinstance(kind, LargeBinary):
            row[column.name] = f"{column.name} {number}".encode()
        elif isinstance(kind, Float):
            row[column.name] = number + 0.25
        elif isinstance(kind, Integer):
            row[column.name] = number
        else:
            row[column.name] = f"{column.name[:8]}-{number}"[: getattr(kind, "length", None)]
    if table.name == "jobs":
        waits = {"state": "queued", "kind": "fit", "priority": 0, "attempt": 0, "parent": None}
        row |= {name: value for name, value in waits.items() if name in row}
    return row


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_a_populated_database_is_brought_up_from_every_revision(empty: Database, revision: str) -> None:
    upgrade_to(empty, revision)
    reflected = MetaData()
    with empty.write() as connection:
        reflected.reflect(connection)
        for table in reflected.sorted_tables:
            if table.name != "alembic_version":
                connection.execute(insert(table), [some_row(table, number) for number in range(1, 4)])
    before = rows_of(empty)
    assert set(before) >= {"jobs", "events", "resources", "graphs", "tokens"}
    assert all(len(rows) == 3 for rows in before.values())
    empty.migrate()
    empty.check_version()
    assert_kept(before, rows_of(empty))
    with empty.write() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert list(compare_metadata(context, metadata)) == []
    # And it is a queue.
    lease = Queue(empty).claim("a worker", ["fit"], 60.0, b"")
    assert lease is not None
    assert lease.request == b"request 1"
    assert lease.origin == ("origin-1" if revision >= "0003" else "")


# -- programs of two versions ------------------------------------------------------------------------------------------


def migrate_beyond(database: Database) -> None:
    """What the next version will do, as the rules for migrations say: columns with defaults, tables of its own."""
    database.migrate()
    with database.write() as connection:
        for table in ("jobs", "events", "resources", "graphs", "tokens"):
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN novelty INTEGER NOT NULL DEFAULT 7"))
        connection.execute(text("CREATE TABLE novelties (id INTEGER PRIMARY KEY)"))
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))


def test_a_worker_goes_on_beside_a_newer_version(empty: Database, tmp_path: Path) -> None:
    """A real one, started on tables and requests of the next version: it computes what it knows and leaves the rest."""
    migrate_beyond(empty)
    settings = load_settings(data_dir=tmp_path, database_url=empty.url, threads=1)
    stores = Stores.open(settings)
    points = DatasetName("p", "points")
    start = dataset_pb2.UploadStart(shape=shape_of(make.X))
    publish_dataset(stores, points, start, sha256(make.X).digest(), make.X.nbytes, arrays=parts_from_points(make.X))
    request = job_pb2.FitRequest(dataset=str(points), labels=make.labels({0: "a", 1: "b"}), model_id="m")
    newer = request.SerializeToString() + NOVELTY
    request.model_id = "n"
    another = request.SerializeToString()
    stores.queue.submit(NewJob(JobName("p", "unheard-of"), "dream", b"r", priority=9), 10)
    stores.queue.submit(NewJob(JobName("p", "known"), "fit", newer), 10)
    process, ours = processes.start("homophily_service.worker.supervisor", settings, 1)
    try:
        done = eventually(lambda: (row := stores.queue.get(JobName("p", "known"))).state in FINAL and row)
        assert (done.state, done.attempt) == (SUCCEEDED, 1)
        assert job_pb2.FitResult.FromString(done.outcome).model.name == "projects/p/models/m"
        assert stores.catalog.has(ModelName("p", "m"))
        assert stores.queue.get(JobName("p", "unheard-of")).state == QUEUED
        # It has looked for more since, and is still there.
        stores.queue.submit(NewJob(JobName("p", "another"), "fit", another), 10)
        eventually(lambda: stores.queue.get(JobName("p", "another")).state == SUCCEEDED)
        assert stores.queue.get(JobName("p", "unheard-of")).attempt == 0
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
        ours.close()
        stores.close()


def test_a_program_goes_on_when_a_newer_one_has_migrated_the_tables(empty: Database) -> None:
    database = empty
    migrate_beyond(database)
    database.check_is_new_enough()
    queue, catalog = Queue(database), Catalog(database)
    queue.submit(NewJob(JobName("p", "known"), "fit", b"r"), 10)
    queue.submit(NewJob(JobName("p", "unheard-of"), "dream", b"r", priority=9), 10)
    lease = queue.claim("an old worker", ["fit", "transduce"], 60.0, b"")
    assert lease is not None
    assert lease.name.id == "known"
    queue.report(lease, b"")
    model = ModelName("p", "m")
    queue.finish(lease, b"", lambda connection: catalog.add(connection, model, b"", "blob"))
    # What it does not know, it leaves for those who do.
    assert queue.claim("an old worker", ["fit", "transduce"], 60.0, b"") is None
    assert queue.get(JobName("p", "unheard-of")).state == "queued"
    with database.read() as connection:
        assert connection.scalar(text("SELECT count(*) FROM resources WHERE novelty = 7")) == 1
    assert "novelties" in inspect(database.engine).get_table_names()


def test_fields_of_a_newer_version_do_not_disturb_an_older_one() -> None:
    """Read over, and passed on as they came."""
    request = job_pb2.FitRequest(dataset="projects/p/datasets/d", model_id="m")
    newer = request.SerializeToString() + NOVELTY
    read = job_pb2.FitRequest.FromString(newer)
    assert (read.dataset, read.model_id) == (request.dataset, "m")
    assert read.SerializeToString() == newer


def test_a_request_of_a_newer_client_is_queued_and_kept_whole(database: Database) -> None:
    queue = Queue(database)
    request = job_pb2.FitRequest(model_id="m").SerializeToString() + NOVELTY
    row = queue.submit(NewJob(JobName("p", "j"), "fit", request), 10)
    assert bytes(queue.get_request(row.number)) == request
    with database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(metadata.tables["jobs"])) == 1


def test_trials_that_an_earlier_release_has_queued_are_read() -> None:
    """They were a line of JSON and a fit, and at first the group alone."""
    fit = job_pb2.FitRequest(dataset="projects/p/datasets/d")
    group = {"stage": "graph", "number": 3}
    for head, until in (({"group": group, "until": 7.5}, 7.5), (group, math.inf)):
        found = decode_trial(json.dumps(head).encode() + b"\n" + fit.SerializeToString())
        assert (json.loads(found.group), found.until, found.fit) == (group, until, fit)
    assert decode_trial(found.SerializeToString()) == found
    # Workers of the release before, which may still run, read a line of JSON.
    line, _, rest = encode_trial(found).partition(b"\n")
    assert json.loads(line) == {"group": group, "until": math.inf}
    assert job_pb2.FitRequest.FromString(rest) == fit
