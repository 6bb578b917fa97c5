"""A client that is not ours, in another language, made from the .proto files alone: as other services will have."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .conftest import MakeCluster
from .harness import PATIENCE

HERE = Path(__file__).with_name("node")
PROTO = Path(__file__).parents[2] / "proto"


@pytest.fixture(scope="module")
def node_client() -> Path:
    """The script beside the packages it needs, which are installed once and kept for later runs."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        assert "CI" not in os.environ, "npm is not installed, and continuous integration has to try this client"
        pytest.skip("npm is not installed: no client in another language is tried")
    packages = [HERE / "package.json", HERE / "package-lock.json"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in packages)).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "homophily"
    folder = caches / f"node-{digest}"
    if not folder.exists():
        caches.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=caches) as fresh:
            whole = Path(fresh) / "whole"
            whole.mkdir()
            for file in packages:
                shutil.copy(file, whole)
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=whole, check=True, timeout=PATIENCE)
            # Fails if another run was first, which is as good.
            with suppress(OSError):
                whole.rename(folder)
    return Path(shutil.copy(HERE / "client.mjs", folder))


def test_a_node_client_uploads_fits_watches_and_predicts(make_cluster: MakeCluster, node_client: Path) -> None:
    cluster = make_cluster()
    cluster.serve(workers=1, predictors=1)
    command = ["node", str(node_client), f"127.0.0.1:{cluster.port}", str(PROTO)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    saw = json.loads(run.stdout)

    assert saw["dataset"]["name"] == "projects/default/datasets/from-node"
    assert saw["dataset"]["shape"] == {"rows": 200, "columns": 3, "dataType": "DATA_TYPE_FLOAT32"}
    row = cluster.job(saw["job"]["name"])
    assert saw["job"]["state"] == "JOB_STATE_SUCCEEDED"
    assert saw["job"]["kind"] == "JOB_KIND_FIT"
    assert row.request_id == "node-1"
    assert [event["sequence"] for event in saw["events"]] == list(range(1, row.last_sequence + 1))
    assert (saw["events"][0]["state"], saw["events"][-1]["state"]) == ("JOB_STATE_QUEUED", "JOB_STATE_SUCCEEDED")
    assert {"load", "graph", "solve", "save"} <= {event["phase"] for event in saw["events"]}
    assert saw["answers"] == ["near", "far"] * 100
    assert saw["scores"] == {"shape": [200, 1], "bytes": 200 * 8}
    assert saw["missing"]["code"] == "NOT_FOUND"
    assert cluster.exceptions() == []
