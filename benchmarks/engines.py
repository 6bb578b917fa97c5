"""Time and error of every engine by points and dimensions, and where an approximate one overtakes exact tiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.data import Floats
from benchmarks.measure import typical_seconds
from benchmarks.report import Options, Report, Row
from homophily import KNNGraph
from homophily.relationship import cells
from homophily.relationship.choose import TILES_BEAT_CELLS, TILES_BEAT_NYSTROM, EngineName, make_engine

SIZES = (300, 600, 1_000, 2_000, 4_000, 8_000, 16_000)
DENSE_POINTS = 2_000
SIGMA_F = 1.0
# Labels pull values to places about one σ_f apart; a map spreads them much farther.
SPREADS = {1: (1.0,), 2: (1.0, 10.0), 3: (1.0, 5.0), 10: (1.0,)}
RIVALS: dict[int, tuple[EngineName, ...]] = {
    1: ("chebyshev", "nufft"),
    2: ("cells", "nufft"),
    3: ("cells", "nufft"),
    10: ("nystrom",),
}

# Points, and widths in σ_f over which they are strewn.
CROWDS = {2: (20_000, (25.0, 50.0, 100.0, 200.0, 400.0)), 3: (10_000, (4.0, 8.0, 12.0, 16.0))}


def run(options: Options, report: Report) -> None:
    sizes = SIZES[:3] if options.quick else SIZES
    for dimensions, spreads in SPREADS.items():
        for spread in spreads:
            report.progress(f"{dimensions} dimensions, spread {spread:g}")
            rows = [compare(size, dimensions, spread) for size in sizes]
            report.table(f"n = {dimensions}, values spread over {spread:g} σ_f: ms an evaluation, k = 10, G = L", rows)
            for engine in RIVALS[dimensions]:
                report.note(f"{engine} overtakes tiles at {crossover(rows, engine)}.")
    for dimensions, (points, widths) in CROWDS.items():
        report.progress(f"crowds in {dimensions} dimensions")
        rows = [crowd(points // 10 if options.quick else points, dimensions, width) for width in widths]
        way = {2: "grid", 3: "Fourier modes"}[dimensions]
        report.table(f"n = {dimensions}, {way} against near pairs in the 'cells' engine: ms an evaluation", rows)
    report.note(
        f"In use: TILES_BEAT_CELLS = {TILES_BEAT_CELLS}, TILES_BEAT_NYSTROM = {TILES_BEAT_NYSTROM:,}, "
        f"CROWD = {cells.CROWD}."
    )


def crowd(points: int, dimensions: int, width: float) -> Row:
    """Values evenly over a cube of that width in σ_f, neighbours side by side."""
    F = width * np.random.default_rng(0).uniform(size=(points, dimensions))
    engine = cells.CellEngine(KNNGraph().fit(F).laplacian(), SIGMA_F)
    in_use = cells.CROWD
    try:
        cells.CROWD = dict.fromkeys(in_use, 0.0)
        together = typical_seconds(lambda: engine(F), budget=0.3)
        cells.CROWD = dict.fromkeys(in_use, np.inf)
        apart = typical_seconds(lambda: engine(F), budget=0.3)
    finally:
        cells.CROWD = in_use
    return {
        "width in σ_f": width,
        "points a cell": engine.crowding(F),
        "together": 1e3 * together,
        "pairs": 1e3 * apart,
    }


def compare(points: int, dimensions: int, spread: float) -> Row:
    X, F = values(points, dimensions, spread)
    G = KNNGraph().fit(X).laplacian()
    seconds: dict[str, float] = {}
    energies: dict[str, float] = {}
    for name in engines(points, dimensions):
        _, engine = make_engine(G, F, SIGMA_F, engine=name)
        seconds[name] = 1e3 * typical_seconds(lambda: engine(F), budget=0.3)  # noqa: B023
        energies[name] = engine(F)[0]
    exact, *others = energies
    errors = {f"{name}: error": abs(energies[name] / energies[exact] - 1) for name in others}
    return {"points": points, "dense": None} | seconds | errors


def engines(points: int, dimensions: int) -> Iterator[EngineName]:
    """The exact ones first."""
    if points <= DENSE_POINTS:
        yield "dense"
    yield "tiles"
    yield from RIVALS[dimensions]


def values(points: int, dimensions: int, spread: float) -> tuple[Floats, Floats]:
    """Points, and values that vary with them: around the corners of a cube (n ≤ 3) or one place for each class."""
    rng = np.random.default_rng(0)
    places = np.eye(dimensions) if dimensions > 3 else rng.uniform(size=(10, dimensions))
    y = rng.integers(len(places), size=points)
    X = 3 * rng.normal(size=(len(places), 5))[y] + rng.normal(size=(points, 5))
    F = spread * (places[y] + 0.1 * np.sin(X @ rng.normal(size=(5, dimensions))))
    return X, np.ascontiguousarray(F)


def crossover(rows: list[Row], engine: EngineName) -> str:
    """Where the logarithm of the times' ratio passes 0, on a straight line between the two sizes around it."""
    sizes = np.log([float(row["points"]) for row in rows])  # type: ignore[arg-type]
    gain = np.log([float(row["tiles"]) / float(row[engine]) for row in rows])  # type: ignore[arg-type]
    if gain[0] > 0:
        return f"fewer than {rows[0]['points']:,} points"
    ahead = np.flatnonzero(gain > 0)
    if not ahead.size:
        return f"more than {rows[-1]['points']:,} points"
    last = int(ahead[0])
    share = gain[last - 1] / (gain[last - 1] - gain[last])
    return f"{np.exp(sizes[last - 1] + share * (sizes[last] - sizes[last - 1])):,.0f} points"
