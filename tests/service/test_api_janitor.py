"""What the server forgets, on every database and store of arrays: what is old, its own, and not referred to."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore.store import LocalStore, ObjectStore, S3Store
from pydantic import SecretStr
from sqlalchemy import insert, select, update

from homophily_client._pb import dataset_pb2
from homophily_client.names import JobName, ModelName
from homophily_service.contract.errors import Unavailable
from homophily_service.runtime.settings import Settings
from homophily_service.storage import identity
from homophily_service.storage.blobs.backends import Folder
from homophily_service.storage.database import Database
from homophily_service.storage.records import NewJob
from homophily_service.storage.retention import BLOCKED, sweep
from homophily_service.storage.stores import Stores
from homophily_service.storage.tables import resources, store
from homophily_service.storage.uploads import Uploads

from .serving import Project, eventually, open_stores, running

ARRAYS = {"points": np.eye(3)}
# Nothing is as young as that.
AT_ONCE = dict.fromkeys(("keep_jobs_days", "keep_uploads_hours", "keep_orphans_hours", "max_job_time_limit"), 1e-09)
REMOVE = AT_ONCE | {"keep_quarantine_days": 1e-09}
NOTHING = {"jobs", "uploads", "restored", "graphs", "quarantined", "blobs", "remnants"}
OTHER = "00000000000000000000000000000000"


@pytest.fixture
def stores(settings: Settings) -> Iterator[Stores]:
    stores = Stores.open(settings)
    yield stores
    stores.close()


@pytest.fixture
def swept(stores: Stores, settings: Settings) -> Callable[..., dict[str, int]]:
    """One sweep, as if everything were old unless told otherwise."""
    uploads = Uploads(settings, stores)

    def swept(**more: Any) -> dict[str, int]:
        counts = sweep(stores, uploads, settings.model_copy(update=AT_ONCE | more))
        return {name: count for name, count in counts.items() if count}

    return swept


def is_blocked() -> bool:
    """What Prometheus is told."""
    [metric] = BLOCKED.collect()
    return bool(metric.samples[0].value)


def bucket_of(settings: Settings) -> ObjectStore:
    """The place itself, as any other program sees it."""
    return S3Store.from_url(settings.blobs) if "://" in settings.blobs else LocalStore(settings.blobs)


def files_of(settings: Settings) -> set[str]:
    """All files in the store but those that tell whose it is."""
    found = {item["path"] for chunk in bucket_of(settings).list() for item in chunk}
    return {path for path in found if not path.startswith("store/")}


def add_model(stores: Stores, name: str = "kept") -> str:
    path = f"models/p/{name}/t"
    stores.blobs.write(path, ARRAYS, {})
    with stores.database.write() as connection:
        stores.catalog.add(connection, ModelName("p", name), b"", path, graph="used")
    return path


def forget_model(stores: Stores, name: str = "kept") -> None:
    """As if the record were not there, and nobody had deleted anything."""
    stores.catalog.remove(ModelName("p", name))


def fill(stores: Stores, uploads: Uploads) -> None:
    """A model on its graph, and one of everything that nothing refers to."""
    for path in ("graphs/used/t", "graphs/unused/t", "models/p/lost/t", "datasets/p/lost/t"):
        stores.blobs.write(path, ARRAYS, {})
    for digest in ("used", "unused"):
        stores.catalog.add_graph(digest, f"graphs/{digest}/t")
    add_model(stores)
    for number in range(2):
        stores.queue.submit(NewJob(JobName("p", f"j{number}"), "fit", b""), 10)
    stores.queue.cancel(JobName("p", "j0"))
    (uploads.root / "p" / "u").mkdir(parents=True)


# -- what is kept and what is not


def test_what_is_young_stays(stores: Stores, settings: Settings) -> None:
    uploads = Uploads(settings, stores)
    sweep(stores, uploads, settings)
    fill(stores, uploads)
    assert sweep(stores, uploads, settings) == dict.fromkeys(NOTHING, 0)
    assert len(list(stores.blobs.list(""))) == 5


def test_what_is_old_goes_unless_something_refers_to_it(stores: Stores, settings: Settings) -> None:
    uploads = Uploads(settings, stores)
    sweep(stores, uploads, settings)
    fill(stores, uploads)
    removed = sweep(stores, uploads, settings.model_copy(update=AT_ONCE))
    gone = {"jobs": 1, "uploads": 1, "graphs": 1, "quarantined": 2}
    assert removed == dict.fromkeys(NOTHING, 0) | gone
    assert {path for path, _ in stores.blobs.list("")} == {"models/p/kept/t", "graphs/used/t"}
    assert [row.id for row, _ in stores.queue.page("p")[0]] == ["j1"]
    assert not (uploads.root / "p" / "u").exists()
    assert sweep(stores, uploads, settings.model_copy(update=AT_ONCE)) == dict.fromkeys(NOTHING, 0)


def test_a_job_that_mlflow_has_not_heard_of_stays_while_somebody_tells_it(stores: Stores, settings: Settings) -> None:
    uploads = Uploads(settings, stores)
    fill(stores, uploads)
    old = {**AT_ONCE, "tracking": True}
    assert sweep(stores, uploads, settings.model_copy(update=old))["jobs"] == 0
    assert [row.id for row, _ in stores.queue.page("p")[0]] == ["j1", "j0"]


def test_what_a_job_may_still_name_is_kept_as_long_as_a_job_may_run(stores: Stores, settings: Settings) -> None:
    # keep_orphans_hours alone decided, and a job of a day lost its graph after an hour.
    uploads = Uploads(settings, stores)
    sweep(stores, uploads, settings)
    fill(stores, uploads)
    short = settings.model_copy(update=AT_ONCE | {"max_job_time_limit": 60.0})
    counts = sweep(stores, uploads, short)
    assert (counts["graphs"], counts["quarantined"]) == (0, 0)


# -- quarantine


def test_what_nothing_refers_to_is_removed_only_after_its_time_in_quarantine(
    stores: Stores, settings: Settings, swept: Callable[..., dict[str, int]]
) -> None:
    swept()
    path = add_model(stores)
    forget_model(stores)
    assert swept() == {"quarantined": 1}
    assert swept() == {}
    assert len(files_of(settings)) == 2
    time.sleep(1.1)
    assert swept(keep_quarantine_days=1e-9) == {"blobs": 1}
    assert files_of(settings) == set()
    assert not stores.blobs.exists(path)


def test_what_is_referred_to_again_comes_back_from_quarantine(
    stores: Stores, swept: Callable[..., dict[str, int]]
) -> None:
    swept()
    path = add_model(stores)
    forget_model(stores)
    assert swept() == {"quarantined": 1}
    with stores.database.write() as connection:
        stores.catalog.add(connection, ModelName("p", "kept"), b"", path)
    time.sleep(1.1)
    assert swept(keep_quarantine_days=1e-9) == {"restored": 1}
    assert stores.read(path).arrays["points"].tolist() == ARRAYS["points"].tolist()


def test_arrays_of_a_deleted_record_are_gone_at_once(
    stores: Stores, settings: Settings, swept: Callable[..., dict[str, int]]
) -> None:
    swept()
    path = add_model(stores)
    stores.discard(stores.catalog.remove(ModelName("p", "kept")))
    assert not stores.blobs.exists(path)
    assert not [file for file in files_of(settings) if "points" in str(file)]


# -- files of others


def test_files_of_others_are_never_touched(settings: Settings, swept: Callable[..., dict[str, int]]) -> None:
    # A folder was deleted because it held a .npy.
    swept()
    token = "0123456789abcdef0123456789abcdef"
    foreign = {
        "backup/points.npy",
        "backup/manifest.json",
        "models/p/lost/t/manifest.json",
        "models/p/lost/t/points.npy",
        "models/notes.npy",
        "models/p/job/mine/points.npy",
        f"models/p/job/{token}/notes.txt",
        f"models/p/job/{token}/points.npy",
        f"graphs/{token}.npy",
        "quarantine/notes.npy",
        "quarantine/1/backup/a.npy",
        "quarantine/soon/models/p/job/t/points.npy",
        "README.txt",
    }
    bucket = bucket_of(settings)
    for path in foreign:
        bucket.put(path, b"{}")
    # What a killed writer of ours left.
    bucket.put(f"datasets/p/d/{token}/points.npy", b"half")
    assert swept() == {"quarantined": 1}
    time.sleep(1.1)
    assert swept(keep_quarantine_days=1e-9) == {"blobs": 1}
    assert files_of(settings) == foreign


# -- the database of another store


def age(stores: Stores) -> None:
    """Make everything in the store four days old, and the records thirty."""
    folder = stores.blobs._backend
    assert isinstance(folder, Folder), "times in a bucket are its own"
    before = time.time() - 4 * 86400
    for file in folder.root.rglob("*"):
        os.utime(file, (before, before))
    age_records(stores)


def age_records(stores: Stores) -> None:
    """Make the records thirty days old."""
    with stores.database.write() as connection:
        connection.execute(update(resources).values(created=resources.c.created - 30 * 86400))


def another_database(settings: Settings, folder: Path) -> Settings:
    """The same store, with a database that is new."""
    url = f"sqlite:///{folder / 'another.db'}"
    database = Database(url)
    database.migrate()
    database.close()
    return settings.model_copy(update={"database_url": SecretStr(url)})


@pytest.mark.parametrize("has_id", [True, False], ids=["store with an id", "store without one"])
def test_an_empty_database_removes_nothing(
    stores: Stores,
    settings: Settings,
    swept: Callable[..., dict[str, int]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    has_id: bool,
) -> None:
    if has_id:
        swept()
    add_model(stores)
    stores.blobs.write("graphs/used/t", ARRAYS, {})
    stores.catalog.add_graph("used", "graphs/used/t")
    before = files_of(settings)
    wrong = another_database(settings, tmp_path)
    others = Stores.open(wrong)
    for _ in range(2):
        caplog.clear()
        counts = sweep(others, Uploads(wrong, others), wrong.model_copy(update=REMOVE))
        assert set(counts.values()) == {0}
        [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "NO BLOB IS SWEPT" in line.message
        assert "homophily store adopt" in line.message
        assert is_blocked()
        # What it is told to delete, it forgets, and leaves where it is.
        path = add_model(others, "its-own")
        others.discard(others.catalog.remove(ModelName("p", "its-own")))
        others.blobs.delete(path)
        assert files_of(settings) == before
    others.close()


def test_a_database_without_an_id_does_not_take_over_a_store_by_adding_to_it(
    stores: Stores, settings: Settings, tmp_path: Path
) -> None:
    # All that it refers to is there by then, and everything else may be young.
    add_model(stores)
    wrong = another_database(settings, tmp_path)
    others = Stores.open(wrong)
    uploads = Uploads(wrong, others)
    for name in ("one", "two"):
        sweep(others, uploads, wrong)
        assert is_blocked()
        time.sleep(0.01)
        add_model(others, name)
    before = files_of(settings)
    sweep(others, uploads, wrong.model_copy(update=REMOVE))
    assert files_of(settings) == before
    others.close()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_an_older_copy_of_the_database_removes_nothing(
    stores: Stores, settings: Settings, swept: Callable[..., dict[str, int]], tmp_path: Path
) -> None:
    swept()
    add_model(stores)
    stores.database.close()
    shutil.copyfile(tmp_path / "homophily.db", tmp_path / "another.db")
    add_model(stores, "later")
    swept(keep_orphans_hours=48.0, max_job_time_limit=3600.0)
    before = files_of(settings)
    older = another_database(settings, tmp_path)
    others = Stores.open(older)
    assert others.catalog.has(ModelName("p", "kept"))
    assert not others.catalog.has(ModelName("p", "later"))
    assert set(sweep(others, Uploads(older, others), older.model_copy(update=REMOVE)).values()) == {0}
    assert is_blocked()
    assert files_of(settings) == before
    others.close()


def test_of_two_databases_on_one_store_neither_removes_what_the_other_has(
    stores: Stores, settings: Settings, swept: Callable[..., dict[str, int]], tmp_path: Path
) -> None:
    swept()
    add_model(stores)
    wrong = another_database(settings, tmp_path)
    others = Stores.open(wrong)
    uploads = Uploads(wrong, others)
    sweep(others, uploads, wrong)
    add_model(others, "theirs")
    before = files_of(settings)
    # The store is ours, but what the other one wrote is no orphan.
    assert swept(keep_quarantine_days=1e-9) == {}
    assert is_blocked()
    assert set(sweep(others, uploads, wrong.model_copy(update=REMOVE)).values()) == {0}
    assert files_of(settings) == before
    # Once the other is gone, on purpose, it is swept again.
    stores.identity.adopt()
    assert swept() == {"quarantined": 1}
    sweep(others, uploads, wrong)
    assert swept() == {}
    others.close()


def test_a_database_on_an_empty_store_that_is_not_its_own_removes_nothing(
    stores: Stores, settings: Settings, swept: Callable[..., dict[str, int]], tmp_path: Path
) -> None:
    # As where a volume is not mounted.
    swept()
    add_model(stores)
    empty = settings.model_copy(update={"blobs_url": str(tmp_path / "not mounted")})
    others = Stores.open(empty)
    assert set(sweep(others, Uploads(empty, others), empty.model_copy(update=REMOVE)).values()) == {0}
    assert is_blocked()
    others.close()
    assert swept() == {}
    assert not is_blocked()


def test_a_sweep_in_the_middle_of_an_adoption_does_not_contest_it(
    stores: Stores, swept: Callable[..., dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    swept()
    delete = stores.blobs.delete

    def sweep_first(path: str) -> None:
        # The database has the new id by now, and the store the old one.
        swept()
        assert is_blocked()
        delete(path)

    with monkeypatch.context() as patch:
        patch.setattr(stores.blobs, "delete", sweep_first)
        patch.setattr(identity.Identity, "_note", lambda *_: patch.undo())
        stores.identity.adopt()
    assert swept() == {}
    assert not is_blocked()


def test_a_damaged_identity_stops_the_sweep(
    stores: Stores, settings: Settings, swept: Callable[..., dict[str, int]]
) -> None:
    swept()
    add_model(stores)
    forget_model(stores)
    bucket_of(settings).put("store/identity/manifest.json", b"{}")
    assert swept() == {}
    assert is_blocked()
    stores.identity.adopt()
    assert swept() == {"quarantined": 1}


# -- how a database and a store come together


def test_an_upgraded_database_gets_an_id_with_its_store(stores: Stores, swept: Callable[..., dict[str, int]]) -> None:
    add_model(stores)
    age_records(stores)
    # A job that runs: what it has written is not recorded yet.
    stores.blobs.write("models/p/running/t", ARRAYS, {})
    assert swept(keep_orphans_hours=48.0) == {}
    assert not is_blocked()
    assert stores.identity.mismatch() is None


def test_an_upgraded_database_does_not_get_an_id_with_a_store_that_lacks_its_arrays(
    stores: Stores, swept: Callable[..., dict[str, int]]
) -> None:
    add_model(stores)
    stores.blobs.delete(add_model(stores, "lost"))
    swept(keep_orphans_hours=48.0)
    mismatch = stores.identity.mismatch()
    assert mismatch is not None
    assert "do not fit" in mismatch.sentence


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_an_upgraded_database_does_not_get_an_id_with_a_store_that_has_old_arrays_of_others(
    stores: Stores, settings: Settings, swept: Callable[..., dict[str, int]]
) -> None:
    path = add_model(stores)
    add_model(stores, "unknown")
    age(stores)
    forget_model(stores, "unknown")
    before = files_of(settings)
    swept(keep_orphans_hours=48.0)
    assert is_blocked()
    assert files_of(settings) == before
    assert stores.blobs.exists(path)


def test_a_process_killed_before_the_store_had_its_id_harms_nothing(
    stores: Stores, swept: Callable[..., dict[str, int]]
) -> None:
    with stores.database.write() as connection:
        connection.execute(insert(store).values(id=OTHER, generation=0))
    assert swept() == {}
    assert not is_blocked()
    assert stores.blobs.read("store/identity").document == {"id": OTHER}


def test_a_process_killed_between_the_two_generations_harms_nothing(
    stores: Stores, swept: Callable[..., dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    swept()

    def away(*_: Any) -> float:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(identity.Identity, "_note", away)
        for _ in range(2):
            with pytest.raises(Unavailable):
                swept()
    assert swept() == {}
    assert not is_blocked()
    assert len(list(stores.blobs.list("store/generations"))) == 1


def test_processes_that_start_at_once_agree_on_one_id(stores: Stores, settings: Settings) -> None:
    found: list[Any] = []

    def start() -> None:
        mine = Stores.open(settings)
        try:
            mine.identity.begin_sweep(3600.0)
        except Unavailable as error:
            found.append(error.message)
        except Exception as error:
            found.append(error)
        mine.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) <= {"another sweep is under way"}
    assert stores.identity.mismatch() is None
    with stores.database.read() as connection:
        assert len(connection.execute(select(store)).all()) == 1


# -- a real server


def test_a_server_with_an_empty_database_leaves_the_store_of_another_alone(tmp_path: Path) -> None:
    # At its first sweep it deleted every dataset, graph and model older than two days.
    points, blobs = np.eye(5), tmp_path / "data" / "blobs"
    with running(tmp_path / "data", workers=0, predictors=0) as service:
        project = service.project()
        name = project.upload(points).name
        eventually((blobs / "store" / "generations").exists)
    for file in blobs.rglob("*"):
        os.utime(file, (0, 0))
    before = {file.relative_to(blobs) for file in blobs.glob("datasets/**/*")}
    assert before

    wrong = {"blobs_url": str(blobs), "workers": 0, "predictors": 0, "metrics_port": 0, "sweep_seconds": 0.1}
    with running(tmp_path / "empty", **wrong) as service:

        def refused() -> list[dict[str, Any]]:
            return [line for line in service.lines() if line["level"] == "error"]

        eventually(lambda: len(refused()) > 2)
        assert all("NO BLOB IS SWEPT" in line["message"] for line in refused())
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{service.metrics_port}/metrics").read().decode()
        assert "homophily_sweep_blocked 1.0" in metrics
        # It works, and what it is told to delete, it forgets.
        other = service.project()
        made = other.upload(points)
        other.stub.DeleteDataset(dataset_pb2.DeleteDatasetRequest(name=made.name))
        assert len(list((blobs / "datasets" / other.id).rglob("*.npy"))) == 1
        assert not (blobs / "quarantine").exists()
    assert {file.relative_to(blobs) for file in blobs.glob(f"datasets/{project.id}/**/*")} | {
        Path("datasets") / project.id
    } == before

    with running(tmp_path / "data", workers=0, predictors=0, sweep_seconds=0.1) as service:
        again = Project(service.project().stub, project.id)
        eventually(lambda: [line for line in service.lines() if "another database" in line["message"]])
        assert again.stub.GetDataset(dataset_pb2.GetDatasetRequest(name=name)).dataset.name == name
        # Nothing of either is gone until somebody has decided.
        assert len(list(blobs.glob("datasets/*"))) == 2
        stores = open_stores(service)
        stores.identity.adopt()
        stores.close()
        again.stub.DeleteDataset(dataset_pb2.DeleteDatasetRequest(name=name))
        assert not list(blobs.glob(f"datasets/{project.id}/*/*/*.npy"))


# -- clocks


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_three_days_by_all_clocks_at_once_remove_nothing(
    stores: Stores, settings: Settings, swept: Callable[..., dict[str, int]]
) -> None:
    # As on one machine whose clock jumps: everything looks old, and no other clock tells.
    kept = add_model(stores)
    swept(keep_orphans_hours=48.0)
    unrecorded = "models/p/running/t"
    stores.blobs.write(unrecorded, ARRAYS, {})
    age(stores)
    before = files_of(settings)
    assert swept(keep_orphans_hours=48.0) == {"quarantined": 1}
    assert len(files_of(settings)) == len(before)
    # The job that wrote it ends.
    with stores.database.write() as connection:
        stores.catalog.add(connection, ModelName("p", "running"), b"", unrecorded)
    assert swept(keep_orphans_hours=48.0) == {"restored": 1}
    assert files_of(settings) == before
    assert stores.read(kept).arrays
    assert stores.read(unrecorded).arrays


@pytest.mark.parametrize("hours", [-72, 72])
@pytest.mark.parametrize("whose", ["machine", "database", "store"])
def test_a_clock_that_is_three_days_off_removes_nothing(
    stores: Stores,
    settings: Settings,
    swept: Callable[..., dict[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    whose: str,
    hours: int,
) -> None:
    swept()
    add_model(stores)
    forget_model(stores)
    before, off = files_of(settings), hours * 3600.0
    right = identity.Identity._check_clocks
    if whose == "machine":
        machine = time.time
        monkeypatch.setattr(time, "time", lambda: machine() + off)
    else:
        shift = (off, 0.0) if whose == "database" else (0.0, off)
        monkeypatch.setattr(
            identity.Identity, "_check_clocks", lambda self, a, b: right(self, a + shift[0], b + shift[1])
        )
    assert swept(keep_quarantine_days=1e-9) == {}
    assert files_of(settings) == before
    assert "clocks differ" in caplog.text
    assert is_blocked()
