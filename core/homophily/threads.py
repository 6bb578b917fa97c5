"""How many threads the core uses, in one place.

The compiled kernels release the GIL and work on row ranges; :func:`run_chunks` runs one range a thread. The split
depends on the thread count alone, so a repeated run gives the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from homophily.arrays import Floats

_NUMBA: Any = numba.config


def thread_count(n_jobs: int | None) -> int:
    """Threads to use: ``n_jobs`` as scikit-learn reads it, except that None means every core this process may use.

    Inside a joblib worker the process's own share counts (joblib passes it to numba), so nested work does not
    oversubscribe the machine.
    """
    if n_jobs is not None and n_jobs >= 0:
        return max(1, n_jobs)
    available = min(_NUMBA.NUMBA_NUM_THREADS, len(os.sched_getaffinity(0)))
    return int(available) if n_jobs is None else max(1, available + 1 + n_jobs)


@cache
def _pool(threads: int, _process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="homophily")


def run_chunks(kernel: Callable[[int], object], chunks: int) -> None:
    """Call ``kernel(0) … kernel(chunks - 1)``, the first on this thread and each other one on a thread of its own."""
    # A forked child inherits the pool object but not its threads: the process id keys a new one.
    others = [_pool(chunks - 1, os.getpid()).submit(kernel, chunk) for chunk in range(1, chunks)] if chunks > 1 else []
    kernel(0)
    for other in others:
        other.result()


def run_ranges(kernel: Callable[..., object], bounds: Any, *arguments: Any) -> None:
    """Call ``kernel(first, last, *arguments)`` for every two bounds that follow each other, each on a thread."""
    run_chunks(lambda c: kernel(bounds[c], bounds[c + 1], *arguments), len(bounds) - 1)


def sum_chunks(kernel: Callable[[int, Floats], float], chunks: int, shape: tuple[int, ...]) -> tuple[float, Floats]:
    """The energy and gradient of this shape that ``kernel(chunk, gradient)`` returns and adds, over all chunks."""
    energies, gradients = np.zeros(chunks), np.zeros((chunks, *shape))

    def run(chunk: int) -> None:
        energies[chunk] = kernel(chunk, gradients[chunk])

    run_chunks(run, chunks)
    return float(energies.sum()), gradients.sum(axis=0)


def even_rows(rows: int, chunks: int) -> list[int]:
    """Boundaries that split ``rows`` rows into ``chunks`` ranges of nearly equal length."""
    return [rows * chunk // chunks for chunk in range(chunks + 1)]


def balanced_rows(indptr: NDArray[np.integer], chunks: int) -> NDArray[np.int64]:
    """Row boundaries that split a CSR matrix into ``chunks`` ranges of nearly equal work (non-zeros plus rows)."""
    work = indptr.astype(np.int64) + np.arange(indptr.size)
    inner = np.searchsorted(work, np.linspace(0, work[-1], chunks + 1)[1:-1])
    return np.concatenate([[0], inner, [indptr.size - 1]]).astype(np.int64)


@cache
def _libraries() -> Any:
    """Finding the loaded libraries takes milliseconds, setting their threads microseconds."""
    return ThreadpoolController()


_BLAS_LOCK = Lock()
_blas_users = 0
_blas_limit: Any = None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Hold BLAS to one thread, for the whole process, until the last of all concurrent users leaves."""
    global _blas_users, _blas_limit
    with _BLAS_LOCK:
        if _blas_users == 0:
            _blas_limit = _libraries().limit(limits=1)
        _blas_users += 1
    try:
        yield
    finally:
        with _BLAS_LOCK:
            _blas_users -= 1
            if _blas_users == 0:
                _blas_limit.restore_original_limits()
