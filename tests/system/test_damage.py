"""Files that are damaged or forged, and a disk that fails while something is saved: nothing wrong is ever answered."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import json
import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

from homophily_client._pb import job_pb2, model_pb2
from homophily_client.names import DatasetName, ModelName
from homophily_service.contract import states
from homophily_service.runtime.settings import Settings
from homophily_service.storage.solutions import CLASS_INDICES, SCORES

from .conftest import MakeCluster
from .harness import CALL_SECONDS, PROJECT, Client, Cluster, clouds, code, fit_request, labels, points

FAILING_DISK = Path(__file__).with_name("failing_disk")
FIELDS = (model_pb2.SOLUTION_FIELD_CLASS_INDICES, model_pb2.SOLUTION_FIELD_SCORES)
X, Y = clouds(0)


class Lost(NamedTuple):
    """The answer that there is none: DATA_LOSS, and what was said of it."""

    message: str


class Stored:
    """A model, what is asked of it, and where its files are."""

    def __init__(self, cluster: Cluster, client: Client, seed: int) -> None:
        self.cluster, self.client = cluster, client
        job = client.submit("Fit", fit_request(seed))
        assert cluster.ended(job).state == states.SUCCEEDED
        self.model = client.job(job).fit.model
        catalog = cluster.stores.catalog
        self.root = Path(Settings(**cluster.options).blobs)
        self.blob = catalog.get(ModelName.parse(self.model.name, "name")).blob
        self.graph = catalog.use_graph(self.model.graph.digest)
        self.dataset = catalog.get(DatasetName.parse(self.model.dataset, "name")).blob

    def files(self, blob: str) -> set[str]:
        """The files of a stored object, as messages name them."""
        return {f"{blob}/{file.name}" for file in (self.root / blob).iterdir()}

    def solution(self) -> Any:
        """The classes and scores of its points."""
        request = model_pb2.ReadSolutionRequest(name=self.model.name, fields=FIELDS)
        return _answer(lambda: list(self.client.stub.ReadSolution(request, timeout=CALL_SECONDS)))

    def prediction(self) -> Any:
        """The classes and scores of new points."""
        request = model_pb2.PredictRequest(name=self.model.name, points=points(X[:20] + 0.1))
        return _answer(lambda: self.client.call("Predict", request))

    def with_another_label(self) -> Any:
        """The state of a job that goes on from it, at its end."""
        return self._ended("Transduce", job_pb2.TransduceRequest(model=self.model.name, labels=labels(Y, [50])))

    def with_another_graph(self) -> Any:
        """The state of a job that fits the points anew, with a graph that nobody has stored, at its end."""
        graph, some = model_pb2.GraphParameters(n_neighbors=7), labels(Y, range(20))
        return self._ended(
            "Fit", job_pb2.FitRequest(parent=PROJECT, dataset=self.model.dataset, labels=some, graph=graph)
        )

    def _ended(self, method: str, request: Any) -> str | Lost:
        job = self.cluster.ended(self.client.submit(method, request))
        if job.state != states.FAILED:
            return str(job.state)
        error = job_pb2.JobError.FromString(job.outcome)
        assert error.code == grpc.StatusCode.DATA_LOSS.value[0], error
        return Lost(error.message)


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except grpc.RpcError as error:
        if code(error) is not grpc.StatusCode.DATA_LOSS:
            raise
        return Lost(str(error.details()))


# -- flipped bits


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A service whose predictor keeps one model in memory."""
    cluster = Cluster(tmp_path_factory.mktemp("damage"), predictor_cache_bytes=1)
    cluster.serve(workers=1, predictors=1)
    yield cluster
    cluster.close()


