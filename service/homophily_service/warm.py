"""Compile and load what jobs and predictions run, so that the first of them does not wait for it."""

from __future__ import annotations

import warnings

import numpy as np

from homophily import ERRClassifier, IRRClassifier, KNNGraph


def warm_up(threads: int = 1) -> None:
    """Fit and predict on a handful of points of both kinds of floats, two classes and three."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for X, classes in ((points, 2), (points.astype(np.float32), 3)):
            graph = KNNGraph(n_neighbors=5, n_jobs=threads).fit(X)
            y = np.full(len(X), -1)
            y[:12] = np.arange(12) % classes
            for classifier in (IRRClassifier(n_jobs=threads), ERRClassifier(n_jobs=threads)):
                classifier.fit(graph, y).predict(X[:1] * 1.1)


if __name__ == "__main__":
    warm_up(2)
