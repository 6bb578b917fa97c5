"""The warnings of the core; errors are Python's own ValueError and TypeError, worded as scikit-learn does, but for two.

UserWarning
└── HomophilyWarning
    ├── NeighborsWarning     fewer neighbours than asked for, or a search that misses more of them than it should
    ├── UnlabelledComponentsWarning     parts of the graph that no label reaches
    ├── DisconnectedGraphWarning     a map of a graph in several parts
    ├── ContradictingLinksWarning     links that cannot all be obeyed
    ├── ApproximationWarning     an approximate engine is far from the exact energy
    └── DeviceFallbackWarning     backend="auto" found no GPU to use

ValueError
└── ContradictingLinksError     links that cannot all be obeyed, where what follows from them is asked for

RuntimeError
└── DeviceUnavailableError     backend="cupy" without CuPy, a driver or a GPU
"""

from __future__ import annotations


class HomophilyWarning(UserWarning):
    """Whatever this package warns about."""


class NeighborsWarning(HomophilyWarning):
    """The neighbour lists are not quite what was asked for."""


class UnlabelledComponentsWarning(HomophilyWarning):
    """Some connected components hold no label; their points get the class prior."""


class ApproximationWarning(HomophilyWarning):
    """The relationship energy is approximated, and not well."""


class DisconnectedGraphWarning(HomophilyWarning):
    """The graph has several connected components, which a map can only set apart."""


class ContradictingLinksWarning(HomophilyWarning):
    """A cannot-link joins points that other links put together."""


class ContradictingLinksError(ValueError):
    """Everything follows from links that contradict each other, so nothing is concluded from them."""


class DeviceFallbackWarning(HomophilyWarning):
    """The CPU computes because no GPU can; told once in a process."""


class DeviceUnavailableError(RuntimeError):
    """A GPU was asked for, and something that it needs is missing."""
