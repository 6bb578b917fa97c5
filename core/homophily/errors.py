"""The warnings of the core; errors are Python's own ValueError and TypeError, worded as scikit-learn does.

UserWarning
└── HomophilyWarning
    ├── NeighborsWarning     fewer neighbours than asked for, or a search that misses more of them than it should
    ├── UnlabelledComponentsWarning     parts of the graph that no label reaches
    └── ApproximationWarning     an approximate engine is far from the exact energy
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
