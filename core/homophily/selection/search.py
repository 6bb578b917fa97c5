"""The search itself: which parameters to try next, given what became of those before.

A :class:`Search` holds no data and fits nothing. Its batches are a function of its arguments and of the outcomes of the
batches before, so that any process which is told the same outcomes asks for the same trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from homophily.classify import ERRClassifier, IRRClassifier
from homophily.graph import KNNGraph
from homophily.selection.choice import rank, score
from homophily.selection.evaluation import line_of, trial_of
from homophily.selection.records import Best, Group, Method, Outcome, Parameters, Stage, Trial
from homophily.selection.sampler import Dimension, suggest
from homophily.space import MOST_COLUMNS, PRINCIPAL_DIRECTIONS

#: What can be searched. "power" is of the last stage: IRR's if there is no other.
STAGE_FIELDS: dict[Stage, tuple[str, ...]] = {
    "graph": ("space", "n_neighbors", "weights", "sigma_x", "lambda1"),
    "relationships": ("sigma_f", "lambda2", "repulsion"),
}
#: What is searched when nobody says.
DEFAULT_FIELDS = ("space", "n_neighbors", "weights", "sigma_x", "lambda1", "sigma_f", "lambda2")
GRAPH_FIELDS = tuple(name for name in KNNGraph._parameter_constraints if name != "n_jobs")
#: Of each stage, when nobody says. Those of the graph are linear fits, and cost little.
STAGE_TRIALS: dict[Stage, int] = {"graph": 30, "relationships": 24}
#: Relationships are tried on so many of the best graphs: which is best for IRR is not always so for ERR.
GRAPHS = 3
#: Trials of a stage's designed first batch, at most.
FIRST_BATCH = 18
#: So many points for each column are needed to know the directions of little variance.
WHITENED_POINTS = 3
#: With more points, an index finds few of the neighbours in whitened space, and slowly.
MOST_WHITENED = 20_000
#: Entries of L² that a trial may have, about n k²: with many points k is not searched as far up.
MOST_ENTRIES = 1e8
#: Trials of a batch that follows the designed first one.
BATCH = 8
#: Where a search begins, k and λ1: for Euclidean distances with two classes and more, for cosine and whitened ones.
#: The last two tell near from far less well, so that only the mean over many neighbours says something.
BEGINNINGS = {"euclidean": (10, 1.0), "many classes": (14, 0.1), "cosine": (40, 3.0), "whitened": (80, 1.0)}
#: σ_x of the weights that a search tries, where it begins.
WIDTHS = {"global": 0.5, "local": 1.0, "self-tuning": 0.7}
#: λ2 as a share of λ1, where a search begins: with one column of values, and with one for each class.
LAMBDA2_SHARES = (0.08, 0.5)
#: With so small a λ2 the whole push is better than the classifier's default, which is for a larger one.
REPULSION = 1.0
#: What the first trials try besides, as factors of where the search begins.
DESIGN = {
    "n_neighbors": (2.0, 0.5, 3.4, 0.34),
    "sigma_x": (1.5,),
    "lambda1": (10.0, 0.1, 0.01),
    "sigma_f": (0.67,),
    "lambda2": (0.4, 3.0),
}


def default_trials(method: Method) -> int:
    """How many are tried when nobody says: so many for each of the method's stages."""
    return sum(STAGE_TRIALS.values()) if method == "err" else STAGE_TRIALS["graph"]


