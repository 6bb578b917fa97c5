"""Points and tensors: from messages to arrays and back, with every length checked before anything is allocated."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily_client._pb import points_pb2 as pb
from homophily_client.tensors import DATA_TYPES, DTYPES
from homophily_service.contract.errors import InvalidRequest, LimitExceeded
from homophily_service.contract.tables import (
    DATA,
    STARTS,
    Rows,
    Strings,
    check_no_infinity,
    check_schema,
    check_strings,
    string_kinds,
)

FLOATS = (pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_FLOAT64)
INTEGERS = (pb.DATA_TYPE_INT32, pb.DATA_TYPE_INT64)

# No axis is this long. Next to an axis of length 0, a longer one would overflow NumPy's element count.
LONGEST = 1 << 48
# Elements checked at a time: a dataset's arrays may be larger than memory.
BLOCK = 1 << 20

# The arrays of a table's strings.
STRING_STARTS, STRING_DATA = "string_starts", "string_data"

Points = NDArray[Any] | csr_array | Rows


class Limits(NamedTuple):
    """How large points may be."""

    points: int
    dimensions: int
    bytes: int


class Part(NamedTuple):
    """One array of a set of points, as it is laid out in an upload and in the store."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


def from_tensor(tensor: pb.Tensor, field: str, allowed: tuple[int, ...], axes: int) -> NDArray[Any]:
    """The tensor's elements, read-only."""
    _check_type(tensor.data_type, f"{field}.data_type", allowed)
    dtype, shape = DTYPES[tensor.data_type], tuple(tensor.shape)
    if len(shape) != axes or any(not 0 <= length < LONGEST for length in shape):
        raise InvalidRequest(f"{field}.shape", f"must be {axes} lengths from 0 to 2^48; got {list(shape)[:4]}")
    # Python's integers do not overflow, so a false shape cannot pass as a small one.
    expected = math.prod(shape) * dtype.itemsize
    if len(tensor.data) != expected:
        raise InvalidRequest(
            f"{field}.data", f"must be {expected} bytes for shape {list(shape)} of {dtype.name}; got {len(tensor.data)}"
        )
    return np.frombuffer(tensor.data, dtype=dtype).reshape(shape)


def parts_of(shape: pb.PointsShape, limits: Limits, field: str) -> list[Part]:
    """The arrays that points of this shape consist of, in their order."""
    layout = shape.WhichOneof("layout")
    if layout is None:
        raise InvalidRequest(field, "must set dense or csr")
    field = f"{field}.{layout}"
    rows_columns = shape.dense if layout == "dense" else shape.csr
    _check_type(rows_columns.data_type, f"{field}.data_type", FLOATS)
    least = 0 if len(shape.string_bytes) else 1
    _check_size(rows_columns.rows, rows_columns.columns, limits, f"{field}.rows", f"{field}.columns", least)
    dtype = DTYPES[rows_columns.data_type]
    if shape.HasField("schema") or len(shape.string_bytes):
        schema_field = f"{field.rpartition('.')[0]}.schema"
        if layout != "dense":
            raise InvalidRequest(schema_field, "must not be given with csr points: a table is dense")
        check_schema(shape.schema, shape.dense.columns, len(shape.string_bytes), schema_field)
    if layout == "dense":
        parts = [Part("points", dtype, (shape.dense.rows, shape.dense.columns))]
        if shape.string_bytes:
            for place, size in enumerate(shape.string_bytes):
                if not 0 <= size < LONGEST:
                    raise InvalidRequest(f"{field}.string_bytes[{place}]", f"must be 0 to 2^48; got {size}")
            parts.append(Part(STRING_STARTS, STARTS, (len(shape.string_bytes), shape.dense.rows + 1)))
            parts.append(Part(STRING_DATA, DATA, (sum(shape.string_bytes),)))
    else:
        csr = shape.csr
        _check_type(csr.index_type, f"{field}.index_type", INTEGERS)
        if not 0 <= csr.values <= csr.rows * csr.columns:
            raise InvalidRequest(f"{field}.values", f"must be between 0 and rows × columns; got {csr.values}")
        index = DTYPES[csr.index_type]
        parts = [
            Part("values", dtype, (csr.values,)),
            Part("column_indices", index, (csr.values,)),
            Part("row_starts", index, (csr.rows + 1,)),
        ]
    total = sum(part.bytes for part in parts)
    if total > limits.bytes:
        raise LimitExceeded(f"{field}: the points take {total} bytes, the limit is {limits.bytes}")
    return parts


