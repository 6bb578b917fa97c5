"""Other packages' methods for labels and for links, each from its own package; those not installed are left out.

What a peer may choose (:data:`GRAPHS` and the variants here) is chosen for it as for us: by the same validation points
for labels, by the same tuning draws for links.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Classes, Floats
from benchmarks.peers import TRUE_SHARES, Method, graph_methods, spread_labels
from homophily.supervision.links import Links

GRAPHS = (5, 10, 20, 40)
"""Numbers of neighbours that a peer may choose among."""


class PeerError(Exception):
    """A peer gave no answer."""


def label_peers() -> dict[str, list[Method]]:
    """Methods that spread labels over a graph, with the variants to choose among by validation points."""
    # Of the two that are told the true shares of the classes, Poisson-MBO is the better one.
    found = {
        name: [method] for name, method in graph_methods().items() if name != f"graphlearning Poisson{TRUE_SHARES}"
    }
    spreading = [partial(spread_labels, alpha=alpha) for alpha in (0.2, 0.9, 0.99)]
    return {**found, "scikit-learn LabelSpreading": list(spreading)}


def cluster_peers() -> list[str]:
    """Methods that cluster with links, as far as they are installed."""
    return ["PCKMeans", "MPCKMeans"] if find_spec("active_semi_clustering") is not None else []


def map_peers() -> list[str]:
    """Methods that make maps from partial labels, as far as they are installed."""
    return ["UMAP"] if find_spec("umap") is not None else []


def cluster(name: str, X: Any, links: Links, n_clusters: int, seed: int) -> NDArray[np.int64]:
    """Clusters by a method of :func:`cluster_peers`."""
    before = np.geterr()
    try:
        # Importing MPCK-Means turns every underflow of this process into an error; only its own fit is to suffer it.
        from active_semi_clustering import exceptions
        from active_semi_clustering.semi_supervised import pairwise_constraints
    finally:
        np.seterr(**before)
    pairs = {"ml": links.must.tolist(), "cl": links.cannot.tolist()}
    expected = exceptions.EmptyClustersException, exceptions.InconsistentConstraintsException, FloatingPointError
    # It draws from NumPy's global generator.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        with np.errstate(divide="raise", over="raise", under="raise", invalid="raise"):
            model = getattr(pairwise_constraints, name)(n_clusters=n_clusters)
            labels = model.fit(np.asarray(X, dtype=np.float64), **pairs).labels_
    except (*expected, RecursionError) as error:
        raise PeerError(type(error).__name__) from error
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return np.asarray(labels, dtype=np.int64)


def umap_map(X: Any, y: Classes, links: Links, n_neighbors: int = 15) -> Floats:
    """A map by UMAP, which takes classes and no links: it is told those of all linked points, which is more."""
    import umap

    few = np.full(len(y), -1)
    ends = np.unique(links.pairs)
    few[ends] = y[ends]
    model = umap.UMAP(n_components=2, n_neighbors=n_neighbors, random_state=0, n_jobs=1)
    return np.asarray(model.fit_transform(np.asarray(X), few), dtype=np.float64)
