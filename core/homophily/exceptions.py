"""The warnings of the core, and its errors beside Python's own ValueError and TypeError.

UserWarning
└── HomophilyWarning
    ├── NeighborsWarning     fewer neighbours than asked for, or a search that misses more of them than it should
    ├── UnlabelledComponentsWarning     parts of the graph that no label reaches
    ├── DisconnectedGraphWarning     a map of a graph in several parts
    ├── ContradictingLinksWarning     links that cannot all be obeyed
    ├── ApproximationWarning     an approximate engine is far from the exact energy
    └── DeviceFallbackWarning     backend="auto" found no GPU to use

ValueError
├── ParameterError     a parameter that is wrong by itself, or beside another
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


class ParameterError(ValueError):
    """A parameter has a value that it must not have.

    Parameters
    ----------
    message : str
        What is wrong, what is expected, and what to do.
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
    """Everything follows from links that contradict each other, so nothing is concluded from them."""


class DeviceFallbackWarning(HomophilyWarning):
    """The CPU computes because no GPU can; told once in a process."""


class DeviceUnavailableError(RuntimeError):
    """A GPU was asked for, and something that it needs is missing."""
