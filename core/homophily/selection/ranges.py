"""What a search varies: which parameters, where it begins, and how far it goes.

:data:`SEARCHED` is the one table of it. Unless a line says otherwise, the numbers here were chosen on the data sets of
the paper's Table 1, with draws of labels (20 and up) other than those that are reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from homophily.estimators.classifiers import ERRClassifier
from homophily.exceptions import ParameterError
from homophily.graph.coordinates import MOST_COLUMNS
from homophily.graph.knn_graph import KNNGraph
from homophily.parameters import wrong_parameter
from homophily.selection.records import Method, Parameters, Stage
from homophily.selection.sampler import Dimension, rounded

GRAPH_FIELDS = tuple(name for name in KNNGraph._parameter_constraints if name != "n_jobs")
#: Those that a classifier does not have itself.
OF_THE_GRAPH = tuple(name for name in GRAPH_FIELDS if name != "backend")
#: Points per whitened direction: with fewer, all points are equally far from one another.
WHITENED_POINTS = 3
#: With more points, the HNSW index finds few of the neighbours in whitened space, and slowly.
MOST_WHITENED = 20_000
#: Entries of L² that a trial may have, about n k²: some 1.2 GB. With many points k is not searched as far up.
MOST_ENTRIES = 1e8
#: Where a search begins, k and λ1: for Euclidean distances with two classes and more, for cosine and whitened ones.
#: The last two tell near from far less well, so that only the mean over many neighbours is reliable. With many classes
#: L wants fewer neighbours than L²: of ten digits 7.4 % are wrong with 10 of them and 7.7 % with 20, with L² 7.7 and
#: 7.0 % (IRR, draws 20 to 29).
BEGINNINGS = {
    "euclidean": (6, 3.0),
    "many classes": (20, 0.1),
    "many classes, L": (10, 0.1),
    "cosine": (20, 10.0),
    "whitened": (80, 1.0),
}
#: Up to this number of columns all of them count by default; with more, principal directions are tried.
FEW_COLUMNS = 20
LEAST_DIRECTIONS, MOST_DIRECTIONS = 8, 100
#: What dense points are compared by: distances, or the angles that they are seen at from their mean.
METRICS = ("euclidean", "cosine")
#: Directions where a search begins: with two classes, with more (which need more directions), and whitened.
DIRECTIONS = {"euclidean": 20, "many classes": 32, "many classes, L": 32, "whitened": 80}
#: σ_x where a search begins, for the weights that it tries.
WIDTHS = {"global": 0.75, "local": 1.0, "self-tuning": 0.7}
COSINE_WIDTH = 0.5
#: λ2 as a share of λ1, where a search begins: with one column of values, and with one for each class.
LAMBDA2_SHARES = (0.1, 0.5)
#: With so small a λ2 the full push is better than the classifier's default, which is for a larger one.
REPULSION = 1.0


@dataclass(frozen=True)
class Searched:
    """A parameter that can be searched."""

    stage: Stage | Literal["last"]
    """"last" is IRR's only stage, and ERR's second."""
    begin: Callable[[Ranges, str | None], Any]
    """Where the search begins in a space, and what its choice is drawn to."""
    dimension: Callable[[Ranges], Dimension]
    """How far it is searched."""
    factors: tuple[float, ...] = ()
    """What the first trials try besides, as factors of where the search begins."""
    by_default: bool = True


#: What can be searched, in the order of the grid of first trials.
SEARCHED: dict[str, Searched] = {
    "space": Searched("graph", lambda r, space: space or r.spaces[0], lambda r: Dimension(choices=r.spaces)),
    "metric": Searched("graph", lambda *_: METRICS[0], lambda _: Dimension(choices=METRICS)),
    "n_directions": Searched(
        "graph",
        lambda r, space: min(DIRECTIONS.get(r.kind(space), MOST_DIRECTIONS), r.most_directions(space)),
        lambda r: r.directions,
        (2.5, 0.5),
    ),
    "n_neighbors": Searched(
        "graph",
        lambda r, space: min(BEGINNINGS[r.kind(space)][0], r.most_neighbors),
        lambda r: Dimension(4, r.most_neighbors, "integer", step=1.6),
        (2.0, 0.5, 3.4, 0.34),
    ),
    "weights": Searched(
        "graph", lambda r, _: r.weights, lambda _: Dimension(choices=("global", "local", "self-tuning"))
    ),
    "sigma_x": Searched("graph", lambda r, _: r.width(r.weights), lambda _: Dimension(0.3, 2.5, step=1.5), (1.5,)),
    "lambda1": Searched(
        "graph",
        lambda r, space: BEGINNINGS[r.kind(space)][1],
        lambda _: Dimension(1e-3, 100.0, step=10.0),
        (10.0, 0.1, 0.01),
    ),
    "sigma_f": Searched(
        "relationships",
        lambda r, _: r.sigma_f,
        lambda r: Dimension(0.4 * r.sigma_f, 2.0 * r.sigma_f, step=1.5),
        (0.67,),
    ),
    "lambda2": Searched(
        "relationships",
        lambda r, _: r.lambda2_share,
        lambda r: Dimension(0.12 * r.lambda2_share, 4.0 * r.lambda2_share, step=3.0),
        (0.4, 3.0),
    ),
    "repulsion": Searched(
        "relationships", lambda *_: REPULSION, lambda _: Dimension(0.0, 1.0, "linear", step=0.3), by_default=False
    ),
    "power": Searched("last", lambda *_: 2, lambda _: Dimension(choices=(2, 1)), by_default=False),
}


class Ranges:
    """The range, the beginning and the first trials of each parameter that a ``Search`` with these arguments varies."""

    def __init__(
        self,
        n_points: int,
        n_classes: int,
        method: Method,
        vary: Sequence[str] | None,
        fixed: Parameters,
        graph: bool,
        n_features: int | None,
    ) -> None:
        self.n_points, self.n_classes, self.method, self.graph = n_points, n_classes, method, graph
        self.fixed = dict(fixed)
        self.vary = _read_vary(vary, self.fixed, method, graph)
        self._columns = n_features
        self._few_columns = n_features is not None and n_features <= FEW_COLUMNS
        self.most_neighbors: int = max(10, min(80, n_points // 5, int(math.sqrt(MOST_ENTRIES / n_points))))
        # Where a search begins: the weights, the classifier's default σ_f, and λ2 as a share of λ1.
        varied = "global" if "weights" in self.vary and n_classes == 2 else "local"
        self.weights: str = str(self.fixed.get("weights", varied))
        form = {name: self.fixed[name] for name in ("multiclass", "relationship_neighbors") if name in self.fixed}
        solver = ERRClassifier(**form).resolve_params(n_classes, n_points)
        one_column = n_classes == 2 or solver["multiclass"] == "one-vs-rest"
        self.sigma_f: float = rounded(solver["sigma_f"])
        self.lambda2_share: float = LAMBDA2_SHARES[0 if one_column else 1]
        self.spaces: tuple[str, ...] = self._possible_spaces(vary)
        if len(self.spaces) == 1:
            self._leave_out("space")
            if self.spaces != ("input",) and vary is None:
                self.fixed.setdefault("space", self.spaces[0])
        if "input" in self.spaces or (self._few_columns and vary is None):
            self._leave_out("n_directions")
        self._check_metric(vary)
        most = self.most_directions(self.fixed.get("space"))
        self.directions: Dimension = Dimension(min(LEAST_DIRECTIONS, most), most, "integer", step=1.6)

    def names(self, stage: Stage) -> list[str]:
        """What a stage searches."""
        stages = {stage, "last"} if stage == "relationships" or self.method == "irr" else {stage}
        return [name for name, searched in SEARCHED.items() if name in self.vary and searched.stage in stages]

    def _leave_out(self, field: str) -> None:
        self.vary = tuple(name for name in self.vary if name != field)

    def _possible_spaces(self, vary: Sequence[str] | None) -> tuple[str, ...]:
        """The spaces to choose between, the likelier first; naming them in ``vary`` means all that are possible."""
        named = [name for name in ("space", "n_directions") if vary is not None and name in vary]
        columns, metric = self._columns, self.fixed.get("metric", "euclidean")
        if columns is None or columns > MOST_COLUMNS or not self.graph or metric != "euclidean":
            if named:
                raise ParameterError(
                    f"The 'vary' parameter of Search must leave out {named[0]!r} unless points are dense, of at most "
                    f"{MOST_COLUMNS} columns, and metric='euclidean'. Got {named[0]!r} instead.",
                    "vary",
                )
            return ("input",)
        # Points as they come have no directions to count.
        counted = "n_directions" in named or self.fixed.get("n_directions") is not None
        spaces: tuple[str, ...] = ("input",)
        if "space" in self.fixed:
            spaces = (str(self.fixed["space"]),)
        elif "space" in named:
            spaces = ("principal", "whitened") if counted else ("input", "principal", "whitened")
        elif vary is None:
            first = "input" if self._few_columns and not counted else "principal"
            enough = WHITENED_POINTS * min(columns, DIRECTIONS["whitened"]) <= self.n_points <= MOST_WHITENED
            spaces = (first, "whitened") if enough else (first,)
        if counted and spaces == ("input",):
            must = "neither varied nor given in the space of the points as they come: vary 'space' as well, or give one"
            raise wrong_parameter("n_directions", "Search", must, "it with space='input'")
        return spaces

    def _check_metric(self, vary: Sequence[str] | None) -> None:
        """Angles are tried in principal directions, or where ``vary`` names the metric."""
        is_named = vary is not None and "metric" in vary
        if self._columns is None and is_named:
            must = "leave out 'metric' unless points are dense"
            raise ParameterError(f"The 'vary' parameter of Search must {must}. Got 'metric' instead.", "vary")
        if not is_named and "principal" not in self.spaces:
            self._leave_out("metric")

    def defaults(self, stage: Stage, space: str | None = None) -> Parameters:
        """Where a stage begins, and what its choice is drawn to: what does well on many sets with few labels.

        These are not the classifiers' defaults, which follow the labels more closely (a smaller λ1). In another
        ``space`` k and λ1 begin elsewhere. λ2 is a share of λ1.
        """
        space = space or self.fixed.get("space")
        return {name: SEARCHED[name].begin(self, space) for name in self.names(stage)}

    def dimensions(self, stage: Stage) -> dict[str, Dimension]:
        """How far each parameter is searched."""
        return {name: SEARCHED[name].dimension(self) for name in self.names(stage)}

    def kind(self, space: str | None) -> str:
        """The key of :data:`BEGINNINGS` that fits distances in a space."""
        if space == "whitened":
            return "whitened"
        if self.fixed.get("metric") == "cosine":
            return "cosine"
        if self.n_classes == 2:
            return "euclidean"
        is_first_power = self.fixed.get("power") == 1 or self.fixed.get("relationship_neighbors") is not None
        return "many classes, L" if is_first_power else "many classes"

    def width(self, weights: str) -> float | None:
        """The σ_x of weights where a search begins."""
        if weights == "global" and self.fixed.get("metric") == "cosine":
            return COSINE_WIDTH
        return WIDTHS.get(weights)

    def most_directions(self, space: str | None) -> int:
        """The largest number of directions in a space."""
        most = min(MOST_DIRECTIONS, self._columns or MOST_DIRECTIONS)
        return max(1, min(most, self.n_points // WHITENED_POINTS)) if space == "whitened" else most

    def design(self, stage: Stage) -> list[Parameters]:
        """The first trials of a stage: grids around where it begins, nearest first, for budgets that end within."""
        points: list[tuple[int, Parameters]] = []
        for place, space in enumerate(self.spaces if "space" in self.names(stage) else [None]):
            begin, dimensions = self.defaults(stage, space), self.dimensions(stage)
            grid: list[list[Any]] = [
                [space] if name == "space" else _around(name, begin[name], dimensions[name]) for name in begin
            ]
            for steps in product(*(range(len(values)) for values in grid)):
                point = {name: values[step] for name, values, step in zip(begin, grid, steps, strict=True)}
                if {"weights", "sigma_x"} <= begin.keys() and point["weights"] != begin["weights"]:
                    # Other weights are tried only with their own width.
                    point["sigma_x"] = self.width(point["weights"])
                if all(point != known for _, known in points):
                    points.append((place + sum(steps), point))
        return [point for _, point in sorted(points, key=lambda each: each[0])]


def _around(name: str, value: Any, dimension: Dimension) -> list[Any]:
    """A value, and what to try beside it: the nearest first."""
    if dimension.choices:
        # The first trials cannot tell more than two kinds of weights apart.
        return [value, *(choice for choice in dimension.choices if choice != value)][:2]
    tried = [value, *(rounded(value * factor) for factor in SEARCHED[name].factors)]
    if dimension.scale == "integer":
        tried = [round(number) for number in tried]
    return [number for number in dict.fromkeys(tried) if dimension.contains(number)]


def _read_vary(vary: Sequence[str] | None, fixed: Parameters, method: Method, graph: bool) -> tuple[str, ...]:
    possible = [name for name, searched in SEARCHED.items() if method == "err" or searched.stage != "relationships"]
    if fixed.get("relationship_neighbors") is not None:
        possible.remove("power")
    if fixed.get("weights") == "fixed":
        # Their width is in the unit of the distances, which is not known here.
        possible.remove("sigma_x")
    if not graph:
        possible = [name for name in possible if name not in GRAPH_FIELDS]
    if vary is None:
        return tuple(name for name in possible if SEARCHED[name].by_default and name not in fixed)
    wrong: list[Any] = [name for name in vary if name not in possible or name in fixed]
    if wrong:
        allowed = [name for name in possible if name not in fixed]
        raise wrong_parameter("vary", "Search", f"among {allowed}", wrong)
    return tuple(vary)
