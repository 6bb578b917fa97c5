"""What maps look like: ours without links and with 100 of them, beside the spectral map and UMAP.

Share of the picture that is used, trustworthiness (are neighbours on the map neighbours among the points?) and
leave-one-out 1-NN error. Without ``--quick`` it draws `pictures/maps.png`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.manifold import trustworthiness

from benchmarks.data import DataSet, Floats
from benchmarks.link_sets import draw, link_set, one_nn_error
from benchmarks.measure import cpu_timed
from benchmarks.report import Options, Report, Row
from homophily import ERREmbedding, KNNGraph, SpectralEmbedding

PICTURE = Path(__file__).parent / "pictures" / "maps.png"
LINKS, SEED = 100, 0
#: Cells along each side of the picture; and points for which trustworthiness is computed, which takes their square.
CELLS, JUDGED = 64, 3_000


def run(options: Options, report: Report) -> None:
    sets = [digits(), topics()]
    if not options.quick:
        sets = [link_set(options.data, "usps"), link_set(options.data, "mnist"), *sets]
    rows, drawn = [], {}
    for data in sets:
        for name, make in methods(data).items():
            report.progress(f"{data.name}, {name}")
            seconds, F = cpu_timed(make)
            drawn[data.name, name] = F, data.y
            rows.append({**judged(data, name, F), "CPU seconds": seconds})
    report.table("Maps in two dimensions", rows)
    if not options.quick:
        show(drawn)


def digits() -> DataSet:
    return DataSet("digits", *load_digits(return_X_y=True))


def topics() -> DataSet:
    """The vectors of the tutorial on embeddings: six topics, each a curved sheet in 384 dimensions."""
    rng = np.random.default_rng(1)
    topic = rng.integers(0, 6, 1500)
    vectors = np.empty((1500, 384))
    for t in range(6):
        place = rng.uniform(-1.5, 1.5, (np.sum(topic == t), 6))
        sheet = np.tanh(place @ rng.normal(size=(6, 32))) @ rng.normal(size=(32, 384)) / np.sqrt(32)
        vectors[topic == t] = sheet + 0.25 * rng.normal(size=384)
    return DataSet("topics", vectors + 0.8 * rng.normal(size=vectors.shape), topic)


def methods(data: DataSet) -> dict[str, Callable[[], Floats]]:
    """The maps of a set, by name; UMAP where it is installed."""
    metric: Any = "cosine" if data.name == "topics" else "euclidean"
    graph = KNNGraph(symmetrize="max", metric=metric).fit(data.X)
    links = draw(data.y, LINKS, SEED)
    pairs = {"must_link": links.must, "cannot_link": links.cannot}
    found: dict[str, Callable[[], Floats]] = {
        "spectral": lambda: SpectralEmbedding().fit(graph).embedding_,
        "ERR": lambda: ERREmbedding().fit(graph).embedding_,
        f"ERR, {LINKS} links": lambda: ERREmbedding().fit(graph, **pairs).embedding_,
    }
    try:
        from umap import UMAP
    except ImportError:
        return found

    def umap() -> Floats:
        with warnings.catch_warnings():
            # It warns that a seed means one thread.
            warnings.simplefilter("ignore")
            return np.asarray(UMAP(random_state=SEED, metric=metric).fit_transform(data.X), dtype=np.float64)

    return found | {"UMAP": umap}


def judged(data: DataSet, name: str, F: Floats) -> Row:
    some = np.random.default_rng(0).permutation(len(F))[:JUDGED]
    return {
        "points": data.name,
        "map": name,
        "of the picture used, %": 100 * used(F),
        "trustworthiness": trustworthiness(data.X[some], F[some], n_neighbors=10),
        "1-NN error, %": one_nn_error(F, data.y),
    }


def used(F: Floats) -> float:
    """Share of the picture's cells that have a point, of those that as many points spread at random would have."""
    place = (F - F.min(axis=0)) / np.ptp(F, axis=0)
    cells = len(np.unique(np.minimum((place * CELLS).astype(int), CELLS - 1), axis=0))
    return float(cells / (CELLS**2 * -np.expm1(-len(F) / CELLS**2)))


def show(drawn: dict[tuple[str, str], tuple[Floats, Any]]) -> None:
    """A row of maps for each set."""
    from matplotlib.figure import Figure

    sets, names = (list(dict.fromkeys(key[place] for key in drawn)) for place in (0, 1))
    figure: Any = Figure(figsize=(3 * len(names), 3 * len(sets)), layout="constrained")
    panels = figure.subplots(len(sets), len(names), squeeze=False)
    for (data, name), (F, y) in drawn.items():
        axis = panels[sets.index(data), names.index(name)]
        axis.scatter(*F.T, c=y, cmap="tab10", s=float(np.clip(6_000 / len(F), 0.4, 4)), linewidths=0)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_color("#cccccc")
        axis.set_title(f"{data}: {name}", fontsize=10)
    figure.savefig(PICTURE, dpi=90, metadata={"Software": None})
