"""Converts points to the bytes and messages that are sent, piece by piece: the whole is never copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import points_pb2 as pb
from homophily_client.edges import Edges, matrix_of
from homophily_client.tables import Table
from homophily_client.tensors import DATA_TYPES, to_tensor

_FLOAT32, _FLOAT64 = np.dtype("<f4"), np.dtype("<f8")
_INT32, _INT64, _UINT8 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("u1")


class _Part(NamedTuple):
    """An array and the type it is sent as; it is converted as it is read."""

    array: NDArray[Any]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Its size as sent."""
        return self.array.size * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Some rows as they are sent."""
        return np.ascontiguousarray(self.array[start:stop], dtype=self.dtype)

    def read(self, start: int, stop: int) -> memoryview:
        """Some bytes as they are sent."""
        row = self.dtype.itemsize * (self.array.size // len(self.array))
        first = start // row
        block = self.rows(first, -(-stop // row)).reshape(-1).view(np.uint8).data
        return block[start - first * row : stop - first * row]


class Points:
    """Points to be sent: rows of a dense array or of a sparse matrix.

    float32 and float64 are kept; bool, float16 and integers of at most 16 bits become float32, which holds
    them exactly; all other real numbers become float64. Sparse matrices become CSR with sorted columns, duplicate
    entries added up. The user's array is never changed.

    A :class:`Table` is sent as its numbers and its columns of strings, with its schema.

    >>> points = Points([[1, 2], [3, 4]])
    >>> points.shape, points.message().dense.data_type == pb.DATA_TYPE_FLOAT64
    ((2, 2), True)
    """

    def __init__(self, X: Any) -> None:
        self._parts: tuple[_Part, ...]
        self._schema: pb.TableSchema | None = None
        self._strings: list[tuple[NDArray[np.int64], NDArray[np.uint8]]] = []
        # SciPy's sparse matrices, which this package need not import.
        if isinstance(X, Edges) or hasattr(X, "tocsr"):
            self.is_sparse = True
            matrix = matrix_of(X) if isinstance(X, Edges) else _canonical(X)
            index = _INT64 if _INT64 in (matrix.indices.dtype, matrix.indptr.dtype) else _INT32
            values = int(matrix.indptr[-1])
            self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
            self._parts = (
                _Part(matrix.data[:values], _sent_dtype(matrix.data.dtype)),
                _Part(matrix.indices[:values], index),
                _Part(matrix.indptr, index),
            )
        elif isinstance(X, Table):
            self.is_sparse = False
            self._schema, numbers = X.schema(), X.numbers()
            self.shape = (int(numbers.shape[0]), int(numbers.shape[1]))
            self._strings = X.strings()
            self._parts = (_Part(numbers, _sent_dtype(numbers.dtype)),)
            if self._strings:
                starts, data = zip(*self._strings, strict=True)
                self._parts += (_Part(np.stack(starts), _INT64), _Part(np.concatenate(data), _UINT8))
        else:
            self.is_sparse = False
            array = _dense(X)
            self.shape = (int(array.shape[0]), int(array.shape[1]))
            self._parts = (_Part(array, _sent_dtype(array.dtype)),)
        self.bytes = sum(part.bytes for part in self._parts)

    def shape_message(self) -> pb.PointsShape:
        """Return the layout, size and type of the points."""
        rows, columns = self.shape
        data_type = DATA_TYPES[self._parts[0].dtype]
        if not self.is_sparse:
            dense = pb.DenseShape(rows=rows, columns=columns, data_type=data_type)
            string_bytes = [len(data) for _, data in self._strings]
            return pb.PointsShape(dense=dense, schema=self._schema, string_bytes=string_bytes)
        values, indices, _ = self._parts
        index_type = DATA_TYPES[indices.dtype]
        return pb.PointsShape(
            csr=pb.CsrShape(
                rows=rows, columns=columns, values=values.array.size, data_type=data_type, index_type=index_type
            )
        )

    def message(self, start: int = 0, stop: int | None = None) -> pb.Points:
        """The points, or the rows from ``start`` to ``stop``, inside a message."""
        stop = self.shape[0] if stop is None else stop
        if not self.is_sparse:
            strings = []
            for row_starts, data in self._strings:
                begins = row_starts[start : stop + 1]
                some = data[begins[0] : begins[-1]].tobytes()
                strings.append(pb.StringColumn(row_starts=to_tensor(begins - begins[0]), data=some))
            dense = to_tensor(self._parts[0].rows(start, stop))
            return pb.Points(dense=dense, schema=self._schema, strings=strings)
        values, indices, starts = self._parts
        places = starts.rows(start, stop + 1)
        first, last = int(places[0]), int(places[-1])
        return pb.Points(
            csr=pb.CsrMatrix(
                columns=self.shape[1],
                values=to_tensor(values.rows(first, last)),
                column_indices=to_tensor(indices.rows(first, last)),
                row_starts=to_tensor(places - places[0]),
            )
        )

    def read(self, start: int, stop: int) -> bytes:
        """A piece of the points' bytes, in the order of an upload."""
        pieces = []
        begins = 0
        for part in self._parts:
            first, last = max(start - begins, 0), min(stop - begins, part.bytes)
            if first < last:
                pieces.append(part.read(first, last))
            begins += part.bytes
        return b"".join(pieces)

    def batches(self, most_bytes: int, most_rows: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows of at most ``most_bytes`` each, but at least one row."""
        rows = self.shape[0]
        if self.is_sparse:
            values, indices, starts = self._parts
            begins = starts.array.astype(np.int64) * (values.dtype.itemsize + indices.dtype.itemsize)
            begins += np.arange(rows + 1) * starts.dtype.itemsize
        else:
            begins = np.arange(rows + 1, dtype=np.int64) * (self.shape[1] * self._parts[0].dtype.itemsize)
            for row_starts, _ in self._strings:
                begins += row_starts + np.arange(rows + 1) * row_starts.dtype.itemsize
        start = 0
        while start < rows:
            fits = int(np.searchsorted(begins, begins[start] + most_bytes, side="right")) - 1
            stop = min(rows, start + most_rows, max(start + 1, fits))
            yield start, stop
            start = stop


def _dense(X: Any) -> NDArray[Any]:
    """An array of numbers with two dimensions."""
    # A DataFrame of pandas or the like, without importing it.
    array = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
    if array.dtype.kind == "O":
        # Columns of several types, or None among the values: it becomes NaN, which the server refuses by its place.
        array = array.astype(np.float64)
    if array.ndim != 2:
        raise ValueError(f"X must have two dimensions, points and features. Got {array.ndim} instead.")
    _sent_dtype(array.dtype)
    return np.asarray(array)


def _canonical(X: Any) -> Any:
    """A sparse matrix in compressed rows, sorted, without duplicates."""
    if len(X.shape) != 2:
        raise ValueError(f"X must have two dimensions, points and features. Got {len(X.shape)} instead.")
    # Convert the type first: sums of booleans or small integers would overflow.
    matrix = X.astype(_sent_dtype(X.dtype), copy=False).tocsr()
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def _sent_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "fiub":
        raise TypeError(f"X must hold real numbers. Got {dtype} instead.")
    if dtype.kind == "f":
        return _FLOAT64 if dtype.itemsize >= 8 else _FLOAT32
    return _FLOAT64 if dtype.itemsize > 2 else _FLOAT32
