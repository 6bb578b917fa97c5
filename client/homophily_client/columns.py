"""Columns of tables as NumPy has them: floats, vectors and strings; what is missing is NaN or ""."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: A column: floats with one dimension (NaN is missing) or two (vectors), or strings as objects ("" is missing).
Values = NDArray[Any]


class TableWarning(UserWarning):
    """Columns of a table are no features although nobody said so."""


class TableError(ValueError):
    """A table that cannot be used as it is; the message names the column and what to do."""


def values_of(name: str, column: Any) -> Values:
    """A column as floats or strings."""
    array = _array(column)
    if array.dtype.kind in "fiub":
        if array.ndim > 2:
            raise TableError(f"Column {name!r} must hold numbers, strings or vectors. Got {array.ndim - 1} dimensions.")
        is_small = array.dtype.itemsize <= 2 or array.dtype == np.float32
        return np.asarray(array, dtype=np.float32 if is_small else np.float64)
    if array.dtype.kind in "mM":
        raise _dates(name)
    entries = [present(entry) for entry in array.tolist()]
    kinds = {type(entry) for entry in entries} - {type(None)}
    if kinds <= {str}:
        return _objects([entry or "" for entry in entries])
    if kinds <= {bool, int, float}:
        return np.array([np.nan if entry is None else entry for entry in entries], dtype=np.float64)
    if all(hasattr(kind, "isoformat") for kind in kinds):
        raise _dates(name)
    if all(hasattr(kind, "__len__") and kind is not str for kind in kinds):
        return _vectors(name, entries)
    try:
        return np.array([np.nan if entry is None else float(entry) for entry in entries])
    except (TypeError, ValueError):
        listed = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TableError(f"Column {name!r} must hold numbers, strings or vectors. Got {listed} instead.") from None


def _dates(name: str) -> TableError:
    return TableError(
        f"Column {name!r} holds dates, which have no distance of their own: turn it into numbers, such as days since a "
        "day of your choice or the month, or drop it."
    )


def _vectors(name: str, entries: list[Any]) -> Values:
    lengths = {-1 if entry is None else len(entry) for entry in entries}
    try:
        if len(lengths) == 1:
            return np.array(entries, dtype=np.float64).reshape(len(entries), -1)
    except (TypeError, ValueError):
        raise TableError(f"Column {name!r} must hold vectors of numbers.") from None
    raise TableError(f"Column {name!r} must hold vectors of one length in every row. Got several instead.")


def _array(column: Any) -> NDArray[Any]:
    """The entries of a column, as NumPy has them."""
    if hasattr(column, "combine_chunks"):
        return _from_arrow(column.combine_chunks())
    if hasattr(column, "isna") and hasattr(column, "to_numpy"):
        # pandas' own types have a value for missing that NumPy does not know.
        kind = str(column.dtype).lower()
        if kind.startswith(("int", "uint", "float", "bool")) and not isinstance(column.dtype, np.dtype):
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        if kind == "category" or kind.startswith(("string", "str")):
            return np.asarray(column.astype(object).to_numpy())
    if hasattr(column, "to_numpy"):
        return np.asarray(column.to_numpy())
    try:
        array = np.asarray(column)
    except ValueError:
        # Lists of different lengths.
        return _objects(column)
    if array.dtype.kind in "US" and not isinstance(column, np.ndarray):
        return _objects(column)
    return array


def _from_arrow(column: Any) -> NDArray[Any]:
    kind = str(column.type)
    if kind.startswith("fixed_size_list") and not column.null_count:
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(flat).reshape(len(column), -1)
    if kind.startswith(("list<", "large_list<")) and kind.rstrip(">").endswith(("float", "double")):
        lengths = np.diff(column.offsets.to_numpy())
        if len(lengths) and lengths[0] and (lengths == lengths[0]).all() and not column.null_count:
            flat = column.flatten().to_numpy(zero_copy_only=False)
            return np.asarray(flat, dtype=np.float64).reshape(len(column), -1)
    if kind.startswith(("int", "uint", "float", "double", "halffloat", "bool", "decimal")):
        target = "int8" if kind == "bool" else "float32" if kind in ("float", "halffloat") else "float64"
        # Long integers lose digits, which only an id needs: those are read as strings.
        floats = column.cast(target, safe=False)
        array = floats.to_numpy(zero_copy_only=False)
        return np.asarray(array, dtype=np.float64 if kind == "bool" and column.null_count else array.dtype)
    return _objects(column.to_pylist())


def _objects(entries: Iterable[Any]) -> Values:
    listed = list(entries)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


def entries_of(column: Any) -> list[Any]:
    """The entries of a column, as Python's own types."""
    if hasattr(column, "to_pylist"):
        return list(column.to_pylist())
    return list(column.tolist() if hasattr(column, "tolist") else column)


def texts_of(column: Any) -> Values:
    """The entries of a column as strings."""
    return _objects("" if (entry := present(one)) is None else str(entry) for one in entries_of(column))


def present(entry: Any) -> Any:
    """None for what is missing."""
    if entry is None or type(entry).__name__ in ("NAType", "NaTType") or (isinstance(entry, float) and entry != entry):
        return None
    return entry


def has_integers(column: Any) -> bool:
    """Whether a column is of integers, rather than of floats or strings."""
    kind = str(getattr(column, "dtype", getattr(column, "type", np.asarray(column[:1]).dtype))).lower()
    return "int" in kind
