"""The coordinates in which points are near one another: principal directions of the points, as they are or whitened."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import eigh

from homophily.arrays import Floats
from homophily.exceptions import ParameterError
from homophily.parameters import wrong_parameter
from homophily.state import State, StateReader
from homophily.threads import even_rows, run_ranges, thread_count

SpaceName = Literal["input", "principal", "whitened"]

#: How many count when nobody says; what noise is spread over, all the rest of them, is left out.
PRINCIPAL_DIRECTIONS = 50
#: The matrix of covariances, and its eigenvectors, take this many columns in seconds.
MOST_COLUMNS = 8192
#: Of the largest variance; what is below it is rounding.
LEAST_VARIANCE = 1e-10
_BLOCK_ROWS = 4096


class Space(NamedTuple):
    """A linear map of points to the coordinates that distances are taken in."""

    origin: Floats
    """(d,), the mean of the points."""
    directions: Floats
    """(d, m), orthogonal columns; of length 1, or divided by the points' deviation along them."""

    @classmethod
    def learn(cls, X: NDArray[Any], name: SpaceName, count: int | None = None) -> Self:
        """The leading ``count`` principal directions of the rows of X, whitened or not; None as for graphs."""
        u, d = X.shape
        if d > MOST_COLUMNS:
            must = f"'input' for more than {MOST_COLUMNS} columns"
            raise wrong_parameter("space", "KNNGraph", must, f"{name!r} with {d} columns")
        origin = X.mean(axis=0, dtype=np.float64)
        covariances = np.zeros((d, d))
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, u, _BLOCK_ROWS):
                centred = X[start : start + _BLOCK_ROWS] - origin
                covariances += centred.T @ centred / u
        if not np.isfinite(covariances).all():
            raise ParameterError(f"The 'X' parameter of KNNGraph must have finite variances with space={name!r}.", "X")
        if count is None:
            count = PRINCIPAL_DIRECTIONS if name == "principal" else d
        variances, directions = eigh(covariances, subset_by_index=(max(0, d - count), d - 1))
        kept = variances > LEAST_VARIANCE * variances[-1]
        if name == "whitened":
            directions[:, kept] /= np.sqrt(variances[kept])
        # The largest first; where all points are one, a single direction stands for none.
        kept[-1] = True
        return cls(origin, np.ascontiguousarray(directions[:, kept][:, ::-1]))

    def to_arrays(self) -> State:
        """The space as arrays."""
        return State({f"space_{name}": array for name, array in self._asdict().items()}, {})

    @classmethod
    def from_arrays(cls, stored: StateReader, columns: int) -> Self:
        """The stored space, of points with ``columns`` columns."""
        return cls(stored.array("space_origin", (columns,)), stored.array("space_directions", (columns, None)))

    def __call__(self, X: Any, n_jobs: int | None = None) -> NDArray[Any]:
        """Points in these coordinates, each row by itself: copies of a point stay copies, however many are asked."""
        rows = np.ascontiguousarray(X if isinstance(X, np.ndarray) else X.toarray())
        seen = np.zeros((rows.shape[0], self.directions.shape[1]))
        chunks = thread_count(n_jobs) if rows.shape[0] > _BLOCK_ROWS else 1
        run_ranges(_turn, even_rows(rows.shape[0], chunks), rows, self.origin, self.directions, seen)
        return seen.astype(rows.dtype, copy=False)


@njit(cache=True, nogil=True)
def _turn(start, stop, rows, origin, directions, seen):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        for d in range(origin.size):
            away = rows[i, d] - origin[d]
            for m in range(directions.shape[1]):
                seen[i, m] += away * directions[d, m]