def row_count(points: pb.Points) -> int:
    """The number of points, by the message's claim."""
    if points.WhichOneof("layout") == "csr":
        return next(iter(points.csr.row_starts.shape), 1) - 1
    return next(iter(points.dense.shape), 0)


def from_points(points: pb.Points, limits: Limits, field: str) -> Points:
    """Points that came inside a message, checked in full."""
    layout = points.WhichOneof("layout")
    if layout is None:
        raise InvalidRequest(field, "must contain dense or csr points")
    is_table = points.HasField("schema") or bool(points.strings)
    if is_table and layout != "dense":
        raise InvalidRequest(f"{field}.schema", "must not be given with csr points: a table is dense")
    if layout == "dense":
        dense = from_tensor(points.dense, f"{field}.dense", FLOATS, axes=2)
        least = 0 if points.strings else 1
        _check_size(dense.shape[0], dense.shape[1], limits, f"{field}.dense.shape", f"{field}.dense.shape", least)
        if is_table:
            return _rows(points, dense, field)
        check_finite(dense, f"{field}.dense.data")
        return dense
    csr = points.csr
    values = from_tensor(csr.values, f"{field}.csr.values", FLOATS, axes=1)
    columns = from_tensor(csr.column_indices, f"{field}.csr.column_indices", INTEGERS, axes=1)
    starts = from_tensor(csr.row_starts, f"{field}.csr.row_starts", INTEGERS, axes=1)
    _check_size(len(starts) - 1, csr.columns, limits, f"{field}.csr.row_starts", f"{field}.csr.columns")
    check_csr(values, columns, starts, csr.columns, f"{field}.csr")
    return csr_array((values, columns, starts), shape=(len(starts) - 1, csr.columns))


def _rows(points: pb.Points, numbers: NDArray[Any], field: str) -> Rows:
    check_schema(points.schema, numbers.shape[1], len(points.strings), f"{field}.schema")
    check_no_infinity(numbers, f"{field}.dense.data")
    columns = []
    for place, (message, kind) in enumerate(zip(points.strings, string_kinds(points.schema), strict=True)):
        here = f"{field}.strings[{place}]"
        starts = from_tensor(message.row_starts, f"{here}.row_starts", (pb.DATA_TYPE_INT64,), axes=1)
        strings = Strings(starts, np.frombuffer(message.data, dtype=DATA))
        check_strings(strings, len(numbers), kind, here)
        columns.append(strings)
    return Rows(points.schema, numbers, tuple(columns))


def check_csr(values: NDArray[Any], columns: NDArray[Any], starts: NDArray[Any], n_columns: int, field: str) -> None:
    """Refuse arrays that do not fit together."""
    check_finite(values, f"{field}.values")
    if len(columns) != len(values):
        raise InvalidRequest(f"{field}.column_indices", f"must be one per value, {len(values)}; got {len(columns)}")
    if len(starts) == 0 or starts[0] != 0 or starts[-1] != len(values) or np.any(starts[1:] < starts[:-1]):
        raise InvalidRequest(f"{field}.row_starts", f"must increase from 0 to the number of values, {len(values)}")
    if len(columns) and not (columns.min() >= 0 and columns.max() < n_columns):
        raise InvalidRequest(f"{field}.column_indices", f"must be between 0 and {n_columns - 1}")
    for begin in range(0, len(columns), BLOCK):
        some = columns[begin : begin + BLOCK + 1]
        # Where column indices do not increase, a new row must start.
        falls = begin + 1 + np.flatnonzero(some[1:] <= some[:-1])
        if np.any(starts[np.searchsorted(starts, falls)] != falls):
            raise InvalidRequest(f"{field}.column_indices", "must increase within a row")


