"""The search itself: which parameters to try next, given the outcomes so far.

A :class:`Search` holds no data and fits nothing. Its batches depend only on its arguments and on earlier outcomes, so
that any process with the same outcomes asks for the same trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from sklearn.utils._param_validation import StrOptions

from homophily.estimators.classifiers import ERRClassifier, IRRClassifier
from homophily.parameters import AT_LEAST_ONE, check_parameters
from homophily.selection.choice import PULL, PULL_OF_MANY, noise_variance, rank, score
from homophily.selection.evaluation import line_of, trial_of
from homophily.selection.ranges import GRAPH_FIELDS, REPULSION, Ranges
from homophily.selection.records import Best, Group, Method, Outcome, Parameters, Stage, Trial
from homophily.selection.sampler import rounded, suggest

#: Default number of trials of each stage. Those of the graph are linear fits, which cost little.
STAGE_TRIALS: dict[Stage, int] = {"graph": 36, "relationships": 24}
#: Standard deviations of the noise by which one trial is clearly better than another: the usual 5 % level.
CLEARLY = 2.0
#: Number of the best graphs that relationships are tried on: the best for IRR is not always the best for ERR. Three
#: lowered the mean error on the text sets from 16.4 to 15.5 % (8 draws each).
GRAPHS = 3
#: Largest number of trials of a stage's designed first batch: two thirds of the default for the graph.
FIRST_BATCH = 24
#: Trials of a later batch: enough to keep a usual machine's cores busy, few enough for the sampler to learn.
BATCH = 8

_CONSTRAINTS: dict[str, list[Any]] = {"method": [StrOptions({"irr", "err"})], "trials": [AT_LEAST_ONE]}


def default_trials(method: Method) -> int:
    """Default number of trials of a method, over all of its stages."""
    return sum(STAGE_TRIALS.values()) if method == "err" else STAGE_TRIALS["graph"]


class Search:
    """Ask for groups of trials, tell their outcomes, and read the best parameters.

    Stage "graph" tries IRR for the graph and λ1, stage "relationships" ERR for σ_f and λ2 on the best few of these.
    The first batch of a stage is a designed one around where it begins; Optuna's sampler proposes what follows.

    Parameters
    ----------
    n_points : int
        Number of points.
    n_classes : int
        Number of classes.
    method : {"err", "irr"}, default="err"
        Method to tune; "irr" has only the first stage.
    trials : int, default=None
        Number of trials, divided between the stages as ``STAGE_TRIALS`` in ``homophily.selection.search``, which None
        means. With equal trials of the graph, "err" begins exactly as "irr" does.
    seconds : float, default=None
        No batch begins once an outcome has ended after this time; the first of two stages gets half of it.
    seed : int, default=0
        Seed of the sampler.
    vary : sequence of str, default=None
        Parameters to search, of ``homophily.selection.ranges.SEARCHED``; None means those searched by default.
    fixed : dict, default=None
        Parameters of classifier and graph that all trials share.
    graph : bool, default=True
        Whether to search parameters of the graph; False when the graph is given.
    n_features : int, default=None
        Number of columns of dense points, for which ``space`` and ``n_directions`` are searched too.

    Examples
    --------
    >>> search = Search(n_points=500, n_classes=2, method="irr", trials=4)
    >>> [(group.graph["n_neighbors"], len(group.trials)) for group in search.ask()]
    [(6, 2), (6, 1), (6, 1)]
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
        trials = default_trials(method) if trials is None else trials
        check_parameters({"method": method, "trials": trials}, _CONSTRAINTS, "Search")
        self.method, self.budget, self.seconds, self.seed, self.graph = method, trials, seconds, seed, graph
        self.ranges = Ranges(n_points, n_classes, method, vary, fixed or {}, graph, n_features)
        self.fixed = self.ranges.fixed
        self._outcomes: dict[int, Outcome] = {}
        self._planned: dict[int, list[Group]] = {}

    @staticmethod
    def graph_trials(trials: int) -> int:
        """How many of ERR's trials are for the graph."""
        return round(trials * STAGE_TRIALS["graph"] / sum(STAGE_TRIALS.values()))

    # -- asking and telling ----------------------------------------------------------------------------------------

    def ask(self) -> list[Group]:
        """The groups of the current batch without an outcome; none when the search is over."""
        for batch in self._batches():
            missing = [group for group in batch if group.number not in self._outcomes]
            if missing:
                return missing
        return []

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Take outcomes in any order, also those of an earlier process; repeats are ignored."""
        for outcome in outcomes:
            self._outcomes.setdefault(outcome.group.number, outcome)

    @property
    def trials(self) -> list[Trial]:
        """All trials with an outcome, by number."""
        return [
            trial_of(outcome.group, position, result)
            for _, outcome in sorted(self._outcomes.items())
            for position, result in enumerate(outcome.results)
        ]

    @property
    def best(self) -> Best:
        """The parameters chosen so far; those of a stage without any result are where it begins."""
        if not self._outcomes:
            raise ValueError("A search without outcomes has no best trial: ask, evaluate and tell first.")
        stage: Stage = "graph" if self.method == "irr" else "relationships"
        for trial in self._ranked(stage):
            if stage == "relationships" and (plain := self._without_relationships(trial)) is not None:
                return plain
            return self._best(trial.parameters, trial)
        base = self._bases(stage)[0]
        return self._best({**base, **self._absolute(self.ranges.defaults(stage), base)}, None)

    def _without_relationships(self, trial: Trial) -> Best | None:
        """The best of IRR, as ERR with λ2 = 0, if it is clearly better than this trial.

        With cosine distances, relationships help on few sets; there it is enough that the trial is not clearly better.
        """
        if "lambda2" not in self.ranges.vary:
            return None
        for irr in self._ranked("graph")[:1]:
            clearly = CLEARLY * math.sqrt(noise_variance([trial, irr]))
            doubtful = self.fixed.get("metric") == "cosine"
            if score(trial) > score(irr) + (-clearly if doubtful else clearly):
                base = {"repulsion": REPULSION, **self.fixed, **irr.parameters}
                return self._best({**base, **self.ranges.defaults("relationships"), "lambda2": 0.0}, irr)
        return None

    def _best(self, parameters: Parameters, trial: Trial | None) -> Best:
        graph = {name: value for name, value in parameters.items() if name in GRAPH_FIELDS}
        solver = {name: value for name, value in parameters.items() if name not in GRAPH_FIELDS}
        found = (None, None, None) if trial is None else (trial.error, trial.loss, trial.number)
        return Best(self.method, graph, solver, *found)

    def _tried(self, stage: Stage, before: float = math.inf) -> list[Trial]:
        """Trials of a stage with a result, numbered below ``before``: a batch must not depend on its own outcomes."""
        # Older workers do not name fields that were added since.
        searched = {*self.ranges.names("graph"), *self.ranges.names(stage)}
        known = [trial for trial in self.trials if searched <= trial.parameters.keys() and trial.error is not None]
        return [trial for trial in known if trial.stage == stage and trial.number < before]

    def _ranked(self, stage: Stage, before: float = math.inf) -> list[Trial]:
        """Trials, best first; those of the last stage also by their graphs, which the trials of IRR inform about."""
        tried = {trial.number: trial for trial in self._tried(stage, before)}
        stages: list[Stage] = ["graph", "relationships"] if stage == "relationships" else ["graph"]
        dimensions = {name: each for one in stages for name, each in self.ranges.dimensions(one).items()}
        shares = [trial._replace(parameters=self._by_shares(trial.parameters)) for trial in tried.values()]
        if stage == "relationships" and "lambda2" in dimensions:
            # IRR is ERR with hardly any λ2. It is not chosen here, so it counts as pruned.
            least = {**self.ranges.defaults(stage), "lambda2": dimensions["lambda2"].low}
            plain = self._tried("graph")
            shares += [trial._replace(parameters={**least, **trial.parameters}, pruned=True) for trial in plain]

        def begin(space: str | None) -> Parameters:
            return {name: value for one in stages for name, value in self.ranges.defaults(one, space).items()}

        defaults = [begin(trial.parameters.get("space")) for trial in shares]
        pull = PULL if self.ranges.n_classes == 2 else PULL_OF_MANY
        return [tried[trial.number] for trial in rank(shares, dimensions, defaults, pull)]

    # -- batches ---------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[list[Group]]:
        number = 0
        stages: list[tuple[Stage, int]] = [("graph", self.budget)]
        if self.method == "err":
            first = self.graph_trials(self.budget) if self.ranges.names("graph") else min(1, self.budget - 1)
            stages = [("graph", first), ("relationships", self.budget)]
        for stage, last in stages:
            begin = number
            while number < last:
                if number not in self._planned:
                    self._planned[number] = self._plan(stage, begin, number, last - number)
                groups = self._planned[number]
                yield groups
                number += sum(len(group.trials) for group in groups)
                if not groups or not self.ranges.names(stage) or not self._time_for_more(stage, number):
                    break

    def _plan(self, stage: Stage, begin: int, number: int, most: int) -> list[Group]:
        """The batch of at most ``most`` trials from ``number`` on, in a stage whose first trial is ``begin``."""
        bases = self._bases(stage, begin)
        if number == begin:
            design = self.ranges.design(stage)
            # The best graph's trials come first, those of the others among the farther of its own.
            order = sorted(product(range(len(bases)), range(len(design))), key=lambda pair: 2 * pair[0] + pair[1])
            proposals = [{**bases[b], **self._absolute(design[d], bases[b])} for b, d in order]
            return self._grouped(stage, proposals[: min(most, FIRST_BATCH)], number)
        trials = self._tried(stage, number)
        known = [(self._by_shares(trial.parameters), score(trial)) for trial in trials]
        base = bases[0]
        for trial in self._ranked(stage, number)[:1]:
            # On the graph that does best so far.
            base = {name: value for name, value in trial.parameters.items() if name not in self.ranges.names(stage)}
        points = suggest(known, self.ranges.dimensions(stage), BATCH, self.seed + number)
        proposals = [{**base, **self._absolute(point, base)} for point in points]
        proposals = [proposal for proposal in proposals if all(proposal != trial.parameters for trial in trials)]
        return self._grouped(stage, proposals[:most], number)

    def _by_shares(self, parameters: Parameters) -> Parameters:
        """Parameters with λ2 as a share of λ1, as it is searched."""
        if "lambda2" not in self.ranges.vary or "lambda2" not in parameters:
            return parameters
        return {**parameters, "lambda2": parameters["lambda2"] / _lambda1(parameters)}

    def _absolute(self, point: Parameters, base: Parameters) -> Parameters:
        """A searched point with λ2 as the classifier takes it, by the λ1 of its base."""
        if "lambda2" not in point:
            return point
        return {**point, "lambda2": rounded(point["lambda2"] * _lambda1(base))}

    def _time_for_more(self, stage: Stage, before: int) -> bool:
        if self.seconds is None:
            return True
        outcomes = [outcome for number, outcome in self._outcomes.items() if number < before]
        late = any(outcome.late and outcome.group.stage == stage for outcome in outcomes)
        return not late and max((outcome.ended for outcome in outcomes), default=0.0) < self.seconds_until(stage)

    def seconds_until(self, stage: Stage) -> float:
        """The end of a stage in seconds from the beginning of the search: the first of two gets half of the time."""
        if self.seconds is None:
            return math.inf
        return self.seconds / 2 if stage == "graph" and self.method == "err" else self.seconds

    def _bases(self, stage: Stage, before: float = math.inf) -> list[Parameters]:
        """Parameters of a stage's trials that it does not search: fixed ones, and the best graphs, best first."""
        if stage == "graph":
            return [self.fixed]
        found = [trial.parameters for trial in self._ranked("graph", before)[:GRAPHS]]
        found = found or [self.ranges.defaults("graph")]
        return [{"repulsion": REPULSION, **self.fixed, **parameters} for parameters in found]

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


def _lambda1(parameters: Parameters) -> float:
    """Of a trial, which λ2 is measured by."""
    return float(parameters.get("lambda1", ERRClassifier().lambda1))


def _along_lines(solver: Parameters) -> tuple[float, ...]:
    return *line_of(solver), float(solver.get("lambda2", 0.0))
