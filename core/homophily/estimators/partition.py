"""Clusters from coordinates, and the quality of a division of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.cluster import KMeans
from sklearn.utils import check_consistent_length, check_random_state

from homophily.arrays import Floats
from homophily.exceptions import ParameterError
from homophily.supervision.labels import class_array
from homophily.threads import single_threaded_blas


def normalized_cut(W: csr_array, labels: ArrayLike) -> float:
    """Σ over clusters of the weight that leaves it, divided by the sum of its degrees; 0 for a cluster without edges.

    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> path = csr_array(np.array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    >>> normalized_cut(path, [0, 0, 1])
    1.3333333333333333
    """
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

    The choice needs no labels. Clusters are numbered by the first point of each, so that numbers do not depend on the
    start. Equal results, to the last bit, for every number of threads.
    """
    seeds = check_random_state(random_state).randint(np.iinfo(np.int32).max, size=n_init)
    best: tuple[float, float] | None = None
    labels = np.zeros(len(coordinates), dtype=np.int32)
    with single_threaded_blas():
        for seed in seeds:
            found = KMeans(n_clusters, n_init=1, random_state=int(seed)).fit(coordinates)
            # Far from any edge all cuts are equal; then the tighter clusters.
            quality = normalized_cut(W, found.labels_), float(found.inertia_)
            if best is None or quality < best:
                best, labels = quality, found.labels_
    return in_order_of_appearance(labels)


def in_order_of_appearance(labels: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.int32]:
    """The same clusters, numbered 0, 1, … by the first point of each."""
    _, first, index = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int32)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[index]


def suggest_n_clusters(eigenvalues: ArrayLike, least: int = 2) -> int:
    """The number of clusters before the widest gap between eigenvalues of a Laplacian, at least ``least``.

    ``eigenvalues`` are the smallest ones, ascending, the 0 of the constant vector among them; m of them tell up to
    m − 1 clusters apart.

    >>> suggest_n_clusters([0.0, 0.01, 0.02, 0.3, 0.4])
    3
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    if values.ndim != 1 or len(values) <= least:
        raise ParameterError(
            f"The 'eigenvalues' parameter of suggest_n_clusters must be at least {least + 1} numbers. "
            f"Got shape {values.shape} instead.",
            "eigenvalues",
        )
    return least + int(np.argmax(np.diff(values)[least - 1 :]))
