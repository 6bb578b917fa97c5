"""The paper's two figures of results: the error surface over σ_f² and λ2 (Fig. 3), and three maps of USPS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clustering import error, make_clustering
from benchmarks.link_sets import draw as draw_links
from benchmarks.link_sets import one_nn_error
from benchmarks.measure import cpu_timed
from benchmarks.tables import links
from benchmarks.tables.cells import Cell, Records, Result
from benchmarks.tables.run import Options
from benchmarks.tables.sections import PICTURES
from homophily import SpectralEmbedding
from homophily_service.jobs.maps import make_embedding

TABLE = "figures"
SURFACE_LINKS, MAP_LINKS = 250, 100
SHOWN_POINTS = 2_000
# Steps of factors 2 and 3 as in the paper, around the defaults of ERRClustering.
WIDTHS = tuple(0.81 * 2.0**step for step in range(-2, 3))
WEIGHTS = tuple(0.05 * 3.0**step for step in range(-2, 3))
MAPS = ("spectral", "links only", "ERR")


def plan(options: Options, records: Records) -> list[Cell]:  # noqa: ARG001
    """The maps, then the surface; the quick form has a coarser one."""
    name = "usps" if options.data is not None else "iris"
    step = 2 if options.quick else 1
    maps = [Cell(TABLE, name, method, 0, {"links": MAP_LINKS}) for method in MAPS]
    surface = [
        Cell(TABLE, name, "surface", 0, {"links": SURFACE_LINKS, "sigma_f_squared": width, "lambda2": weight})
        for width in WIDTHS[::step]
        for weight in WEIGHTS[::step]
    ]
    return maps + surface


def compute(cell: Cell, folder: Path | None) -> Result:
    """The error, and of a map the places of some of its points."""
    one = links.problem(folder, cell.data)
    if cell.method == "surface":
        parameters = {"sigma_f": cell.setting["sigma_f_squared"] ** 0.5, "lambda2": cell.setting["lambda2"]}
        seconds, found = cpu_timed(
            lambda: error(one, cell.setting["links"], cell.seed, True, make_clustering, **parameters)
        )
        return {"error": found, "seconds": seconds}
    given = draw_links(one.y, cell.setting["links"], cell.seed)
    if cell.method == "spectral":
        seconds, model = cpu_timed(lambda: SpectralEmbedding(n_components=2).fit(one.graph))
    else:
        alone: dict[str, Any] = {"lambda2": 0.0, "link_edges": 0.0} if cell.method == "links only" else {}
        seconds, model = cpu_timed(
            lambda: make_embedding(2, alone, len(given)).fit(one.graph, must_link=given.must, cannot_link=given.cannot)
        )
    shown = np.random.default_rng(0).permutation(len(one.y))[:SHOWN_POINTS]
    return {
        "error": one_nn_error(model.embedding_, one.y),
        "seconds": seconds,
        "places": np.round(model.embedding_[shown], 3).tolist(),
        "classes": one.y[shown].tolist(),
    }


def draw(options: Options) -> None:
    """Both pictures from the records; those of stand-ins beside their records."""
    import matplotlib

    matplotlib.use("Agg")
    records = list(options.store(TABLE).read().values())
    folder = PICTURES if options.folder.resolve() == Options().results.resolve() else options.folder
    folder.mkdir(parents=True, exist_ok=True)
    surface = [record for record in records if record.cell.method == "surface"]
    if surface:
        _draw_surface(
            {(r.cell.setting["sigma_f_squared"], r.cell.setting["lambda2"]): r.result for r in surface}, folder
        )
    maps = {record.cell.method: record.result for record in records if record.cell.method in MAPS}
    if len(maps) == len(MAPS):
        _draw_maps(maps, folder)


def _draw_surface(found: dict[tuple[float, float], Result], folder: Path) -> None:
    import matplotlib.pyplot as plt

    widths, weights = (sorted({key[axis] for key in found}) for axis in (0, 1))
    values = np.array([[found.get((w, v), {}).get("error", np.nan) for w in widths] for v in weights])
    figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    image = axes.imshow(values, origin="lower", cmap="viridis_r", aspect="auto")
    middle = float(np.nanmean([np.nanmin(values), np.nanmax(values)]))
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if value > middle else "black"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    axes.set_xticks(range(len(widths)), [f"{width:.2g}" for width in widths])
    axes.set_yticks(range(len(weights)), [f"{weight:.2g}" for weight in weights])
    axes.set_xlabel("σ_f²")
    axes.set_ylabel("λ2")
    axes.set_title(f"Clustering error, %, {SURFACE_LINKS} links of each kind")
    figure.colorbar(image, ax=axes, label="error, %")
    figure.savefig(folder / "figure3.png", dpi=120)
    plt.close(figure)


def _draw_maps(maps: dict[str, Result], folder: Path) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(MAPS), figsize=(13, 4.4), layout="constrained")
    for panel, name in zip(panels, MAPS, strict=True):
        places, classes = np.array(maps[name]["places"]), np.array(maps[name]["classes"])
        for number in np.unique(classes):
            chosen = places[classes == number]
            panel.scatter(*chosen.T, s=4, color=f"C{number % 10}", label=str(number), linewidths=0)
        panel.set_title(f"{name}: {maps[name]['error']:.2f} %")
        panel.set_xticks([])
        panel.set_yticks([])
    panels[-1].legend(markerscale=3, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(folder / "triptych.png", dpi=110)
    plt.close(figure)
