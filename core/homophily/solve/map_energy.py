"""The energy of a map: staying near the spectral map, relationships smooth along the graph, links obeyed.

    E(F) = α‖F − T‖² + λ2 R(F) + 2λ3 (Σ_must ℓ(K_ij) + Σ_cannot K_ij²),      K_ij = exp(−‖f_i − f_j‖²/σ_f²)

A must-link costs ℓ(K) = −log K, the squared distance in units of σ_f: it pulls however far apart its ends are, and does
not let go when they are near. The paper's (1 − K)² does neither: beyond a few σ_f its slope is that of the Gaussian,
nothing, and near K = 1 it is flat. How the terms are minimised is told in :mod:`homophily.estimators.embedding`.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from homophily.relationship.choose import Engine
from homophily.relationship.functions import Relationship
from homophily.solve.link_pairs import Links, Pairs

Floats = NDArray[np.float64]


@njit(cache=True)
def _link_sums(F, pairs, must, squared, cauchy, inverse, weight, gradient):  # type: ignore[no-untyped-def]
    """Energy of the pairs; its gradient is added to ``gradient``."""
    n = F.shape[1]
    energy = 0.0
    for e in range(len(pairs)):
        i, j = pairs[e]
        x = 0.0
        for d in range(n):
            x += (F[i, d] - F[j, d]) ** 2
        x *= inverse
        # k and its slope dk/dx for x = ‖f_i − f_j‖²/σ².
        k = 1.0 / (1.0 + x) if cauchy else np.exp(-x)
        steepness = -k * k if cauchy else -k
        if not must:
            cost, slope = k * k, 2.0 * k * steepness
        elif squared:
            cost, slope = (1.0 - k) ** 2, -2.0 * (1.0 - k) * steepness
        elif cauchy:
            cost, slope = np.log1p(x), k
        else:
            cost, slope = x, 1.0
        energy += weight * cost
        for d in range(n):
            force = 2.0 * weight * inverse * slope * (F[i, d] - F[j, d])
            gradient[i, d] += force
            gradient[j, d] -= force
    return energy


class MapEnergy:
    """E(F) and its gradient; a call is one evaluation."""

    def __init__(
        self,
        target: Floats,
        data_weight: float,
        relationships: Engine,
        lambda2: float,
        links: Links,
        lambda3: float,
        sigma_f: float,
        *,
        link_loss: str = "log",
        relationship: Relationship = "gaussian",
    ) -> None:
        self.target, self.data_weight = target, data_weight
        self.relationships, self.lambda2 = relationships, lambda2
        self.links, self.lambda3 = links, lambda3
        self.sigma_f = sigma_f
        self.form = link_loss == "squared", relationship == "cauchy"

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy and gradient at F (u, n)."""
        energy, gradient = self.relationships(F)
        energy *= self.lambda2
        gradient *= self.lambda2
        misfit = F - self.target
        energy += self.data_weight * float(np.vdot(misfit, misfit))
        gradient += 2.0 * self.data_weight * misfit
        for pairs, must in ((self.links.must, True), (self.links.cannot, False)):
            energy += _link_sums(F, pairs, must, *self.form, self.sigma_f**-2, 2.0 * self.lambda3, gradient)
        return energy, gradient


def violated_links(F: Floats, links: Links, sigma_f: float, relationship: Relationship = "gaussian") -> Links:
    """The must-links whose points are less related than ½, and the cannot-links whose points are not."""
    half = 1.0 if relationship == "cauchy" else np.log(2.0)

    def related(pairs: Pairs) -> NDArray[np.bool_]:
        squares = np.sum((F[pairs[:, 0]] - F[pairs[:, 1]]) ** 2, axis=1)
        return np.asarray(squares <= half * sigma_f**2)

    return Links(links.must[~related(links.must)], links.cannot[related(links.cannot)])