class Search:
    """Ask for groups of trials, tell their outcomes, and read the best parameters.

    Stage "graph" tries IRR for the graph and λ1, stage "relationships" ERR for σ_f and λ2 on the best few of these.
    The first batch of a stage is a designed one around where it begins; Optuna's sampler proposes what follows.

    Parameters
    ----------
    n_points, n_classes : of the data.
    method : "err", or "irr" for the first stage alone.
    trials : how many in all, divided between the stages as :data:`STAGE_TRIALS` are, which None means. So with as many
        trials of the graph, "err" begins with just what "irr" does.
    seconds : no batch is begun when an outcome told has ended after so many; the first of two stages gets half of it.
    seed : of the sampler.
    vary : what to search, of :data:`STAGE_FIELDS` and "power"; None means :data:`DEFAULT_FIELDS` without the fixed
        ones.
    fixed : parameters of the classifier that all trials share.
    graph : False when the graph is given: then nothing of it is searched.
    n_features : columns of dense points, whose ``space`` is searched, too; None for others.

    >>> search = Search(n_points=500, n_classes=2, method="irr", trials=4)
    >>> [(group.graph["n_neighbors"], len(group.trials)) for group in search.ask()]
    [(10, 2), (10, 1), (10, 1)]
    """

    def __init__(
        self,
        n_points: int,
        n_classes: int,
        *,
        method: Method = "err",
        trials: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
        vary: Sequence[str] | None = None,
        fixed: Parameters | None = None,
        graph: bool = True,
        n_features: int | None = None,
    ) -> None:
        if method not in ("irr", "err"):
            raise ValueError(f"The 'method' parameter of Search must be 'irr' or 'err'. Got {method!r} instead.")
        trials = default_trials(method) if trials is None else trials
        if trials < 1:
            raise ValueError(f"The 'trials' parameter of Search must be an int of at least 1. Got {trials!r} instead.")
        self.n_points, self.n_classes = n_points, n_classes
        self.method, self.budget, self.seconds, self.seed = method, trials, seconds, seed
        self.fixed = dict(fixed or {})
        self.graph = graph
        self.vary = _read_vary(vary, self.fixed, method, graph)
        self._spaces = self._possible_spaces(n_features, vary)
        if len(self._spaces) == 1:
            # Nothing to choose between.
            self.vary = tuple(name for name in self.vary if name != "space")
            if self._spaces != ("input",) and vary is None:
                self.fixed.setdefault("space", self._spaces[0])
        self._told: dict[int, Outcome] = {}
        self._planned: dict[int, list[Group]] = {}

    @staticmethod
    def graph_trials(trials: int) -> int:
        """How many of ERR's trials are for the graph."""
        return round(trials * STAGE_TRIALS["graph"] / sum(STAGE_TRIALS.values()))

    # -- asking and telling ----------------------------------------------------------------------------------------

    def ask(self) -> list[Group]:
        """The groups of the current batch that no outcome was told of; none when the search is over."""
        for batch in self._batches():
            missing = [group for group in batch if group.number not in self._told]
            if missing:
                return missing
        return []

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Take outcomes in any order, also those of an earlier process; one told twice counts once."""
        for outcome in outcomes:
            self._told.setdefault(outcome.group.number, outcome)

    @property
    def trials(self) -> list[Trial]:
        """All trials told, by number."""
        return [
            trial_of(outcome.group, position, result)
            for _, outcome in sorted(self._told.items())
            for position, result in enumerate(outcome.results)
        ]

    @property
    def best(self) -> Best:
        """The parameters chosen among the trials told; of a stage without any result, where it begins."""
        if not self._told:
            raise ValueError("A search has a best trial once outcomes were told: ask, evaluate and tell first.")
        stage: Stage = "graph" if self.method == "irr" else "relationships"
        for trial in self._ranked(stage):
            return self._best(trial.parameters, trial)
        base = self._bases(stage)[0]
        return self._best({**base, **self._absolute(self._home(stage), base)}, None)

    def _best(self, parameters: Parameters, trial: Trial | None) -> Best:
        graph = {name: value for name, value in parameters.items() if name in GRAPH_FIELDS}
        solver = {name: value for name, value in parameters.items() if name not in GRAPH_FIELDS}
        if trial is None:
            return Best(self.method, graph, solver, None, None, None)
        return Best(self.method, graph, solver, trial.error, trial.loss, trial.number)

    def _tried(self, stage: Stage, before: float = math.inf) -> list[Trial]:
        """Trials of a stage with a result; ``before`` a batch, so that it does not depend on its own outcomes."""
        return [
            trial for trial in self.trials if trial.stage == stage and trial.number < before and trial.error is not None
        ]

    def _ranked(self, stage: Stage, before: float = math.inf) -> list[Trial]:
        """Trials from the best to the worst; those of the last stage by their graphs, too, of which IRR's tell more."""
        tried = {trial.number: trial for trial in self._tried(stage, before)}
        stages: list[Stage] = ["graph", "relationships"] if stage == "relationships" else ["graph"]
        dimensions = {name: each for one in stages for name, each in self._dimensions(one).items()}
        shares = [trial._replace(parameters=self._by_shares(trial.parameters)) for trial in tried.values()]
        if stage == "relationships" and "lambda2" in dimensions:
            # IRR is ERR with hardly any λ2. It is not chosen here, so it counts as pruned.
            least = {**self._home(stage), "lambda2": dimensions["lambda2"].low}
            shares += [
                trial._replace(parameters={**least, **trial.parameters}, pruned=True) for trial in self._tried("graph")
            ]
        homes = [
            {name: value for one in stages for name, value in self._home(one, trial.parameters.get("space")).items()}
            for trial in shares
        ]
        return [tried[trial.number] for trial in rank(shares, dimensions, homes)]

    # -- batches ---------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[list[Group]]:
        number = 0
        stages: list[tuple[Stage, int]] = [("graph", self.budget)]
        if self.method == "err":
            first = self.graph_trials(self.budget) if self._names("graph") else min(1, self.budget - 1)
            stages = [("graph", first), ("relationships", self.budget)]
        for stage, last in stages:
            begin = number
            while number < last:
                if number not in self._planned:
                    self._planned[number] = self._plan(stage, begin, number, last - number)
                groups = self._planned[number]
                yield groups
                number += sum(len(group.trials) for group in groups)
                if not groups or not self._names(stage) or not self._time_for_more(stage, number):
                    break

    def _plan(self, stage: Stage, begin: int, number: int, most: int) -> list[Group]:
        """The batch of at most so many trials from ``number`` on, in a stage whose first trial is ``begin``."""
        bases = self._bases(stage, begin)
        if number == begin:
            design = self._design(stage)
            # The best graph's trials come first, those of the others among the farther of its own.
            order = sorted(product(range(len(bases)), range(len(design))), key=lambda pair: 2 * pair[0] + pair[1])
            proposals = [{**bases[b], **self._absolute(design[d], bases[b])} for b, d in order]
            return self._grouped(stage, proposals[: min(most, FIRST_BATCH)], number)
        trials = self._tried(stage, number)
        told = [(self._by_shares(trial.parameters), score(trial)) for trial in trials]
        base = bases[0]
        for trial in self._ranked(stage, number)[:1]:
            # On the graph that does best so far.
            base = {name: value for name, value in trial.parameters.items() if name not in self._names(stage)}
        points = suggest(told, self._dimensions(stage), BATCH, self.seed + number)
        proposals = [{**base, **self._absolute(point, base)} for point in points]
        proposals = [proposal for proposal in proposals if all(proposal != trial.parameters for trial in trials)]
        return self._grouped(stage, proposals[:most], number)

    def _by_shares(self, parameters: Parameters) -> Parameters:
        """Parameters with λ2 as a share of λ1, as it is searched."""
        if "lambda2" not in self.vary or "lambda2" not in parameters:
            return parameters
        return {**parameters, "lambda2": parameters["lambda2"] / _lambda1(parameters)}

    def _absolute(self, point: Parameters, base: Parameters) -> Parameters:
        """A searched point with λ2 as the classifier takes it, by the λ1 of its base."""
        if "lambda2" not in point:
            return point
        return {**point, "lambda2": _rounded(point["lambda2"] * _lambda1(base))}

    def _time_for_more(self, stage: Stage, before: int) -> bool:
        outcomes = [outcome for number, outcome in self._told.items() if number < before]
        if self.seconds is None:
            return True
        if any(outcome.late and outcome.group.stage == stage for outcome in outcomes):
            return False
        return max((outcome.ended for outcome in outcomes), default=0.0) < self.seconds_until(stage)

    def seconds_until(self, stage: Stage) -> float:
        """The end of a stage in seconds from the beginning of the search: the first of two gets half of the time."""
        if self.seconds is None:
            return math.inf
        return self.seconds / 2 if stage == "graph" and self.method == "err" else self.seconds

    def _bases(self, stage: Stage, before: float = math.inf) -> list[Parameters]:
        """What the trials of a stage have beside what it searches: fixed parameters, and the best of the stage before.

        The best graph comes first.
        """
        if stage == "graph":
            return [self.fixed]
        found = [trial.parameters for trial in self._ranked("graph", before)[:GRAPHS]] or [self._home("graph")]
        return [{"repulsion": REPULSION, **self.fixed, **parameters} for parameters in found]

    def _design(self, stage: Stage) -> list[Parameters]:
        """The first trials of a stage: grids around where it begins, nearest first, for budgets that end within."""
        points: list[tuple[int, Parameters]] = []
        for place, space in enumerate(self._spaces if "space" in self._names(stage) else [None]):
            home, dimensions = self._home(stage, space), self._dimensions(stage)
            grid: list[list[Any]] = [
                [space] if name == "space" else _around(name, home[name], dimensions[name]) for name in home
            ]
            for steps in product(*(range(len(values)) for values in grid)):
                point = {name: values[step] for name, values, step in zip(home, grid, steps, strict=True)}
                if {"weights", "sigma_x"} <= home.keys() and point["weights"] != home["weights"]:
                    # Of other weights only their own width.
                    point["sigma_x"] = WIDTHS[point["weights"]]
                if all(point != known for _, known in points):
                    points.append((place + sum(steps), point))
        return [point for _, point in sorted(points, key=lambda each: each[0])]

    def _grouped(self, stage: Stage, proposals: list[Parameters], number: int) -> list[Group]:
        """Proposals by graph, then by lines of rising λ2; single ones in pairs, to share their start."""
        method: Method = "irr" if stage == "graph" else "err"
        known = IRRClassifier().get_params() if method == "irr" else ERRClassifier().get_params()
        graphs: dict[str, tuple[Parameters, list[Parameters]]] = {}
        for proposal in proposals:
            graph = {name: proposal[name] for name in GRAPH_FIELDS if name in proposal} if self.graph else {}
            solver = {name: value for name, value in proposal.items() if name in known and name not in graph}
            graphs.setdefault(repr(sorted(graph.items())), (graph, []))[1].append(solver)
        groups = []
        for graph, solvers in graphs.values():
            solvers.sort(key=_along_lines)
            while solvers:
                line = [solver for solver in solvers if line_of(solver) == line_of(solvers[0])]
                size = max(len(line), 2)
                groups.append(Group(number, stage, method, graph, tuple(solvers[:size])))
                number += len(groups[-1].trials)
                del solvers[:size]
        return groups

    # -- what is searched ------------------------------------------------------------------------------------------

    def _names(self, stage: Stage) -> list[str]:
        last = stage == "relationships" or self.method == "irr"
        return [name for name in (*STAGE_FIELDS[stage], *(["power"] if last else [])) if name in self.vary]

    def _possible_spaces(self, n_features: int | None, vary: Sequence[str] | None) -> tuple[str, ...]:
        """The spaces to choose between, the likelier first; who names them in ``vary`` means all."""
        metric = self.fixed.get("metric", "euclidean")
        if n_features is None or n_features > MOST_COLUMNS or not self.graph or metric != "euclidean":
            if vary is not None and "space" in vary:
                raise ValueError(
                    "The 'vary' parameter of Search must leave out 'space' unless points are dense, of at most "
                    f"{MOST_COLUMNS} columns, and metric='euclidean'. Got 'space' instead."
                )
            return ("input",)
        if vary is not None:
            return ("input", "principal", "whitened") if "space" in vary else ("input",)
        first = "principal" if n_features > PRINCIPAL_DIRECTIONS else "input"
        enough = WHITENED_POINTS * n_features <= self.n_points <= MOST_WHITENED
        return (first, "whitened") if enough else (first,)

    def _home(self, stage: Stage, space: str | None = None) -> Parameters:
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
            "space": space or self._spaces[0],
            "n_neighbors": min(n_neighbors, self._most_neighbors),
            "weights": weights,
            "sigma_x": WIDTHS.get(weights),
            "lambda1": lambda1,
            "sigma_f": _rounded(ERRClassifier.SIGMA_F * (2.0 if self._one_column else math.sqrt(2.0))),
            "lambda2": self._lambda2_share,
            "repulsion": REPULSION,
            "power": 2,
        }
        return {name: home[name] for name in self._names(stage)}

    def _dimensions(self, stage: Stage) -> dict[str, Dimension]:
        home = self._home(stage)
        width = home.get("sigma_f", 1.0)
        every = {
            "space": Dimension(choices=self._spaces),
            "n_neighbors": Dimension(4, self._most_neighbors, "whole", step=1.6),
            "weights": Dimension(choices=("global", "local", "self-tuning")),
            "sigma_x": Dimension(0.3, 2.5, step=1.5),
            "lambda1": Dimension(1e-3, 30.0, step=10.0),
            "power": Dimension(choices=(2, 1)),
            "sigma_f": Dimension(0.4 * width, 2.0 * width, step=1.5),
            "lambda2": Dimension(0.12 * self._lambda2_share, 4.0 * self._lambda2_share, step=3.0),
            "repulsion": Dimension(0.0, 1.0, "linear", step=0.3),
        }
        return {name: every[name] for name in self._names(stage)}

    @property
    def _one_column(self) -> bool:
        return self.n_classes == 2 or self.fixed.get("multiclass") == "one-vs-rest"

    @property
    def _lambda2_share(self) -> float:
        return LAMBDA2_SHARES[0 if self._one_column else 1]

    @property
    def _most_neighbors(self) -> int:
        return max(10, min(80, self.n_points // 5, int(math.sqrt(MOST_ENTRIES / self.n_points))))


def _lambda1(parameters: Parameters) -> float:
    """Of a trial, which λ2 is measured by."""
    return float(parameters.get("lambda1", ERRClassifier().lambda1))


def _around(name: str, value: Any, dimension: Dimension) -> list[Any]:
    """A value, and what to try beside it: the nearest first."""
    if dimension.choices:
        # Two kinds of weights are as many as the first trials can tell apart.
        return [value, *(choice for choice in dimension.choices if choice != value)][:2]
    tried = [value, *(_rounded(value * factor) for factor in DESIGN.get(name, ()))]
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
        raise ValueError(
            f"The 'vary' parameter of Search must be among {[name for name in possible if name not in fixed]}. "
            f"Got {wrong} instead."
        )
    return tuple(vary)


def _along_lines(solver: Parameters) -> tuple[float, ...]:
    return *line_of(solver), float(solver.get("lambda2", 0.0))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
