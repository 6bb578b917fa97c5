"""Gauss sums on the device for one, two and three dimensions: Fourier modes, or near pairs where those are too many.

With g(m) = Σ_i exp(−2‖m − f_i‖²/σ²) and m_jk the middle of an edge, tr(KᵀGK) = Σ_jk G_jk φ_jk g(m_jk). Within a box
around the values the Gaussian is a Fourier series, whose number of modes grows with the box in units of σ_f:

- one dimension: the modes are summed by kernels over points and rows of G (``modes.cu``), with nothing in memory but
  the sums;
- two and three: exp(iω·m) is a product over dimensions, so that sums over points and edges are matrix products;
- where values scatter over many σ_f: sums over near pairs (``pairs.cu``), exact to the tolerance wherever F is.

Our kernels add in a fixed order, without atomics; matrix products and CuPy's own sums follow their libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log, pi, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from homophily.arrays import Floats
from homophily.device.backend import CupyBackend
from homophily.device.gpu.matrix import DeviceMatrix, add_blocks, dot
from homophily.device.kernels import THREADS

#: Of terms in float32.
MIXED_ACCURACY = 1e-8
CHUNK = 8
"""Modes per pass, as in ``modes.cu``."""
#: Blocks of a sum: eight for each of an H100's 132 multiprocessors, ten for each of an A100's 108.
MOST_SUM_BLOCKS = 1056
#: Enough for values on a line that spread over 1,600 σ_f.
MOST_LINE_MODES = 4096
#: In space, above which near pairs take over: 512 KB of sums.
MOST_MODES = 2**15
#: Phases held at once: a quarter of a gigabyte fits any GPU.
SPACE_BLOCK_BYTES = 2**28
FEWEST_ROWS = 128
#: Bits per coordinate of the curve that sorts points: three coordinates fit 32 bits.
CURVE_BITS = 10


class Series(NamedTuple):
    """The Gaussian exp(−2x²/σ²) along one axis as Σ_q c_q exp(iqωx), for |x| up to the width of a box."""

    omega: float
    coefficients: Floats
    """c_0, c_1, …; those of negative q are the same."""

    @classmethod
    def of(cls, width: float, sigma_f: float, accuracy: float) -> Series:
        """As many modes as the accuracy asks for, in a period whose images are out of the Gaussian's reach."""
        digits = sqrt(log(1 / accuracy))
        period = width + sigma_f * digits / sqrt(2)
        omega = 2 * pi / period
        modes = np.arange(ceil(digits * sqrt(2) / pi * period / sigma_f) + 1)
        scale = sqrt(pi / 2) * sigma_f / period
        return cls(omega, scale * np.exp(-((omega * modes * sigma_f) ** 2) / 8))


class Box(NamedTuple):
    """Where values may move before the modes have to be chosen anew."""

    centre: Floats
    half: Floats

    @classmethod
    def around(cls, F: Floats, sigma_f: float) -> Box:
        """A fifth of the spread, and a bit, on either side."""
        low, high = F.min(axis=0), F.max(axis=0)
        return cls((low + high) / 2, 0.7 * (high - low) + sigma_f / 4)