def test_no_flipped_bit_is_ever_answered_from(cluster: Cluster, long: bool) -> None:
    client = cluster.client()
    other, stored = Stored(cluster, client, 1), Stored(cluster, client, 0)
    solution, prediction = stored.solution(), stored.prediction()
    whole = stored.files(stored.blob) | stored.files(stored.graph)
    part = {f"{stored.blob}/{name}" for name in ("manifest.json", f"{CLASS_INDICES}.npy", f"{SCORES}.npy")}
    points_alone = stored.files(stored.dataset)
    assert part < whole

    chosen = random.Random(0)
    files = sorted(whole | points_alone)
    chosen.shuffle(files)
    for _, file in zip(range(1000 if long else 24), itertools.cycle(files), strict=False):
        # The predictor has the other one in memory then, and has forgotten this one.
        assert not isinstance(other.prediction(), Lost)
        with flipped(stored.root / file, chosen):
            for ask, reads, right in (
                (stored.solution, part, solution),
                (stored.prediction, whole, prediction),
                (stored.with_another_label, whole, None),
                (stored.with_another_graph, points_alone, None),
            ):
                if file in reads:
                    answer = ask()
                    assert isinstance(answer, Lost), (file, answer)
                    assert file in answer.message
                elif right is not None:
                    assert ask() == right

    other.prediction()
    assert (stored.solution(), stored.prediction()) == (solution, prediction)
    assert stored.with_another_label() == stored.with_another_graph() == states.SUCCEEDED
    assert cluster.exceptions() == []


@contextmanager
def flipped(file: Path, chosen: random.Random) -> Iterator[None]:
    """While this lasts, one bit of the file is another."""
    content = file.read_bytes()
    place = chosen.randrange(len(content))
    with file.open("r+b", buffering=0) as opened:
        os.pwrite(opened.fileno(), bytes([content[place] ^ 1 << chosen.randrange(8)]), place)
        yield
        os.pwrite(opened.fileno(), content[place : place + 1], place)


# -- forged files


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


CLAIMED = 16 << 30
# Far less than that, and more than a thread or two take.
ALLOWED = 1 << 30


