"""The energy of a map: staying near the spectral map, relationships smooth along the graph, links obeyed.

    E(F) = α‖F − T‖² + λ2 R(F) + 2λ3 (Σ_must ℓ(K_ij) + Σ_cannot K_ij²),      K_ij = exp(−‖f_i − f_j‖²/σ_f²)

A must-link costs ℓ(K) = −log K, the squared distance in units of σ_f: it pulls however far apart its ends are, and does
not let go when they are near. The paper's (1 − K)² does neither: beyond a few σ_f its slope is that of the Gaussian,
nothing, and near K = 1 it is flat. How the terms are minimised is told in :mod:`homophily.estimators.embedding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.relationship.choose import Engine
from homophily.relationship.functions import GAUSSIAN, Relationship
from homophily.solve.link_pairs import Links, Pairs


@dataclass(eq=False)
class MapEnergy:
    """E(F) and its gradient; a call is one evaluation."""

    xp = np
    target: Floats
    data_weight: float
    relationships: Engine
    lambda2: float
    links: Links
    lambda3: float
    sigma_f: float
    link_loss: str = "log"
    relationship: Relationship = GAUSSIAN

    def __post_init__(self) -> None:
        self.incidences = self._incidences(self.links, len(self.target))

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy and gradient at F (u, n)."""
        energy, gradient = self.relationships(F)
        misfit = F - self.target
        energy = self.lambda2 * energy + self.data_weight * self._dot(misfit, misfit)
        gradient *= self.lambda2
        gradient += (2.0 * self.data_weight) * misfit
        weight, inverse = 2.0 * self.lambda3, self.sigma_f**-2
        for differences, ends, must in self.incidences:
            gap = self._product(differences, F)
            cost, slope = self._cost(inverse * (gap * gap).sum(axis=1), must)
            energy += weight * cost.sum()
            gradient += self._product(ends, (2.0 * weight * inverse) * slope[:, None] * gap)
        return energy, gradient

    def _cost(self, x: Any, must: bool) -> tuple[Any, Any]:
        """The cost of links and its slope, for x = ‖f_i − f_j‖²/σ²."""
        if must and self.link_loss != "squared":
            return self.relationship.minus_log(self.xp, x)
        k = self.relationship.value(self.xp, x)
        steepness = self.relationship.slope(k)
        if must:
            return (1.0 - k) * (1.0 - k), -2.0 * (1.0 - k) * steepness
        return k * k, 2.0 * k * steepness

    def _incidences(self, links: Links, points: int) -> list[tuple[Any, Any, bool]]:
        """From values to the differences f_i − f_j of links, and from forces on links to those on points."""
        found = []
        for pairs, must in ((links.must, True), (links.cannot, False)):
            if m := len(pairs):
                parts = np.tile([1.0, -1.0], m), np.asarray(pairs).ravel(), 2 * np.arange(m + 1)
                differences = csr_array(parts, shape=(m, points))
                found.append((differences, csr_array(differences.T), must))
        return found

    def _product(self, matrix: Any, values: Any) -> Any:
        return matrix @ values

    def _dot(self, a: Any, b: Any) -> Any:
        return float(np.vdot(a, b))


def violated_links(F: Floats, links: Links, sigma_f: float, relationship: Relationship = GAUSSIAN) -> Links:
    """The must-links whose points are less related than ½, and the cannot-links whose points are not."""

    def related(pairs: Pairs) -> NDArray[np.bool_]:
        squares = np.sum((F[pairs[:, 0]] - F[pairs[:, 1]]) ** 2, axis=1)
        return np.asarray(relationship.value(np, squares / sigma_f**2) >= 0.5)

    return Links(links.must[~related(links.must)], links.cannot[related(links.cannot)])
