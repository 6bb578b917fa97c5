"""Parameters of estimators: checks, and errors that name the parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, InvalidParameterError, validate_parameter_constraints

from homophily.exceptions import ParameterError

POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
AT_LEAST_ONE = Interval(Integral, 1, None, closed="left")


def check_parameters(values: Mapping[str, Any], constraints: Mapping[str, list[Any]], owner: str) -> None:
    """Raise ParameterError for the first value that does not keep to scikit-learn's constraints."""
    for name, value in values.items():
        try:
            validate_parameter_constraints({name: constraints[name]}, {name: value}, caller_name=owner)
        except InvalidParameterError as error:
            raise ParameterError(str(error), name) from None


def wrong_parameter(parameter: str, owner: str, must: str, got: object) -> ParameterError:
    """The error of a parameter, in scikit-learn's words."""
    return ParameterError(f"The {parameter!r} parameter of {owner} must be {must}. Got {got} instead.", parameter)


def refuse_device_array(array: Any, parameter: str) -> None:
    """Raise ParameterError for an array of CuPy or PyTorch on a GPU, which NumPy refuses in words of its own."""
    if hasattr(array, "__cuda_array_interface__"):
        raise ParameterError(
            f"The {parameter!r} parameter must be an array on the host, also with backend='cupy', which sends it to the"
            f" device. Got one on a GPU instead: pass {parameter}.get() of CuPy, or {parameter}.cpu() of PyTorch.",
            parameter,
        )


class CheckedEstimator(BaseEstimator):
    """A scikit-learn estimator whose errors name the parameter that is wrong."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]]
    _parts: ClassVar[Mapping[str, Callable[[], Any]]] = {}
    """The estimators that None stands for, by parameter."""

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters; those of a part as ``graph__n_neighbors``, also where the part is None."""
        for part, default in self._parts.items():
            if getattr(self, part) is None and any(name.startswith(f"{part}__") for name in parameters):
                setattr(self, part, default())
        super().set_params(**parameters)
        return self

    @property
    def _owner(self) -> str:
        """The estimator that errors name."""
        return type(self).__name__

    def _validate_params(self) -> None:
        check_parameters(self.get_params(deep=False), self._parameter_constraints, self._owner)

    def _take_features(self, other: Any) -> None:
        """Take scikit-learn's attributes about the columns of ``fit`` from another estimator."""
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))

    def _wrong(self, parameter: str, must: str) -> ParameterError:
        """The error of a parameter that does not go with the others."""
        return wrong_parameter(parameter, self._owner, must, repr(getattr(self, parameter)))
