"""Clusters from coordinates, and the quality of a division of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.utils import check_consistent_length, check_random_state

from homophily.arrays import Floats
from homophily.parameters import wrong_parameter
from homophily.supervision.labels import class_array
from homophily.threads import single_threaded_blas


def normalized_cut(W: csr_array, labels: ArrayLike) -> float:
    """Σ over clusters of the weight that leaves it, divided by its volume (sum of degrees); 0 for one without edges."""
    check_consistent_length(W, labels)
    _, cluster = np.unique(class_array(labels), return_inverse=True)
    rows = np.repeat(cluster, np.diff(W.indptr))
    count = int(cluster.max()) + 1
    volume = np.bincount(rows, weights=W.data, minlength=count)
    leaving = np.bincount(rows, weights=W.data * (rows != cluster[W.indices]), minlength=count)
    return float(np.sum(np.divide(leaving, volume, out=np.zeros(count), where=volume > 0)))


def kmeans_by_cut(
    coordinates: Floats, n_clusters: int, W: csr_array, n_init: int = 10, random_state: Any = None
) -> NDArray[np.int32]:
    """k-means from ``n_init`` starts; of the results, the one with the smallest normalised cut of the graph ``W``.

    Clusters are numbered by the first point of each, so that numbers do not depend on the start. Equal results, to the
    last bit, for every number of threads.
    """
    from sklearn.cluster import KMeans  # takes half as long to import as all of homophily

    seeds = check_random_state(random_state).randint(np.iinfo(np.int32).max, size=n_init)
    with single_threaded_blas():
        found = [KMeans(n_clusters, n_init=1, random_state=int(seed)).fit(coordinates) for seed in seeds]
    # Far from any edge all cuts are equal; then the tighter clusters.
    best = min(found, key=lambda each: (normalized_cut(W, each.labels_), float(each.inertia_)))
    return in_order_of_appearance(best.labels_)


def in_order_of_appearance(labels: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.int32]:
    """The same clusters, numbered 0, 1, … by the first point of each."""
    _, first, index = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int32)[index]


def suggest_n_clusters(eigenvalues: ArrayLike) -> int:
    """The number of clusters before the widest gap between eigenvalues of a Laplacian, at least 2.

    ``eigenvalues`` are the smallest ones, ascending, the 0 of the constant vector among them; m of them tell up to
    m − 1 clusters apart.
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    if values.ndim != 1 or len(values) < 3:
        raise wrong_parameter("eigenvalues", "suggest_n_clusters", "at least 3 numbers", f"shape {values.shape}")
    return 2 + int(np.argmax(np.diff(values)[1:]))
