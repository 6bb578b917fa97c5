"""How busy a GPU's threads are with rows of unequal length, and what follows for an evaluation: an estimate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from benchmarks.report import Row
from homophily.device.gpu.matrix import WARP, DeviceMatrix

ESTIMATED_SIZES = (60_000, 1_000_000)


class Pass(NamedTuple):
    """A pass over the entries of a matrix: bytes, operations and launches, at the number of points of the matrix."""

    name: str
    matrix: csr_array
    columns: int
    bytes: float
    operations: float
    launches: int


def warp_efficiency(indptr: NDArray[np.integer], lanes: int, columns: int = 1) -> float:
    """The share of a warp's turns at which a thread has an entry, with ``lanes`` threads per row and column."""
    lengths = np.diff(indptr)
    turns, rows = -(-lengths // lanes), max(1, WARP // (lanes * columns))
    warps = np.pad(turns, (0, -len(turns) % rows)).reshape(-1, rows)
    return float(lengths.sum() / (lanes * rows * max(1, warps.max(axis=1).sum())))


def one_and_several_lanes(passes: Iterable[Pass], devices: Iterable[Any], launch_seconds: float) -> list[Row]:
    """Milliseconds of each pass with one thread per row and with several, scaled to the sizes with the same rows."""
    rows: list[Row] = []
    for each in passes:
        matrix = each.matrix
        on_device = DeviceMatrix(None, matrix.shape, matrix.indptr, matrix.indices, matrix.data)  # type: ignore[arg-type]
        lanes = on_device.lanes(each.columns)
        busy = [warp_efficiency(matrix.indptr, count, each.columns) for count in (1, lanes)]
        for points in ESTIMATED_SIZES:
            share = points / matrix.shape[0]
            row: dict[str, Any] = {"work": each.name, "points": points, "lanes": lanes}
            row |= {"busy, one thread per row": busy[0], "busy, lanes": busy[1]}
            for device in devices:
                for name, efficiency in zip(("one thread per row", "lanes"), busy, strict=True):
                    computing = each.operations / device.operations / efficiency
                    seconds = share * max(each.bytes / device.bandwidth, computing) + each.launches * launch_seconds
                    row[f"{device.name}, {name}: ms (estimate)"] = 1e3 * seconds
            rows.append(row)
    return rows
