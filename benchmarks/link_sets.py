"""The sets of the paper's tables on links, its figures, the graphs, and draws of links."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics.cluster import contingency_matrix
from sklearn.utils import check_consistent_length

from benchmarks.data import Classes, DataSet, Floats, read
from benchmarks.tables.paper import TABLE2, TABLE3, by_set
from homophily import KNNGraph
from homophily.supervision.links import Links, draw_links

SMALL = ("iris", "wine", "bcw", "diabetes")
LARGE = ("pendigits", "usps", "mnist")

# 2-D leave-one-out error and clustering error of ERR in the paper, by set and s_R.
PAPER_MAPS, PAPER_CLUSTERS = by_set(TABLE3, "ERR"), by_set(TABLE2, "ERR")


class Problem(NamedTuple):
    """A set with its graph."""

    name: str
    graph: KNNGraph
    y: Classes

    @property
    def n_classes(self) -> int:
        """The number of classes, which is the number of clusters asked for."""
        return len(np.unique(self.y))


def link_set(folder: Path | None, name: str) -> DataSet:
    """A set as the paper has it: MNIST is its test part, Diabetes standardised. Without the folder, stand-ins."""
    if folder is None:
        load = {"iris": load_iris, "wine": load_wine, "bcw": load_breast_cancer}.get(name, load_digits)
        X, y = load(return_X_y=True)
        return DataSet(f"{name} (stand-in)", X, y.astype(np.int64))
    if name == "mnist":
        with np.load(folder / "mnist.npz", allow_pickle=False) as archive:
            return DataSet(name, archive["X_test"].astype(np.float32), archive["y_test"].astype(np.int64))
    data = read(folder, "mnist" if name == "mnist-60k" else name)
    if name == "diabetes":
        return DataSet(name, (data.X - data.X.mean(axis=0)) / data.X.std(axis=0), data.y)
    return data


def problem(folder: Path | None, name: str) -> Problem:
    """A set and its graph, with the parameters that maps have by default."""
    data = link_set(folder, name)
    return Problem(name, KNNGraph(symmetrize="max").fit(data.X), data.y)


def draw(y: Classes, count: int, seed: int, *, each: bool = False) -> Links:
    """``count`` links, half of them must-links; or ``count`` of each kind."""
    one = count if each else count // 2
    return draw_links(y, one, one, random_state=seed)


def dominant_label_error(labels: ArrayLike, truth: ArrayLike) -> float:
    """The share of points whose true class is not the most frequent one of their cluster.

    >>> dominant_label_error([0, 0, 0, 1], ["a", "a", "b", "b"])
    0.25
    """
    check_consistent_length(labels, truth)
    counts = contingency_matrix(truth, labels)
    return float(1.0 - counts.max(axis=0).sum() / counts.sum())


def one_nn_error(F: Floats, y: Classes) -> float:
    """Share of points, in percent, whose nearest other point on the map is of another class."""
    found: NDArray[np.intp] = np.asarray(cKDTree(F).query(F, k=2)[1])
    nearest = np.where(found[:, 0] == np.arange(len(F)), found[:, 1], found[:, 0])
    return 100.0 * float(np.mean(y[nearest] != y))
