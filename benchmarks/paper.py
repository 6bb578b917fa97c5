"""ERR as the paper writes it, in NumPy with dense matrices: what the library's speed is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class PaperEnergy:
    """Σ_i h_i (f_i − t_i)² + λ1 fᵀGf + λ2 tr(KᵀGK) and its gradient, for one column of values.

    Two u×u arrays are kept for K and GK and written in place, as a careful NumPy writer would; the product GK is one
    call of BLAS with all its threads. The gradient of the trace is Σ_ij 2(GK)_ij ∂K_ij with
    ∂K_ij = −2/σ² K_ij (f_i − f_j)(∂f_i − ∂f_j).
    """

    def __init__(
        self, G: Floats, confidence: Floats, targets: Floats, lambda1: float, lambda2: float, sigma_f: float
    ) -> None:
        self.G, self.confidence, self.targets = G, confidence, targets
        self.lambda1, self.lambda2, self.sigma_f = lambda1, lambda2, sigma_f
        self.K, self.GK = np.empty_like(G), np.empty_like(G)

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy and gradient at F (u, 1)."""
        f, K, GK = F[:, 0], self.K, self.GK
        np.subtract.outer(f, f, out=K)
        np.square(K, out=K)
        K *= -1 / self.sigma_f**2
        np.exp(K, out=K)
        np.matmul(self.G, K, out=GK)
        GK *= K
        relationships = GK.sum()
        # With M = GK ∘ K, which is not symmetric, both places of f count: rows and columns of M.
        M = GK
        pull = (M.sum(axis=0) + M.sum(axis=1)) * f - M @ f - f @ M
        misfit = f - self.targets[:, 0]
        smooth = self.G @ f
        energy = self.confidence @ misfit**2 + self.lambda1 * (f @ smooth) + self.lambda2 * relationships
        gradient = 2 * self.confidence * misfit + 2 * self.lambda1 * smooth - 4 * self.lambda2 / self.sigma_f**2 * pull
        return float(energy), gradient[:, None]
