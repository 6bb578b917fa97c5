"""Writes a small store with the version that is installed: `python tests/service/samples/make.py samples/NAME.tar.gz`.

Done once for every release that changes the tables or a stored format. Later versions must open it and give the stored
answers. It uses only functions that every version has.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2, points_pb2
from homophily_client.names import DatasetName, EmbeddingName, JobName, ModelName, new_id
from homophily_service.contract.tasks import Task
from homophily_service.jobs.compute import compute
from homophily_service.runtime.settings import Settings, load_settings
from homophily_service.storage.models import load_model
from homophily_service.storage.records import NewJob
from homophily_service.storage.uploads import publish_dataset
from homophily_service.worker.supervisor import Worker

X = np.concatenate([np.random.default_rng(0).normal(place, 1.0, (30, 3)) for place in (-3.0, 3.0)])
NEW = np.random.default_rng(1).normal(0.0, 3.0, (10, 3))
DATASET = "projects/old/datasets/points"


def labels(classes: dict[int, str]) -> model_pb2.Labels:
    """Labels by point."""
    values = model_pb2.ClassValues(strings=model_pb2.StringValues(values=list(classes.values())))
    return model_pb2.Labels(points=list(classes), classes=values)


def run(worker: Worker, settings: Settings, kind: str, request: Any) -> None:
    """Compute a job as a worker would, in this process."""
    queue = worker.stores.queue
    queue.submit(NewJob(JobName("old", new_id()), kind, request.SerializeToString()), 100)
    run_next(worker, settings, kind)


def run_next(worker: Worker, settings: Settings, kind: str) -> None:
    """Compute the next job of a kind."""
    lease = worker.stores.queue.claim("a worker", [kind], 60.0, b"")
    assert lease is not None
    task = Task(lease.name, kind, lease.request, lease.token)
    outcome: Any = compute(task, worker.stores, settings, 1, lambda _: None)
    worker._succeed(lease, outcome)


def answers(worker: Worker) -> dict[str, Any]:
    """The models' answers for new points, and the arrays of the map."""
    catalog, blobs = worker.stores.catalog, worker.stores.blobs
    found: dict[str, Any] = {}
    for identifier in ("irr", "err", "changed"):
        row = catalog.get(ModelName("old", identifier))
        classifier, _ = load_model(worker.stores, row.blob, row.graph, 1)
        said = classifier.answer(NEW, probabilities=False, validated=True)
        found[identifier] = {"classes": said.classes.tolist(), "scores": said.scores.tolist()}
    stored = blobs.read(catalog.get(EmbeddingName("old", "map")).blob)
    found["map"] = {name: array.tolist() for name, array in stored.arrays.items() if array.ndim == 2}
    return found


def fill(settings: Settings) -> dict[str, Any]:
    """Write a store with rows in every table; returns what must be found there."""
    worker = Worker(settings)
    stores = worker.stores
    stores.database.migrate()
    shape = points_pb2.PointsShape(
        dense=points_pb2.DenseShape(rows=60, columns=3, data_type=points_pb2.DATA_TYPE_FLOAT64)
    )
    start = dataset_pb2.UploadStart(shape=shape, description="a sample")
    name = DatasetName.parse(DATASET, "name")
    publish_dataset(stores, name, start, bytes(32), X.nbytes, arrays={"points": X})
    few = labels({0: "a", 59: "b"})
    irr = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR)
    run(worker, settings, "fit", job_pb2.FitRequest(dataset=DATASET, labels=few, model_id="irr", solver=irr))
    run(worker, settings, "fit", job_pb2.FitRequest(dataset=DATASET, labels=few, model_id="err"))
    changed = job_pb2.TransduceRequest(model="projects/old/models/err", labels=labels({30: "c"}), model_id="changed")
    run(worker, settings, "transduce", changed)
    link = embedding_pb2.Links(must=[embedding_pb2.Link(first=0, second=1)])
    run(worker, settings, "embed", job_pb2.EmbedRequest(dataset=DATASET, links=link, embedding_id="map"))
    # One that was cancelled, and one that still waits.
    stores.queue.submit(NewJob(JobName("old", "cancelled"), "fit", b""), 100)
    stores.queue.cancel(JobName("old", "cancelled"))
    waiting = job_pb2.TransduceRequest(
        model="projects/old/models/irr", labels=labels({1: "a"}), model_id="later"
    ).SerializeToString()
    stores.queue.submit(NewJob(JobName("old", "waiting"), "transduce", waiting, "the-key"), 100)
    secret = stores.tokens.create("old", "a sample")[1]
    told = {"token": secret, **answers(worker)}
    stores.close()
    return told


def main(target: Path) -> None:
    """Write the sample."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = fill(load_settings(data_dir=folder / "data"))
        (folder / "answers.json").write_text(json.dumps(told))
        with tarfile.open(target, "w:gz") as archive:
            for part in ("data", "answers.json"):
                archive.add(folder / part, part)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
