"""The search itself: which parameters to try next, given what became of those before.

A :class:`Search` holds no data and fits nothing. Its batches are a function of its arguments and of the outcomes of the
batches before, so that any process which is told the same outcomes asks for the same trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from homophily.classify import ERRClassifier, IRRClassifier
from homophily.graph_estimator import GRAPH_CONSTRAINTS
from homophily.selection.choice import rank
from homophily.selection.evaluate import trial_of
from homophily.selection.records import Best, Group, Method, Outcome, Parameters, Stage, Trial
from homophily.selection.sampler import Dimension, suggest

STAGE_FIELDS: dict[Stage, tuple[str, ...]] = {
    "graph": ("n_neighbors", "weights", "lambda1", "power"),
    "relationships": ("sigma_f", "lambda2", "repulsion"),
}
#: What is searched when nobody says.
DEFAULT_FIELDS = ("n_neighbors", "lambda1", "sigma_f", "lambda2")
GRAPH_FIELDS = tuple(name for name in GRAPH_CONSTRAINTS if name != "n_jobs")
DEFAULT_TRIALS = 48
#: Trials of a batch that follows the designed first one.
BATCH = 8


class Search:
    """Ask for groups of trials, tell their outcomes, and read the best parameters.

    Stage "graph" tries IRR for the graph and λ1, stage "relationships" ERR for σ_f and λ2 on the best of these graphs.
    The first batch of a stage is a designed one, with the defaults in it; Optuna's sampler proposes what follows.

    Parameters
    ----------
    n_points, n_classes : of the data.
    method : "err", or "irr" for the first stage alone.
    trials : how many in all.
    seconds : no batch is begun that would end later than this, by the seconds of the trials told, on ``workers`` at
        once; the first stage gets half of it.
    seed : of the sampler.
    vary : what to search, of :data:`STAGE_FIELDS`; None means :data:`DEFAULT_FIELDS` without the fixed ones.
    fixed : parameters of the classifier that all trials share.
    graph : False when the graph is given: then nothing of it is searched.

    >>> search = Search(n_points=500, n_classes=2, method="irr", trials=4)
    >>> [group.graph["n_neighbors"] for group in search.ask()]
    [10, 5, 20, 40]
    """

    def __init__(
        self,
        n_points: int,
        n_classes: int,
        *,
        method: Method = "err",
        trials: int = DEFAULT_TRIALS,
        seconds: float | None = None,
        workers: int = 1,
        seed: int = 0,
        vary: Sequence[str] | None = None,
        fixed: Parameters | None = None,
        graph: bool = True,
    ) -> None:
        self.n_points, self.n_classes = n_points, n_classes
        self.method, self.budget, self.seconds, self.workers, self.seed = method, trials, seconds, workers, seed
        self.fixed = dict(fixed or {})
        self.graph = graph
        self.vary = _read_vary(vary, self.fixed, method, graph)
        self._told: dict[int, Outcome] = {}

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
        """The parameters chosen among the trials told."""
        stages: list[Stage] = ["relationships", "graph"]
        for stage in stages:
            candidates = self._finished(stage)
            if candidates and (stage == "relationships" or self.method == "irr"):
                return self._best(self._ranked(stage)[0])
        raise ValueError(
            "A search has a best trial when outcomes of its last stage were told: ask, evaluate and tell until ask() "
            "is empty."
        )

    def _best(self, trial: Trial) -> Best:
        graph = {name: value for name, value in trial.parameters.items() if name in GRAPH_FIELDS}
        solver = {name: value for name, value in trial.parameters.items() if name not in GRAPH_FIELDS}
        assert trial.error is not None
        assert trial.loss is not None
        return Best(trial.method, graph, solver, trial.error, trial.loss, trial.number)

    def _finished(self, stage: Stage, before: float = math.inf) -> list[Trial]:
        """Trials of a stage with a result; ``before`` a batch, so that it does not depend on its own outcomes."""
        return [
            trial
            for trial in self.trials
            if trial.stage == stage and trial.number < before and trial.error is not None and not trial.pruned
        ]

    def _ranked(self, stage: Stage, before: float = math.inf) -> list[Trial]:
        return rank(self._finished(stage, before), self._dimensions(stage), self._defaults(stage))

    # -- batches ---------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[list[Group]]:
        number = 0
        stages: list[tuple[Stage, int]] = [("graph", self.budget)]
        if self.method == "err":
            first = math.ceil(0.4 * self.budget) if self._names("graph") else 1
            stages = [("graph", min(first, self.budget - 1)), ("relationships", self.budget)]
        for stage, last in stages:
            dimensions = self._dimensions(stage)
            bases = self._bases(stage, number)
            designed = True
            while number < last:
                if designed:
                    proposals = [{**base, **point} for base in bases for point in self._design(stage)]
                else:
                    proposals = suggest(self._finished(stage, number), dimensions, BATCH, self.seed + number)
                    proposals = [{**bases[0], **proposal} for proposal in proposals]
                groups = self._grouped(stage, proposals[: last - number], number)
                yield groups
                number += sum(len(group.trials) for group in groups)
                if not dimensions or not self._time_for_more(stage, number):
                    break
                designed = False

    def _time_for_more(self, stage: Stage, before: int) -> bool:
        if self.seconds is None:
            return True
        taken = sum(trial.seconds for trial in self.trials if trial.number < before) / self.workers
        share = 0.5 if stage == "graph" and self.method == "err" else 0.9
        return taken < share * self.seconds

    def _bases(self, stage: Stage, before: int) -> list[Parameters]:
        """What the trials of a stage have in common: the fixed parameters, and the best of the stage before."""
        if stage == "graph":
            return [self.fixed]
        best = self._ranked("graph", before)[:1]
        return [{**self.fixed, **trial.parameters} for trial in best]

    def _design(self, stage: Stage) -> list[Parameters]:
        """The first trials of a stage, the defaults before all others."""
        defaults = self._defaults(stage)
        points = [defaults]
        if stage == "graph" and "n_neighbors" in defaults:
            points += [{**defaults, "n_neighbors": k} for k in (5, 20, 40) if k < self.n_points]
        if stage == "relationships":
            widths = [1.0, 0.7, 1.5] if "sigma_f" in defaults else [1.0]
            weights = [0.1, 0.3, 1.0, 3.0, 10.0] if "lambda2" in defaults else [1.0]
            points = []
            for width in widths:
                for weight in weights:
                    point = dict(defaults)
                    if "sigma_f" in point:
                        point["sigma_f"] *= width
                    if "lambda2" in point:
                        point["lambda2"] *= weight
                    points.append(point)
        return points

    def _grouped(self, stage: Stage, proposals: list[Parameters], number: int) -> list[Group]:
        """Proposals by graph and width, λ2 rising."""
        method: Method = "irr" if stage == "graph" else "err"
        known = IRRClassifier().get_params() if method == "irr" else ERRClassifier().get_params()
        lines: dict[str, tuple[Parameters, list[Parameters]]] = {}
        for proposal in proposals:
            graph = {name: proposal[name] for name in GRAPH_FIELDS if name in proposal} if self.graph else {}
            solver = {name: value for name, value in proposal.items() if name in known and name not in graph}
            shared = repr((sorted(graph.items()), solver.get("sigma_f")))
            lines.setdefault(shared, (graph, []))[1].append(solver)
        groups = []
        for graph, solvers in lines.values():
            ordered = sorted(solvers, key=lambda solver: float(solver.get("lambda2", 0.0)))
            groups.append(Group(number, stage, method, graph, tuple(ordered)))
            number += len(ordered)
        return groups

    # -- what is searched ------------------------------------------------------------------------------------------

    def _names(self, stage: Stage) -> list[str]:
        return [name for name in STAGE_FIELDS[stage] if name in self.vary]

    def _defaults(self, stage: Stage) -> Parameters:
        classifier = ERRClassifier()
        spread = 2.0 if self.n_classes == 2 else math.sqrt(2.0)
        meant = {"sigma_f": ERRClassifier.SIGMA_F * spread, "repulsion": ERRClassifier.REPULSION, "power": 2}
        return {name: meant.get(name, getattr(classifier, name)) for name in self._names(stage)}

    def _dimensions(self, stage: Stage) -> dict[str, Dimension]:
        width = self._defaults("relationships").get("sigma_f", 1.0)
        every = {
            "n_neighbors": Dimension(min(4, self.n_points - 1), min(50, self.n_points - 1), "whole"),
            "weights": Dimension(choices=("local", "self-tuning", "global")),
            "lambda1": Dimension(1e-3, 1e-1, "log"),
            "power": Dimension(choices=(1, 2)),
            "sigma_f": Dimension(0.5 * width, 2.0 * width, "log"),
            "lambda2": Dimension(1e-4, 1e-1, "log"),
            "repulsion": Dimension(0.0, 1.0, "linear"),
        }
        return {name: every[name] for name in self._names(stage)}


def _read_vary(vary: Sequence[str] | None, fixed: Parameters, method: Method, graph: bool) -> tuple[str, ...]:
    possible = [*STAGE_FIELDS["graph"], *(STAGE_FIELDS["relationships"] if method == "err" else ())]
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
