"""What a search varies: which parameters, where it begins, and how far it goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from homophily.estimators.classifiers import ERRClassifier
from homophily.exceptions import ParameterError
from homophily.graph.coordinates import MOST_COLUMNS
from homophily.graph.knn_graph import KNNGraph
from homophily.selection.records import Method, Parameters, Stage
from homophily.selection.sampler import Dimension

#: What can be searched. "power" is of the last stage: IRR's if there is no other.
STAGE_FIELDS: dict[Stage, tuple[str, ...]] = {
    "graph": ("space", "n_directions", "n_neighbors", "weights", "sigma_x", "lambda1"),
    "relationships": ("sigma_f", "lambda2", "repulsion"),
}
#: What is searched when nobody says.
DEFAULT_FIELDS = ("space", "n_directions", "n_neighbors", "weights", "sigma_x", "lambda1", "sigma_f", "lambda2")
GRAPH_FIELDS = tuple(name for name in KNNGraph._parameter_constraints if name != "n_jobs")
#: Those of them that a classifier has not itself.
OF_THE_GRAPH = tuple(name for name in GRAPH_FIELDS if name != "backend")
#: Whitened directions need so many points each: with fewer, all points are equally far from one another.
WHITENED_POINTS = 3
#: With more points, an index finds few of the neighbours in whitened space, and slowly.
MOST_WHITENED = 20_000
#: Entries of L² that a trial may have, about n k²: with many points k is not searched as far up.
MOST_ENTRIES = 1e8
#: Where a search begins, k and λ1: for Euclidean distances with two classes and more, for cosine and whitened ones.
#: The last tell near from far less well, so that only the mean over many neighbours says something.
BEGINNINGS = {"euclidean": (6, 3.0), "many classes": (14, 0.1), "cosine": (20, 10.0), "whitened": (80, 1.0)}
#: With so few columns all of them count, if nobody says otherwise; of more, so many principal directions are tried.
FEW_COLUMNS = 20
LEAST_DIRECTIONS, MOST_DIRECTIONS = 8, 100
#: Directions where a search begins: with two classes, with more (which take more room), and whitened.
DIRECTIONS = {"euclidean": 20, "many classes": 40, "whitened": 80}
#: σ_x of the weights that a search tries, where it begins.
WIDTHS = {"global": 0.75, "local": 1.0, "self-tuning": 0.7}
COSINE_WIDTH = 0.5
#: λ2 as a share of λ1, where a search begins: with one column of values, and with one for each class.
LAMBDA2_SHARES = (0.1, 0.5)
#: With so small a λ2 the whole push is better than the classifier's default, which is for a larger one.
REPULSION = 1.0
#: What the first trials try besides, as factors of where the search begins.
DESIGN = {
    "n_directions": (2.5, 0.5),
    "n_neighbors": (2.0, 0.5, 3.4, 0.34),
    "sigma_x": (1.5,),
    "lambda1": (10.0, 0.1, 0.01),
    "sigma_f": (0.67,),
    "lambda2": (0.4, 3.0),
}


class Ranges:
    """Of every parameter searched its range, its beginning, and what is tried around it first.

    The arguments are those of :class:`~homophily.selection.Search`. ``fixed`` may gain the only space that there is.
    """

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
        self.spaces = self._possible_spaces(vary)
        if len(self.spaces) == 1:
            # Nothing to choose between.
            self._leave_out("space")
            if self.spaces != ("input",) and vary is None:
                self.fixed.setdefault("space", self.spaces[0])
        if "input" in self.spaces or (self._few_columns and vary is None):
            self._leave_out("n_directions")

    def names(self, stage: Stage) -> list[str]:
        """What a stage searches."""
        last = stage == "relationships" or self.method == "irr"
        return [name for name in (*STAGE_FIELDS[stage], *(["power"] if last else [])) if name in self.vary]

    def _leave_out(self, field: str) -> None:
        self.vary = tuple(name for name in self.vary if name != field)

    @property
    def _few_columns(self) -> bool:
        return self._columns is not None and self._columns <= FEW_COLUMNS

    def _possible_spaces(self, vary: Sequence[str] | None) -> tuple[str, ...]:
        """The spaces to choose between, the likelier first; who names them in ``vary`` means all that can be."""
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
            raise ParameterError(
                "The 'n_directions' parameter of Search must be neither varied nor given in the space of the points as "
                "they come: vary 'space' as well, or give one. Got it with space='input' instead.",
                "n_directions",
            )
        return spaces

    def home(self, stage: Stage, space: str | None = None) -> Parameters:
        """Where a stage begins, and what its choice is drawn to: what does well on many sets with few labels.

        These are not the classifiers' defaults, which follow the labels more closely (a smaller λ1). In another
        ``space`` k and λ1 begin elsewhere. λ2 is a share of λ1.
        """
        space = space or self.fixed.get("space")
        two = self.n_classes == 2
        kind = "euclidean" if two else "many classes"
        if space == "whitened" or self.fixed.get("metric") == "cosine":
            kind = "whitened" if space == "whitened" else "cosine"
        n_neighbors, lambda1 = BEGINNINGS[kind]
        weights = self.fixed.get("weights", "global" if "weights" in self.vary and two else "local")
        home: Parameters = {
            "space": space or self.spaces[0],
            "n_directions": min(DIRECTIONS.get(kind, MOST_DIRECTIONS), self._most_directions(space)),
            "n_neighbors": min(n_neighbors, self._most_neighbors),
            "weights": weights,
            "sigma_x": self._width(weights),
            "lambda1": lambda1,
            "sigma_f": rounded(ERRClassifier.SIGMA_F * (2.0 if self._one_column else math.sqrt(2.0))),
            "lambda2": self._lambda2_share,
            "repulsion": REPULSION,
            "power": 2,
        }
        return {name: home[name] for name in self.names(stage)}

    def dimensions(self, stage: Stage) -> dict[str, Dimension]:
        """How far each of them is searched."""
        home = self.home(stage)
        width = home.get("sigma_f", 1.0)
        most = self._most_directions(self.fixed.get("space"))
        every = {
            "space": Dimension(choices=self.spaces),
            "n_directions": Dimension(min(LEAST_DIRECTIONS, most), most, "whole", step=1.6),
            "n_neighbors": Dimension(4, self._most_neighbors, "whole", step=1.6),
            "weights": Dimension(choices=("global", "local", "self-tuning")),
            "sigma_x": Dimension(0.3, 2.5, step=1.5),
            "lambda1": Dimension(1e-3, 100.0, step=10.0),
            "power": Dimension(choices=(2, 1)),
            "sigma_f": Dimension(0.4 * width, 2.0 * width, step=1.5),
            "lambda2": Dimension(0.12 * self._lambda2_share, 4.0 * self._lambda2_share, step=3.0),
            "repulsion": Dimension(0.0, 1.0, "linear", step=0.3),
        }
        return {name: every[name] for name in self.names(stage)}

    @property
    def _one_column(self) -> bool:
        return self.n_classes == 2 or self.fixed.get("multiclass") == "one-vs-rest"

    @property
    def _lambda2_share(self) -> float:
        return LAMBDA2_SHARES[0 if self._one_column else 1]

    def _width(self, weights: str) -> float | None:
        if weights == "global" and self.fixed.get("metric") == "cosine":
            return COSINE_WIDTH
        return WIDTHS.get(weights)

    def _most_directions(self, space: str | None) -> int:
        most = min(MOST_DIRECTIONS, self._columns or MOST_DIRECTIONS)
        return max(1, min(most, self.n_points // WHITENED_POINTS)) if space == "whitened" else most

    @property
    def _most_neighbors(self) -> int:
        return max(10, min(80, self.n_points // 5, int(math.sqrt(MOST_ENTRIES / self.n_points))))

    def design(self, stage: Stage) -> list[Parameters]:
        """The first trials of a stage: grids around where it begins, nearest first, for budgets that end within."""
        points: list[tuple[int, Parameters]] = []
        for place, space in enumerate(self.spaces if "space" in self.names(stage) else [None]):
            home, dimensions = self.home(stage, space), self.dimensions(stage)
            grid: list[list[Any]] = [
                [space] if name == "space" else _around(name, home[name], dimensions[name]) for name in home
            ]
            for steps in product(*(range(len(values)) for values in grid)):
                point = {name: values[step] for name, values, step in zip(home, grid, steps, strict=True)}
                if {"weights", "sigma_x"} <= home.keys() and point["weights"] != home["weights"]:
                    # Of other weights only their own width.
                    point["sigma_x"] = self._width(point["weights"])
                if all(point != known for _, known in points):
                    points.append((place + sum(steps), point))
        return [point for _, point in sorted(points, key=lambda each: each[0])]


def _around(name: str, value: Any, dimension: Dimension) -> list[Any]:
    """A value, and what to try beside it: the nearest first."""
    if dimension.choices:
        # Two kinds of weights are as many as the first trials can tell apart.
        return [value, *(choice for choice in dimension.choices if choice != value)][:2]
    tried = [value, *(rounded(value * factor) for factor in DESIGN.get(name, ()))]
    if dimension.scale == "whole":
        tried = [round(number) for number in tried]
    return [number for number in dict.fromkeys(tried) if dimension.contains(number)]


def _read_vary(vary: Sequence[str] | None, fixed: Parameters, method: Method, graph: bool) -> tuple[str, ...]:
    possible = [*STAGE_FIELDS["graph"], *(STAGE_FIELDS["relationships"] if method == "err" else ()), "power"]
    if fixed.get("relationship_neighbors") is not None:
        possible = [name for name in possible if name not in ("power", "repulsion")]
    if fixed.get("weights") == "fixed":
        # Their width is in the unit of the distances, which is not known here.
        possible.remove("sigma_x")
    if not graph:
        possible = [name for name in possible if name not in GRAPH_FIELDS]
    if vary is None:
        return tuple(name for name in DEFAULT_FIELDS if name in possible and name not in fixed)
    wrong: list[Any] = [name for name in vary if name not in possible or name in fixed]
    if wrong:
        raise ParameterError(
            f"The 'vary' parameter of Search must be among {[name for name in possible if name not in fixed]}. "
            f"Got {wrong} instead.",
            "vary",
        )
    return tuple(vary)


def rounded(value: float) -> float:
    """To three digits, as a person would write it."""
    return float(f"{value:.3g}")
