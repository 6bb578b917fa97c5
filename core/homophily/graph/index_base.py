"""An index of points that can be asked for the nearest of them: what all indexes share.

The indexes themselves are in ``dense_index`` and ``sparse_index``; ``neighbors`` chooses between them.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray

from homophily.arrays import Floats
from homophily.exceptions import NeighborsWarning
from homophily.state import State, StateReader
from homophily.threads import even_rows, run_ranges, thread_count

Metric = Literal["euclidean", "cosine"]
Distances = Floats
Indices = NDArray[np.int32]
Report = Callable[[float], object]
"""Called with the share of the work that is done; may raise to cancel."""

# Rows at a time: few enough that a report follows the one before within a second or two.
_BLOCK_ROWS = 4096
# Fewer rows are found sooner than a second thread is at work.
_ROWS_WORTH_THREADS = 64
# When more points than this are equally near, the lowest indices among those found are taken.
_MOST_CANDIDATES = 1024


class NeighborIndex(ABC):
    """Stored points that can be asked for the nearest of them.

    ``recall`` is the share of the true ten nearest points that a search finds: 1 for an exact index, measured for
    the others. The search structure itself is not pickled; it is built again, to the same bits, when first needed.
    """

    recall: float = 1.0
    size: int
    metric: Metric
    n_jobs: int | None
    points: Any
    """The stored points, in the form distances are computed from."""
    _scale: float
    _built: Any = None

    def query(self, X: Any, k: int) -> tuple[Distances, Indices]:
        """Distances to and indices of the ``k`` stored points nearest to each row of ``X``; nearest first."""
        rows = self._prepare(X)
        return self._in_blocks(rows, np.arange(rows.shape[0]), available_neighbors(k, self.size), False)

    def self_query(self, k: int, report: Report | None = None) -> tuple[Distances, Indices]:
        """The ``k`` nearest *other* points of every stored point; a copy of a point counts as another point."""
        k = available_neighbors(k, self.size - 1)
        return self._in_blocks(self.points, self._visits(), k, True, report)

    @abstractmethod
    def grown(self, rows: Any) -> Self:
        """An index of more points: ``rows`` in the form of ``points``."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_built": None}

    @abstractmethod
    def to_arrays(self) -> State:
        """The index as arrays, without its search structure."""

    @classmethod
    def from_arrays(cls, stored: StateReader, size: int, columns: int, metric: Metric, n_jobs: int | None) -> Self:
        """The index of ``size`` points with ``columns`` columns whose :meth:`to_arrays` is stored."""
        # Not by the constructor, which would prepare and measure the points again.
        index = cls.__new__(cls)
        index.size, index.metric, index.n_jobs = size, metric, n_jobs
        index._scale = stored.number("scale")
        if not 0 < index._scale < np.inf:
            raise ValueError(f"The 'scale' of a graph's state must be positive and finite. Got {index._scale} instead.")
        # For the cosine, a row of zeros has a direction of its own: one column more.
        index._read(stored, columns + (metric == "cosine"))
        return index

    @abstractmethod
    def _read(self, stored: StateReader, columns: int) -> None:
        """Read the points."""

    @abstractmethod
    def _prepare(self, X: Any) -> Any:
        """Bring rows into the form of ``points``."""

    @abstractmethod
    def _candidates(self, rows: Any, count: int) -> NDArray[np.int64]:
        """Indices of about the ``count`` nearest stored points, in any order, each one once."""

    @abstractmethod
    def _distances(self, rows: Any, candidates: NDArray[np.int64]) -> Distances:
        """Distance from each row to each of its candidates, in float64."""

    def _visits(self) -> NDArray[np.int64]:
        """The order in which the stored points are best looked up."""
        return np.arange(self.size)

    def _threads(self, rows: int) -> int:
        return thread_count(self.n_jobs if rows >= _ROWS_WORTH_THREADS else 1)

    def _run_rows(
        self, kernel: Any, rows: Any, points: Any, candidates: NDArray[np.int64], *arguments: Any
    ) -> Distances:
        """The kernel's distances."""
        distances, count = np.empty(candidates.shape), len(candidates)
        run_ranges(kernel, even_rows(count, self._threads(count)), rows, points, candidates, *arguments, distances)
        return distances

    def _in_blocks(
        self,
        rows: Any,
        visits: NDArray[np.int64],
        k: int,
        stored: bool,
        report: Report | None = None,
        proposed: Callable[[slice], NDArray[np.int64]] | None = None,
    ) -> tuple[Distances, Indices]:
        """The nearest points of the rows, in the order of ``visits``; ``proposed`` gives the candidates of a block."""
        m = rows.shape[0]
        distances, indices = np.empty((m, k)), np.empty((m, k), dtype=np.int32)
        for start in range(0, m if k else 0, _BLOCK_ROWS):
            part = slice(start, start + _BLOCK_ROWS)
            block = visits[part]
            own = block if stored else np.full(block.size, -1)
            candidates = None if proposed is None else proposed(part)
            distances[block], indices[block] = self._nearest(rows[block], own, k, candidate_count(k), candidates)
            if report is not None:
                report(min(1.0, part.stop / m))
        return distances, indices

    def _nearest(
        self,
        rows: Any,
        own: NDArray[np.int64],
        k: int,
        count: int,
        candidates: NDArray[np.int64] | None = None,
    ) -> tuple[Distances, Indices]:
        """The first ``k`` of ``count`` candidates; a row's own index (-1: none) is left out."""
        if candidates is None:
            candidates = self._candidates(rows, min(count, self.size))
        distances, indices, tied = self._first(rows, own, k, candidates)
        if k < candidates.shape[1] < min(self.size, _MOST_CANDIDATES):
            again = np.flatnonzero(tied)
            if again.size:
                more = min(4 * candidates.shape[1], _MOST_CANDIDATES)
                distances[again], indices[again] = self._nearest(rows[again], own[again], k, more)
        return distances, indices

    def _first(
        self, rows: Any, own: NDArray[np.int64], k: int, candidates: NDArray[np.int64]
    ) -> tuple[Distances, Indices, NDArray[np.bool_]]:
        """The first ``k`` candidates, and whether other points may tie with the last of them."""
        m = len(candidates)
        measured = self._distances(rows, candidates)
        distances, indices, tied = np.empty((m, k)), np.empty((m, k), dtype=np.int32), np.empty(m, dtype=np.bool_)
        bounds = even_rows(m, self._threads(m))
        run_ranges(_take_first, bounds, measured, candidates, own, distances, indices, tied)
        return distances, indices, tied


