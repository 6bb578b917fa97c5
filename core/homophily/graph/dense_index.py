"""Index of the rows of an array; ``neighbors`` says which search it takes."""

from __future__ import annotations

import warnings
from copy import copy
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from homophily.arrays import Floats, read_only
from homophily.exceptions import NeighborsWarning
from homophily.graph.all_pairs import lowest_scores, nearest_below, reach, score_limits
from homophily.graph.computing import Device, NeighborSearch
from homophily.graph.dense_rows import centre_rows, cosine_distances, dense_distances, inverse_lengths, unit_rows
from homophily.graph.faiss_search import all_pairs, faiss_threads, hnsw, linked, links_of, walk
from homophily.graph.index_base import (
    Distances,
    Indices,
    Metric,
    NeighborIndex,
    Report,
    available_neighbors,
    certain_count,
    part_of,
    power_of_two,
)
from homophily.graph.region_layout import Layout, Rows, Truth, learn_layout, nearest_centres, row_squares
from homophily.graph.region_search import RegionSearch
from homophily.state import FLOATS, State, StateReader

Method = Literal["auto", "kd-tree", "exact", "regions", "hnsw"]

# Measured: with 100,000 points a KD-tree is 6 times as fast as HNSW in 5 dimensions and as fast in 8; in more it visits
# most of its leaves. All pairs and HNSW cost the same at 20,000 to 27,000 points whatever the dimension.
_TREE_COLUMNS_ALWAYS = 5
_TREE_COLUMNS_LARGE = 8
_EXACT_POINTS = 25_000

_SEARCH_DEPTHS = (64, 128, 256, 512)
# What the regions are probed for; then the neighbours of neighbours are looked at, which misses fewer still.
_RECALL_PROBED = 0.998
_RECALL_WANTED = 0.99
_RECALL_GAIN = 5e-4
_RECALL_SAMPLE = 500
RECALL_NEIGHBORS = 10
# Rounds of visits to neighbours of neighbours, where regions alone reach the wanted recall and where they do not.
_ROUNDS, _MORE_ROUNDS = 1, 3
_BLOCK_ROWS = 4096


