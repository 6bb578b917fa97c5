"""The warnings of the core, and its errors besides Python's own ValueError and TypeError.

UserWarning
└── HomophilyWarning
    ├── NeighborsWarning     fewer neighbours than asked for, or a search that misses more of them than it should
    ├── UnlabelledComponentsWarning     parts of the graph that no label reaches
    ├── DisconnectedGraphWarning     a map of a graph in several parts
    ├── ContradictingLinksWarning     links that cannot all be obeyed
    ├── DominantColumnWarning     one column of a table decides which points are near
    ├── UnknownCategoriesWarning     new rows of a table have strings that were not there in fit
    ├── ApproximationWarning     an approximate engine is far from the exact energy
    └── DeviceFallbackWarning     backend="auto" found no GPU to use

ValueError
├── ParameterError     a parameter that is wrong, or does not go with another
└── ContradictingLinksError     links that cannot all be obeyed, where conclusions from them are needed

RuntimeError
├── DeviceUnavailableError     backend="cupy" without CuPy, a driver or a GPU
└── DeviceFailedError     a GPU failed during a fit, and is lost to this process
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sklearn.exceptions import ConvergenceWarning


class HomophilyWarning(UserWarning):
    """Base class of the package's warnings."""


class NeighborsWarning(HomophilyWarning):
    """Neighbours are missing: fewer exist than were asked for, or the search misses some."""


class UnlabelledComponentsWarning(HomophilyWarning):
    """Some connected components hold no label; their points get the class prior."""


class DominantColumnWarning(HomophilyWarning):
    """One column of a table makes up nearly all of the distance between points."""


class UnknownCategoriesWarning(HomophilyWarning):
    """New rows of a table have strings that were not there in ``fit``."""


class ApproximationWarning(HomophilyWarning):
    """The approximation of the relationship energy is poor."""


class DisconnectedGraphWarning(HomophilyWarning):
    """The graph has several connected components, which a map can only place apart."""


class ContradictingLinksWarning(HomophilyWarning):
    """A cannot-link joins points that other links put together."""


class ParameterError(ValueError):
    """A parameter has a wrong value.

    Parameters
    ----------
    message : str
        Explanation: what is wrong, what is expected, and what to do.
    parameter : str
        The parameter's name, as in the signature.

    Examples
    --------
    >>> from homophily import IRRClassifier, ParameterError
    >>> try:
    ...     IRRClassifier(lambda1=-1.0).fit([[0.0], [1.0]], [0, 1])
    ... except ParameterError as error:
    ...     print(error.parameter)
    lambda1
    """

    def __init__(self, message: str, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter

    def __reduce__(self) -> tuple[type[ParameterError], tuple[str, str]]:
        return type(self), (str(self), self.parameter)


class ContradictingLinksError(ValueError):
    """Links contradict each other, so that nothing can be concluded from them."""


class DeviceFallbackWarning(HomophilyWarning):
    """The CPU computes because no GPU can; warned of once per process."""


class DeviceUnavailableError(RuntimeError):
    """A GPU was asked for, but CuPy, a driver or the GPU is missing."""


class DeviceFailedError(RuntimeError):
    """A GPU failed during a fit, as by an invalid address or an uncorrectable memory error; start a new process."""


@contextmanager
def warned_already() -> Iterator[None]:
    """Silence the warnings of repeated fits: a user gets each from one fit only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HomophilyWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
