"""Table 2: clusters from links; the share of points that are not of their cluster's dominant class.

The paper says “s_R labels, half of them must-links”; its figures fit s_R of each kind better. Both are measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.clustering import error, make_clustering
from benchmarks.link_sets import LARGE, SMALL, dominant_label_error, draw
from benchmarks.measure import cpu_timed
from benchmarks.tables import links
from benchmarks.tables.cells import Cell, Records, Result
from benchmarks.tables.peers import PeerError, cluster, cluster_peers
from benchmarks.tables.run import FAILED, Options
from homophily.baselines import CCSR, COSC, CSP, SL, Original

TABLE = "table2"
SYSTEMS: dict[str, Any] = {
    "ERR": make_clustering,
    "Original": Original,
    "SL": SL,
    "CCSR": CCSR,
    "CSP": CSP,
    "COSC": COSC,
}
GRIDS: dict[str, dict[str, links.Grid]] = {
    "ERR": {
        "small": {"sigma_f": (0.6, 0.9, 1.4), "lambda2": (0.02, 0.05, 0.15)},
        "large": {"sigma_f": (0.9,), "lambda2": (0.05, 0.15)},
    },
    "CCSR": {"small": {"n_vectors": (5, 10, 15, 30)}, "large": {"n_vectors": (15, 30)}},
    "CSP": {"small": {"beta": (None, 0.2, 0.5, 0.8)}, "large": {}},
}
READINGS = {"of each kind": True, "in all": False}


def plan(options: Options, records: Records) -> list[Cell]:
    """Defaults first, then what tuning needs, then the tuned form; all of MNIST last."""
    cells: list[Cell] = []
    for name in links.sets(options):
        cells.append(Cell(TABLE, name, "Original", 0, {"links": 0}))
        methods = ["ERR", "SL", "CCSR", *(["CSP"] if name in links.TWO_CLASSES else []), "COSC"]
        # They take the points in Python's own loops: what they can do is seen from the small sets.
        methods += cluster_peers() if name in SMALL else []
        for method in methods:
            cells += _reported(options, name, method, "default", {})
        for method, grids in GRIDS.items():
            if method not in methods or (options.quick and (method != "ERR" or links.is_large(name))):
                continue
            grid = grids["small" if name in SMALL else "large"]
            if method == "ERR" and name in links.TWO_CLASSES:
                grid = {**grid, "closure": (True, "two-class")}
            # Half a minute each on large sets: the tuned form in the reading that the paper's figures fit.
            for reading in list(READINGS)[:1] if links.is_large(name) else _readings(options, name, method):
                tuning = links.tuning_cells(options, TABLE, name, method, grid, {"reading": reading})
                chosen = links.tuned(tuning, records)
                cells += tuning if chosen is None else _reported(options, name, method, "tuned", chosen, reading)
    if options.data is not None and not options.quick:
        name = links.WHOLE_MNIST
        cells.append(Cell(TABLE, name, "Original", 0, {"links": 0}))
        for method in ("ERR", "SL", "CCSR"):
            cells += _reported(options, name, method, "default", {}, "of each kind")
    return cells


def _reported(
    options: Options, name: str, method: str, form: str, parameters: dict[str, Any], only: str | None = None
) -> list[Cell]:
    readings = [only] if only else _readings(options, name, method)
    return [
        Cell(TABLE, name, method, seed, {"links": count, "reading": reading, "form": form, "parameters": parameters})
        for count in _counts(options, name, method)
        for reading in readings
        for seed in range(_seeds(options, name, method, reading))
    ]


def _readings(options: Options, name: str, method: str) -> list[str]:
    # The other reading of large sets takes as long again and tells little about the systems beside us.
    one = (links.is_large(name) and (options.quick or method != "ERR")) or (options.quick and method == "MPCKMeans")
    return ["of each kind"] if one else list(READINGS)


def _counts(options: Options, name: str, method: str) -> tuple[int, ...]:
    if name == links.WHOLE_MNIST:
        return links.QUICK_COUNTS
    if links.is_large(name) and options.quick:
        # COSC divides again and again, half a minute for ten thousand points.
        return () if method == "COSC" else (500,)
    return links.counts(options)


def _seeds(options: Options, name: str, method: str, reading: str) -> int:
    most = 1 if name == links.WHOLE_MNIST else 100
    if name in LARGE:
        most = 1 if method == "COSC" or reading == "in all" else 3
    if method == "MPCKMeans":
        most = 1 if options.quick else 3
    return min(links.seeds(options, name), most)


def compute(cell: Cell, folder: Path | None) -> Result:
    """Error and seconds on the ready graph (peers: on the points)."""
    one = links.problem(folder, cell.data)
    count, each = cell.setting["links"], READINGS.get(cell.setting.get("reading", ""), False)
    parameters = cell.setting.get("parameters", {})
    if cell.method in SYSTEMS:
        # Without links there is nothing to draw; “Original” looks at none.
        seconds, found = cpu_timed(
            lambda: error(one, max(count, 2), cell.seed, each, SYSTEMS[cell.method], **parameters)
        )
        return {"error": found, "seconds": seconds}
    given = draw(one.y, count, cell.seed, each=each)
    X = links.points(folder, cell.data).X
    try:
        seconds, labels = cpu_timed(lambda: cluster(cell.method, X, given, one.n_classes, cell.seed))
    except PeerError as failure:
        return {FAILED: str(failure)}
    return {"error": 100.0 * dominant_label_error(labels, one.y), "seconds": seconds}
