"""Edges of a graph of one's own, as the square matrix that the service takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Matrix(NamedTuple):
    """A sparse matrix in compressed rows, as SciPy lays it out."""

    data: NDArray[np.float64]
    indices: NDArray[np.int64]
    indptr: NDArray[np.int64]
    shape: tuple[int, int]


@dataclass(frozen=True)
class Edges:
    """A graph as a list of edges, such as who knows whom, in place of points or besides them.

    Parameters
    ----------
    pairs : array-like of shape (m, 2)
        The two nodes of each edge, as positions from 0. Directions do not count: an edge that is listed in both is
        listed twice.
    weights : array-like of shape (m,), optional
        The weight of each edge, or for distances its length; 1 if not given. If an edge is listed several times, its
        weights are added.
    points : int, optional
        The number of nodes; one more than the largest position if not given.

    Examples
    --------
    >>> from homophily_client import Edges
    >>> knows = Edges([(0, 1), (1, 2)], weights=[1.0, 0.5], points=4)
    >>> knows.points
    4
    """

    pairs: Any
    weights: Any = None
    points: int | None = None


def matrix_of(edges: Edges) -> Matrix:
    """The symmetric matrix of the weights.

    >>> matrix = matrix_of(Edges([(0, 1), (1, 2), (1, 0)]))
    >>> matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
    ([0, 1, 3, 4], [1, 0, 2, 1], [2.0, 2.0, 1.0, 1.0])
    """
    pairs = np.asarray(edges.pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        found = f"{pairs.dtype} of shape {pairs.shape}"
        raise ValueError(f"pairs must be integers of shape (m, 2). Got {found} instead.")
    size = int(pairs.max(initial=-1)) + 1 if edges.points is None else edges.points
    if pairs.size and (pairs.min() < 0 or pairs.max() >= size):
        wrong = int(np.flatnonzero((pairs < 0).any(axis=1) | (pairs >= size).any(axis=1))[0])
        found = pairs[wrong].tolist()
        raise ValueError(f"pairs[{wrong}] must be of nodes from 0 to {size - 1}. Got {found} instead.")
    weights = np.ones(len(pairs)) if edges.weights is None else np.asarray(edges.weights, dtype=np.float64)
    if weights.shape != (len(pairs),):
        raise ValueError(f"weights must be one for each of {len(pairs)} pairs. Got shape {weights.shape} instead.")
    first, second = pairs.astype(np.int64).T
    loops = first == second
    rows, columns = (np.concatenate(ends) for ends in ((first, second[~loops]), (second, first[~loops])))
    values = np.concatenate([weights, weights[~loops]])
    keys, where = np.unique(rows * size + columns, return_inverse=True)
    data = np.zeros(len(keys))
    np.add.at(data, where, values)
    starts = np.searchsorted(keys, np.arange(size + 1) * size)
    return Matrix(data, keys % size, starts.astype(np.int64), (size, size))
