"""Search for the k nearest points, dense or sparse: which points are near and how far.

What their distances mean for a graph is decided in ``knn_graph``.

Every search has two steps. An index proposes a few more candidates than were asked for; then their distances are
computed anew in float64 and sorted by (distance, index). So a float32 index costs no accuracy, copies of a point are
at distance 0 exactly, and of equally near points the lowest index comes first.

Candidates come from, by the first line that fits:

====================  =====================================================================================
sparse (CSR)          top-k sparse products; exact, nothing is made dense
≤ 5 columns           KD-tree; exact
≤ 25,000 points       all pairs (faiss); exact
≤ 8 columns           KD-tree; exact
else                  HNSW (faiss), whose recall is measured on a sample
====================  =====================================================================================

Cosine distance is 1 − cos = ½‖a − b‖² of the rows scaled to length one, so it needs no search of its own. A row of
zeros has no direction: it gets one of its own, at distance 1 from every other row and 0 from other rows of zeros.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self, cast

import faiss
import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import KDTree
from sparse_dot_topn import sp_matmul_topn

from homophily.arrays import Floats, read_only
from homophily.exceptions import NeighborsWarning
from homophily.graph.computing import Device, NeighborSearch
from homophily.state import FLOATS, State, StateReader, csr_arrays
from homophily.threads import even_rows, run_ranges, thread_count

Metric = Literal["euclidean", "cosine"]
Method = Literal["auto", "kd-tree", "exact", "hnsw"]
Distances = Floats
Indices = NDArray[np.int32]

# Measured: with 100,000 points a KD-tree is 6 times as fast as HNSW in 5 dimensions and as fast in 8; in more it visits
# most of its leaves. All pairs and HNSW cost the same at 20,000 to 27,000 points whatever the dimension.
_TREE_COLUMNS_ALWAYS = 5
_TREE_COLUMNS_LARGE = 8
_EXACT_POINTS = 25_000

_HNSW_LINKS = 16
_HNSW_BUILD_DEPTH = 80
_HNSW_SEARCH_DEPTHS = (64, 128, 256, 512)
_RECALL_WANTED = 0.99
_RECALL_SAMPLE = 500
_RECALL_NEIGHBORS = 10

_BLOCK_ROWS = 16_384
# Fewer rows are found sooner than a second thread is at work.
_ROWS_WORTH_THREADS = 64
_IMPORTED_BY = os.getpid()
# When more points than this are equally near, the lowest indices among those found are taken.
_MOST_CANDIDATES = 1024


class NeighborIndex(ABC):
    """Stored points that can be asked for the nearest of them.

    ``recall`` is the share of the true ten nearest points that a search finds: 1 for an exact index, measured for
    HNSW. The search structure itself is not pickled; it is built again, to the same bits, when first needed.
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

    def self_query(self, k: int) -> tuple[Distances, Indices]:
        """The ``k`` nearest *other* points of every stored point; a copy of a point counts as another point."""
        return self._in_blocks(self.points, self._visits(), available_neighbors(k, self.size - 1), True)

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

    def _run_rows(self, kernel: Any, rows: Any, points: Any, candidates: NDArray[np.int64]) -> Distances:
        """The kernel's distances in the index's metric."""
        distances, count = np.empty(candidates.shape), len(candidates)
        run_ranges(kernel, even_rows(count, self._threads(count)), rows, points, candidates, self._scale, distances)
        # Scaling to length one leaves errors near 1e-16; rounded off, equal directions and right angles tie exactly.
        return np.round(0.5 * distances**2, 14) if self.metric == "cosine" else distances

    def _in_blocks(self, rows: Any, visits: NDArray[np.int64], k: int, stored: bool) -> tuple[Distances, Indices]:
        m = rows.shape[0]
        distances, indices = np.empty((m, k)), np.empty((m, k), dtype=np.int32)
        for start in range(0, m if k else 0, _BLOCK_ROWS):
            block = visits[start : start + _BLOCK_ROWS]
            own = block if stored else np.full(block.size, -1)
            distances[block], indices[block] = self._nearest(rows[block], own, k, k + 1 + max(8, k // 4))
        return distances, indices

    def _nearest(self, rows: Any, own: NDArray[np.int64], k: int, count: int) -> tuple[Distances, NDArray[np.int64]]:
        """The first ``k`` of ``count`` candidates; a row's own index (-1: none) is left out."""
        count = min(count, self.size)
        candidates = self._candidates(rows, count)
        distances = self._distances(rows, candidates)
        # A point is recognised by its index: among copies of it, distance would not tell.
        distances[candidates == own[:, None]] = np.inf
        order = np.lexsort((candidates, distances))
        each = np.arange(len(order))[:, None]
        distances, candidates = distances[each, order], candidates[each, order]
        if k < count < min(self.size, _MOST_CANDIDATES):
            # The last candidate is as near as the k-th: a point not yet seen may tie with a lower index.
            last = np.where(np.isinf(distances[:, -1]), distances[:, -2], distances[:, -1])
            tied = np.flatnonzero(distances[:, k - 1] == last)
            if tied.size:
                more = min(4 * count, _MOST_CANDIDATES)
                distances[tied, :k], candidates[tied, :k] = self._nearest(rows[tied], own[tied], k, more)
        return distances[:, :k], candidates[:, :k]


def available_neighbors(k: int, most: int) -> int:
    """``k``, or with a warning as many as there are."""
    if k < 1:
        raise ValueError(f"The number of neighbours must be at least 1. Got {k} instead.")
    if k > most:
        warnings.warn(f"{k} neighbours were asked for, but only {most} exist: using {most}.", NeighborsWarning, 3)
    return int(min(k, most))


def neighbor_index(
    X: Any, metric: Metric = "euclidean", n_jobs: int | None = None, device: Device | None = None
) -> NeighborIndex:
    """Index the rows of a dense array or a sparse matrix; a GPU searches among dense rows, if that is the device."""
    if sparse.issparse(X):
        return SparseIndex(X, metric, n_jobs)
    if device is not None and device.on_device:
        return DeviceIndex(X, metric, n_jobs, device)
    return DenseIndex(X, metric, n_jobs=n_jobs)


class DenseIndex(NeighborIndex):
    """Index of the rows of an array: KD-tree, all pairs, or HNSW (see the module's table)."""

    _links: NDArray[np.uint8] | None = None

    def __init__(
        self, X: NDArray[Any], metric: Metric = "euclidean", method: Method = "auto", n_jobs: int | None = None
    ):
        X = np.asarray(X)
        self.metric, self.n_jobs = metric, n_jobs
        self._dtype = np.float32 if X.dtype == np.float32 and metric == "euclidean" else np.float64
        self.points = self._prepare(X)
        self.size, columns = self.points.shape
        self.method = _choose_method(self.size, columns) if method == "auto" else method
        # Ranks survive a shift and a scale; float32 would not survive a large mean, nor very large or small numbers.
        self._centre = self.points.mean(axis=0, dtype=np.float64)
        ends = np.concatenate([self.points.min(axis=0) - self._centre, self.points.max(axis=0) - self._centre])
        self._scale = _power_of_two(abs(ends).max(initial=0.0))
        self._depth = _HNSW_SEARCH_DEPTHS[0]
        if self.method == "hnsw":
            self._tune()

    @property
    def links(self) -> NDArray[np.uint8]:
        """The HNSW graph in faiss's own bytes, without the points: those it searches are made from ``points``."""
        if self._links is not None:
            return self._links
        return np.asarray(faiss.serialize_index(self._structure, faiss.IO_FLAG_SKIP_STORAGE), dtype=np.uint8)

    def to_arrays(self) -> State:
        """The index as arrays, without its search structure."""
        arrays = {"points": self.points, "centre": self._centre}
        if self.method == "hnsw":
            arrays["links"] = self.links
        return State(arrays, {"kind": "dense", "method": self.method, "depth": int(self._depth), "scale": self._scale})

    def _read(self, stored: StateReader, columns: int) -> None:
        self.points = stored.array("points", (self.size, columns), FLOATS)
        self._dtype = self.points.dtype.type
        self._centre = stored.array("centre", (columns,))
        self.method = cast(Method, stored.choice("method", "kd-tree", "exact", "hnsw"))
        self._depth = stored.integer("depth", 1)
        if self.method == "hnsw":
            self._links = stored.array("links", (None,), ("uint8",))

    def _prepare(self, X: Any) -> NDArray[Any]:
        X = np.ascontiguousarray(X if isinstance(X, np.ndarray) else X.toarray(), dtype=self._dtype)
        return _unit_rows(X) if self.metric == "cosine" else X

    def _visits(self) -> NDArray[np.int64]:
        # Leaf by leaf, a KD-tree finds what it needs in the cache: twice as fast.
        return np.asarray(self._structure.indices) if self.method == "kd-tree" else super()._visits()

    def _searched(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows as the search structure sees them: centred, scaled, in float32 for faiss."""
        seen = np.empty(rows.shape, dtype=np.float64 if self.method == "kd-tree" else np.float32)
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            # New points may lie so far out that their square would not fit.
            seen[block] = ((rows[block] - self._centre) / self._scale).clip(-1e15, 1e15)
        return seen

    @property
    def _structure(self) -> Any:
        if self._built is None:
            seen = self._searched(self.points)
            with _faiss_threads(self.n_jobs):
                self._built = _STRUCTURES[self.method](seen) if self._links is None else _linked(seen, self._links)
        return self._built

    def _candidates(self, rows: NDArray[Any], count: int) -> NDArray[np.int64]:
        seen, structure = self._searched(rows), self._structure
        if self.method == "kd-tree":
            found = structure.query(seen, np.arange(1, count + 1), workers=self._threads(len(rows)))[1]
            return np.asarray(found, dtype=np.int64)
        with _faiss_threads(self._threads(len(rows))):
            if self.method == "exact":
                return np.asarray(structure.search(seen, count)[1])
            depth = faiss.SearchParametersHNSW(  # type: ignore[attr-defined]
                efSearch=max(self._depth, count + self._depth // 2)
            )
            found = structure.search(seen, count, params=depth)[1]
            # Among many copies of one point the walk can end early; -1 marks what it did not find.
            short = np.flatnonzero((found < 0).any(axis=1))
            if short.size:
                found[short] = faiss.downcast_index(structure.storage).search(seen[short], count)[1]
            return np.asarray(found)

    def _distances(self, rows: NDArray[Any], candidates: NDArray[np.int64]) -> Distances:
        return self._run_rows(_dense_distances, rows, read_only(self.points), candidates)

    def _tune(self) -> None:
        """Search as deep as the wanted recall needs, judged on a sample of the stored points."""
        k = min(_RECALL_NEIGHBORS, self.size - 1)
        if k < 1:
            return
        sample = np.sort(np.random.default_rng(0).permutation(self.size)[:_RECALL_SAMPLE])
        rows, count = self.points[sample], min(2 * k + 2, self.size)
        with _faiss_threads(self.n_jobs):
            storage = faiss.downcast_index(self._structure.storage)
            exact = np.asarray(storage.search(self._searched(rows), count)[1])
        truth = self._distances(rows, exact)
        truth[exact == sample[:, None]] = np.inf
        farthest = np.sort(truth, axis=1)[:, k - 1]
        for depth in _HNSW_SEARCH_DEPTHS:
            self._depth = depth
            found, _ = self._nearest(rows, sample, k, count)
            self.recall = float(np.mean(found <= farthest[:, None]))
            if self.recall >= _RECALL_WANTED:
                return
        warnings.warn(
            f"The neighbour search finds {self.recall:.1%} of the nearest points, less than {_RECALL_WANTED:.0%}: "
            "fewer columns (for instance principal components) make it surer.",
            NeighborsWarning,
            stacklevel=4,
        )


class DeviceIndex(DenseIndex):
    """All pairs, on a GPU while the graph is made; afterwards and in other processes it is the CPU's exact index."""

    def __init__(self, X: NDArray[Any], metric: Metric, n_jobs: int | None, device: Device):
        super().__init__(X, metric, "exact", n_jobs)
        self._device: Device | None = device

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_device": None}

    def self_query(self, k: int) -> tuple[Distances, Indices]:
        """The ``k`` nearest *other* points of every stored point; the candidates come from the device."""
        if self._device is None or self.size < 2:
            return super().self_query(k)
        with self._device.job():
            self._search: NeighborSearch | None = self._device.neighbor_search(self._searched(self.points))
            try:
                return super().self_query(k)
            finally:
                self._search = None

    def _candidates(self, rows: NDArray[Any], count: int) -> NDArray[np.int64]:
        search = getattr(self, "_search", None)
        return super()._candidates(rows, count) if search is None else search(self._searched(rows), count)


class SparseIndex(NeighborIndex):
    """Index of the rows of a sparse matrix; exact.

    Top-k products rank by inner product, so both sides get a column more: (q, 1)·(x, −½‖x‖²) = ½(‖q‖² − ‖q − x‖²)
    ranks by Euclidean distance.
    """

    def __init__(self, X: Any, metric: Metric = "euclidean", n_jobs: int | None = None):
        self.metric, self.n_jobs = metric, n_jobs
        self.points = self._prepare(X)
        self.size = self.points.shape[0]
        self._scale = _power_of_two(abs(self.points.data).max(initial=0.0))

    def to_arrays(self) -> State:
        """The index as arrays, without its search structure."""
        return State(csr_arrays("points", self.points), {"kind": "sparse", "scale": self._scale})

    def _read(self, stored: StateReader, columns: int) -> None:
        # The older matrix class, as in `_prepare`.
        self.points = sparse.csr_matrix(stored.csr("points", (self.size, columns)))

    def _prepare(self, X: Any) -> Any:
        # The older matrix class, because sp_matmul_topn refuses csr_array.
        rows = sparse.csr_matrix(X, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        return _unit_sparse_rows(rows) if self.metric == "cosine" else rows

    @property
    def _structure(self) -> Any:
        if self._built is None:
            scaled = self.points / self._scale
            self._built = _with_column(scaled, -0.5 * _row_norms(scaled) ** 2).T.tocsr()
        return self._built

    def _candidates(self, rows: Any, count: int) -> NDArray[np.int64]:
        queries = _with_column(rows / self._scale, np.ones(rows.shape[0]))
        # Without a threshold of -inf, products of zero and less would be dropped. With it each row has ``count``.
        threads = self._threads(rows.shape[0])
        best = sp_matmul_topn(queries, self._structure, count, threshold=-np.inf, n_threads=threads)
        return np.asarray(best.indices, dtype=np.int64).reshape(rows.shape[0], count)

    def _distances(self, rows: Any, candidates: NDArray[np.int64]) -> Distances:
        ours = (rows.indptr, rows.indices, rows.data)
        theirs = tuple(read_only(part) for part in (self.points.indptr, self.points.indices, self.points.data))
        return self._run_rows(_sparse_distances, ours, theirs, candidates)


def _all_pairs(points: NDArray[np.float32]) -> Any:
    structure = faiss.IndexFlatL2(points.shape[1])
    structure.add(points)
    return structure


def _hnsw(points: NDArray[np.float32]) -> Any:
    structure = faiss.IndexHNSWFlat(points.shape[1], _HNSW_LINKS)
    structure.hnsw.efConstruction = _HNSW_BUILD_DEPTH
    # faiss ≥ 1.15 links the points the same way whatever the thread count (before, only with one thread).
    structure.add(points)
    return structure


def _linked(points: NDArray[np.float32], links: NDArray[np.uint8]) -> Any:
    """What ``_hnsw`` makes of the points, from the links it found before."""
    try:
        structure = faiss.deserialize_index(links)  # checks that links lead to points
    except RuntimeError as error:
        raise ValueError("The links of the neighbour index cannot be read.") from error
    shape = structure.ntotal, structure.d
    if not isinstance(structure, faiss.IndexHNSWFlat) or shape != points.shape or structure.storage is not None:
        raise ValueError(f"The links of the neighbour index must be of {points.shape} points. Got {shape} instead.")
    storage = _all_pairs(points)
    structure.storage, structure.own_fields = storage, True
    storage.this.disown()
    return structure


_STRUCTURES: dict[str, Callable[[Any], Any]] = {"kd-tree": KDTree, "exact": _all_pairs, "hnsw": _hnsw}


def _choose_method(points: int, columns: int) -> Method:
    few = _TREE_COLUMNS_ALWAYS if points <= _EXACT_POINTS else _TREE_COLUMNS_LARGE
    return "kd-tree" if columns <= few else "exact" if points <= _EXACT_POINTS else "hnsw"


def _power_of_two(largest: float) -> float:
    """A scale that changes no digit and keeps squares within range."""
    return float(2.0 ** np.clip(np.frexp(largest)[1], -1000, 1000)) if largest > 0 else 1.0


def _unit_rows(X: NDArray[Any]) -> Floats:
    """Rows of length one; the column added is 1 for rows of zeros, which thus point where no other row does."""
    largest = abs(X).max(axis=1, initial=0.0)
    unit = np.zeros((X.shape[0], X.shape[1] + 1))
    np.divide(X, largest[:, None], out=unit[:, :-1], where=largest[:, None] > 0)
    unit[:, -1] = largest == 0
    unit /= np.sqrt(np.einsum("ij,ij->i", unit, unit))[:, None]
    return unit


def _unit_sparse_rows(rows: Any) -> Any:
    """The same for sparse rows; their zeros stay unstored."""
    counts = np.diff(rows.indptr)
    largest = np.zeros(rows.shape[0])
    np.maximum.at(largest, np.repeat(np.arange(rows.shape[0]), counts), abs(rows.data))
    rows.data /= np.repeat(np.where(largest > 0, largest, 1.0), counts)
    norms = _row_norms(rows)
    rows.data /= np.repeat(np.where(norms > 0, norms, 1.0), counts)
    unit = _with_column(rows, (norms == 0).astype(np.float64))
    unit.eliminate_zeros()
    return unit


def _row_norms(rows: Any) -> Floats:
    return np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1), dtype=np.float64).ravel())


def _with_column(rows: Any, column: Floats) -> Any:
    """Append a column, every entry stored even where it is zero."""
    m = rows.shape[0]
    stored = sparse.csr_matrix((column, np.zeros(m, dtype=np.int32), np.arange(m + 1)), shape=(m, 1))
    return sparse.hstack([rows, stored], format="csr")


@contextmanager
def _faiss_threads(n_jobs: int | None) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    # OpenMP's threads do not survive a fork: a forked child that asks for them waits for ever.
    faiss.omp_set_num_threads(thread_count(n_jobs) if os.getpid() == _IMPORTED_BY else 1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


# Sums may be reordered for speed (a relative error near 1e-16·columns); whatever the order, (a − b)² = (b − a)², and
# equal points are at distance 0.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _dense_distances(start, stop, rows, points, candidates, scale, out):  # type: ignore[no-untyped-def]
    inverse = 1.0 / scale
    for i in range(start, stop):
        for c in range(candidates.shape[1]):
            j = candidates[i, c]
            total = 0.0
            for d in range(rows.shape[1]):
                difference = (np.float64(rows[i, d]) - np.float64(points[j, d])) * inverse
                total += difference * difference
            out[i, c] = scale * np.sqrt(total)


@njit(cache=True, nogil=True)
def _sparse_distances(start, stop, rows, points, candidates, scale, out):  # type: ignore[no-untyped-def]
    row_starts, row_columns, row_values = rows
    starts, columns, values = points
    for i in range(start, stop):
        for c in range(candidates.shape[1]):
            j = candidates[i, c]
            a, a_end = row_starts[i], row_starts[i + 1]
            b, b_end = starts[j], starts[j + 1]
            total = 0.0
            while a < a_end or b < b_end:
                difference = 0.0
                column = min(row_columns[a] if a < a_end else columns[b], columns[b] if b < b_end else row_columns[a])
                if a < a_end and row_columns[a] == column:
                    difference += row_values[a]
                    a += 1
                if b < b_end and columns[b] == column:
                    difference -= values[b]
                    b += 1
                difference /= scale
                total += difference * difference
            out[i, c] = scale * np.sqrt(total)
