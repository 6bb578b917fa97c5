"""A table in the form in which it is computed with: one block of numbers, and columns of strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from homophily.exceptions import ParameterError

#: How many names an error message lists.
_LISTED = 10


@dataclass(frozen=True)
class Table:
    """Rows of named columns: numbers (NaN is missing), vectors of numbers, and strings ("" is missing)."""

    names: tuple[str, ...]
    """The columns."""
    widths: tuple[int, ...]
    """How many columns of ``numbers`` each takes: 1 for a number, more for a vector, 0 for strings."""
    numbers: NDArray[Any]
    """(rows, sum of the widths), floats."""
    strings: tuple[NDArray[Any], ...] = ()
    """The columns of strings, in their order: arrays of objects."""

    @classmethod
    def of(cls, X: Any) -> Self:
        """A table from a pandas or polars DataFrame, an Arrow table, or a mapping of names to arrays."""
        if isinstance(X, cls):
            return X
        names: Iterable[Any] | None = X.keys() if isinstance(X, Mapping) else getattr(X, "columns", None)
        if hasattr(X, "column_names"):
            names = X.column_names
        if names is None:
            raise ParameterError(
                f"The 'X' parameter must be a table with named columns: a DataFrame, an Arrow table or a mapping of "
                f"names to arrays. Got {type(X).__name__} instead.",
                "X",
            )
        listed = [str(name) for name in names]
        if len(set(listed)) != len(listed):
            twice = next(name for name in listed if listed.count(name) > 1)
            raise ParameterError(f"The columns of 'X' must have distinct names. Got {twice!r} more than once.", "X")
        return cls.from_columns({name: _values(name, X[key]) for name, key in zip(listed, names, strict=True)})

    @classmethod
    def from_columns(cls, columns: Mapping[str, NDArray[Any]]) -> Self:
        """A table from arrays of floats with one or two dimensions, and arrays of objects, which are strings."""
        blocks = [values.reshape(len(values), -1) for values in columns.values() if values.dtype != object]
        strings = tuple(values for values in columns.values() if values.dtype == object)
        rows = {len(values) for values in columns.values()}
        if len(rows) != 1:
            raise ParameterError("The columns of 'X' must have the same length, and there must be at least one.", "X")
        numbers = np.hstack(blocks) if blocks else np.empty((rows.pop(), 0))
        widths = (0 if values.dtype == object else values.size // max(1, len(values)) for values in columns.values())
        return cls(tuple(columns), tuple(widths), numbers, strings)

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, names: Sequence[str], unused: Iterable[str] = ()) -> Self:
        """The columns of these names, in this order; an error lists those that are missing or unexpected.

        Columns named in ``unused`` may be there and are left out.
        """
        if self.names == tuple(names):
            return self
        missing = [name for name in names if name not in self.names]
        unexpected = [name for name in self.names if name not in names and name not in set(unused)]
        if missing or unexpected:
            found = [
                f"{what}: {', '.join(map(repr, columns[:_LISTED]))}{' …' if len(columns) > _LISTED else ''}."
                for what, columns in (("Missing", missing), ("Unexpected", unexpected))
                if columns
            ]
            raise ParameterError(f"The columns of 'X' must be those of 'fit', in any order. {' '.join(found)}", "X")
        positions = {name: position for position, name in enumerate(self.names)}
        begins = np.concatenate([[0], np.cumsum(self.widths)])
        order = [positions[name] for name in names]
        taken = [column for place in order for column in range(begins[place], begins[place + 1])]
        strings = dict(zip([place for place, width in enumerate(self.widths) if not width], self.strings, strict=True))
        return replace(
            self,
            names=tuple(names),
            widths=tuple(self.widths[place] for place in order),
            numbers=self.numbers[:, taken],
            strings=tuple(strings[place] for place in order if place in strings),
        )


def in_fitted_order(estimator: Any, X: Any) -> Any:
    """A DataFrame with the columns in the order of ``fit``; other names are left for scikit-learn to refuse."""
    names, columns = getattr(estimator, "feature_names_in_", None), getattr(X, "columns", None)
    if names is None or columns is None or list(columns) == list(names) or set(columns) != set(names):
        return X
    return X[list(names)]


def _values(name: str, column: Any) -> NDArray[Any]:
    """A column as floats or strings."""
    kind = str(getattr(column, "dtype", getattr(column, "type", "")))
    if hasattr(column, "to_numpy") and not kind.startswith(("datetime", "timedelta", "timestamp", "date", "period")):
        try:
            # pandas' own types have a value for missing that NumPy does not know.
            column = column.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            column = column.to_numpy()
    array = np.asarray(column)
    if array.dtype.kind in "US" and not isinstance(column, np.ndarray):
        # NumPy turned numbers among strings into strings.
        array = np.array(column, dtype=object)
    if array.dtype.kind in "fiub":
        return np.asarray(array, dtype=np.float32 if array.dtype == np.float32 else np.float64)
    if array.dtype.kind in "mM" or kind.startswith(("timestamp", "date", "period")):
        raise ParameterError(
            f"Column {name!r} holds dates, which have no distance of their own: turn it into numbers, such as days "
            "since a day of your choice or the month, or drop it.",
            "X",
        )
    entries = [None if _is_missing(entry) else entry for entry in array.ravel().tolist()]
    kinds = {type(entry) for entry in entries} - {type(None)}
    if kinds <= {str}:
        return np.array([entry or "" for entry in entries], dtype=object)
    if kinds <= {bool, int, float}:
        return np.array([np.nan if entry is None else entry for entry in entries], dtype=np.float64)
    present = [entry for entry in entries if entry is not None]
    if len(present) == len(entries) and all(np.ndim(entry) == 1 for entry in present):
        lengths = {len(entry) for entry in present}
        if len(lengths) == 1:
            return np.array(present, dtype=np.float64)
        raise ParameterError(f"Column {name!r} holds vectors of different lengths: {sorted(lengths)[:5]}.", "X")
    listed = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise ParameterError(f"Column {name!r} must hold numbers, strings or vectors. Got {listed} instead.", "X")


def _is_missing(entry: Any) -> bool:
    return entry is None or (isinstance(entry, float) and entry != entry) or type(entry).__name__ == "NAType"
