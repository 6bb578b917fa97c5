"""What a job sends to the device and what it gives back, counted on the stand-in."""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from importlib.abc import Loader
from importlib.util import spec_from_loader

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from homophily import (
    DeviceFailedError,
    ERRClassifier,
    ERRClustering,
    ERREmbedding,
    IRRClassifier,
    KNNGraph,
    SpectralEmbedding,
)
from homophily.device.backend import get_backend
from homophily.estimators.clustering import default_embedding
from homophily.estimators.embedding import falling_widths

from .standin import counters

pytestmark = pytest.mark.usefixtures("standin_cupy")


@pytest.fixture(scope="module")
def graph():
    X, y = make_blobs(450, n_features=8, centers=2, cluster_std=5.0, random_state=0)
    made = KNNGraph(5, symmetrize="max").fit(X)
    made.few = np.where(np.arange(450) < 30, y, -1)
    return made


LINKS = {"must_link": [(0, 1), (2, 3)], "cannot_link": [(0, 4)]}
BRIEF = {"max_iter": 2, "tol": 0.0, "backend": "cupy"}


def three_classes(graph):
    return np.where(graph.few >= 0, np.arange(len(graph.few)) % 3, -1)


JOBS = {
    "IRR": lambda graph: IRRClassifier(backend="cupy").fit(graph, graph.few),
    "ERR, p = 1": lambda graph: ERRClassifier(power=1, **BRIEF).fit(graph, graph.few),
    "ERR, p = 2": lambda graph: ERRClassifier(power=2, **BRIEF).fit(graph, graph.few),
    "vector ERR": lambda graph: ERRClassifier(power=2, **BRIEF).fit(graph, three_classes(graph)),
    "one-vs-rest": lambda graph: ERRClassifier(power=1, multiclass="one-vs-rest", **BRIEF).fit(
        graph, three_classes(graph)
    ),
    "calibration": lambda graph: ERRClassifier(power=1, **BRIEF).fit(graph, graph.few).calibration_,
    "spectral": lambda graph: SpectralEmbedding(backend="cupy").fit(graph),
    "map": lambda graph: ERREmbedding(**BRIEF).fit(graph),
    "map with links": lambda graph: ERREmbedding(**BRIEF).fit(graph, **LINKS),
    "clusters": lambda graph: ERRClustering(embedding=default_embedding().set_params(**BRIEF), random_state=0).fit(
        graph
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_sends_its_graph_once_and_gives_all_its_memory_back(job, graph, monkeypatch):
    powers = KNNGraph.laplacian

    def first_power(graph, power=1, normalized=True):
        assert power == 1, "the device forms powers itself"
        return powers(graph, power, normalized)

    monkeypatch.setattr(KNNGraph, "laplacian", first_power)
    JOBS[job](graph)
    # Indices and data. A calibration may be asked for long after its fit: it is a job of its own.
    once = 4 if job == "calibration" else 2
    assert counters.uploads.count(graph.laplacian().nnz) == once
    assert counters.released[-1] == 0


def test_the_parts_of_a_map_that_stay_the_same_are_sent_once(graph):
    sent = {}
    for continuation in (1.5, 8.0):
        counters.uploads.clear()
        device = ERREmbedding(sigma_f=falling_widths(0.2, continuation), **BRIEF).fit(graph, **LINKS)
        sent[len(device.widths)] = sum(size >= graph.n_points for size in counters.uploads)
    (few, sends), (many, more) = sent.items()
    # A width starts where the last one ended; the target, the repulsion and the links are there already.
    assert more - sends == 2 * (many - few)


class Cupyx(Loader):
    """A module that tries an import, and keeps the traceback of the failure as optuna does where it is installed."""

    def __init__(self, keeps):
        self.keeps = keeps

    def find_spec(self, name, *_):
        return spec_from_loader(name, self) if name == "cupyx" else None

    def create_module(self, spec):  # noqa: ARG002
        return None

    def exec_module(self, module):
        try:
            import a_package_that_is_not_installed  # noqa: F401
        except ImportError as error:
            if self.keeps:
                module.kept = error


@pytest.mark.parametrize("keeps", [True, False], ids=["with optuna", "without"])
@pytest.mark.parametrize("job", ["spectral", "map with links", "ERR, p = 2"])
def test_nothing_of_the_first_job_survives(job, keeps, graph, monkeypatch):
    monkeypatch.delitem(sys.modules, "cupyx")
    monkeypatch.setattr(sys, "meta_path", [Cupyx(keeps), *sys.meta_path])
    X = np.random.default_rng(0).normal(size=(450, 8))
    kept = []

    def first_job():
        own = KNNGraph(5, backend="cupy").fit(X.copy())
        own.few = graph.few
        kept.extend(weakref.ref(each) for each in (own.index_.points, own.indices_, own.laplacian().data))
        JOBS[job](own)
        assert counters.launches > 0

    first_job()
    gc.collect()
    assert [reference() is None for reference in kept] == [True] * 3
    assert counters.used == 0
    monkeypatch.delitem(sys.modules, "cupyx", raising=False)


def test_an_error_leaves_nothing_on_the_device(graph):
    counters.largest_allocation = 100
    with pytest.raises(MemoryError, match="too little free memory"):
        ERRClassifier(**BRIEF).fit(graph, graph.few)
    assert counters.released[-1] == 0


def test_a_device_that_fails_is_told_from_a_mistake(graph):
    with pytest.raises(ZeroDivisionError), get_backend("cupy").job():
        raise ZeroDivisionError
    counters.fails_after = counters.launches + 20
    with pytest.raises(DeviceFailedError, match=r"start a new one \(cudaErrorIllegalAddress"):
        ERRClassifier(**BRIEF).fit(graph, graph.few)
    # It stays lost, whatever is asked of it.
    with pytest.raises(DeviceFailedError), get_backend("cupy").job():
        pass


def test_what_the_host_has_forgotten_leaves_the_device_before_the_job_ends():
    backend = get_backend("cupy")
    with backend.job():
        host = np.ones(1000)
        assert backend.once(host, partial(backend.to_device, host)) is backend.once(host, lambda: None)
        assert counters.used == 8000
        del host
        assert counters.used == 0
