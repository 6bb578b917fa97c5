"""What a fitted classifier knows of each point: its class probabilities, and how near its labels are."""

from __future__ import annotations

from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.estimators.transduction import GraphClassifier
from homophily.graph.knn_graph import KNNGraph
from homophily.graph.laplacian import sparse_product
from homophily.graph.spectral import spectral_vectors

#: A walk in search of a label gives up with a probability of 2 % at each step, and after 60 steps. With 10 %,
#: suggestions explored for longer, and were worse on most sets (seeds 0 to 2 of `python -m benchmarks active`).
GIVES_UP, LONGEST_WALK = 0.02, 60
#: Eigenvectors that stand for the graph in the variance strategies.
SPECTRUM = 100
_spectra: WeakKeyDictionary[KNNGraph, tuple[Floats, Floats]] = WeakKeyDictionary()


class Situation:
    """A classifier's answers and its graph, as strategies see them."""

    def __init__(self, model: GraphClassifier) -> None:
        self.graph, self.n_jobs = model.graph_, model.n_jobs
        self.laplacian: csr_array = model.graph_.laplacian()
        self.labelled: NDArray[np.intp] = np.flatnonzero(model.given_labels_.confidence > 0)
        self.reached = model.reached_
        self.classes = model.classes_
        self._root = np.sqrt(np.where(self.graph.degrees > 0, self.graph.degrees, 1.0))
        self._model = model

    @cached_property
    def probabilities(self) -> Floats:
        """Class probabilities (u, C), with the calibration if there is one already; it is not made for this."""
        return self._model.probabilities_at_hand_

    @cached_property
    def margin(self) -> Floats:
        """The most probable class' lead over the second; 0 where no label reaches."""
        best = np.partition(self.probabilities, -2, axis=1)
        return np.where(self.reached, best[:, -1] - best[:, -2], 0.0)

    @cached_property
    def nearness(self) -> Floats:
        """The probability that a random walk meets a label before it gives up."""
        walk = np.zeros(len(self._root))
        walk[self.labelled] = self._root[self.labelled]
        for _ in range(LONGEST_WALK):
            walk = (walk - sparse_product(self.laplacian, walk, n_jobs=self.n_jobs)) / (1.0 + GIVES_UP)
            walk[self.labelled] = self._root[self.labelled]
        return np.asarray(np.minimum(walk / self._root, 1.0))

    @property
    def spectrum(self) -> tuple[Floats, Floats]:
        """The smoothest functions on the graph: eigenvalues (m,) and vectors (u, m), kept for as long as the graph."""
        if self.graph not in _spectra:
            count = min(SPECTRUM, self.graph.n_points)
            _spectra[self.graph] = spectral_vectors(self.graph, count, n_jobs=self.n_jobs)
        return _spectra[self.graph]

    def diffuse(self, values: Floats, steps: int) -> Floats:
        """``steps`` of a lazy walk, in its symmetric form."""
        for _ in range(steps):
            values = values - 0.5 * sparse_product(self.laplacian, values, n_jobs=self.n_jobs)
        return values

    def around(self, point: int, steps: int) -> Floats:
        """How near all points are to one of them: 1 at itself, less elsewhere."""
        start = np.zeros(len(self._root))
        start[point] = 1.0
        near = self.diffuse(start, steps)
        return np.clip(near / near[point], 0.0, 1.0) if near[point] > 0 else start
