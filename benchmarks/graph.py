"""The search for neighbours: time, memory and recall beside the former way and other libraries, in one run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.data import embeddings, manifolds, mnist
from benchmarks.measure import isolated, peak_memory
from benchmarks.report import Options, Report, Row
from homophily import KNNGraph
from homophily.graph.dense_index import DenseIndex
from homophily.threads import thread_count

NEIGHBORS = 10
SAMPLE = 2000
Points = NDArray[np.float32]
Search = Callable[[Points], NDArray[np.integer]]
"""From points to the positions (u, NEIGHBORS) of their nearest others."""


class Case(NamedTuple):
    """Points to search, how their neighbours are measured, and which searches are run on them."""

    name: str
    make: Callable[[], Points]
    metric: str
    searches: tuple[str, ...]


def run(options: Options, report: Report) -> None:
    rows: list[Row] = []
    for case in cases(options):
        former = None
        for name in case.searches:
            report.progress(f"{case.name}: {name}")
            measured = isolated(measure, case, name)
            if measured is None:
                report.note(f"{name} is not installed: its rows are left out.")
                continue
            former = former or measured["CPU seconds"]
            rows.append({"points": case.name, "search": name, **measured, "ratio": measured["CPU seconds"] / former})
    report.table(f"The {NEIGHBORS} nearest neighbours of every point", rows)
    report.note(
        "Ratios are of CPU seconds, to the first search on the same points. Recall is the share of the true neighbours "
        f"of {SAMPLE:,} points. Peak memory includes the points and what Python has loaded."
    )
    whole = KNNGraph()
    points = mnist(options.data, 3_000 if options.quick else 60_000).X
    began, shares = perf_counter(), [(0.0, 0.0)]
    whole.fit(points, callback=lambda share: shares.append((perf_counter() - began, share)))
    longest = float(np.diff([seconds for seconds, _ in shares]).max())
    report.note(f"A whole graph on the first points reports its progress every {longest:.2f} s or sooner.")


def cases(options: Options) -> list[Case]:
    few = 26_000 if options.quick else 60_000
    former, ours = "HNSW, the former way", "regions"
    both = (former, ours)
    peers = ("HNSW, deeper", "HNSW with Panorama", "pynndescent", "pynndescent, of 24")
    found = [
        Case("MNIST" if options.data else "drawn digits", partial(digits, options.data, few), "euclidean", both + peers)
    ]
    found += [
        Case(f"embeddings, {columns} columns, cosine", partial(embeddings, few, columns), "cosine", both)
        for columns in (384, 768, 1536)
    ]
    found.append(Case("embeddings, 768 columns", partial(embeddings, few, 768), "euclidean", both))
    found.append(Case("table, 12 columns", partial(table, 2 * few, 12), "euclidean", both))
    if not options.quick:
        found.append(Case("10⁶ drawn digits, 96 columns", partial(sheets, 10**6, 96), "euclidean", both))
    return found


def digits(folder: Any, points: int) -> Points:
    return np.asarray(mnist(folder, points).X, dtype=np.float32)


def sheets(points: int, columns: int) -> Points:
    return manifolds(points, seed=3, dimensions=columns)[0]


def table(points: int, columns: int) -> Points:
    """Correlated columns of a table, standardised."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(points, columns)) @ rng.normal(size=(columns, columns))
    return np.asarray(X / X.std(axis=0), dtype=np.float32)


def measure(case: Case, name: str) -> dict[str, float] | None:
    """Time, memory and recall of one search, after a small one to compile what is to be compiled."""
    search = searches(case.metric).get(name)
    if search is None:
        return None
    X = case.make()
    search(X[:2000])
    began, worked = perf_counter(), process_time()
    found = search(X)
    seconds, cpu = perf_counter() - began, process_time() - worked
    peak = peak_memory()
    return {"seconds": seconds, "CPU seconds": cpu, "recall": recall(X, found, case.metric), "peak MiB": peak}


def searches(metric: Any) -> dict[str, Search]:
    def index(method: Any) -> Search:
        return lambda X: DenseIndex(X, metric, method).self_query(NEIGHBORS)[1]

    def links(kind: Any, *more: int, depth: int = 96, build: int = 80) -> Search:
        def search(X: Points) -> NDArray[np.integer]:
            faiss.omp_set_num_threads(thread_count(None))
            structure = kind(X.shape[1], 16, *more)
            structure.hnsw.efConstruction, structure.hnsw.efSearch = build, depth
            structure.add(X)
            return _without_self(structure.search(X, NEIGHBORS + 1)[1])

        return search

    found = {
        "HNSW, the former way": index("hnsw"),
        "regions": index("regions"),
        "HNSW, deeper": links(faiss.IndexHNSWFlat, depth=128, build=120),
        "HNSW with Panorama": links(faiss.IndexHNSWFlatPanorama, 8),
    }
    try:
        from pynndescent import NNDescent
    except ImportError:
        return found

    def descent(neighbors: int) -> Search:
        def search(X: Points) -> NDArray[np.integer]:
            graph = NNDescent(X, metric=metric, n_neighbors=neighbors, random_state=0)
            return _without_self(graph.neighbor_graph[0])

        return search

    # Of the first ten of 24, more are right than of ten alone, even with more trees and rounds.
    return found | {"pynndescent": descent(NEIGHBORS + 1), "pynndescent, of 24": descent(24)}


def _without_self(found: NDArray[np.integer]) -> NDArray[np.integer]:
    """The first neighbours of each point but itself."""
    own = found == np.arange(len(found))[:, None]
    order = np.argsort(own, axis=1, kind="stable")[:, :NEIGHBORS]
    return np.take_along_axis(found, order, axis=1)


def recall(X: Points, found: NDArray[np.integer], metric: Any) -> float:
    """Share of the true neighbours of a sample among those found; as near as the last of them counts as true."""
    sample = np.sort(np.random.default_rng(1).permutation(len(X))[:SAMPLE])
    exact = DenseIndex(X, metric, "exact")
    truth = exact._nearest(X[sample], sample, NEIGHBORS, 2 * NEIGHBORS + 2)[0]
    distances = exact._first(X[sample], sample, NEIGHBORS, found[sample].astype(np.int64))[0]
    return float(np.mean(distances <= truth[:, -1:]))
