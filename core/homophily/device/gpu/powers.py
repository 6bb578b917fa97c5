"""Powers of a sparse matrix, formed on the device: every product of two entries, sorted by its place, and summed.

No entry is added with atomics, and products come in the order of the entries: the same matrix gives the same bits.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily.device.gpu.matrix import DeviceMatrix, check_size

#: Products of entries at once: half a gigabyte while they are sorted.
MOST_PRODUCTS = 2**22
BYTES_PER_PRODUCT = 128
#: Place and order of a product are one number, which fits 64 bits.
MOST_NUMBERS = 2**62


def power_of(matrix: DeviceMatrix, power: int) -> DeviceMatrix:
    """A^p, made once per job; of a symmetric A, the square is symmetric to the bit."""
    if power == 1:
        return matrix
    made: DeviceMatrix = matrix.keep(("power", power), lambda: _product(power_of(matrix, power - 1), matrix))
    return made


def _product(left: DeviceMatrix, right: DeviceMatrix) -> DeviceMatrix:
    backend, xp = left.backend, left.backend.xp
    lengths = xp.take(right.indptr[1:] - right.indptr[:-1], left.indices)
    # Where the products of each entry of ``left`` end; the host asks once where those of each row do.
    ends = xp.cumsum(lengths.astype(np.int64))
    of_rows = xp.take(xp.concatenate([xp.zeros(1, dtype=np.int64), ends]), left.indptr)
    pieces = _cuts(backend.to_host(of_rows), right.shape[1], backend.planned_memory() // BYTES_PER_PRODUCT)
    parts = [_rows(left, right, ends - lengths, ends, *piece) for piece in pieces]
    shape = left.shape[0], right.shape[1]
    check_size(shape, sum(part[0].size for part in parts))
    rows, columns, data = (xp.concatenate(list(part)) for part in zip(*parts, strict=True))
    indptr = xp.searchsorted(rows, xp.arange(left.shape[0] + 1, dtype=np.int64)).astype(np.int32)
    return DeviceMatrix(backend, shape, indptr, columns.astype(np.int32), data)


def _cuts(ends: NDArray[np.int64], columns: int, fitting: int) -> list[tuple[int, int, int]]:
    """Where the rows that are formed at once begin, and where their products do and end."""
    most = max(1, min(MOST_PRODUCTS, fitting))
    rows_at_once = max(1, MOST_NUMBERS // (columns * max(most, int(np.diff(ends).max(initial=1)))))
    bounds = [0]
    while bounds[-1] < len(ends) - 1:
        first = bounds[-1]
        last = int(np.searchsorted(ends, ends[first] + most, side="right")) - 1
        bounds.append(min(max(first + 1, last), first + rows_at_once))
    return [(a, int(ends[a]), int(ends[b])) for a, b in pairwise(bounds)]


def _rows(
    left: DeviceMatrix, right: DeviceMatrix, starts: Any, ends: Any, row: int, first: int, last: int
) -> tuple[Any, Any, Any]:
    """Rows, columns and values of the product from ``row`` on, whose products of entries are ``first`` … ``last``."""
    backend, xp, count, columns = left.backend, left.backend.xp, last - first, right.shape[1]
    products = xp.arange(first, last, dtype=np.int64)
    ours = xp.searchsorted(ends, products, side="right")
    theirs = xp.take(right.indptr, xp.take(left.indices, ours)) + (products - xp.take(starts, ours))
    values = xp.take(left.data, ours) * xp.take(right.data, theirs)
    own_rows = xp.searchsorted(left.indptr, ours, side="right") - (1 + row)
    places = own_rows * columns + xp.take(right.indices, theirs)
    # Numbers that do not repeat are sorted the same way by every method.
    order = xp.argsort(places * count + (products - first))
    places = xp.take(places, order)
    is_first = xp.concatenate([xp.ones(1, dtype=np.bool_)[:count], places[1:] != places[:-1]])
    numbers = xp.arange(count, dtype=np.int64)
    begins = xp.argsort(xp.where(is_first, numbers, numbers + count))[: int(backend.to_host(is_first.sum()))]
    places = xp.take(places, begins)
    indptr = xp.concatenate([begins, xp.full(1, count, dtype=np.int64)]).astype(np.int32)
    sums = DeviceMatrix(backend, (places.size, count), indptr, order.astype(np.int32), xp.ones(count))
    return places // columns + row, places % columns, sums.product(values.reshape(-1, 1), lanes=1).reshape(-1)
