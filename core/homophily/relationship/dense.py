"""The full regulariser written out with dense u×u arrays, in NumPy.

This is the paper's form, in O(u³) time and O(u²) memory: the reference that the fast engines are held against, and the
stand-in for the paper in the benchmarks.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from homophily.arrays import Floats
from homophily.relationship.functions import GAUSSIAN, Relationship


class DenseEngine:
    """Energy ``tr(KᵀGK)`` and its gradient, with ``K_ij = exp(−‖f_i−f_j‖²/σ_f²)`` or its like held in full."""

    def __init__(self, G: csr_array, sigma_f: float, *, relationship: Relationship = GAUSSIAN) -> None:
        self.G = G.toarray()
        self.sigma_f = sigma_f
        self.relationship = relationship

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy at ``F`` (u×n) and its gradient (u×n)."""
        x = cdist(F, F, "sqeuclidean") / self.sigma_f**2
        K = self.relationship.value(np, x)
        GK = self.G @ K
        # dE = Σ_ij 2(GK)_ij dK_ij and dK_ij = 2/σ² k'(x) (f_i−f_j)·(df_i−df_j): both places of f count.
        M = 2 * GK * self.relationship.slope(K)
        M += M.T
        return float(np.sum(K * GK)), 2 / self.sigma_f**2 * (M.sum(axis=1)[:, None] * F - M @ F)
