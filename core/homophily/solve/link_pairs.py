"""Must-link and cannot-link pairs as energies take them. :mod:`homophily.supervision.links` reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from homophily.arrays import Floats

Pairs = NDArray[np.int64]


@dataclass(frozen=True)
class Links:
    """Pairs (i, j) with i < j, each once, sorted."""

    #: (m, 2) pairs that belong together.
    must: Pairs
    #: (c, 2) pairs that belong apart.
    cannot: Pairs

    def __len__(self) -> int:
        return len(self.must) + len(self.cannot)

    @property
    def pairs(self) -> Pairs:
        """(m + c, 2), the must-links first."""
        return np.vstack([self.must, self.cannot])

    @property
    def targets(self) -> Floats:
        """T_ij of :attr:`pairs`: 1 for a must-link, 0 for a cannot-link."""
        return np.repeat([1.0, 0.0], [len(self.must), len(self.cannot)])