def candidate_count(k: int) -> int:
    """Candidates for the ``k`` nearest points of an index whose ranks are off by rounding alone."""
    return k + 1 + max(8, k // 4)


def certain_count(count: int) -> int:
    """How many of the nearest points ``count`` candidates must hold for certain: the k nearest, and the row itself."""
    return max(1, count - max(8, (count - 1) // 5))


def available_neighbors(k: int, most: int) -> int:
    """``k``, or with a warning as many as there are."""
    if k < 1:
        raise ValueError(f"The number of neighbours must be at least 1. Got {k} instead.")
    if k > most:
        warnings.warn(f"{k} neighbours were asked for, but only {most} exist: using {most}.", NeighborsWarning, 3)
    return int(min(k, most))


def part_of(report: Report | None, low: float, high: float) -> Report | None:
    """A report of a part of the work, as one of the whole."""
    return None if report is None else lambda share: report(low + (high - low) * share)


def power_of_two(largest: float) -> float:
    """A scale that changes no digit and keeps squares within range."""
    return float(2.0 ** np.clip(np.frexp(largest)[1], -1000, 1000)) if largest > 0 else 1.0


@njit(cache=True, nogil=True)
def _take_first(first, last, measured, candidates, own, distances, indices, tied):  # type: ignore[no-untyped-def]
    """The nearest candidates by (distance, index), without a row's own index and without those below 0.

    ``tied`` tells that the last of all candidates is as near as the last one taken: a point not among them may tie with
    a lower index.
    """
    k = distances.shape[1]
    for i in range(first, last):
        size, farthest = 0, -1.0
        near, names = distances[i], indices[i]
        for c in range(candidates.shape[1]):
            name, distance = candidates[i, c], measured[i, c]
            if name < 0 or name == own[i]:
                continue
            farthest = max(farthest, distance)
            place = min(size, k - 1)
            if size == k and (distance > near[place] or (distance == near[place] and name > names[place])):
                continue
            while place > 0 and (
                distance < near[place - 1] or (distance == near[place - 1] and name < names[place - 1])
            ):
                near[place], names[place] = near[place - 1], names[place - 1]
                place -= 1
            near[place], names[place] = distance, name
            size = min(size + 1, k)
        for place in range(size, k):
            near[place], names[place] = np.inf, 0
        tied[i] = size < k or near[k - 1] == farthest
