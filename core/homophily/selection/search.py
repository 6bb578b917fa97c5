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

#: What can be searched. "power" is of the last stage: IRR's if there is no other.
STAGE_FIELDS: dict[Stage, tuple[str, ...]] = {
    "graph": ("n_neighbors", "weights", "sigma_x", "lambda1"),
    "relationships": ("sigma_f", "lambda2", "repulsion"),
}
#: What is searched when nobody says.
DEFAULT_FIELDS = ("n_neighbors", "weights", "sigma_x", "lambda1", "sigma_f", "lambda2")
GRAPH_FIELDS = tuple(name for name in KNNGraph._parameter_constraints if name != "n_jobs")
#: Of each stage, when nobody says. Those of the graph are linear fits, and cost little.
STAGE_TRIALS: dict[Stage, int] = {"graph": 30, "relationships": 20}
#: Trials of a batch that follows the designed first one.
BATCH = 8
#: σ_x of the weights that a search tries, where it begins.
WIDTHS = {"global": 0.5, "local": 1.0, "self-tuning": 0.7}
#: λ2 as a share of λ1, where a search begins. On graphs chosen for IRR more than a fifth mostly does harm.
LAMBDA2_SHARE = 0.08
#: With so small a λ2 the whole push is better than the classifier's default, which is for a larger one.
REPULSION = 1.0
#: What the first trials try besides, as factors of where the search begins.
DESIGN = {
    "n_neighbors": (2.0, 0.5, 3.4, 0.34),
    "sigma_x": (1.5,),
    "lambda1": (10.0, 0.1, 0.01),
    "sigma_f": (0.67, 1.5),
    "lambda2": (0.4, 2.5, 0.13),
}


def default_trials(method: Method) -> int:
    """How many are tried when nobody says: so many for each of the method's stages."""
    return sum(STAGE_TRIALS.values()) if method == "err" else STAGE_TRIALS["graph"]


class Search:
    """Ask for groups of trials, tell their outcomes, and read the best parameters.

    Stage "graph" tries IRR for the graph and λ1, stage "relationships" ERR for σ_f and λ2 on the best of these graphs.
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

    >>> search = Search(n_points=500, n_classes=2, method="irr", trials=4)
    >>> [(group.graph["n_neighbors"], len(group.trials)) for group in search.ask()]
    [(15, 2), (15, 1), (15, 1)]
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
        return self._best({**self._base(stage), **self._home(stage)}, None)

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
        return rank(self._tried(stage, before), self._dimensions(stage), self._home(stage))

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
        base = self._base(stage, begin)
        if number == begin:
            proposals = [{**base, **point} for point in self._design(stage)]
        else:
            trials = self._tried(stage, number)
            told = [(trial.parameters, score(trial)) for trial in trials]
            proposals = [{**base, **p} for p in suggest(told, self._dimensions(stage), BATCH, self.seed + number)]
            proposals = [proposal for proposal in proposals if all(proposal != known for known, _ in told)]
        return self._grouped(stage, proposals[:most], number)

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

    def _base(self, stage: Stage, before: float = math.inf) -> Parameters:
        """What the trials of a stage have in common: the fixed parameters, and the best of the stage before."""
        if stage == "graph":
            return self.fixed
        ranked = self._ranked("graph", before)
        found = ranked[0].parameters if ranked else self._home("graph")
        return {"repulsion": REPULSION, **self.fixed, **found}

    def _design(self, stage: Stage) -> list[Parameters]:
        """The first trials of a stage: a grid around :meth:`_home`, nearest first, for budgets that end within it."""
        home, dimensions = self._home(stage), self._dimensions(stage)
        grid = [_around(name, home[name], dimensions[name]) for name in home]
        points = []
        for steps in sorted(product(*(range(len(values)) for values in grid)), key=sum):
            point = {name: values[step] for name, values, step in zip(home, grid, steps, strict=True)}
            if {"weights", "sigma_x"} <= home.keys() and point["weights"] != home["weights"]:
                # Of other weights only their own width.
                point["sigma_x"] = WIDTHS[point["weights"]]
            if point not in points:
                points.append(point)
        return points

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

    def _home(self, stage: Stage) -> Parameters:
        """Where a stage begins, and what its choice is drawn to: what does well on many sets with few labels.

        These are not the classifiers' defaults, which follow the labels more closely (a smaller λ1).
        """
        weights = self.fixed.get("weights", "global" if "weights" in self.vary else "local")
        one_column = self.n_classes == 2 or self.fixed.get("multiclass") == "one-vs-rest"
        home: Parameters = {
            "n_neighbors": min(15, self._most_neighbors),
            "weights": weights,
            "sigma_x": WIDTHS.get(weights),
            "lambda1": 1.0,
            "sigma_f": _rounded(ERRClassifier.SIGMA_F * (2.0 if one_column else math.sqrt(2.0))),
            "repulsion": REPULSION,
            "power": 2,
        }
        if stage == "relationships":
            home["lambda2"] = _rounded(LAMBDA2_SHARE * self._lambda1)
        return {name: home[name] for name in self._names(stage)}

    def _dimensions(self, stage: Stage) -> dict[str, Dimension]:
        home = self._home(stage)
        width, weight = home.get("sigma_f", 1.0), home.get("lambda2", 1.0)
        every = {
            "n_neighbors": Dimension(4, self._most_neighbors, "whole", step=1.6),
            "weights": Dimension(choices=("global", "local", "self-tuning")),
            "sigma_x": Dimension(0.3, 2.5, step=1.5),
            "lambda1": Dimension(1e-3, 30.0, step=10.0),
            "power": Dimension(choices=(2, 1)),
            "sigma_f": Dimension(0.4 * width, 2.0 * width, step=1.5),
            "lambda2": Dimension(0.12 * weight, 2.6 * weight, step=3.0),
            "repulsion": Dimension(0.0, 1.0, "linear", step=0.3),
        }
        return {name: every[name] for name in self._names(stage)}

    @property
    def _most_neighbors(self) -> int:
        return max(10, min(80, self.n_points // 15))

    @property
    def _lambda1(self) -> float:
        """Of the graph that relationships are tried on, which λ2 is measured by."""
        return float(self._base("relationships").get("lambda1", ERRClassifier().lambda1))


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
