"""The indexes of faiss that are in use: all pairs, and HNSW for graphs that were stored with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from homophily.threads import thread_count

_LINKS = 16
_BUILD_DEPTH = 80
_IMPORTED_BY = os.getpid()


def all_pairs(points: NDArray[np.float32]) -> Any:
    """An index that compares with every point."""
    structure = faiss.IndexFlatL2(points.shape[1])
    structure.add(points)
    return structure


def hnsw(points: NDArray[np.float32]) -> Any:
    """An index that walks along links between near points."""
    structure = faiss.IndexHNSWFlat(points.shape[1], _LINKS)
    structure.hnsw.efConstruction = _BUILD_DEPTH
    # faiss ≥ 1.15 links the points the same way whatever the thread count (before, only with one thread).
    structure.add(points)
    return structure


def linked(points: NDArray[np.float32], links: NDArray[np.uint8]) -> Any:
    """What :func:`hnsw` makes of the points, from the links it found before."""
    try:
        structure = faiss.deserialize_index(links)  # checks that links lead to points
    except RuntimeError as error:
        raise ValueError("The links of the neighbour index cannot be read.") from error
    shape = structure.ntotal, structure.d
    if not isinstance(structure, faiss.IndexHNSWFlat) or shape != points.shape or structure.storage is not None:
        raise ValueError(f"The links of the neighbour index must be of {points.shape} points. Got {shape} instead.")
    storage = all_pairs(points)
    structure.storage, structure.own_fields = storage, True
    storage.this.disown()
    return structure


def links_of(structure: Any) -> NDArray[np.uint8]:
    """The links of an HNSW index in faiss's own bytes, without the points."""
    return np.asarray(faiss.serialize_index(structure, faiss.IO_FLAG_SKIP_STORAGE), dtype=np.uint8)


def walk(structure: Any, rows: NDArray[np.float32], count: int, depth: int) -> NDArray[np.int64]:
    """Candidates by HNSW; where the walk ends early, by all pairs."""
    parameters = faiss.SearchParametersHNSW(efSearch=max(depth, count + depth // 2))  # type: ignore[attr-defined]
    found = structure.search(rows, count, params=parameters)[1]
    # Among many copies of one point the walk can end early; -1 marks what it did not find.
    short = np.flatnonzero((found < 0).any(axis=1))
    if short.size:
        found[short] = faiss.downcast_index(structure.storage).search(rows[short], count)[1]
    return np.asarray(found)


@contextmanager
def faiss_threads(n_jobs: int | None) -> Iterator[None]:
    """Threads of faiss, for the whole process, while it searches."""
    before = faiss.omp_get_max_threads()
    # OpenMP's threads do not survive a fork: a forked child that asks for them waits for ever.
    faiss.omp_set_num_threads(thread_count(n_jobs) if os.getpid() == _IMPORTED_BY else 1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
