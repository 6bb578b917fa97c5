"""The full regulariser for n ≤ 3 however the values spread: every evaluation takes the cheapest way to its Gauss sums.

Where points crowd within a σ_f the sums go over a grid (n = 2) or Fourier modes (n = 3, and thinner crowds of n = 2),
where they are scattered over the pairs within reach. All ways keep the same tolerance, so that an optimiser may cross
from one to another.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil, inf, log, log2, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.relationship import grid, pairs
from homophily.relationship.edges import UpperEdges
from homophily.relationship.nufft import NufftEngine
from homophily.threads import even_rows, run_chunks, sum_chunks, thread_count

# Points that a point shares its cell with, on the average over points, from which grid or modes are faster than pairs,
# by dimensions (benchmarks: engines).
CROWD = {1: inf, 2: 30.0, 3: 60.0}
# In two dimensions between these, modes are faster than both, if the values spread over so few σ_f² for each point.
THIN_CROWD = 20.0, 60.0
MOST_SPREAD = 0.5
LEAST = {1: 0, 2: 0, 3: 2_000}  # points below which no crowd is worth the fixed cost of the Fourier modes
MOST_BLOCKS = 2**15  # 256 MB for each of the few grids
MOST_NUMBERS = 2**22  # blocks that a map of all blocks, kept or not, has room for


class CellEngine:
    """``engine(F) -> (tr(KᵀGK), gradient)`` for n ≤ 3, relative errors about ``tolerance`` and ten times that."""

    def __init__(self, G: csr_array, sigma_f: float, *, n_jobs: int | None = None, tolerance: float = 1e-9) -> None:
        self.G, self.sigma_f, self.tolerance, self.n_jobs = G, sigma_f, tolerance, n_jobs
        self.edges = UpperEdges.of(G)
        self.chunks = thread_count(n_jobs)
        # Triples K_ij G_jk K_ik with a factor below this are left out.
        self.farthest = log(1e3 / tolerance)
        self.cell = sigma_f * sqrt(self.farthest / 2) / pairs.AROUND

    def __call__(self, F: Floats) -> tuple[float, Floats]:
        """Energy at F (u, n) and its gradient (u, n)."""
        u, n = F.shape
        spread = np.ptp(F, axis=0)
        if not np.all(spread < pairs.LARGEST * self.cell):
            return inf, np.full((u, n), np.nan)
        # The mean over the box is below the mean over points, and free.
        crowd = u / float(np.prod(spread / self.cell + 1))
        if crowd <= max(CROWD[n], THIN_CROWD[1]) < inf and u > LEAST[n]:
            crowd = self.crowding(F)
        fourier = u > LEAST[n] and NufftEngine.copes_with(spread, self.sigma_f, self.tolerance)
        if n == 2 and self.tolerance >= grid.TOLERANCE:
            thin = THIN_CROWD[0] < crowd < THIN_CROWD[1]
            if thin and fourier and np.prod(spread) < MOST_SPREAD * u * self.sigma_f**2:
                return self._fourier(F)
            if crowd > CROWD[2] and (sums := self._over_grid(F)) is not None:
                return sums
        elif crowd > CROWD[n] and fourier:
            return self._fourier(F)
        return self._over_pairs(F)

    def crowding(self, F: Floats) -> float:
        """Points in the cell of a point, on the average over points."""
        starts, _, _, _ = self._sorted(F)
        return float(np.square(np.diff(starts), dtype=np.float64).sum()) / len(F)

    def _sorted(self, F: Floats) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats, int]:
        """Starts of the cells in the order of cells, that order, places in units of cells, bits of a cell's number."""
        places = (F - F.min(axis=0)) / self.cell
        bits = max(3, ceil(log2(4 * len(F)) / F.shape[1]))
        return *pairs.sort_points(places, bits), places, bits

    def _part(self, size: int, chunk: int) -> slice:
        return slice(*even_rows(size, self.chunks)[chunk : chunk + 2])

    def _over_grid(self, F: Floats) -> tuple[float, Floats] | None:
        """None where the points touch more blocks than memory should hold."""
        u = len(F)
        scale = 1 / (grid.SPACING * self.sigma_f)
        # Nodes start at a multiple of a block, so that the approximation does not shift with every F; one is spare.
        low = np.floor(F.min(axis=0) * scale / grid.BLOCK)
        places = F * scale - (low - 1) * grid.BLOCK
        columns, rows = (places.max(axis=0) // grid.BLOCK).astype(np.int64) + 2
        if columns * rows > MOST_NUMBERS:
            return None
        blocks = np.full((rows, columns), -1, dtype=np.int32)
        grid.mark_blocks(places, blocks)
        kept = np.flatnonzero(blocks.ravel() == 0)
        if kept.size > MOST_BLOCKS:
            return None
        blocks.ravel()[kept] = np.arange(kept.size)
        shape = kept.size, grid.BLOCK, grid.BLOCK
        counted = kept.size * grid.PANELS**2

        edges, chunks = self.edges, self.chunks
        panels, middles = np.empty(u, dtype=np.int32), np.empty(edges.rows.size, dtype=np.int32)
        strengths = np.empty(edges.rows.size)
        sources = np.zeros((chunks, *shape))
        fields = np.zeros((chunks, *shape))
        energies = np.zeros(chunks)
        gradients = np.zeros((chunks, u, 2))
        points = np.arange(u, dtype=np.int32)

        def find_panels(chunk: int) -> None:
            own = self._part(edges.rows.size, chunk)
            ends = edges.part(own.start, own.stop)
            grid.edge_panels(*ends, places, self.farthest, blocks, middles[own], strengths[own])

        # Threads share the work by panels: each panel has a cost of its own, whatever the number of its points.
        def spread_points(chunk: int) -> None:
            grid.spread_points(places, points, panels, shares[chunk], blocks, sources[chunk])

        def visit_edges(chunk: int) -> None:
            # The diagonal follows with the same formulas, which hold with j = k.
            for rows, columns, where, weights, own in (
                (edges.rows, edges.cols, middles, strengths, edge_shares[chunk]),
                (points, points, panels, edges.diagonal, shares[chunk]),
            ):
                energies[chunk] += grid.edge_sums(
                    rows, columns, places, where, weights, own, blocks, source, fields[chunk], gradients[chunk]
                )

        def read_points(chunk: int) -> None:
            grid.read_points(places, points, panels, shares[chunk], blocks, field, gradients[chunk])

        run_chunks(find_panels, chunks)
        grid.point_panels(places, blocks, panels)
        shares, edge_shares = (
            np.array_split(pairs.counting_sort(where, counted)[1], chunks) for where in (panels, middles)
        )
        run_chunks(spread_points, chunks)
        source = sources.sum(axis=0)
        run_chunks(visit_edges, chunks)
        field = fields.sum(axis=0)
        run_chunks(read_points, chunks)
        return grid.SCALE * float(energies.sum()), grid.SCALE * scale * gradients.sum(axis=0)

    def _over_pairs(self, F: Floats) -> tuple[float, Floats]:
        starts, order, places, bits = self._sorted(F)
        points = np.arange(len(F), dtype=np.int32)
        cells = places, starts, order, bits, 2 * (self.cell / self.sigma_f) ** 2, self.farthest

        def visit(chunk: int, gradient: Floats) -> float:
            ends = self.edges.part(*even_rows(self.edges.rows.size, self.chunks)[chunk : chunk + 2])
            energy = pairs.pair_sums(*ends, *cells, gradient)
            own = self._part(len(F), chunk)
            return float(energy + pairs.pair_sums(points[own], points[own], self.edges.diagonal[own], *cells, gradient))

        energy, gradient = sum_chunks(visit, self.chunks, places.shape)
        return energy, gradient / self.cell

    @cached_property
    def _fourier(self) -> NufftEngine:
        return NufftEngine(self.G, self.sigma_f, n_jobs=self.n_jobs, tolerance=self.tolerance)
