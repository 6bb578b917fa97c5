"""Rows of a sparse matrix times a block of columns, in vector instructions.

Numba makes vector instructions of long loops only. Columns are often few: ten classes are one or two vectors, and a
loop over them is taken apart into single numbers, which takes two to three times as long. So vectors are named here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def _sum_in_lanes(
    _: Any, lanes: Any, data: Any, indices: Any, edges: Any, x: Any, out: Any, at: Any, y: Any, z: Any, factors: Any
) -> Any:
    """Set two vectors of ``lanes`` numbers in a row of ``out`` to Σ_e data[e] · (row indices[e] of x) + α y + β z.

    ``edges`` holds the first e and the end, ``factors`` α and β; without ``y`` there is the sum alone. ``at`` holds
    where the row begins, the number of columns, and the columns at which the vectors begin, which may overlap.
    """
    if not isinstance(lanes, types.IntegerLiteral) or x.layout != "C" or out.layout != "C":
        return None
    width = lanes.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args

        def numbers(n: int) -> Any:
            return context.make_array(kinds[n])(context, builder, arguments[n]).data

        def part(n: int, index: int) -> Any:
            return builder.extract_value(arguments[n], index)

        def place(array: Any, row: Any, column: Any) -> Any:
            return builder.bitcast(builder.gep(array, [builder.add(row, column)]), vector.as_pointer())

        def spread(value: Any) -> Any:
            return builder.shuffle_vector(builder.insert_element(unset, value, first_lane), unset, all_lanes)

        def add(total: Any, factor: Any, array: Any, row: Any, column: Any) -> Any:
            some = builder.load(place(array, row, column), align=aligned)
            return builder.fadd(total, builder.fmul(factor, some, flags=("contract",)), flags=("contract",))

        number, lane = context.get_data_type(kinds[4].dtype), ir.IntType(32)
        vector, aligned = ir.VectorType(number, width), number.get_abi_size(context.target_data)
        unset, zeros = ir.Constant(vector, ir.Undefined), ir.Constant(vector, None)
        first_lane, all_lanes = ir.Constant(lane, 0), ir.Constant(ir.VectorType(lane, width), None)
        weights, neighbours, values, sums = (numbers(n) for n in (1, 2, 4, 5))
        begin, end, columns, row = part(3, 0), part(3, 1), part(6, 1), part(6, 0)
        starts = part(6, 2), part(6, 3)
        with builder.goto_entry_block():
            totals = [builder.alloca(vector) for _ in starts]
        for total, start in zip(totals, starts, strict=True):
            first = zeros
            if y is not types.none:
                first = add(zeros, spread(part(9, 0)), numbers(7), row, start)
                first = add(first, spread(part(9, 1)), numbers(8), row, start)
            builder.store(first, total)
        with cgutils.for_range_slice(builder, begin, end, ir.Constant(begin.type, 1), begin.type) as (edge, _):
            weight = context.cast(builder, builder.load(builder.gep(weights, [edge])), kinds[1].dtype, kinds[4].dtype)
            weight = spread(weight)
            other = context.cast(builder, builder.load(builder.gep(neighbours, [edge])), kinds[2].dtype, types.uint64)
            other = builder.mul(other, columns)
            for total, start in zip(totals, starts, strict=True):
                builder.store(add(builder.load(total), weight, values, other, start), total)
        for total, start in zip(totals, starts, strict=True):
            builder.store(builder.load(total), place(sums, row, start), align=aligned)
        return context.get_dummy_value()

    return types.void(lanes, data, indices, edges, x, out, at, y, z, factors), generate


_sum_rows: Any = intrinsic(prefer_literal=True)(_sum_in_lanes)


def product_rows(columns: int) -> Any:
    """The kernel ``(indptr, indices, data, x, out, y, z, factors, first, last)`` for two columns or more.

    It sets rows of out ← matrix @ x + α y + β z with ``factors`` α and β, or to the product alone where ``y`` and ``z``
    are None. Arrays are contiguous, those of indices unsigned; ``out`` is none of the others.
    """
    # Two vectors hold a row; the widest ones take a long row in pieces.
    return _kernel(min(16, 1 << ((columns - 1).bit_length() - 1)))


@cache
def _kernel(lanes: int) -> Any:
    @njit(cache=True, nogil=True)
    def kernel(indptr, indices, data, x, out, y, z, factors, first, last):  # type: ignore[no-untyped-def]
        one, width, columns = np.uint64(1), np.uint64(lanes), np.uint64(x.shape[1])
        alpha, beta = x.dtype.type(factors[0]), x.dtype.type(factors[1])
        for i in range(np.uint64(first), np.uint64(last)):
            edges, c = (np.uint64(indptr[i]), np.uint64(indptr[i + one])), np.uint64(0)
            while c < columns:
                # The last vector ends with the row.
                at = i * columns, columns, min(c, columns - width), min(c + width, columns - width)
                _sum_rows(lanes, data, indices, edges, x, out, at, y, z, (alpha, beta))
                c += width + width

    return kernel
