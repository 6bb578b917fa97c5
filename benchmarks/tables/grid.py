"""Draws of labels and validation points, and the grid in which a draw's best case is looked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.data import Classes, DataSet, draw_labels
from homophily import ERRClassifier, IRRClassifier, KNNGraph

# The best case's grid; σ_f in shares of its default, λ2 in shares of λ1.
NEIGHBORS = (5, 6, 8, 10)
#: For cosine distances, which need many neighbours, and for whitened ones, which need more.
WIDE = (10, 14, 20, 30, 40, 60, 80)
WIDEST = (20, 40, 80)
#: Of many classes, whose fits take ten times as long.
FEW = (10, 20)
DIRECTIONS = (14, 20, 28, 50)
#: For angles seen from the mean.
ANGLE_DIRECTIONS = (20, 28)
WHITENED_DIRECTIONS = 80
WEIGHTS: tuple[dict[str, Any], ...] = (
    *({"weights": "global", "sigma_x": width} for width in (0.4, 0.5, 0.6, 0.75)),
    {"weights": "local", "sigma_x": 1.0},
)
LAMBDA1 = (0.1, 1.0, 3.0, 10.0, 30.0, 100.0)
#: So many of IRR's settings with the lowest errors of a space are taken on to ERR.
STARTS = 4


class Relationships(NamedTuple):
    """ERR's part of the grid."""

    sigma_f: tuple[float, ...] = (0.67, 1.0)
    lambda2: tuple[float, ...] = (0.002, 0.03, 0.1, 0.3)
    repulsion: tuple[float, ...] = (1.0,)


class Draw(NamedTuple):
    """Which points are labelled, and what is asked of the rest."""

    known: Classes
    """Classes of labelled and validation points, −1 elsewhere."""
    few: Classes
    """The same without the validation points."""
    validation: NDArray[np.int64]

    def error(self, answer: NDArray[Any], y: Classes) -> float:
        """In percent, of the points that are neither labelled nor for validation."""
        rest = self.known == -1
        return 100.0 * float(np.mean(answer[rest] != y[rest]))


def draw(y: Classes, seed: int, labels: int, validation: int) -> Draw:
    """Labels as in the other benchmarks, and validation points from the rest."""
    few = draw_labels(y, labels, seed)
    chosen = np.random.default_rng([seed, 1]).choice(np.flatnonzero(few == -1), validation, replace=False)
    known = few.copy()
    known[chosen] = y[chosen]
    return Draw(known, few, chosen)


def spaces(data: DataSet) -> list[dict[str, Any]]:
    """What distances a graph of these points may take, as parameters of :class:`KNNGraph`."""
    found: list[dict[str, Any]] = [{"space": "input"}]
    if data.metric == "cosine":
        return found
    columns = data.X.shape[1]
    found += [{"space": "principal", "n_directions": count} for count in DIRECTIONS if count < columns]
    # By the squared length of the chord, that is by q = 1.
    angles = {"metric": "cosine", "exponent": 1, "space": "principal"}
    found += [{**angles, "n_directions": count} for count in ANGLE_DIRECTIONS if count < columns]
    # Directions of little variance need points enough to be known.
    if 3 * min(columns, WHITENED_DIRECTIONS) <= len(data.y):
        found.append({"space": "whitened", "n_directions": min(columns, WHITENED_DIRECTIONS)})
    return found


def grid_graphs(data: DataSet) -> list[dict[str, Any]]:
    """The grid's graphs, as parameters of :class:`KNNGraph`."""
    neighbors = WIDE if data.metric == "cosine" else NEIGHBORS if data.y.max() == 1 else FEW
    return [
        {"n_neighbors": k, **space, **how}
        for space in spaces(data)
        for k in (WIDEST if space["space"] == "whitened" else neighbors)
        for how in WEIGHTS
    ]


class Errors(NamedTuple):
    """Test errors in percent of the grid's settings."""

    irr: list[float]
    err: list[float]


def grid_errors(
    graphs: Sequence[KNNGraph],
    data: DataSet,
    split: Draw,
    power: int = 2,
    starts: int = STARTS,
    relationships: Relationships = Relationships(),  # noqa: B008
) -> Errors:
    """Of IRR over graphs and λ1, and of ERR over relationships where IRR does best in each space."""
    parallel = joblib.Parallel(n_jobs=-1, prefer="threads")
    lines = list(product(graphs, LAMBDA1))
    with threadpool_limits(1):
        begun = parallel(joblib.delayed(_start)(graph, lambda1, data, split, power) for graph, lambda1 in lines)
        best: list[int] = []
        for space in dict.fromkeys(map(_space, graphs)):
            inside = [number for number, (graph, _) in enumerate(lines) if _space(graph) == space]
            best += sorted(inside, key=lambda line: begun[line][0])[:starts]
        err = parallel(
            joblib.delayed(_goes_on)(*lines[line], begun[line][1], data, split, power, *setting)
            for line, *setting in product(best, *relationships)
        )
    return Errors([error for error, _ in begun], list(err))


def _space(graph: KNNGraph) -> tuple[Any, ...]:
    return graph.metric, graph.space, graph.n_directions


def _start(graph: KNNGraph, lambda1: float, data: DataSet, split: Draw, power: int) -> tuple[float, Any]:
    model = IRRClassifier(power=power, lambda1=lambda1, n_jobs=1).fit(graph, split.few)
    return split.error(model.transduction_, data.y), model.solution_


def _goes_on(
    graph: KNNGraph,
    lambda1: float,
    init: Any,
    data: DataSet,
    split: Draw,
    power: int,
    sigma_f: float,
    lambda2: float,
    repulsion: float,
) -> float:
    width = ERRClassifier.SIGMA_F * (2.0 if init.shape[1] == 1 else 2.0**0.5)
    shares: dict[str, Any] = {"lambda1": lambda1, "lambda2": lambda2 * lambda1, "sigma_f": sigma_f * width}
    model = ERRClassifier(power=power, **shares, repulsion=repulsion, n_jobs=1).fit(graph, split.few, init=init)
    return split.error(model.transduction_, data.y)
