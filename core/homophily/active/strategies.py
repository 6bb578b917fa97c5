"""Strategies of choosing points: each gives all points a score, and learns which one was taken.

Taking a point lowers the scores of what its label will tell, so that twenty suggestions are not twenty neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import numpy as np

from homophily.active.situation import Situation
from homophily.arrays import Floats

#: Steps of the walk that makes up a point's surroundings, up to each mean margin of the model: the surer it is, the
#: fewer, and none above the last, where single points at borders are found. Chosen on seeds 0 to 3 of
#: `python -m benchmarks active`.
SURROUNDINGS = {0.8: 4, 0.95: 1}
#: A point that is taken makes those within this number of steps less uncertain.
TOLD_BY_A_LABEL = 4
#: Of the variance strategies: the noise of a label, and what is added to eigenvalues, the first of which is 0.
NOISE, SHIFT = 0.01, 0.01

StrategyName = Literal["surroundings", "margin", "norm", "variance", "sigma"]


class Strategy(Protocol):
    """One way to choose."""

    def scores(self) -> Floats:
        """The worth (u,) of the next label at each point."""

    def take(self, point: int) -> None:
        """Go on as if this point had a label."""


class _Uncertain:
    """Points whose own answer is uncertain; a point that is taken makes those around it less so."""

    def __init__(self, situation: Situation, uncertainty: Floats) -> None:
        self.situation, self.uncertainty = situation, uncertainty
        self.uncertainty[situation.labelled] = 0.0

    def scores(self) -> Floats:
        return self.uncertainty

    def take(self, point: int) -> None:
        self.uncertainty *= 1.0 - self.situation.around(point, TOLD_BY_A_LABEL)


class _Surroundings(_Uncertain):
    """Points in the middle of much that is uncertain."""

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation, 1.0 - situation.nearness * situation.margin)
        mean = situation.margin.mean()
        self.steps = next((steps for most, steps in SURROUNDINGS.items() if mean <= most), 0)

    def scores(self) -> Floats:
        return self.situation.diffuse(self.uncertainty, self.steps)


class _Variance:
    """Points whose label would lower the variance of a Gaussian field on the graph most.

    The field's covariance is V diag(1/(λ + shift)) Vᵀ with the smoothest eigenvectors V; each label conditions it.
    ``total`` looks at the variance of the sum over all points (SigmaOpt) instead of the sum of variances (VarOpt).
    """

    def __init__(self, situation: Situation, *, total: bool) -> None:
        values, self.vectors = situation.spectrum
        self.covariance = np.diag(1.0 / (values + SHIFT))
        self.sums = self.vectors.sum(axis=0) if total else None
        for point in situation.labelled:
            self.take(int(point))

    def scores(self) -> Floats:
        spread = self.vectors @ self.covariance
        own = np.einsum("ij,ij->i", spread, self.vectors)
        told = np.einsum("ij,ij->i", spread, spread) if self.sums is None else (spread @ self.sums) ** 2
        return np.asarray(told / (NOISE + own))

    def take(self, point: int) -> None:
        row = self.vectors[point]
        spread = self.covariance @ row
        self.covariance -= np.outer(spread, spread) / (NOISE + row @ spread)


def _norm(situation: Situation) -> Strategy:
    return _Uncertain(situation, 1.0 - situation.nearness * np.linalg.norm(situation.probabilities, axis=1))


#: By name; the first one is the default.
STRATEGIES: Mapping[StrategyName, Callable[[Situation], Strategy]] = {
    "surroundings": _Surroundings,
    "margin": lambda situation: _Uncertain(situation, 1.0 - situation.margin),
    "norm": _norm,
    "variance": lambda situation: _Variance(situation, total=False),
    "sigma": lambda situation: _Variance(situation, total=True),
}