class DenseIndex(NeighborIndex):
    """Index of the rows of an array: KD-tree, all pairs, regions, or HNSW (see ``neighbors``)."""

    _search: NeighborSearch | None = None
    """All pairs on a device, during its job."""
    _links: NDArray[np.uint8] | None = None
    _layout: Layout | None = None
    _truth: Truth | None = None
    _rounds = _ROUNDS
    _inverse: Floats | None = None

    def __init__(
        self,
        X: NDArray[Any],
        metric: Metric = "euclidean",
        method: Method = "auto",
        n_jobs: int | None = None,
        report: Report | None = None,
    ):
        X = np.asarray(X)
        self.metric, self.n_jobs = metric, n_jobs
        self._dtype = np.float32 if X.dtype == np.float32 else np.float64
        self.points = self._prepare(X)
        self.size, columns = self.points.shape
        self.method = choose_method(self.size, columns) if method == "auto" else method
        # Ranks survive a shift and a scale; float32 would not survive a large mean, nor very large or small numbers.
        total, low, high = 0.0, np.inf, -np.inf
        for start in range(0, self.size, _BLOCK_ROWS):
            block = self._directed(self.points[start : start + _BLOCK_ROWS])
            total = total + block.sum(axis=0, dtype=np.float64)
            low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        self._centre = np.asarray(total / self.size)
        ends = np.concatenate([low - self._centre, high - self._centre])
        self._scale = power_of_two(abs(ends).max(initial=0.0))
        self._depth = _SEARCH_DEPTHS[0]
        if self.method in ("hnsw", "regions"):
            self._tune(report)

    @property
    def links(self) -> NDArray[np.uint8]:
        """The HNSW graph in faiss's own bytes, without the points: those it searches are made from ``points``."""
        return links_of(self._structure) if self._links is None else self._links

    def self_query(self, k: int, report: Report | None = None) -> tuple[Distances, Indices]:
        """The ``k`` nearest *other* points of every stored point; a copy of a point counts as another point."""
        if self.method != "regions" or self.size < 2:
            return super().self_query(k, report)
        k = available_neighbors(k, self.size - 1)
        search = self._structure
        count = min(_region_candidates(k), self.size - 1)
        found = search.self_candidates(
            count,
            max(self._depth, search.least_probes(count)),
            self._rounds,
            self.n_jobs,
            part_of(report, 0.0, 0.6),
        )
        answer = self._in_blocks(
            self.points,
            search.order,
            k,
            True,
            part_of(report, 0.6, 1.0),
            lambda part: search.positions(found[part]),
        )
        if self._truth is not None:
            self.recall = self._truth.recall(answer[0][self._truth.sample])
            self._warn_of_recall(stacklevel=3)
        return answer

    def on_device(self, device: Device) -> Self:
        """An index of the same points that finds neighbours on a device, during its job."""
        if self.method == "kd-tree":
            return self
        # Other threads may ask this one.
        index = copy(self)
        index.method = "exact"
        index._search = device.neighbor_search(index._searched(index.points), index._exact_part)
        return index

    def grown(self, rows: Any) -> Self:
        """An index of more points: ``rows`` in the form of ``points``. New points join the nearest region."""
        index = copy(self)
        index.points, index._built, index._inverse = np.concatenate([self.points, rows]), None, None
        index.size, index._truth = len(index.points), None
        if self._layout is not None:
            joined = nearest_centres(self._layout.coordinates(self._searched(rows)), self._layout.centres)
            index._layout = self._layout._replace(
                regions=np.concatenate([self._layout.regions, joined.astype(np.int32)])
            )
        return index

    def bounding(self, rows: NDArray[Any]) -> Rows:
        """Rows in float32 coordinates in which no Euclidean distance is larger than it is."""
        if rows is self.points and self._layout is not None:
            return np.asarray(self._structure.coordinates)
        seen = self._searched(rows).astype(np.float32, copy=False)
        return seen if self._layout is None else self._layout.coordinates(seen)

    def squared(self, distances: Floats) -> Floats:
        """Squares of distances in the units of :meth:`bounding`."""
        squares = 2.0 * distances if self.metric == "cosine" else np.square(distances)
        return np.asarray(squares / self._scale**2)

    def to_arrays(self) -> State:
        """The index as arrays, without its search structure."""
        arrays = {"points": self.points, "centre": self._centre}
        document: dict[str, Any] = {
            "kind": "dense",
            "method": self.method,
            "depth": int(self._depth),
            "scale": self._scale,
        }
        if self.method == "hnsw":
            arrays["links"] = self.links
        if self._layout is not None:
            arrays |= self._layout._asdict()
            document |= {"region_count": len(self._layout.centres), "rounds": self._rounds}
        return State(arrays, document)

    def _read(self, stored: StateReader, columns: int) -> None:
        own = columns - (self.metric == "cosine")
        points = stored.array("points", (self.size, None), FLOATS)
        if points.shape[1] not in (own, columns):
            raise ValueError(f"A graph's state must have {own} columns of points. Got {points.shape[1]} instead.")
        # Older files have rows of length one, with a column more.
        self.points = points if points.shape[1] == own else np.ascontiguousarray(points[:, :own])
        self._dtype = self.points.dtype.type
        self._centre = stored.array("centre", (columns,))
        self._truth = None
        self.method = cast(Method, stored.choice("method", "kd-tree", "exact", "regions", "hnsw"))
        self._depth = stored.integer("depth", 1)
        if self.method == "hnsw":
            self._links = stored.array("links", (None,), ("uint8",))
        if self.method == "regions":
            directions = stored.array("directions", (columns, None), ("float32",))
            width = directions.shape[1] + 1 if directions.shape[1] else columns
            centres = stored.array("centres", (stored.integer("region_count", 1), width), ("float32",))
            regions = stored.positions("regions", (self.size,), len(centres), ("int32",))
            self._layout = Layout(directions, centres, regions)
            self._rounds = stored.integer("rounds", 0)

    def _prepare(self, X: Any) -> NDArray[Any]:
        return np.ascontiguousarray(X if isinstance(X, np.ndarray) else X.toarray(), dtype=self._dtype)

    def _directed(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows whose Euclidean distances rank as the metric does."""
        return unit_rows(rows) if self.metric == "cosine" else rows

    def _visits(self) -> NDArray[np.int64]:
        # Leaf by leaf, a KD-tree finds what it needs in the cache: twice as fast.
        return np.asarray(self._structure.indices) if self.method == "kd-tree" else super()._visits()

    def _searched(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows as the search structure sees them: centred, scaled, in float32 but for the KD-tree."""
        dtype = np.float64 if self.method == "kd-tree" else np.float32
        seen = np.empty((len(rows), len(self._centre)), dtype=dtype)
        # Of float32 points a centre in float32 is as good: it is taken from all of them alike.
        centre = self._centre.astype(np.float32 if rows.dtype == np.float32 else np.float64)
        scale = centre.dtype.type(1.0 / self._scale)
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            centre_rows(read_only(self._directed(rows[block])), centre, scale, seen[block])
        return seen

    def _seen(self, which: Any) -> Rows:
        return self._searched(self.points[which])

    @property
    def _structure(self) -> Any:
        if self._built is None:
            self._built = self._build()
        return self._built

    def _build(self) -> Any:
        if self.method == "regions":
            assert self._layout is not None
            return RegionSearch(self._layout, self._seen, self.n_jobs)
        seen = self._searched(self.points)
        if self.method == "kd-tree":
            return KDTree(seen)
        with faiss_threads(self.n_jobs):
            if self.method == "exact":
                return all_pairs(seen)
            return hnsw(seen) if self._links is None else linked(seen, self._links)

    def _candidates(self, rows: NDArray[Any], count: int) -> NDArray[np.int64]:
        seen, threads = self._searched(rows), self._threads(len(rows))
        if self.method == "exact":
            return self._certain(rows, seen, *self._compared(seen, count, threads))
        structure = self._structure
        if self.method == "kd-tree":
            return np.asarray(structure.query(seen, np.arange(1, count + 1), workers=threads)[1], dtype=np.int64)
        if self.method == "regions":
            probes = max(self._depth, structure.least_probes(count))
            found: NDArray[np.int64] = structure.candidates(seen, count, probes, threads)
            return found
        with faiss_threads(threads):
            return walk(structure, seen, count, self._depth)

    def _compared(self, seen: Rows, count: int, threads: int) -> tuple[NDArray[np.int64], Floats]:
        """Candidates by float32 products with all points, and the highest score among each row's."""
        if self._search is not None:
            return self._search.lowest_scores(seen, count)
        with faiss_threads(threads):
            squares, found = self._structure.search(seen, count)
        return np.asarray(found), squares[:, -1] - row_squares(seen.astype(np.float64))

    def _certain(self, rows: NDArray[Any], seen: Rows, found: NDArray[np.int64], scores: Floats) -> NDArray[np.int64]:
        """The candidates, replaced where rounding may have hidden one of the nearest; ``all_pairs`` says how."""
        count, columns = found.shape[1], seen.shape[1]
        if count == self.size:
            return found
        lengths, distances = np.sqrt(row_squares(seen.astype(np.float64))), self._distances(rows, found)
        # Cosine distances are rounded to 1e-14.
        distances = (np.sqrt(2 * (distances + 1e-14)) if self.metric == "cosine" else distances) / self._scale
        nearest = np.partition(distances, certain_count(count) - 1, axis=1)[:, certain_count(count) - 1]
        unsure = np.flatnonzero(nearest >= reach(lengths, scores, columns))
        if unsure.size:
            limits = score_limits(lengths[unsure], distances[unsure].max(axis=1), columns)
            found[unsure] = self._compared_again(limits, seen[unsure], self._exact(rows[unsure]), count)
        return found

    def _compared_again(self, limits: Floats, seen: Rows, exact: Floats, count: int) -> NDArray[np.int64]:
        """The nearest points of rows, by float64 differences from all points whose scores are within limits."""
        if self._search is not None:
            return self._search.nearest_below(limits, seen, exact, count)
        return nearest_below(limits, self._seen, seen, self._exact_part, exact, self.size, count, self.n_jobs)

    def _exact(self, rows: NDArray[Any]) -> Floats:
        """Rows in float64 whose differences are those of ``_searched``, before rounding."""
        return np.asarray(self._directed(rows) * np.float64(1.0 / self._scale))

    def _exact_part(self, which: slice) -> Floats:
        return self._exact(self.points[which])

    def _distances(self, rows: NDArray[Any], candidates: NDArray[np.int64]) -> Distances:
        points = read_only(self.points)
        if self.metric != "cosine":
            return self._run_rows(dense_distances, rows, points, candidates, self._scale)
        if self._inverse is None:
            self._inverse = inverse_lengths(self.points)
        return self._run_rows(cosine_distances, rows, points, candidates, inverse_lengths(rows), self._inverse)

    def _nearest(
        self,
        rows: Any,
        own: NDArray[np.int64],
        k: int,
        count: int,
        candidates: NDArray[np.int64] | None = None,
    ) -> tuple[Distances, Indices]:
        if self.method == "regions":
            count = max(count, _region_candidates(k))
        return super()._nearest(rows, own, k, count, candidates)

    def _tune(self, report: Report | None) -> None:
        """Search as deep as the wanted recall needs, judged on a sample of the stored points."""
        k = min(RECALL_NEIGHBORS, self.size - 1)
        if k < 1:
            if self.method == "regions":
                self.method = "exact"
            return
        sample = self._sample()
        rows, seen, most = self.points[sample], self._seen(sample), min(2 * k + 2, self.size)
        near = lowest_scores(self._seen, seen, self.size, most, self.n_jobs, part_of(report, 0, 0.4))
        distances, indices, _ = self._first(rows, sample, k, self._certain(rows, seen, *near))
        self._truth = Truth(sample, indices, distances)
        if self.method == "regions":
            count = min(_region_candidates(k), self.size)
            self._layout = learn_layout(
                self._seen, self._truth, count, self.size, len(self._centre), self.n_jobs, part_of(report, 0.4, 1.0)
            )
        wanted, depths = _RECALL_WANTED, list(_SEARCH_DEPTHS)
        if self.method == "regions":
            wanted, depths = _RECALL_PROBED, self._structure.probe_steps(count)
        for depth in depths:
            before, at = self.recall, self._depth
            self._depth = depth
            self.recall = self._truth.recall(self._nearest(rows, sample, k, 2 * k + 2)[0])
            if self.recall >= wanted:
                return
            if depth != depths[0] and before >= _RECALL_WANTED and self.recall < before + _RECALL_GAIN:
                # What is still missed is missed because of the directions that were left out.
                self.recall, self._depth = before, at
                return
        self._rounds = _MORE_ROUNDS
        if self.method == "hnsw":
            self._warn_of_recall(stacklevel=4)

    def _sample(self) -> NDArray[np.int64]:
        """The points that a search is judged by."""
        return np.sort(np.random.default_rng(0).permutation(self.size)[:_RECALL_SAMPLE])

    def _warn_of_recall(self, stacklevel: int) -> None:
        if self.recall < _RECALL_WANTED:
            warnings.warn(
                f"The neighbour search finds {self.recall:.1%} of the nearest points, less than {_RECALL_WANTED:.0%}: "
                "fewer columns (for instance principal components) make it surer.",
                NeighborsWarning,
                stacklevel=stacklevel + 1,
            )


def choose_method(points: int, columns: int) -> Method:
    """The CPU's search for this number of points and columns."""
    few = _TREE_COLUMNS_ALWAYS if points <= _EXACT_POINTS else _TREE_COLUMNS_LARGE
    return "kd-tree" if columns <= few else "exact" if points <= _EXACT_POINTS else "regions"


def _region_candidates(k: int) -> int:
    """Candidates for the ``k`` nearest: directions that are left out change ranks more than rounding does."""
    return 3 * k + 8