def check_finite(values: NDArray[Any], field: str, offset: int = 0) -> None:
    """Refuse NaN and infinity, naming the first; ``offset`` elements came before these."""
    # The sum is finite only if every term is. It may also overflow, so look at each element if it is not.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.add.reduce(values, axis=None)):
            return
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        value = values.reshape(-1)[wrong[0]]
        raise InvalidRequest(field, f"must be finite; element {offset + int(wrong[0])} is {value}")


def parts_from_points(points: Points) -> dict[str, NDArray[Any]]:
    """The arrays to store, named as in :func:`parts_of`."""
    if isinstance(points, csr_array):
        return {"values": points.data, "column_indices": points.indices, "row_starts": points.indptr}
    if not isinstance(points, Rows):
        return {"points": points}
    parts: dict[str, NDArray[Any]] = {"points": points.numbers}
    if points.strings:
        parts[STRING_STARTS] = np.stack([strings.row_starts for strings in points.strings])
        parts[STRING_DATA] = np.concatenate([strings.data for strings in points.strings])
    return parts


def points_from_parts(parts: dict[str, NDArray[Any]], shape: pb.PointsShape) -> Points:
    """The points in stored arrays."""
    if shape.HasField("schema"):
        return Rows(shape.schema, parts["points"], strings_from_parts(parts, shape))
    if "points" in parts:
        return parts["points"]
    arrays = parts["values"], parts["column_indices"], parts["row_starts"]
    return csr_array(arrays, shape=(len(parts["row_starts"]) - 1, shape.csr.columns))


def strings_from_parts(parts: dict[str, NDArray[Any]], shape: pb.PointsShape) -> tuple[Strings, ...]:
    """The columns of strings in stored arrays: all are in two arrays, so that no table has many files."""
    if not shape.string_bytes:
        return ()
    data = np.split(parts[STRING_DATA], np.cumsum(shape.string_bytes)[:-1])
    return tuple(map(Strings, parts[STRING_STARTS], data))


def shape_of(points: Points) -> pb.PointsShape:
    """The layout, size and type of points."""
    rows, columns = points.shape
    if isinstance(points, Rows):
        dense = pb.DenseShape(rows=rows, columns=columns, data_type=DATA_TYPES[points.numbers.dtype])
        string_bytes = [len(strings.data) for strings in points.strings]
        return pb.PointsShape(dense=dense, schema=points.schema, string_bytes=string_bytes)
    if not isinstance(points, csr_array):
        return pb.PointsShape(dense=pb.DenseShape(rows=rows, columns=columns, data_type=DATA_TYPES[points.dtype]))
    return pb.PointsShape(
        csr=pb.CsrShape(
            rows=rows,
            columns=columns,
            values=points.nnz,
            data_type=DATA_TYPES[points.data.dtype],
            index_type=DATA_TYPES[points.indices.dtype],
        )
    )


def _check_type(value: int, field: str, allowed: tuple[int, ...]) -> None:
    if value not in allowed:
        names = ", ".join(pb.DataType.Name(pb.DataType.ValueType(one)) for one in allowed)
        raise InvalidRequest(field, f"must be one of {names}; got {value}")


def _check_size(
    rows: int, columns: int, limits: Limits, rows_field: str, columns_field: str, least_columns: int = 1
) -> None:
    if rows < 1:
        raise InvalidRequest(rows_field, f"must be at least 1 point; got {rows}")
    if columns < least_columns:
        raise InvalidRequest(columns_field, f"must be at least 1 feature; got {columns}")
    if rows > limits.points:
        raise LimitExceeded(f"{rows_field}: {rows} points, the limit is {limits.points}")
    if columns > limits.dimensions:
        raise LimitExceeded(f"{columns_field}: {columns} features, the limit is {limits.dimensions}")
