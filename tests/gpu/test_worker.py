"""Jobs as a worker's child computes them, on the stand-in for a device."""

from __future__ import annotations

import numpy as np
import pytest

from homophily import KNNGraph
from homophily.device.kernels import SOURCES
from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2, points_pb2
from homophily_client.names import DatasetName, JobName
from homophily_service.contract.errors import DeviceFailed, LimitExceeded, Unavailable
from homophily_service.contract.tasks import Task
from homophily_service.jobs.compute import compute
from homophily_service.jobs.warm import warm_up_device
from homophily_service.runtime.settings import Settings
from homophily_service.storage.records import NewJob
from homophily_service.storage.uploads import publish_dataset
from homophily_service.worker.supervisor import Worker

from .standin import counters

pytestmark = pytest.mark.usefixtures("standin_cupy")

DATASET = "projects/p/datasets/points"
LINKS = embedding_pb2.Links(must=[embedding_pb2.Link(first=0, second=1)])


def labels(**classes):
    points = [int(point[1:]) for point in classes]
    values = model_pb2.ClassValues(strings=model_pb2.StringValues(values=list(classes.values())))
    return model_pb2.Labels(points=points, classes=values)


SMOOTH = model_pb2.SolverParameters(sharpen=False)
FEW = labels(p0="a", p1="a", p2="a", p3="a", p59="b", p58="b", p57="b", p56="b")


class Bench:
    """A worker's stores with a dataset, and its computing without the processes around it."""

    def __init__(self, folder):
        self.settings = Settings(data_dir=folder)
        self.worker = Worker(self.settings)
        self.stores = self.worker.stores
        self.stores.database.migrate()
        X = np.concatenate([np.random.default_rng(0).normal(place, 1.0, (30, 3)) for place in (-3.0, 3.0)])
        dense = points_pb2.DenseShape(rows=60, columns=3, data_type=points_pb2.DATA_TYPE_FLOAT64)
        start = dataset_pb2.UploadStart(shape=points_pb2.PointsShape(dense=dense))
        name = DatasetName.parse(DATASET, "name")
        publish_dataset(self.stores, name, start, bytes(32), X.nbytes, arrays={"points": X})

    def run(self, kind, request, backend="cupy"):
        self.stores.queue.submit(NewJob(JobName("p", f"j{counters.launches}"), kind, request.SerializeToString()), 100)
        lease = self.stores.queue.claim("a worker", [kind], 60.0, b"")
        task = Task(lease.name, kind, lease.request, lease.token)
        outcome = compute(task, self.stores, self.settings, 1, lambda _: None, backend)
        self.worker._succeed(lease, outcome)
        return outcome


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.stores.close()


def test_a_fit_and_changed_labels(bench):
    fit = job_pb2.FitRequest(dataset=DATASET, labels=FEW, model_id="m", calibrate=True, solver=SMOOTH)
    model = job_pb2.FitResult.FromString(bench.run("fit", fit)).model
    assert (model.device, model.engine) == ("cuda:0", "cells")
    assert list(model.trace.iterations) == list(range(len(model.trace.energies)))
    assert model.trace.energies[-1] == model.energy
    assert counters.launches > 0
    counters.uploads.clear()
    changed = job_pb2.TransduceRequest(model="projects/p/models/m", labels=labels(p10="a"), model_id="changed")
    model = job_pb2.TransduceResult.FromString(bench.run("transduce", changed)).model
    assert model.device == "cuda:0"
    # The linear start and the steps from it share the graph, indices and data; its square is formed there.
    assert sum(size > 2 * model.graph.edge_count for size in counters.uploads) == 2
    assert counters.released[-1] == 0


def test_a_map_with_clusters(bench):
    asked = job_pb2.EmbedRequest(dataset=DATASET, links=LINKS, embedding_id="map", n_clusters=2)
    embedding = job_pb2.EmbedResult.FromString(bench.run("embed", asked)).embedding
    assert (embedding.device, embedding.cluster_count) == ("cuda:0", 2)
    assert counters.launches > 0
    assert counters.released[-1] == 0


def test_a_search(bench):
    search = model_pb2.SearchParameters(trials=3, vary=["lambda1"])
    asked = job_pb2.FitRequest(dataset=DATASET, labels=FEW, model_id="m", search=search)
    asked.solver.method = model_pb2.METHOD_IRR
    model = job_pb2.FitResult.FromString(bench.run("fit", asked)).model
    assert (model.device, len(model.search.trials)) == ("cuda:0", 3)
    assert counters.launches > 0


def test_the_first_jobs_find_everything_compiled(bench):
    warm_up_device("cupy")
    compiled, kinds = counters.compiled, set(counters.kinds)
    # A search of neighbours, which few columns do not need, comes along.
    KNNGraph(backend="cupy").fit(np.random.default_rng(1).normal(size=(40, 9)))
    fit = job_pb2.FitRequest(dataset=DATASET, labels=FEW, model_id="m", calibrate=True, solver=SMOOTH)
    bench.run("fit", fit)
    bench.run("embed", job_pb2.EmbedRequest(dataset=DATASET, links=LINKS, embedding_id="map", n_clusters=2))
    assert counters.compiled == compiled == len(SOURCES)
    assert counters.kinds - kinds == set()


def test_a_failed_device_is_an_error_to_try_again(bench):
    counters.fails_after = counters.launches + 20
    with pytest.raises(DeviceFailed, match="The GPU failed") as refused:
        bench.run("fit", job_pb2.FitRequest(dataset=DATASET, labels=FEW, model_id="m", solver=SMOOTH))
    assert refused.value.code == Unavailable.code


def test_too_little_memory_of_the_gpu_is_told_in_its_own_words(bench):
    counters.capacity = 20_000
    with pytest.raises(LimitExceeded, match="The GPU has too little free memory") as refused:
        bench.run("fit", job_pb2.FitRequest(dataset=DATASET, labels=FEW, model_id="m", solver=SMOOTH))
    assert refused.value.reason == "OUT_OF_MEMORY"
