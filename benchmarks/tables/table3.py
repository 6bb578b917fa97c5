"""Table 3: maps in two dimensions from links; leave-one-out 1-NN error.

The systems beside ours are for clustering; of SL the two smoothest eigenvectors after the constant one are the map, of
CCSR the two principal components of what it clusters. UMAP takes no links: it is told the classes of all linked points.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import Floats
from benchmarks.embedding import GRIDS, measure
from benchmarks.link_sets import SMALL, Problem, draw, one_nn_error
from benchmarks.measure import cpu_timed
from benchmarks.tables import links
from benchmarks.tables.cells import Cell, Records, Result
from benchmarks.tables.peers import map_peers, umap_map
from benchmarks.tables.run import Options
from homophily import SpectralEmbedding
from homophily.baselines import CCSR
from homophily.baselines.sl import linked_weights
from homophily.graph.spectral import spectral_vectors
from homophily.supervision.links import Links

TABLE = "table3"
OTHER_GRIDS: dict[str, links.Grid] = {"CCSR": {"n_vectors": (5, 10, 15, 30)}, "UMAP": {"n_neighbors": (5, 15, 50)}}


def plan(options: Options, records: Records) -> list[Cell]:
    """Defaults first, then what tuning needs, then the tuned form; all of MNIST, and UMAP, last."""
    cells: list[Cell] = []
    for name in links.sets(options):
        cells.append(Cell(TABLE, name, "Original", 0, {"links": 0}))
        methods = ["ERR", "SL", "CCSR", *map_peers()]
        for method in methods:
            cells += _reported(options, name, method, "default", {})
        for method in methods:
            grid = _grid(options, name, method)
            if grid is None:
                continue
            tuning = links.tuning_cells(options, TABLE, name, method, grid)
            chosen = links.tuned(tuning, records)
            cells += tuning if chosen is None else _reported(options, name, method, "tuned", chosen)
    if options.data is not None and not options.quick:
        name = links.WHOLE_MNIST
        cells.append(Cell(TABLE, name, "Original", 0, {"links": 0}))
        setting = {"form": "default", "parameters": {}}
        cells += [Cell(TABLE, name, "ERR", 0, {"links": count, **setting}) for count in links.counts(options)]
    # UMAP compiles itself for most of a minute in every process: all its cells in a row pay once.
    return sorted(cells, key=lambda cell: cell.method == "UMAP")


def _grid(options: Options, name: str, method: str) -> links.Grid | None:
    """What is tuned; in the quick form and on large sets ERR's parameters only."""
    if method == "ERR":
        if options.quick and name not in SMALL:
            return None
        grid = GRIDS["small" if name in SMALL else "large"]
        return {**grid, "closure": (True, "two-class")} if name in links.TWO_CLASSES else grid
    return OTHER_GRIDS.get(method) if name in SMALL and not options.quick else None


def _reported(options: Options, name: str, method: str, form: str, parameters: dict[str, Any]) -> list[Cell]:
    counts, seeds = links.counts(options), links.seeds(options, name)
    if method == "UMAP" and name not in SMALL:
        # The map hardly depends on which few points are labelled, and takes long.
        counts, seeds = tuple(count for count in counts if count in links.QUICK_COUNTS[-1:]), 1
    return [
        Cell(TABLE, name, method, seed, {"links": count, "form": form, "parameters": parameters})
        for count in counts
        for seed in range(seeds)
    ]


def compute(cell: Cell, folder: Path | None) -> Result:
    """Error and seconds on the ready graph (UMAP: on the points); of ERR also the violated links in percent."""
    one = links.problem(folder, cell.data)
    count, parameters = cell.setting["links"], cell.setting.get("parameters", {})
    if cell.method == "ERR":
        error, must, cannot, seconds = measure(one, count, cell.seed, parameters)
        return {"error": error, "seconds": seconds, "violated_must": must, "violated_cannot": cannot}
    given = draw(one.y, max(count, 2), cell.seed)
    if cell.method == "UMAP":
        X = links.points(folder, cell.data).X
        seconds, found = cpu_timed(lambda: umap_map(X, one.y, given, **parameters))
    else:
        way = {"Original": spectral_map, "SL": sl_map, "CCSR": ccsr_map}[cell.method]
        seconds, found = cpu_timed(lambda: way(one, given, **parameters))
    return {"error": one_nn_error(found, one.y), "seconds": seconds}


def spectral_map(one: Problem, _: Links) -> Floats:
    """The two smoothest eigenvectors after the constant one."""
    return np.asarray(SpectralEmbedding(n_components=2).fit(one.graph).embedding_)


def sl_map(one: Problem, given: Links) -> Floats:
    """The same of the graph that has the links in its weights, as SL writes them."""
    _, vectors = spectral_vectors(linked_weights(one.graph.W, given), 3, normalized=False)
    return np.ascontiguousarray(vectors[:, 1:] * np.sqrt(len(vectors)))


def ccsr_map(one: Problem, given: Links, **parameters: Any) -> Floats:
    """The two principal components of F M^{1/2}."""
    # Clusters are not asked for: one costs least.
    model = CCSR(n_clusters=1, n_init=1, random_state=0, **parameters)
    model.fit(one.graph, must_link=given.must, cannot_link=given.cannot)
    centred = model.embedding_ - model.embedding_.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    return np.ascontiguousarray(centred @ directions[:, -2:])
