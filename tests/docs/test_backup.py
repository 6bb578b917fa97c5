"""docs/operations/backup.md does what it says: backed up while it runs, destroyed, restored, and it predicts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore.store import S3Store

from homophily_client import Client

from ..service.databases import Postgres
from ..service.serving import Service, running
from .pages import DOCS, blocks, examples

PAGE = DOCS / "operations" / "backup.md"
X = np.concatenate([np.random.default_rng(0).normal(place, 1.0, (60, 3)) for place in (-4.0, 4.0)])


def fitted(service: Service, name: str) -> list[int]:
    """A new model's answers."""
    with Client(service.target) as client:
        return answers(service, client.fit(X, {0: 1, 119: 2}, model_id=name).result().name)


def answers(service: Service, model: str) -> list[int]:
    with Client(service.target) as client:
        return [int(label) for label in client.predict(model, X[::10]).labels]


def sh(commands: str, folder: Path, **more: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=folder, env=os.environ | {"PATH": path} | more, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_folder_is_backed_up_while_it_is_used_and_restored(tmp_path: Path) -> None:
    backup, restore = (block.code for block in examples(PAGE))
    data = tmp_path / "homophily-data"
    with running(data) as service:
        expected = fitted(service, "kept")
        sh(backup, tmp_path)
        fitted(service, "later")
    said = sh(restore, tmp_path)
    assert "0 missing" in said
    assert "0 damaged" in said
    assert "belong together" in said
    with running(data) as service, Client(service.target) as client:
        assert answers(service, "kept") == expected
        assert [model.name for model in client.list_models()] == ["projects/default/models/kept"]
        fitted(service, "new")
    assert json.loads(sh("homophily fsck --json", tmp_path))["mismatch"] is None


def test_postgres_and_a_bucket_are_restored(postgres: Postgres, s3_url: str, tmp_path: Path) -> None:
    dump, restore = (block.code for block in blocks(PAGE) if block.not_run)
    bucket, prefix = s3_url.removeprefix("s3://").split("/")

    def synced(source: str, target: str) -> None:
        """What `aws s3 sync` does."""
        store = S3Store(bucket)
        for found in [found for page in obstore.list(store, prefix=source) for found in page]:
            obstore.copy(store, found["path"], found["path"].replace(source, target, 1))

    def adapted(block: str, database: str) -> str:
        """The commands for these places; copies of the bucket are made by `synced`."""
        kept = [line for line in block.splitlines() if not line.startswith("aws ")]
        text = "\n".join(kept).replace("s3://bucket/prefix", s3_url).replace("store adopt", "store adopt --yes")
        assert text != block
        plain = database.replace("+psycopg", "")
        text = text.replace("postgresql+psycopg://homophily_owner@HOST/homophily", f"'{database}'")
        return text.replace('"postgresql://homophily_owner@HOST/homophily"', f"'{plain}'")

    programs = str(postgres.programs)
    path = f"{Path(sys.executable).parent}{os.pathsep}{programs}{os.pathsep}{os.environ['PATH']}"
    first, second = postgres.new_database(), postgres.new_database()
    sh("homophily migrate", tmp_path, HOMOPHILY_DATABASE_URL=first, HOMOPHILY_BLOBS_URL=s3_url)
    with running(tmp_path / "a", database_url=first, blobs_url=s3_url) as service:
        expected = fitted(service, "kept")
        sh(adapted(dump, first), tmp_path, PATH=path)
        synced(prefix, f"{prefix}-copy")
    store = S3Store(bucket)
    obstore.delete(store, [found["path"] for page in obstore.list(store, prefix=f"{prefix}/") for found in page])
    synced(f"{prefix}-copy", prefix)
    said = sh(adapted(restore, second), tmp_path, PATH=path)
    assert "0 missing" in said
    shutil.rmtree(tmp_path / "a")
    with running(tmp_path / "b", database_url=second, blobs_url=s3_url) as service:
        assert answers(service, "kept") == expected


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the defaults."""
    for name in [name for name in os.environ if name.startswith("HOMOPHILY_")]:
        monkeypatch.delenv(name)
