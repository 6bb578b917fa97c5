"""Rows of a sparse matrix times a block of columns, in vector instructions.

Numba makes vector instructions of long loops only. Columns are often few: ten classes are one or two vectors, and a
loop over them is taken apart into single numbers, which takes two to three times as long. So vectors are named here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def _sum_in_lanes(_: Any, lanes: Any, data: Any, indices: Any, first: Any, last: Any, x: Any, out: Any, at: Any) -> Any:
    """Set ``lanes`` numbers of ``out`` to Σ_e data[e] · (the same columns of row indices[e] of x), first ≤ e < last.

    ``x`` and ``out`` are flat; ``at`` holds the place in ``out``, the column, and the number of columns.
    """
    if not isinstance(lanes, types.IntegerLiteral):
        return None
    lane_count = lanes.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        weights, neighbours, values, sums = (
            context.make_array(kinds[n])(context, builder, arguments[n]).data for n in (1, 2, 5, 6)
        )
        begin, end = arguments[3:5]
        place, column, columns = (builder.extract_value(arguments[7], n) for n in range(3))
        number = context.get_data_type(kinds[5].dtype)
        vector, aligned = ir.VectorType(number, lane_count), number.get_abi_size(context.target_data)
        lane, unset = ir.IntType(32), ir.Constant(vector, ir.Undefined)
        first_lane, all_lanes = ir.Constant(lane, 0), ir.Constant(ir.VectorType(lane, lane_count), None)
        with builder.goto_entry_block():
            total = builder.alloca(vector)
        builder.store(ir.Constant(vector, None), total)
        with cgutils.for_range_slice(builder, begin, end, ir.Constant(begin.type, 1), begin.type) as (edge, _):
            weight = context.cast(builder, builder.load(builder.gep(weights, [edge])), kinds[1].dtype, kinds[5].dtype)
            weight = builder.shuffle_vector(builder.insert_element(unset, weight, first_lane), unset, all_lanes)
            row = context.cast(builder, builder.load(builder.gep(neighbours, [edge])), kinds[2].dtype, types.uint64)
            start = builder.gep(values, [builder.add(builder.mul(row, columns), column)])
            some = builder.load(builder.bitcast(start, vector.as_pointer()), align=aligned)
            product = builder.fmul(weight, some, flags=("contract",))
            builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
        start = builder.bitcast(builder.gep(sums, [place]), vector.as_pointer())
        builder.store(builder.load(total), start, align=aligned)
        return context.get_dummy_value()

    return types.void(lanes, data, indices, first, last, x, out, at), generate


_sum_rows: Any = intrinsic(prefer_literal=True)(_sum_in_lanes)


@njit(cache=True, nogil=True)
def product_rows(indptr: Any, indices: Any, data: Any, x: Any, out: Any, first: int, last: int) -> None:
    """Rows ``first`` to ``last`` of out ← matrix @ x, for two columns or more; index arrays are unsigned."""
    columns, one = np.uint64(x.shape[1]), np.uint64(1)
    values, sums = x.reshape(-1), out.reshape(-1)
    for i in range(np.uint64(first), np.uint64(last)):
        begin, end, c = np.uint64(indptr[i]), np.uint64(indptr[i + one]), np.uint64(0)
        while c < columns:
            # The last vector of a row ends with it, and may repeat columns of the one before.
            if columns >= np.uint64(16):
                at = min(c, columns - np.uint64(16))
                _sum_rows(16, data, indices, begin, end, values, sums, (i * columns + at, at, columns))
                c += np.uint64(16)
            elif columns >= np.uint64(8):
                at = min(c, columns - np.uint64(8))
                _sum_rows(8, data, indices, begin, end, values, sums, (i * columns + at, at, columns))
                c += np.uint64(8)
            elif columns >= np.uint64(4):
                at = min(c, columns - np.uint64(4))
                _sum_rows(4, data, indices, begin, end, values, sums, (i * columns + at, at, columns))
                c += np.uint64(4)
            else:
                at = min(c, columns - np.uint64(2))
                _sum_rows(2, data, indices, begin, end, values, sums, (i * columns + at, at, columns))
                c += np.uint64(2)
