"""What a fitted object is stored as, and the reader that checks it.

Every stored class has ``to_arrays()``, which returns a :class:`State`, and ``from_arrays()``, which takes a
:class:`StateReader`. The version of the format is in :mod:`homophily.storage`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from homophily.arrays import Floats

Shape = tuple[int | None, ...]

FLOATS = ("float64", "float32")
_INDICES = ("int32", "int64")


class State(NamedTuple):
    """A fitted object as arrays of bool, int, uint8 or float by name, and the rest as a document that JSON can hold."""

    arrays: dict[str, NDArray[Any]]
    """The arrays by name."""
    document: dict[str, Any]
    """Everything else: numbers, strings, lists and dictionaries."""


class StateReader:
    """Reads a state; a ValueError names the entry that is missing or wrong."""

    def __init__(self, state: State, kind: str):
        self.arrays, self.document = state
        self.kind = kind
        if not isinstance(self.document, dict):
            raise ValueError(f"The document of a {kind} must be a dict. Got {type(self.document).__name__} instead.")

    def section(self, name: str) -> StateReader:
        """The reader of a dict inside the document."""
        return StateReader(State(self.arrays, self.value(name, dict)), f"{self.kind} ({name})")

    def value(self, name: str, *types: type) -> Any:
        """An entry of the document, of one of the types."""
        if name not in self.document:
            raise ValueError(f"The document of the {self.kind} has no {name!r}.")
        value = self.document[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
            raise ValueError(f"The {name!r} of the {self.kind} must be {expected}. Got {value!r} instead.")
        return value

    def number(self, name: str) -> float:
        """A number of the document."""
        return float(self.value(name, float, int))

    def integer(self, name: str, least: int, most: int = 2**62) -> int:
        """An integer of the document from ``least`` to ``most``."""
        value: int = self.value(name, int)
        if not least <= value <= most:
            raise ValueError(f"The {name!r} of the {self.kind} must be {least} to {most}. Got {value} instead.")
        return value

    def choice(self, name: str, *choices: str) -> str:
        """A string of the document that is one of ``choices``."""
        value: str = self.value(name, str)
        if value not in choices:
            raise ValueError(f"The {name!r} of the {self.kind} must be one of {choices}. Got {value!r} instead.")
        return value

    def parameters(self, estimator: Any, former: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Keyword arguments of an estimator, without its ``former`` parameters."""
        stored: dict[str, Any] = self.value("parameters", dict)
        parameters = {name: value for name, value in stored.items() if name not in former}
        unknown = sorted(set(parameters) - (set(estimator().get_params(deep=False)) - {"callback", "graph"}))
        if unknown:
            raise ValueError(f"The {self.kind} has parameters that {estimator.__name__} does not have: {unknown}.")
        return parameters

    def features(self, estimator: Any) -> None:
        """Set scikit-learn's attributes about the columns of ``fit``."""
        estimator.n_features_in_ = self.integer("n_features", 0)
        names = self.value("feature_names", list, type(None))
        if names is None:
            return
        if len(names) != estimator.n_features_in_ or not all(isinstance(name, str) for name in names):
            raise ValueError(f"The 'feature_names' of the {self.kind} must be {estimator.n_features_in_} strings.")
        estimator.feature_names_in_ = np.array(names, dtype=object)

    def array(self, name: str, shape: Shape, dtypes: tuple[str, ...] = ("float64",)) -> NDArray[Any]:
        """An array as it is; copied only if its memory layout is not that of a state."""
        if name not in self.arrays:
            raise ValueError(f"The {self.kind} has no array {name!r}.")
        array = self.arrays[name]
        if not isinstance(array, np.ndarray) or array.dtype not in [np.dtype(kind) for kind in dtypes]:
            kind = getattr(array, "dtype", type(array).__name__)
            raise ValueError(
                f"The array {name!r} of the {self.kind} must be {' or '.join(dtypes)}. Got {kind} instead."
            )
        if len(array.shape) != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
            expected = tuple("any" if n is None else n for n in shape)
            raise ValueError(
                f"The array {name!r} of the {self.kind} must have the shape {expected}. Got {array.shape} instead."
            )
        return np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED", "ENSUREARRAY"])

    def copy(self, name: str, shape: Shape) -> Floats:
        """A copy of a small array: kernels are compiled for arrays that may be written to."""
        return self.array(name, shape).copy()

    def positions(self, name: str, shape: Shape, count: int, dtypes: tuple[str, ...] = _INDICES) -> NDArray[Any]:
        """Integers from 0 to ``count`` - 1."""
        array = self.array(name, shape, dtypes)
        if array.size and (array.min() < 0 or array.max() >= count):
            raise ValueError(
                f"The array {name!r} of the {self.kind} must be within 0 and {count - 1}. "
                f"Got {array.min()} to {array.max()} instead."
            )
        return array

    def csr(
        self, name: str, shape: tuple[int, int], dtypes: tuple[str, ...] = ("float64",), *, canonical: bool = True
    ) -> sparse.csr_array:
        """A CSR matrix whose indices stay inside it; if ``canonical``, they rise within each row."""
        data = self.array(f"{name}_data", (None,), dtypes)
        indices = self.positions(f"{name}_indices", data.shape, shape[1])
        indptr = self.positions(f"{name}_indptr", (shape[0] + 1,), len(data) + 1)
        if indptr[0] != 0 or indptr[-1] != len(data) or not (np.diff(indptr) >= 0).all():
            raise ValueError(f"The array '{name}_indptr' of the {self.kind} must rise from 0 to {len(data)}.")
        matrix = sparse.csr_array((data, indices, indptr), shape=shape)
        if canonical and not matrix.has_canonical_format:
            raise ValueError(f"The array '{name}_indices' of the {self.kind} must rise within each row.")
        return matrix


def csr_arrays(name: str, matrix: Any) -> dict[str, NDArray[Any]]:
    """The arrays that :meth:`StateReader.csr` reads."""
    return {f"{name}_data": matrix.data, f"{name}_indices": matrix.indices, f"{name}_indptr": matrix.indptr}


def feature_entries(estimator: Any) -> dict[str, Any]:
    """The entries that :meth:`StateReader.features` reads."""
    names = getattr(estimator, "feature_names_in_", None)
    return {
        "n_features": int(estimator.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
    }


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON has them: NumPy's numbers as Python's, a class prior as a list."""
    return {
        name: value if value is None or isinstance(value, str | bool | int | float) else np.asarray(value).tolist()
        for name, value in values.items()
    }
