"""The full regulariser for n ≤ 3 however the values spread: every evaluation takes the cheapest way to its Gauss sums.

Where points crowd within a σ_f the sums go over a grid (n = 2) or Fourier modes (n = 3, and thinner crowds of n = 2),
where they are scattered over the pairs within reach. All ways keep the same tolerance, so that an optimiser may cross
from one to another.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from math import ceil, inf, log, log2, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from homophily.relationship import grid, pairs
from homophily.relationship.edges import UpperEdges
from homophily.relationship.nufft import NufftEngine
from homophily.threads import run_chunks, thread_count

# Points that a point shares its cell with, on the average over points, from which grid or modes are faster than pairs,
# by dimensions (benchmarks: engines).
CROWD = {1: inf, 2: 30.0, 3: 60.0}
# In two dimensions between these, modes are faster than both, if the values spread over so few σ_f² for each point.
THIN_CROWD = 20.0, 60.0
MOST_SPREAD = 0.5
LEAST = {1: 0, 2: 0, 3: 2_000}  # points below which no crowd is worth the fixed cost of the Fourier modes
MOST_BLOCKS = 2**15  # 256 MB for each of the few grids
MOST_NUMBERS = 2**22  # blocks that a map of all blocks, kept or not, has room for

Array = NDArray[np.float64]


class CellEngine:
    """``engine(F) -> (tr(KᵀGK), gradient)`` for n ≤ 3, with relative errors of about ``tolerance`` and ten times that.

    :meth:`parts` gives the off-diagonal entries of G and its diagonal apart, at hardly more cost.
    """

    def __init__(self, G: csr_array, sigma_f: float, *, n_jobs: int | None = None, tolerance: float = 1e-9) -> None:
        self.G, self.sigma_f, self.tolerance, self.n_jobs = G, sigma_f, tolerance, n_jobs
        self.edges = UpperEdges.of(G)
        self.chunks = thread_count(n_jobs)
        # Triples K_ij G_jk K_ik with a factor below this are left out.
        self.farthest = log(1e3 / tolerance)
        self.cell = sigma_f * sqrt(self.farthest / 2) / pairs.AROUND

    def __call__(self, F: Array) -> tuple[float, Array]:
        """Energy at F (u, n) and its gradient (u, n)."""
        energies, gradients = self._evaluate(F, split=False)
        return float(energies.sum()), gradients[0]

    def parts(self, F: Array) -> tuple[tuple[float, Array], tuple[float, Array]]:
        """Energy and gradient of G's off-diagonal entries, then those of its diagonal."""
        energies, gradients = self._evaluate(F, split=True)
        return (float(energies[0]), gradients[0]), (float(energies[1]), gradients[1])

    def _evaluate(self, F: Array, *, split: bool) -> tuple[Array, Array]:
        """Energies of the edges and of the diagonal; the gradient of their sum (1, u, n) or of each (2, u, n)."""
        u, n = F.shape
        spread = np.ptp(F, axis=0)
        if not np.all(spread < pairs.LARGEST * self.cell):
            return np.full(2, inf), np.full((1 + split, u, n), np.nan)
        # The mean over the box is below the mean over points, and free.
        crowd = u / float(np.prod(spread / self.cell + 1))
        if crowd <= max(CROWD[n], THIN_CROWD[1]) < inf and u > LEAST[n]:
            crowd = self.crowding(F)
        fourier = u > LEAST[n] and NufftEngine.copes_with(spread, self.sigma_f, self.tolerance)
        if n == 2 and self.tolerance >= grid.TOLERANCE:
            thin = THIN_CROWD[0] < crowd < THIN_CROWD[1]
            if thin and fourier and np.prod(spread) < MOST_SPREAD * u * self.sigma_f**2:
                return self._over_modes(F, split)
            if crowd > CROWD[2] and (sums := self._over_grid(F, split)) is not None:
                return sums
        elif crowd > CROWD[n] and fourier:
            return self._over_modes(F, split)
        return self._over_pairs(F, split)

    def crowding(self, F: Array) -> float:
        """Points in the cell of a point, on the average over points."""
        starts, _, _, _ = self._sorted(F)
        return float(np.square(np.diff(starts), dtype=np.float64).sum()) / len(F)

    def _sorted(self, F: Array) -> tuple[NDArray[np.int32], NDArray[np.int32], Array, int]:
        """Starts of the cells in the order of cells, that order, places in units of cells, bits of a cell's number."""
        places = (F - F.min(axis=0)) / self.cell
        bits = max(3, ceil(log2(4 * len(F)) / F.shape[1]))
        return *pairs.sort_points(places, bits), places, bits

    def _cuts(self, size: int) -> list[tuple[int, int]]:
        return list(pairwise(np.linspace(0, size, self.chunks + 1).astype(int).tolist()))

    def _over_grid(self, F: Array, split: bool) -> tuple[Array, Array] | None:
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
        fields = np.zeros((chunks, 1 + split, *shape))
        energies = np.zeros((chunks, 2))
        gradients = np.zeros((chunks, 1 + split, u, 2))
        ones, points = np.ones(u), np.arange(u, dtype=np.int32)

        def find_panels(chunk: int) -> None:
            own = slice(*self._cuts(edges.rows.size)[chunk])
            ends = edges.rows[own], edges.cols[own], edges.doubled[own]
            grid.edge_panels(*ends, places, self.farthest, blocks, middles[own], strengths[own])

        # Threads share the work by panels: each panel has a cost of its own, whatever the number of its points.
        def spread_points(chunk: int) -> None:
            grid.spread_points(places, panels, shares[chunk], ones, blocks, sources[chunk])

        def visit_edges(chunk: int) -> None:
            result = fields[chunk, 0], gradients[chunk, 0]
            energies[chunk, 0] = grid.edge_sums(
                edges.rows, edges.cols, places, middles, strengths, edge_shares[chunk], blocks, source, *result
            )
            # The same formulas hold with j = k.
            result = fields[chunk, -1], gradients[chunk, -1]
            energies[chunk, 1] = grid.edge_sums(
                points, points, places, panels, edges.diagonal, shares[chunk], blocks, source, *result
            )

        def read_points(chunk: int) -> None:
            for part in range(1 + split):
                grid.read_points(places, panels, shares[chunk], blocks, field[part], gradients[chunk, part])

        run_chunks(find_panels, chunks)
        grid.point_panels(places, blocks, panels)
        shares, edge_shares = (
            np.array_split(grid.sorted_by_panel(where, counted), chunks) for where in (panels, middles)
        )
        run_chunks(spread_points, chunks)
        source = sources.sum(axis=0)
        run_chunks(visit_edges, chunks)
        field = fields.sum(axis=0)
        run_chunks(read_points, chunks)
        return grid.SCALE * energies.sum(axis=0), grid.SCALE * scale * gradients.sum(axis=0)

    def _over_pairs(self, F: Array, split: bool) -> tuple[Array, Array]:
        u = len(F)
        starts, order, places, bits = self._sorted(F)
        energies = np.zeros((self.chunks, 2))
        gradients = np.zeros((self.chunks, 1 + split, *places.shape))
        points = np.arange(u, dtype=np.int32)

        def visit(chunk: int) -> None:
            cells = places, starts, order, bits, 2 * (self.cell / self.sigma_f) ** 2, self.farthest
            own = slice(*self._cuts(self.edges.rows.size)[chunk])
            ends = self.edges.rows[own], self.edges.cols[own], self.edges.doubled[own]
            energies[chunk, 0] = pairs.pair_sums(*ends, *cells, gradients[chunk, 0])
            own = slice(*self._cuts(u)[chunk])
            ends = points[own], points[own], self.edges.diagonal[own]
            energies[chunk, 1] = pairs.pair_sums(*ends, *cells, gradients[chunk, -1])

        run_chunks(visit, self.chunks)
        return energies.sum(axis=0), gradients.sum(axis=0) / self.cell

    @cached_property
    def _fourier(self) -> list[NufftEngine]:
        """Over G, over its off-diagonal entries and over its diagonal."""
        diagonal = csr_array(diags_array(self.edges.diagonal))
        matrices = self.G, csr_array(self.G - diagonal), diagonal
        return [NufftEngine(G, self.sigma_f, n_jobs=self.n_jobs, tolerance=self.tolerance) for G in matrices]

    def _over_modes(self, F: Array, split: bool) -> tuple[Array, Array]:
        if not split:
            energy, gradient = self._fourier[0](F)
            return np.array([energy, 0.0]), gradient[None]
        results = [engine(F) for engine in self._fourier[1:]]
        return np.array([energy for energy, _ in results]), np.stack([gradient for _, gradient in results])
