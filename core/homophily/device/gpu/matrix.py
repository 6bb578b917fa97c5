"""Sparse matrices and sums on the device: the two things every solver here is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.device.backend import CupyBackend
from homophily.device.kernels import THREADS

#: Most threads that share an entry of a product: a warp.
WARP = 32
#: Rows that a block of the first stage of a sum takes, as in ``reduce.cu``.
ROWS = 4 * THREADS


@dataclass(frozen=True)
class DeviceMatrix:
    """A CSR matrix on the device, with 32-bit indices."""

    backend: CupyBackend
    shape: tuple[int, int]
    indptr: Any
    indices: Any
    data: Any
    kept: dict[Any, Any] = field(default_factory=dict)
    """What else of the same graph one fit needs again, such as its edges."""

    @classmethod
    def of(cls, backend: CupyBackend, matrix: csr_array) -> DeviceMatrix:
        """Send a matrix to the device; the same one is sent once per job."""
        check_size(matrix.shape, matrix.nnz)

        def send() -> DeviceMatrix:
            indptr, indices = (backend.to_device(part, np.int32) for part in (matrix.indptr, matrix.indices))
            return cls(backend, matrix.shape, indptr, indices, backend.to_device(matrix.data))

        made: DeviceMatrix = backend.once(matrix, send)
        return made

    def keep(self, name: Any, make: Callable[[], Any]) -> Any:
        """What was made under this name, or is made now."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    @property
    def entries(self) -> int:
        """The number of stored entries."""
        return int(self.data.size)

    def lanes(self, columns: int = 1) -> int:
        """Threads that share an entry of a product with ``columns`` columns; each takes at least two entries."""
        lanes = 1
        while 4 * lanes * self.shape[0] <= self.entries and 2 * lanes * columns <= WARP:
            lanes *= 2
        return lanes

    def product(self, x: Any, lanes: int | None = None) -> Any:
        """A x for columns x (inner, n); with one lane, rows are summed in the order of their entries."""
        return self._launch("csr_product", x, self.indptr, self.indices, self.data, x, lanes=lanes)

    def product_if(self, go: Any, x: Any) -> Any:
        """A x where the number ``go`` (1,) on the device is not 0, anything where it is."""
        return self._launch("csr_product_if", x, go, self.indptr, self.indices, self.data, x)

    def product_plus(self, x: Any, alpha: float, beta: Any, y: Any) -> Any:
        """α A x + diag(β) y for columns x and y (rows, n)."""
        numbers = x, float(alpha), beta, y
        return self._launch("csr_product_plus", x, self.indptr, self.indices, self.data, *numbers)

    def power(self, power: int, x: Any) -> Any:
        """A^p x by p products."""
        for _ in range(power):
            x = self.product(x)
        return x

    def rows(self) -> Any:
        """The row of every entry."""
        xp = self.backend.xp
        entries = xp.arange(self.entries, dtype=np.int32)
        return xp.searchsorted(self.indptr, entries, side="right").astype(np.int32) - 1

    def plus_diagonal(self, diagonal: Floats | None) -> DeviceMatrix:
        """The matrix + diag(``diagonal``), which is 0 wherever no diagonal entry is stored, as in empty rows."""
        if diagonal is None:
            return self
        xp, added = self.backend.xp, self.backend.to_device(diagonal)
        on_diagonal = self.keep("on the diagonal", lambda: self.rows() == self.indices)
        data = self.data + xp.where(on_diagonal, xp.take(added, self.indices), 0.0)
        return replace(self, data=data, kept={})

    def _launch(self, kernel: str, x: Any, *arguments: Any, lanes: int | None = None) -> Any:
        rows, columns, lanes = self.shape[0], x.shape[1], lanes or self.lanes(x.shape[1])
        out = self.backend.xp.empty((rows, columns))
        sizes = *self.shape, columns, lanes, self.entries
        self.backend.kernels.launch(kernel, rows * columns * lanes, *sizes, *arguments, out)
        return out


def check_size(shape: tuple[int, int], entries: int) -> None:
    """Refuse a matrix whose indices do not fit 32 bits."""
    if entries >= 2**31 or max(shape) >= 2**31:
        raise ValueError(
            f"A matrix on the GPU must have fewer than 2^31 rows and entries. Got {shape[0]} rows and {entries} entries"
            " instead: use backend='numpy'."
        )


def column_dots(backend: CupyBackend, x: Any, y: Any) -> Any:
    """Σ_i x_ic y_ic of each column c of two arrays (rows, n), as an array (n,) on the device."""
    rows, columns = x.shape
    blocks = max(1, -(-rows // ROWS))
    partial, out = backend.xp.empty((blocks, columns)), backend.xp.empty(columns)
    backend.kernels.launch("column_dots", blocks * THREADS, rows, columns, blocks, x, y, partial, across=columns)
    add_blocks(backend, partial, out)
    return out


def add_blocks(backend: CupyBackend, partial: Any, out: Any) -> None:
    """Set out[c] ← Σ_b partial[b, c]."""
    blocks, columns = partial.shape
    backend.kernels.launch("column_sums", columns * THREADS, blocks, columns, partial, out)


def dot(backend: CupyBackend, x: Any, y: Any) -> Any:
    """Σ x y over all entries, as an array (1,) on the device."""
    return column_dots(backend, x.reshape(-1, 1), y.reshape(-1, 1))
