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


def _sum_in_lanes(_: Any, lanes: Any, data: Any, indices: Any, first: Any, last: Any, x: Any, out: Any, at: Any) -> Any:
    """Add up two vectors of ``lanes`` numbers: Σ_e data[e] · (row indices[e] of x), first ≤ e < last.

    ``x`` and ``out`` are flat; ``at`` holds where the row begins in ``out``, the number of columns, and the columns at
    which the vectors begin, which may overlap.
    """
    if not isinstance(lanes, types.IntegerLiteral):
        return None
    width = lanes.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        weights, neighbours, values, sums = (
            context.make_array(kinds[n])(context, builder, arguments[n]).data for n in (1, 2, 5, 6)
        )
        begin, end = arguments[3:5]
        place, columns, *starts = (builder.extract_value(arguments[7], n) for n in range(4))
        number, lane = context.get_data_type(kinds[5].dtype), ir.IntType(32)
        vector, aligned = ir.VectorType(number, width), number.get_abi_size(context.target_data)
        unset, all_lanes = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(lane, width), None)

        def at(array: Any, row: Any, column: Any) -> Any:
            return builder.bitcast(builder.gep(array, [builder.add(row, column)]), vector.as_pointer())

        with builder.goto_entry_block():
            totals = [builder.alloca(vector) for _ in starts]
        for total in totals:
            builder.store(ir.Constant(vector, None), total)
        with cgutils.for_range_slice(builder, begin, end, ir.Constant(begin.type, 1), begin.type) as (edge, _):
            weight = context.cast(builder, builder.load(builder.gep(weights, [edge])), kinds[1].dtype, kinds[5].dtype)
            weight = builder.insert_element(unset, weight, ir.Constant(lane, 0))
            weight = builder.shuffle_vector(weight, unset, all_lanes)
            row = context.cast(builder, builder.load(builder.gep(neighbours, [edge])), kinds[2].dtype, types.uint64)
            row = builder.mul(row, columns)
            for total, start in zip(totals, starts, strict=True):
                product = builder.fmul(weight, builder.load(at(values, row, start), align=aligned), flags=("contract",))
                builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
        for total, start in zip(totals, starts, strict=True):
            builder.store(builder.load(total), at(sums, place, start), align=aligned)
        return context.get_dummy_value()

    return types.void(lanes, data, indices, first, last, x, out, at), generate


_sum_rows: Any = intrinsic(prefer_literal=True)(_sum_in_lanes)


def product_rows(columns: int) -> Any:
    """The kernel ``(indptr, indices, data, x, out, first, last)`` that takes rows of out ← matrix @ x.

    For two columns or more. Index arrays are unsigned.
    """
    # Two vectors hold a row; the widest ones take a long row in pieces.
    return _kernel(min(16, 1 << ((columns - 1).bit_length() - 1)))


@cache
def _kernel(lanes: int) -> Any:
    @njit(cache=True, nogil=True)
    def kernel(indptr: Any, indices: Any, data: Any, x: Any, out: Any, first: int, last: int) -> None:
        one, width, columns = np.uint64(1), np.uint64(lanes), np.uint64(x.shape[1])
        values, sums = x.reshape(-1), out.reshape(-1)
        for i in range(np.uint64(first), np.uint64(last)):
            begin, end, c = np.uint64(indptr[i]), np.uint64(indptr[i + one]), np.uint64(0)
            while c < columns:
                # The last vector ends with the row.
                at = i * columns, columns, min(c, columns - width), min(c + width, columns - width)
                _sum_rows(lanes, data, indices, begin, end, values, sums, at)
                c += width + width

    return kernel
