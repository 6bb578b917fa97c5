"""`homophily fsck` and `homophily store adopt`: everything in the store is accounted for, and comes back if it can."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from obstore.store import LocalStore, ObjectStore, S3Store
from typer.testing import CliRunner

from homophily_client.names import ModelName
from homophily_service.cli.commands import app
from homophily_service.contract.errors import DataLoss, NotFound
from homophily_service.runtime.settings import Settings, load_settings
from homophily_service.storage.retention import sweep
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import Uploads

ARRAYS = {"points": np.eye(3)}
TOKEN = "0123456789abcdef0123456789abcdef"
KEPT, GONE, ORPHAN = (f"models/p/{name}/{TOKEN}" for name in ("kept", "gone", "orphan"))
SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.tar.gz"))
Run = Callable[..., Result]


@pytest.fixture
def stores(settings: Settings) -> Iterator[Stores]:
    """A store with an object that is referred to and one that is not."""
    stores = Stores.open(settings)
    sweep(stores, Uploads(settings, stores), settings)
    add(stores, "kept")
    stores.blobs.write(ORPHAN, ARRAYS, {})
    yield stores
    stores.close()


def add(stores: Stores, name: str) -> str:
    path = f"models/p/{name}/{TOKEN}"
    stores.blobs.write(path, ARRAYS, {})
    with stores.database.write() as connection:
        stores.catalog.add(connection, ModelName("p", name), b"", path)
    return path


@pytest.fixture
def run(settings: Settings) -> Run:
    """A command on these stores."""
    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()

    def run(*arguments: str, code: int = 0, **more: Any) -> Result:
        place = ["--data-dir", str(settings.data_dir), "--set", f"database_url={url}"]
        place += ["--set", f"blobs_url={settings.blobs}"]
        words = 2 if arguments[0] == "store" else 1
        # Before the arguments: the last of several assignments counts.
        result = CliRunner().invoke(app, [*arguments[:words], *place, *arguments[words:]], **more)
        assert result.exit_code == code, result.output
        return result

    return run


def states(result: Result) -> dict[str, str]:
    """The state of everything, by its path."""
    return {found["path"]: found["state"] for found in json.loads(result.stdout)["blobs"]}


def bucket_of(settings: Settings) -> ObjectStore:
    return S3Store.from_url(settings.blobs) if "://" in settings.blobs else LocalStore(settings.blobs)


def test_every_blob_is_listed_as_what_it_is(stores: Stores, settings: Settings, run: Run) -> None:
    assert stores.blobs.quarantine(add(stores, "gone"), 1_700_000_000)
    stores.catalog.remove(ModelName("p", "gone"))
    bucket = bucket_of(settings)
    bucket.put("backup/points.npy", b"theirs")
    bucket.put("notes.txt", b"theirs")
    bucket.put(f"datasets/p/half/{TOKEN}/points.0123456789abcdef.npy", b"ours")
    result = run("fsck", "--json")
    assert states(result) == {
        KEPT: "referenced",
        ORPHAN: "orphaned",
        f"datasets/p/half/{TOKEN}": "orphaned",
        f"quarantine/1700000000/{GONE}": "quarantined",
        "backup": "foreign",
        "/": "foreign",
    }
    told = json.loads(result.stdout)
    assert told["mismatch"] is None
    assert {state: found["blobs"] for state, found in told["totals"].items()} == {
        "referenced": 1,
        "quarantined": 1,
        "orphaned": 2,
        "foreign": 2,
        "missing": 0,
        "damaged": 0,
    }
    shown = run("fsck").stdout
    assert all(path in shown for path in states(result))
    assert "2023-11-14" in shown
    assert "In all: 1 referenced" in shown


def test_what_is_missing_or_damaged_ends_with_an_error(stores: Stores, settings: Settings, run: Run) -> None:
    stores.blobs.delete(add(stores, "gone"))
    assert states(run("fsck", "--json", code=1)) == {KEPT: "referenced", ORPHAN: "orphaned", GONE: "missing"}
    stores.catalog.remove(ModelName("p", "gone"))
    run("fsck")

    bucket = bucket_of(settings)
    [name] = [item["path"] for chunk in bucket.list(KEPT) for item in chunk if item["path"].endswith(".npy")]
    content = bucket.get(name).bytes().to_bytes()
    bucket.put(name, content[:-1] + b"!")
    result = run("fsck", "--json", code=1)
    assert states(result)[KEPT] == "damaged"
    assert "sha256" in result.stdout
    # Sizes are right, and nothing else was looked at.
    run("fsck", "--no-check-hashes")
    bucket.put(name, content[:-1])
    assert "bytes, but" in run("fsck", "--no-check-hashes", code=1).stdout
    bucket.delete(name)
    assert "points.npy is missing" in run("fsck", "--no-check-hashes", code=1).stdout
    bucket.put(name, content)
    run("fsck")
    bucket.delete(f"{KEPT}/manifest.json")
    assert "manifest.json is missing" in run("fsck", code=1).stdout


def test_what_is_in_quarantine_is_restored(stores: Stores, run: Run) -> None:
    assert stores.blobs.quarantine(KEPT, 1_700_000_000)
    assert stores.blobs.quarantine(ORPHAN, 1_700_000_000)
    with pytest.raises(DataLoss, match="fsck"):
        stores.read(KEPT)
    assert f"quarantine/1700000000/{KEPT}" in run("fsck", code=1).stdout
    assert "Restored 1" in run("fsck", "--restore-referenced").stdout
    assert stores.read(KEPT).arrays["points"].tolist() == ARRAYS["points"].tolist()
    assert not stores.blobs.exists(ORPHAN)
    # By the path that it had, or by the one that it has.
    run("fsck", "--restore", ORPHAN)
    assert stores.blobs.exists(ORPHAN)
    assert stores.blobs.quarantine(ORPHAN, 1_700_000_001)
    run("fsck", "--restore", f"quarantine/1700000001/{ORPHAN}")
    assert stores.blobs.exists(ORPHAN)
    run("fsck", "--restore", ORPHAN, code=4)


def test_arrays_without_a_record_are_not_found_rather_than_lost(stores: Stores) -> None:
    with pytest.raises(NotFound):
        stores.read(GONE)


@pytest.mark.usefixtures("stores")
def test_looking_at_a_store_of_another_database_changes_nothing(settings: Settings, run: Run, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert CliRunner().invoke(app, ["migrate", "--set", f"database_url={other}"]).exit_code == 0
    arguments = ["--set", f"database_url={other}", "--set", f"blobs_url={settings.blobs}"]
    result = CliRunner().invoke(app, ["fsck", "--json", *arguments])
    assert "another database" in json.loads(result.stdout)["mismatch"]
    assert states(result) == {KEPT: "orphaned", ORPHAN: "orphaned"}
    assert json.loads(run("fsck", "--json").stdout)["mismatch"] is None


def test_a_store_is_adopted_on_purpose(stores: Stores, settings: Settings, run: Run, tmp_path: Path) -> None:
    other = settings.model_copy(update={"blobs_url": str(tmp_path / "moved")})
    moved = Stores.open(other)
    moved.blobs.write(KEPT, ARRAYS, {})
    uploads = Uploads(other, moved)
    sweep(moved, uploads, other)
    assert moved.identity.mismatch() is not None
    place = ["--set", f"blobs_url={other.blobs}"]
    refused = run("store", "adopt", *place, input="n\n", code=1)
    assert "refers to 1 objects" in refused.output
    assert moved.identity.mismatch() is not None
    run("store", "adopt", "--json", "--yes", *place)
    assert moved.identity.mismatch() is None
    sweep(moved, uploads, other)
    assert moved.identity.mismatch() is None
    # The store that it was with before is not its own any more.
    assert stores.identity.mismatch() is not None
    moved.close()


@pytest.mark.parametrize(
    "sample", sorted((Path(__file__).parent / "samples").glob("*.tar.gz")), ids=lambda path: path.name
)
def test_a_store_of_an_older_version_gets_an_id_and_is_whole(sample: Path, tmp_path: Path) -> None:
    with tarfile.open(sample) as archive:
        archive.extractall(tmp_path, filter="data")
    settings = load_settings(data_dir=tmp_path / "data", tracking=False)
    stores = Stores.open(settings)
    stores.database.migrate()
    before = {entry.path for entry in stores.blobs.entries()}
    sweep(stores, Uploads(settings, stores), settings)
    assert stores.identity.mismatch() is None
    assert {path for path, _ in stores.blobs.list("")} == before
    stores.close()
    result = CliRunner().invoke(app, ["fsck", "--data-dir", str(settings.data_dir), "--json"])
    assert result.exit_code == 0
    assert set(states(result).values()) == {"referenced"}