def test_a_forged_file_is_neither_run_nor_believed(cluster: Cluster, tmp_path: Path) -> None:
    client = cluster.client()
    other, stored = Stored(cluster, client, 1), Stored(cluster, client, 0)
    right = stored.solution()
    # Everything that answers has done so once, and has grown by what that takes.
    for ask in (other.solution, other.prediction, other.with_another_label):
        assert not isinstance(ask(), Lost)
    before = {pid: most_memory(pid) for pid in cluster.running()}

    bomb = Bomb(tmp_path / "exploded")
    objects, claims = io.BytesIO(), io.BytesIO()
    np.save(objects, np.array([bomb], object), allow_pickle=True)
    shape = (CLAIMED // 8,)
    np.lib.format.write_array_header_1_0(claims, {"descr": "<f8", "fortran_order": False, "shape": shape})
    claims.write(bytes(80))
    for forgery in (
        {"content": objects.getvalue(), "dtype": "object", "shape": [1]},
        {"content": pickle.dumps(bomb), "dtype": "int32", "shape": [len(X)]},
        {"content": claims.getvalue(), "dtype": "float64", "shape": shape},
        {"content": claims.getvalue(), "dtype": "float64", "shape": shape, "size": CLAIMED + 128},
    ):
        with forged(stored.root / stored.blob, f"{CLASS_INDICES}.npy", **forgery):
            for ask in (stored.solution, stored.prediction, stored.with_another_label):
                answer = ask()
                assert isinstance(answer, Lost), answer
                assert f"{stored.blob}/{CLASS_INDICES}.npy" in answer.message
    assert not bomb.target.exists()
    assert set(cluster.running()) == before.keys()
    assert all(most_memory(pid) < most + ALLOWED for pid, most in before.items())

    assert stored.solution() == right
    assert stored.with_another_label() == states.SUCCEEDED
    assert cluster.exceptions() == []


@contextmanager
def forged(
    folder: Path, name: str, *, content: bytes, dtype: str, shape: Any, size: int | None = None
) -> Iterator[None]:
    """While this lasts, a file is another, and the manifest says that it is the right one."""
    before = {file: (folder / file).read_bytes() for file in (name, "manifest.json")}
    manifest = json.loads(before["manifest.json"])
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][name] = {"sha256": digest, "bytes": size or len(content), "dtype": dtype, "shape": shape}
    del manifest["sha256"]
    manifest["sha256"] = hashlib.sha256(canonical(manifest)).hexdigest()
    (folder / name).write_bytes(content)
    (folder / "manifest.json").write_bytes(canonical(manifest))
    yield
    for file, was in before.items():
        (folder / file).write_bytes(was)


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def most_memory(pid: int) -> int:
    """The most bytes that a process has ever asked for, whether it used them or not."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmPeak"))


# -- a disk that fails


class FailingDisk:
    """What a worker under it writes to the store of arrays, or syncs there, fails once if it is planned."""

    def __init__(self, plan: Path) -> None:
        self.plan = plan
        self.within = ["env", f"PYTHONPATH={FAILING_DISK}", f"FAILING_DISK={plan}"]

    def fail(self, error: int, after: int) -> None:
        """Let a call fail, after so many that go well."""
        self.plan.write_text(f"{error} {after}")

    @property
    def left(self) -> int | None:
        """How many calls would still go well; None after the one that failed."""
        return int(self.plan.read_text().split()[1]) if self.plan.exists() else None


def test_a_disk_that_fails_anywhere_in_a_save_costs_an_attempt_or_the_job_and_nothing_else(
    make_cluster: MakeCluster, tmp_path: Path, long: bool
) -> None:
    cluster, disk = make_cluster(), FailingDisk(tmp_path / "plan")
    cluster.serve(predictors=1)
    cluster.worker(within=disk.within)
    client = cluster.client()
    stored = Stored(cluster, client, 0)
    solution, prediction = stored.solution(), stored.prediction()

    # A fit of points that are new saves their graph, and the model.
    many, seeds = 1_000_000, itertools.count(1)
    disk.fail(errno.EIO, many)
    Stored(cluster, client, next(seeds))
    assert disk.left is not None
    calls = many - disk.left
    assert calls > 20
    for place in range(calls) if long else np.linspace(0, calls - 1, 4, dtype=int):
        # It may pass: the job is tried again.
        disk.fail(errno.EIO, place)
        job = cluster.ended(client.submit("Fit", fit_request(next(seeds))))
        assert disk.left is None
        assert (job.state, job.attempt) == (states.SUCCEEDED, 2)
        assert "Input/output error" in "".join(event.message for event in cluster.queue.events_after(job.number, 0))
        nothing_is_half_saved(cluster)

        # It will not pass by itself: the job says so, and works when there is space again.
        disk.fail(errno.ENOSPC, place)
        request = fit_request(next(seeds))
        job = cluster.ended(client.submit("Fit", request))
        error = job_pb2.JobError.FromString(job.outcome)
        assert (job.state, job.attempt, error.reason) == (states.FAILED, 1, "NO_SPACE")
        nothing_is_half_saved(cluster)
        request.ClearField("options")
        assert cluster.ended(client.submit("Fit", request)).state == states.SUCCEEDED

        assert (stored.solution(), stored.prediction()) == (solution, prediction)

    # It does not pass: the last attempt tells why.
    disk.fail(errno.EIO, 0)
    request = fit_request(next(seeds))
    request.options.max_attempts = 1
    job = cluster.ended(client.submit("Fit", request))
    assert (job.state, job.attempt) == (states.FAILED, 1)
    assert "Input/output error" in job_pb2.JobError.FromString(job.outcome).message
    assert cluster.exceptions() == []


def nothing_is_half_saved(cluster: Cluster) -> None:
    """Everything that is recorded loads, and there is nothing else."""
    blobs, recorded = cluster.stores.blobs, cluster.stores.catalog.blobs()
    assert {path for path, _ in blobs.list("")} == recorded
    assert blobs.sweep_remnants(-3600) == 0
    for path in recorded:
        blobs.read(path)
