"""Writes points into a folder of .npy files as they come, laid out as an upload's: numbers, then columns of strings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from homophily_client._pb import points_pb2
from homophily_client.tensors import DATA_TYPES
from homophily_service.contract.arrays import STRING_DATA, STRING_STARTS, Part
from homophily_service.contract.tables import DATA, STARTS, Strings

COPY_BYTES = 1 << 20


class PointsWriter:
    """Takes rows, and lays them out when all are there. The folder ``arrays`` then holds nothing but arrays."""

    def __init__(self, folder: Path, width: int, dtype: np.dtype[Any], n_strings: int) -> None:
        self.arrays = folder / "arrays"
        self.arrays.mkdir()
        self.rows, self.width, self.dtype = 0, width, dtype
        self.string_bytes = [0] * n_strings
        self._points = (self.arrays / "points.npy").open("wb+")
        self._write_header(self._points, (0, width), dtype)
        # All strings in the order in which they come; where the pieces of each column are.
        self._spool = (folder / "strings").open("wb+")
        self._pieces: list[list[tuple[int, int, int, int]]] = [[] for _ in range(n_strings)]

    @property
    def size(self) -> int:
        """Bytes of the points so far."""
        numbers = self.rows * self.width * self.dtype.itemsize
        return numbers + sum(self.string_bytes) + len(self.string_bytes) * (self.rows + 1) * STARTS.itemsize

    def add(self, numbers: NDArray[Any], strings: Sequence[Strings] = ()) -> None:
        """Take some rows."""
        self._points.write(np.ascontiguousarray(numbers, self.dtype).data)
        for place, (starts, data) in enumerate(strings):
            # Where each row ends, counted from the column's beginning.
            ends = np.asarray(starts[1:] + self.string_bytes[place], dtype=STARTS)
            at = self._spool.tell()
            self._spool.write(ends.data)
            self._spool.write(data.data)
            self._pieces[place].append((at, ends.nbytes, at + ends.nbytes, data.nbytes))
            self.string_bytes[place] += data.nbytes
        self.rows += len(numbers)

    def finish(self) -> tuple[bytes, dict[str, str]]:
        """Lay out the arrays; returns the SHA-256 of the points, and those of the files by their arrays' names."""
        self._write_header(self._points, (self.rows, self.width), self.dtype)
        names = ["points"]
        if self.string_bytes:
            self._write_strings()
            names += [STRING_STARTS, STRING_DATA]
        self._points.close()
        self._spool.close()
        whole, digests = hashlib.sha256(), {}
        # Hashing releases the GIL.
        with ThreadPoolExecutor(1) as other:
            for name in names:
                of_file = hashlib.sha256()
                with (self.arrays / f"{name}.npy").open("rb") as file:
                    npy.read_magic(file)
                    npy.read_array_header_1_0(file)
                    header = file.tell()
                    file.seek(0)
                    of_file.update(file.read(header))
                    while piece := file.read(COPY_BYTES):
                        hashed = other.submit(whole.update, piece)
                        of_file.update(piece)
                        hashed.result()
                digests[name] = of_file.hexdigest()
        return whole.digest(), digests

    def strings(self, place: int) -> Strings:
        """A column of strings, mapped into memory; all are laid out."""
        starts = np.load(self.arrays / f"{STRING_STARTS}.npy", mmap_mode="r")[place]
        data = np.load(self.arrays / f"{STRING_DATA}.npy", mmap_mode="r")
        begin = sum(self.string_bytes[:place])
        return Strings(starts, data[begin : begin + self.string_bytes[place]])

    def shape(self, schema: points_pb2.TableSchema | None) -> points_pb2.PointsShape:
        """The layout of what was written."""
        dense = points_pb2.DenseShape(rows=self.rows, columns=self.width, data_type=DATA_TYPES[self.dtype])
        return points_pb2.PointsShape(dense=dense, schema=schema, string_bytes=self.string_bytes)

    def _write_strings(self) -> None:
        parts = (
            Part(STRING_STARTS, STARTS, (len(self.string_bytes), self.rows + 1)),
            Part(STRING_DATA, DATA, (sum(self.string_bytes),)),
        )
        for part, first in zip(parts, (0, 2), strict=True):
            with (self.arrays / f"{part.name}.npy").open("wb+") as file:
                self._write_header(file, part.shape, part.dtype)
                for pieces in self._pieces:
                    if part.name == STRING_STARTS:
                        file.write(bytes(STARTS.itemsize))
                    for piece in pieces:
                        self._copy(piece[first], piece[first + 1], file)

    def _copy(self, at: int, size: int, file: IO[bytes]) -> None:
        self._spool.seek(at)
        while size:
            piece = self._spool.read(min(size, COPY_BYTES))
            file.write(piece)
            size -= len(piece)

    @staticmethod
    def _write_header(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Write the header, which NumPy makes as long for any number of rows."""
        file.seek(0)
        npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
