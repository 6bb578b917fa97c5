"""Compiles and loads the code of jobs and predictions, so that the first of them does not wait for it."""

from __future__ import annotations

import warnings

import numpy as np

from homophily import ERRClassifier, ERRClustering, ERREmbedding, IRRClassifier, KNNGraph
from homophily.device.backend import get_backend
from homophily.graph.computing import BackendName
from homophily.graph.dense_index import DenseIndex


def warm_up(threads: int = 1) -> None:
    """Fit and predict a handful of points, of both float types, with two classes and with three."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for X, classes in ((points, 2), (points.astype(np.float32), 3)):
            # Many points are searched by code of their own.
            DenseIndex(np.hstack([X, X]), method="regions", n_jobs=threads).self_query(5)
            graph = KNNGraph(n_neighbors=5, n_jobs=threads).fit(X)
            y = np.full(len(X), -1)
            y[:12] = np.arange(12) % classes
            for classifier in (IRRClassifier(n_jobs=threads), ERRClassifier(n_jobs=threads)):
                classifier.fit(graph, y).predict(X[:1] * 1.1)


def warm_up_maps(threads: int = 1, *, clusters: bool = False) -> None:
    """Map a handful of points with links of both kinds, in two and three dimensions.

    Clusters are on request: scikit-learn's k-means takes a quarter of a process's start to import, for which only the
    first job with clusters need wait.
    """
    points = np.random.default_rng(0).normal(size=(60, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = KNNGraph(n_neighbors=5, n_jobs=threads).fit(points)
        links = {"must_link": [(0, 1), (1, 2)], "cannot_link": [(0, 3)]}
        for n in (2, 3):
            ERREmbedding(n, max_iter=2, n_jobs=threads).fit(graph, **links)
            if clusters:
                ERRClustering(n, embedding=ERREmbedding(max_iter=2, n_jobs=threads)).fit(graph, **links)


def warm_up_device(backend: BackendName) -> None:
    """Fit, search and map points enough that everything runs on the device: it compiles or loads what jobs need.

    A device that fails here ends the process, so that no job is given to it.
    """
    rng = np.random.default_rng(0)
    # With 20 neighbours, a direct solution on the CPU would be slower.
    points, y = rng.normal(size=(200, 20)), np.full(200, -1)
    with warnings.catch_warnings(), get_backend(backend).job():
        warnings.simplefilter("ignore")
        graph = KNNGraph(n_neighbors=20, backend=backend).fit(points)
        for classes in (2, 5):
            y[:30] = np.arange(30) % classes
            for power in (1, 2):
                ERRClassifier(power=power, max_iter=2, sharpen=False, backend=backend).fit(graph, y)
            ERRClassifier(sharpen=True, backend=backend).fit(graph, y)
            ERRClassifier(relationship_neighbors=10, max_iter=2, backend=backend).fit(graph, y)
        links = {"must_link": [(0, 1), (1, 2)], "cannot_link": [(0, 3)]}
        for n in (2, 3):
            ERREmbedding(n, max_iter=2, backend=backend).fit(graph, **links)


if __name__ == "__main__":
    warm_up(2)
    warm_up_maps(2, clusters=True)
