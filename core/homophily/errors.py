"""The warnings of the core; errors are Python's own ValueError and TypeError, worded as scikit-learn does.

UserWarning
└── HomophilyWarning
    └── NeighborsWarning     fewer neighbours than asked for, or a search that misses more of them than it should
"""

from __future__ import annotations


class HomophilyWarning(UserWarning):
    """Whatever this package warns about."""


class NeighborsWarning(HomophilyWarning):
    """The neighbour lists are not quite what was asked for."""