class LineEngine:
    """``engine(F) -> (energy, gradient)`` for F (u, 1), by Fourier modes."""

    def __init__(self, matrix: DeviceMatrix, F: Floats, sigma_f: float) -> None:
        self.backend, self.matrix, self.sigma_f = matrix.backend, matrix, sigma_f
        # Modes are cheap here: the accuracy is that of the CPU's engine, or of float32, whatever was asked for.
        self.accuracy = MIXED_ACCURACY if self.backend.is_mixed else 1e-13
        self._set_up(F)

    def _set_up(self, F: Floats) -> None:
        self.box = Box.around(F, self.sigma_f)
        width = 2 * float(self.box.half[0])
        series = Series.of(width if np.isfinite(width) else 0.0, self.sigma_f, self.accuracy)
        self.omega = series.omega
        weights = np.where(np.arange(len(series.coefficients)) > 0, 2.0, 1.0) * series.coefficients
        if not np.isfinite(width) or len(weights) > MOST_LINE_MODES:
            # Too many modes: the energy is NaN wherever F is, and whoever searches backs off.
            self.box, weights = Box(np.zeros(1), np.full(1, -1.0)), weights[:1]
        padded = np.zeros(-(-len(weights) // CHUNK) * CHUNK)
        padded[: len(weights)] = weights
        self.chunks = len(padded) // CHUNK
        # Real and imaginary parts side by side, as the kernels have them.
        self.weights = self.backend.to_device(np.repeat(padded, 2))
        self.conjugate = self.backend.to_device(np.stack([padded, -padded], axis=1).ravel())

    @property
    def is_set_up(self) -> bool:
        """Whether there are modes for the values; not if they spread too far."""
        return bool(self.box.half[0] >= 0)

    def adapt(self, F: Any) -> bool:
        """Choose the modes for F."""
        self._set_up(self.backend.to_host(F))
        return self.is_set_up

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy at F and its gradient."""
        backend, xp, launch = self.backend, self.backend.xp, self.backend.kernels.launch
        points, inverse, quick = F.shape[0], self.sigma_f**-2, backend.kernels.quick
        f = F.ravel() - float(self.box.centre[0])
        inside = (xp.abs(f).max() <= float(self.box.half[0])).reshape(1)
        lanes = self.matrix.lanes()
        blocks, edge_blocks = (min(MOST_SUM_BLOCKS, -(-threads // THREADS)) for threads in (points, points * lanes))
        partial, edge_partial = (xp.empty((count, 2 * CHUNK)) for count in (blocks, edge_blocks))
        sources, edges = xp.empty(2 * CHUNK * self.chunks), xp.empty(2 * CHUNK * self.chunks)
        gradient, half, near = xp.zeros(points), xp.empty(4 * points, dtype=quick), backend.as_quick(f)
        parts = [slice(2 * CHUNK * chunk, 2 * CHUNK * (chunk + 1)) for chunk in range(self.chunks)]
        for chunk, part in enumerate(parts):
            launch("point_modes", blocks * THREADS, points, CHUNK * chunk, blocks, self.omega, f, partial)
            add_blocks(backend, partial, sources[part])
        field = self.conjugate * sources
        for chunk, part in enumerate(parts):
            launch("half_phases", points, points, CHUNK * chunk, self.omega, f, half)
            sizes = points, self.matrix.entries, lanes, CHUNK * chunk, edge_blocks, self.omega, inverse
            matrix = self.matrix.indptr, self.matrix.indices, self.matrix.data
            launch(
                "edge_modes", edge_blocks * THREADS, *sizes, *matrix, near, half, field[part], gradient, edge_partial
            )
            add_blocks(backend, edge_partial, edges[part])
        weighted = self.weights * edges
        for chunk, part in enumerate(parts):
            launch("adjoint_modes", points, points, CHUNK * chunk, self.omega, f, weighted[part], gradient)
        energy = xp.where(inside, dot(backend, weighted, sources), np.nan)
        return energy, gradient.reshape(-1, 1)


Sums = tuple[Any, Any]
"""Gauss sums of some sources: their value (m,) and slope (m, n) at places (m, n)."""


class DeviceEdges(NamedTuple):
    """The upper triangle of a symmetric matrix as a list of edges, the diagonal among them as edges with j = k."""

    backend: CupyBackend
    rows: Any
    columns: Any
    weights: Any
    """2 G_jk, and G_jj."""
    ends: DeviceMatrix
    """Which entries of [at the first ends; at the second ends] belong to a point: its part of the gradient."""

    @classmethod
    def of(cls, matrix: DeviceMatrix) -> DeviceEdges:
        """The edges of a matrix that is on the device already."""
        backend, xp, size = matrix.backend, matrix.backend.xp, matrix.shape[0]
        rows = matrix.rows()
        # The upper triangle's entries come first, in their order; the host asks how many they are.
        upper = int(backend.to_host((rows < matrix.indices).sum()))
        entries = xp.arange(matrix.entries, dtype=np.int64)
        chosen = xp.argsort(xp.where(rows < matrix.indices, entries, entries + matrix.entries))[:upper]
        points = xp.arange(size, dtype=np.int32)
        on_diagonal = rows == matrix.indices
        rows = xp.concatenate([xp.take(rows, chosen), points])
        columns = xp.concatenate([xp.take(matrix.indices, chosen), points])
        diagonal = replace(matrix, data=xp.where(on_diagonal, matrix.data, 0.0))
        diagonal = diagonal.product(xp.ones((size, 1))).reshape(-1)
        ends = xp.concatenate([rows, columns])
        count = 2 * (upper + size)
        # Numbers that do not repeat are sorted the same way by every method.
        places = xp.arange(count, dtype=np.int64)
        order = xp.argsort(ends.astype(np.int64) * count + places)
        indptr = xp.searchsorted(xp.take(ends, order), xp.arange(size + 1, dtype=np.int32)).astype(np.int32)
        incidence = DeviceMatrix(backend, (size, count), indptr, order.astype(np.int32), xp.ones(count))
        weights = xp.concatenate([2.0 * xp.take(matrix.data, chosen), diagonal])
        return cls(backend, rows, columns, weights, incidence)

    def plus_diagonal(self, diagonal: Floats | None) -> DeviceEdges:
        """The edges of the same matrix + diag(``diagonal``)."""
        if diagonal is None:
            return self
        xp, others = self.backend.xp, self.weights.size - len(diagonal)
        added = self.backend.to_device(diagonal)
        return self._replace(weights=xp.concatenate([self.weights[:others], self.weights[others:] + added]))


class SpaceEngine:
    """``engine(F) -> (energy, gradient)`` for F of two or three columns, by modes or near pairs."""

    def __init__(self, edges: DeviceEdges, F: Floats, sigma_f: float, *, tolerance: float = 1e-9) -> None:
        self.backend, self.edges, self.sigma_f = edges.backend, edges, sigma_f
        # A factor in hand for what cancels between the terms of G.
        self.accuracy = max(tolerance / 1000, MIXED_ACCURACY if self.backend.is_mixed else 1e-14)
        self.ones = self.backend.xp.ones(len(F))
        self._set_up(F)

    def _set_up(self, F: Floats) -> None:
        self.box = Box.around(F, self.sigma_f)
        self.centre, self.half = (self.backend.to_device(part) for part in self.box)
        self.series: list[Series] | None = None
        self.rows = FEWEST_ROWS
        if np.isfinite(self.box.half).all() and self._modes_are_fewer():
            self.series = [Series.of(2 * float(half), self.sigma_f, self.accuracy) for half in self.box.half]
            waves = [series.omega * np.arange(len(series.coefficients)) for series in self.series]
            weights = [series.coefficients for series in self.series]
            # All frequencies along the first axes, not negative ones along the last: the sums are real.
            waves[:-1] = [np.concatenate([-wave[:0:-1], wave]) for wave in waves[:-1]]
            weights[:-1] = [np.concatenate([weight[:0:-1], weight]) for weight in weights[:-1]]
            weights[-1] = weights[-1] * np.where(np.arange(len(weights[-1])) > 0, 2.0, 1.0)
            self.waves = [self.backend.to_device(wave) for wave in waves]
            self.weights = [self.backend.to_device(weight) for weight in weights]
            modes = prod(wave.size for wave in waves[:-1]) + waves[-1].size
            fitting = min(SPACE_BLOCK_BYTES, self.backend.planned_memory()) // (16 * 4 * modes)
            self.rows = int(max(FEWEST_ROWS, fitting))

    def _modes_are_fewer(self) -> bool:
        """Whether modes are expected to cost less than near pairs: multiply-adds of either, those of pairs dearer."""
        digits = sqrt(log(1 / self.accuracy))
        counts = [digits * sqrt(2) / pi * (2 * half / self.sigma_f + digits / sqrt(2)) for half in self.box.half]
        modes = 2 ** (len(counts) - 1) * prod(counts)
        reach = self.sigma_f * digits / sqrt(2)
        near = prod(min(1.0, 3 * reach / max(2 * float(half), 1e-300)) for half in self.box.half)
        points = self.ones.size
        return bool(modes <= MOST_MODES and 4 * modes * (len(counts) + 2) < 20 * near * points)

    def adapt(self, F: Any) -> bool:
        """Choose between modes and pairs, and the modes, for F."""
        self._set_up(self.backend.to_host(F))
        return bool(np.isfinite(self.box.half).all())

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy at F and its gradient; where memory is short, with modes of fewer places at once from now on."""
        found, self.rows = self.backend.shrinking(self.rows, FEWEST_ROWS, lambda rows: self._evaluate(F, rows))
        return found

    def _evaluate(self, F: Any, rows: int) -> tuple[Any, Any]:
        backend, xp, inverse = self.backend, self.backend.xp, self.sigma_f**-2
        x = F - self.centre
        ends, others = xp.take(x, self.edges.rows, axis=0), xp.take(x, self.edges.columns, axis=0)
        gap, middle = ends - others, 0.5 * (ends + others)
        strength = self.edges.weights * xp.exp(-0.5 * inverse * (gap * gap).sum(axis=1))
        read_sources, read_edges = self._reader(x, middle, strength, rows)
        value, slope = read_sources()
        energy = dot(backend, strength, value)
        together = (0.5 * strength)[:, None] * slope
        apart = (inverse * strength * value)[:, None] * gap
        gradient = self.edges.ends.product(xp.concatenate([together - apart, together + apart]))
        gradient += read_edges()[1]
        if self.series is not None:
            energy = xp.where((xp.abs(x) <= self.half).all().reshape(1), energy, np.nan)
        return energy, gradient

    def _reader(self, x: Any, middle: Any, strength: Any, rows: int) -> tuple[Callable[[], Sums], Callable[[], Sums]]:
        """The sums over points read at the middles, and those over the edges read at the points."""
        if self.series is not None:
            return (
                lambda: self._read(middle, self._gather(x, self.ones, rows), rows),
                lambda: self._read(x, self._gather(middle, strength, rows), rows),
            )
        low = x.min(axis=0)
        scale = (2.0**CURVE_BITS - 1) / self.backend.xp.maximum(x.max(axis=0) - low, 1e-300)
        points, middles = (SortedPoints.of(self.backend, places, low, scale) for places in (x, middle))
        decay, farthest = 2.0 * self.sigma_f**-2, log(1 / self.accuracy)
        return (
            lambda: middles.sums(points, self.ones, decay, farthest),
            lambda: points.sums(middles, strength, decay, farthest),
        )

    def _gather(self, places: Any, weights: Any, rows: int) -> Any:
        """The weighted modes (P, M) whose conjugate product with exp(iω·m) is the Gauss sum at m."""
        xp = self.backend.xp
        total: Any = 0.0
        for block in blocks_of(places.shape[0], rows):
            first, last = space_phases(xp, places[block], self.waves)
            total = total + xp.matmul((first * weights[block][:, None]).T, last)
        along = self.weights[0]
        for weight in self.weights[1:-1]:
            along = (along[:, None] * weight).reshape(-1)
        return total.conj() * (along[:, None] * self.weights[-1])

    def _read(self, places: Any, modes: Any, rows: int) -> Sums:
        xp = self.backend.xp
        parts = [read_modes(xp, places[block], modes, self.waves) for block in blocks_of(places.shape[0], rows)]
        value, slope = zip(*parts, strict=True)
        return xp.concatenate(value), xp.concatenate(slope)


def blocks_of(count: int, size: int) -> list[slice]:
    """0 … count in slices of ``size``."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def space_phases(xp: Any, places: Any, waves: list[Any]) -> tuple[Any, Any]:
    """exp(iω·x) for places (b, n): products over all axes but the last (b, P), and those along the last (b, M)."""
    along = []
    for axis, wave in enumerate(waves):
        angle = places[:, axis][:, None] * wave[None, :]
        along.append(xp.exp(1j * xp.astype(angle, xp.complex128)))
    first = along[0]
    for other in along[1:-1]:
        first = xp.reshape(first[:, :, None] * other[:, None, :], (first.shape[0], -1))
    return first, along[-1]


def read_modes(xp: Any, places: Any, modes: Any, waves: list[Any]) -> tuple[Any, Any]:
    """Value (b,) and slope (b, n) at places (b, n) of Σ_q Re(modes_q exp(iω_q·x)), modes (P, M)."""
    first, last = space_phases(xp, places, waves)
    folded = xp.matmul(first, modes)
    slopes = []
    sizes = [wave.shape[0] for wave in waves[:-1]]
    for axis, wave in enumerate(waves[:-1]):
        shape = [1] * len(sizes)
        shape[axis] = sizes[axis]
        along = xp.reshape(xp.broadcast_to(xp.reshape(wave, tuple(shape)), tuple(sizes)), (-1,))
        slopes.append(-xp.sum(xp.imag(xp.matmul(first * along[None, :], modes) * last), axis=1))
    slopes.append(-xp.sum(xp.imag(folded * (waves[-1][None, :] * last)), axis=1))
    return xp.sum(xp.real(folded * last), axis=1), xp.stack(slopes, axis=1)


class SortedPoints(NamedTuple):
    """Places in an order that keeps near ones together, with a box around each ``THREADS`` of them."""

    backend: CupyBackend
    order: Any
    places: Any
    boxes: Any

    @classmethod
    def of(cls, backend: CupyBackend, places: Any, low: Any, scale: Any) -> SortedPoints:
        """Sort places (m, n) along a curve that fills space: the bits of the coordinates, one of each by turns."""
        xp, (count, n) = backend.xp, places.shape
        cells = xp.floor(xp.clip((places - low) * scale, 0.0, 2.0**CURVE_BITS - 1)).astype(np.int64)
        curve = xp.zeros(count, dtype=np.int64)
        for bit in range(CURVE_BITS):
            for axis in range(n):
                curve = curve | (((cells[:, axis] >> bit) & 1) << (bit * n + axis))
        order = xp.argsort(curve)
        sorted_places = xp.take(places, order, axis=0)
        tiles = -(-count // THREADS)
        boxes = xp.empty((tiles, 2 * n))
        backend.kernels.launch("tile_boxes", tiles * n, count, n, tiles, sorted_places, boxes)
        return cls(backend, order, sorted_places, boxes)

    def sums(self, sources: SortedPoints, weights: Any, decay: float, farthest: float) -> Sums:
        """Gauss sums of weighted sources at these places, in the order in which the places were given."""
        backend, xp, (count, n) = self.backend, self.backend.xp, self.places.shape
        found, result = xp.empty((count, n + 1)), xp.empty((count, n + 1))
        sizes = count, sources.places.shape[0], n, self.boxes.shape[0], sources.boxes.shape[0], decay, farthest
        arrays = self.places, sources.places, xp.take(weights, sources.order), self.boxes, sources.boxes, found
        backend.kernels.launch("pair_sums", count, *sizes, *arrays)
        result[self.order] = found
        return xp.ascontiguousarray(result[:, 0]), result[:, 1:]
