"""What a fit minimises, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats, submatrix
from homophily.device.operations import Operations
from homophily.solve.sharpen import Sharpened


@dataclass(frozen=True)
class Problem:
    """The part of the graph that labels reach: what the energies are computed on."""

    rows: NDArray[np.intp] | slice
    laplacian: csr_array
    confidence: Floats
    targets: Floats
    operations: Operations
    """On this Laplacian, where the fit computes."""

    def restricted(self, matrix: csr_array) -> csr_array:
        """The same part of another matrix of the whole graph."""
        return matrix if isinstance(self.rows, slice) else submatrix(matrix, self.rows)


@dataclass(frozen=True)
class Answer:
    """F on the rows of a problem, and how it was found."""

    F: Floats
    energy: float
    n_iter: int
    n_evaluations: int
    engine: str | None = None
    engine_error: float | None = None
    engine_gradient_error: float | None = None
    converged: bool = True
    sharp: Sharpened | None = None
