"""Index of the rows of an array whose neighbours a GPU finds while the graph is made."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily.graph.computing import Device
from homophily.graph.dense_index import RECALL_NEIGHBORS, DenseIndex, choose_method
from homophily.graph.index_base import Distances, Indices, Metric, Report
from homophily.graph.region_layout import Truth
from homophily.state import State


class DeviceIndex(DenseIndex):
    """All pairs, on a GPU while the graph is made; afterwards and in other processes it is the CPU's index.

    What the CPU's index learns of more than 25,000 points takes seconds. It is learned when it is first needed: when
    the graph is stored, or asked about new points.
    """

    def __init__(self, X: NDArray[Any], metric: Metric, n_jobs: int | None, device: Device):
        super().__init__(X, metric, "exact", n_jobs)
        self._device: Device | None = device

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_device": None}

    def self_query(self, k: int, report: Report | None = None) -> tuple[Distances, Indices]:
        """The ``k`` nearest *other* points of every stored point; the candidates come from the device."""
        if self._device is None or self.size < 2:
            self._leave_device()
            return super().self_query(k, report)
        with self._device.job():
            self._search = self._device.neighbor_search(self._searched(self.points), self._exact_part)
            try:
                distances, indices = super().self_query(k, report)
                self.recall = self._truth_of(min(RECALL_NEIGHBORS, distances.shape[1])).recall(
                    distances[self._sample()]
                )
            finally:
                self._search = None
        self._warn_of_recall(stacklevel=3)
        return distances, indices

    def query(self, X: Any, k: int) -> tuple[Distances, Indices]:
        """Distances to and indices of the ``k`` stored points nearest to each row of ``X``; found on the CPU."""
        if self._search is None:
            self._leave_device()
        return super().query(X, k)

    def to_arrays(self) -> State:
        """The CPU's index as arrays."""
        self._leave_device()
        return super().to_arrays()

    def _leave_device(self) -> None:
        method = choose_method(*self.points.shape)
        if self.method != method:
            self.method, self._built, self._device = method, None, None
            self._tune(None)

    def _truth_of(self, k: int) -> Truth:
        """The sample's true neighbours, by differences from all points."""
        sample = self._sample()
        rows, everywhere = self.points[sample], np.full(len(sample), np.inf)
        near = self._compared_again(everywhere, self._seen(sample), self._exact(rows), min(2 * k + 2, self.size))
        distances, indices, _ = self._first(rows, sample, k, near)
        return Truth(sample, indices, distances)
