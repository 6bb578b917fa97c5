"""Search for the k nearest points, dense or sparse: which points are near and how far.

What their distances mean for a graph is decided in ``knn_graph``.

Every search has two steps. An index proposes a few more candidates than were asked for; then their distances are
computed anew in float64, from the points as they were given, and sorted by (distance, index). So a search in float32
costs no accuracy, copies of a point are at distance 0 exactly, and of equally near points the lowest index comes first.

Candidates come from, by the first line that fits:

====================  =====================================================================================
sparse (CSR)          top-k sparse products; exact, nothing is made dense
≤ 5 columns           KD-tree; exact
≤ 25,000 points       all pairs (faiss); exact
≤ 8 columns           KD-tree; exact
else                  regions of near points in leading coordinates, whose recall is measured on a sample
====================  =====================================================================================

On a GPU, all pairs take the place of regions while a graph is made. All pairs are compared by float32 products first;
where rounding may have hidden a neighbour, as in tight clusters far apart, the row is done again by float64 differences
(``all_pairs``).

Graphs stored by earlier releases may have an HNSW index (faiss) in place of regions, and are searched with it.

Cosine distance is 1 − cos = ½‖a − b‖² of the rows scaled to length one, so it needs no search of its own. A row of
zeros has no direction: it gets one of its own, at distance 1 from every other row and 0 from other rows of zeros.
"""

from __future__ import annotations

from typing import Any

from scipy import sparse

from homophily.graph.computing import Device
from homophily.graph.dense_index import DenseIndex, choose_method
from homophily.graph.device_index import DeviceIndex
from homophily.graph.index_base import Metric, NeighborIndex, Report
from homophily.graph.sparse_index import SparseIndex


def neighbor_index(
    X: Any,
    metric: Metric = "euclidean",
    n_jobs: int | None = None,
    device: Device | None = None,
    report: Report | None = None,
) -> NeighborIndex:
    """Index the rows of a dense array or a sparse matrix; a GPU searches among dense rows, if that is the device."""
    if sparse.issparse(X):
        return SparseIndex(X, metric, n_jobs)
    if device is not None and device.on_device and choose_method(*X.shape) != "kd-tree":
        return DeviceIndex(X, metric, n_jobs, device)
    return DenseIndex(X, metric, n_jobs=n_jobs, report=report)
