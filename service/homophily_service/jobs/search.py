"""The search for hyper-parameters: in one job, or spread over the workers as jobs of their own.

A spread search keeps no state between its steps. Each time the jobs that it waited for have ended, it reads all
outcomes again and asks for the next trials, so that any worker can continue it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from homophily import KNNGraph
from homophily.selection import Group, Outcome, Result, Search, Trial, build_graph, driver, evaluate
from homophily.selection.records import Method, Stage
from homophily.selection.search import default_trials
from homophily.storage import fit_arguments
from homophily_client._pb import dataset_pb2, job_pb2, model_pb2
from homophily_service.contract.checks import check_disjoint
from homophily_service.contract.errors import error_of_code
from homophily_service.contract.internal_pb2 import TrialJob, TrialRequest, Waiting
from homophily_service.contract.labels import check_same_kind
from homophily_service.contract.parameters import SEARCHED_IN_GRAPHS
from homophily_service.contract.states import FAILED, FINAL, SUCCEEDED
from homophily_service.contract.tables import size_of
from homophily_service.contract.tasks import decode_trial
from homophily_service.contract.values import graph_parameters, set_parameters, solver_parameters
from homophily_service.jobs.work import Work, read_points, together
from homophily_service.storage.models import graph_digest
from homophily_service.storage.sources import dataset_digest

STAGES = {"graph": 1, "relationships": 2}
# What a trial costs, in tenths of a fit. Measured on digits: linear fits of five folds, or ERR fits of five folds.
COSTS: dict[Stage, float] = {"graph": 4.0, "relationships": 60.0}
GIVEN_UP = Result(None, None, 0, 0.0, pruned=True)
# Graphs of trials are kept in memory only, and only the latest: consecutive trials share them.
_GRAPHS_KEPT = 2
_graphs: OrderedDict[str, KNNGraph] = OrderedDict()


class SearchProblem(NamedTuple):
    """A search: the labels to learn from, the labels to judge by, and the parameters that may vary."""

    y: Any
    weights: Any
    validation: Any
    method: Method
    fixed: dict[str, Any]
    n_classes: int
    #: Columns of dense points; None for sparse ones.
    n_features: int | None


class Counter:
    """Counts the trials of a search, and reports them with the share of its cost that is done."""

    def __init__(self, work: Work, planned: dict[Stage, int]) -> None:
        self.work, self.planned = work, planned
        self.done = dict.fromkeys(planned, 0)
        # Trials end in several threads.
        self._lock = threading.Lock()
        work.stage.progress.max_trials = sum(planned.values())

    def count(self, trial: Trial) -> None:
        """Report that a trial is done."""
        stage = self.work.stage
        with self._lock:
            progress = stage.progress
            progress.trial_count += 1
            self.done[trial.stage] += 1
            if trial.error is not None and not trial.pruned:
                so_far = progress.best_error_rate if progress.HasField("best_error_rate") else 1.0
                progress.best_error_rate = min(so_far, trial.error)
            done, left = _cost(self.done), _cost(self._left())
            stage.advance(done / (done + left))
            stage.report_if_due()

    def _left(self) -> dict[Stage, int]:
        """The most trials of each stage that are still to come: one that has begun ends those before it."""
        left = {stage: max(0, count - self.done[stage]) for stage, count in self.planned.items()}
        if self.done.get("relationships"):
            left["relationships"] = max(0, sum(self.planned.values()) - sum(self.done.values()))
            left["graph"] = 0
        return left


def planned_cost(request: job_pb2.FitRequest) -> float:
    """What the search of a request costs at most, in tenths of a fit."""
    return _cost(_planned(request))


def _cost(trials: dict[Stage, int]) -> float:
    return sum(COSTS[stage] * count for stage, count in trials.items())


def _planned(request: job_pb2.FitRequest) -> dict[Stage, int]:
    """The trials of each stage."""
    method = _method(request)
    trials = request.search.trials if request.search.HasField("trials") else default_trials(method)
    if method == "irr":
        return {"graph": trials}
    graph = Search.graph_trials(trials)
    return {"graph": graph, "relationships": trials - graph}


def _method(request: job_pb2.FitRequest) -> Method:
    return "irr" if request.solver.method == model_pb2.METHOD_IRR else "err"


def find(work: Work, request: job_pb2.FitRequest) -> model_pb2.SearchSummary | Waiting:
    """Search, and set the parameters found in the request; or return the jobs to wait for."""
    dataset, blob = _dataset(work, request)
    problem = _problem(work, request, dataset)
    asked = request.search
    budget: dict[str, Any] = {
        "method": problem.method,
        "trials": sum(_planned(request).values()),
        "seconds": asked.seconds if asked.HasField("seconds") else None,
        "seed": asked.seed,
        "vary": list(asked.vary) or None,
    }
    work.stage.enter("search")
    counter = Counter(work, _planned(request))
    if asked.spread:
        search = Search(len(problem.y), problem.n_classes, **budget, fixed=problem.fixed, n_features=problem.n_features)
        search.tell(_outcomes(work))
        for trial in search.trials:
            counter.count(trial)
        work.stage.report()
        if groups := search.ask():
            until = search.seconds_until(groups[0].stage)
            trials = [
                TrialJob(id=f"{work.task.name.id}-{group.number}", request=_trial_request(group, until, request))
                for group in groups
            ]
            settings = sum(len(group.trials) for group in groups)
            return Waiting(message=f"tries {settings} settings", trials=trials)
    else:
        search = driver.find(
            read_points(work, dataset, blob)[0],
            problem.y,
            **budget,
            sample_weight=problem.weights,
            validation=problem.validation,
            warm_start=asked.warm_start,
            n_jobs=work.threads,
            callback=counter.count,
            **problem.fixed,
        ).search
        work.stage.report()
    best = search.best
    set_parameters(best.parameters, request.graph, request.solver)
    if best.method == "err" and not request.solver.HasField("sharpen"):
        # The trials judged smooth relationships.
        request.solver.sharpen = False
    return model_pb2.SearchSummary(trials=map(_message, search.trials), best=best.trial)


def try_group(work: Work) -> bytes:
    """The trials of a group, as a job of their own; the result is a TrialResult."""
    trial = decode_trial(work.task.request)
    group, request = Group.from_json(json.loads(trial.group)), trial.fit
    work.stage.plan("load", "search", search=COSTS[group.stage] * len(group.trials))
    work.stage.enter("load")
    dataset, blob = _dataset(work, request)
    problem = _problem(work, request, dataset)
    work.stage.enter("search")
    outcome = evaluate(
        group,
        _graph(work, dataset, blob, group.graph),
        problem.y,
        sample_weight=problem.weights,
        validation=problem.validation,
        seed=request.search.seed,
        seconds=trial.until - work.stores.queue.parent_seconds(work.task.name),
        warm_start=request.search.warm_start,
        n_jobs=work.threads,
        callback=Counter(work, {group.stage: len(group.trials)}).count,
    )
    trials = [_message(trial) for trial in _trials(outcome)]
    return job_pb2.TrialResult(trials=trials, outcome=json.dumps(outcome.to_json())).SerializeToString()


def _dataset(work: Work, request: job_pb2.FitRequest) -> tuple[dataset_pb2.Dataset, str]:
    row = work.source(request)
    return dataset_pb2.Dataset.FromString(row.message), row.blob


def _problem(work: Work, request: job_pb2.FitRequest, dataset: dataset_pb2.Dataset) -> SearchProblem:
    u, columns, _, is_sparse = size_of(dataset.shape)
    labels = work.labels(request.labels, u, "labels", request.dataset)
    validation = work.labels(request.validation, u, "validation", request.dataset, like=labels.classes)
    known = labels
    if validation.points.size:
        check_same_kind(validation.classes, labels.classes, "validation")
        check_disjoint("validation", validation.points.tolist(), labels.points.tolist())
        known = together(labels, validation)
    # The core gets positions: here any value may be a class.
    classes, positions = np.unique(known.classes, return_inverse=True)
    y, weights = fit_arguments(known._replace(classes=positions), u)
    _, solver = solver_parameters(request.solver, "solver", n_classes=len(np.unique(labels.classes)))
    method = _method(request)
    if isinstance(solver["class_prior"], np.ndarray):
        # Groups are sent as JSON.
        solver["class_prior"] = solver["class_prior"].tolist()
    fixed = {**graph_parameters(request.graph, is_sparse=is_sparse, field="graph"), **solver}
    if work.backend != "numpy":
        fixed["backend"] = work.backend
    given = {descriptor.name for descriptor, _ in request.graph.ListFields()}
    for name in SEARCHED_IN_GRAPHS:
        # A default value: the search decides it. Sparse points have one metric.
        if name not in given and not (name == "metric" and is_sparse):
            del fixed[name]
    judges = validation.points if validation.points.size else None
    n_features = None if is_sparse else columns
    return SearchProblem(y, weights, judges, method, fixed, len(classes), n_features)


def _graph(work: Work, dataset: dataset_pb2.Dataset, blob: str, parameters: dict[str, Any]) -> KNNGraph:
    key = graph_digest(work.task.name.project, dataset_digest(dataset), parameters)
    if key not in _graphs:
        _graphs[key] = build_graph(parameters, read_points(work, dataset, blob)[0], work.threads)
        if len(_graphs) > _GRAPHS_KEPT:
            _graphs.popitem(last=False)
    _graphs.move_to_end(key)
    return _graphs[key]


def _message(trial: Trial) -> model_pb2.Trial:
    message = model_pb2.Trial(
        number=trial.number,
        stage=STAGES[trial.stage],
        error_rate=trial.error,
        score=trial.loss,
        seconds=trial.seconds,
        pruned=trial.pruned,
        held_out_count=trial.held_out,
    )
    message.solver.method = model_pb2.METHOD_IRR if trial.method == "irr" else model_pb2.METHOD_ERR
    set_parameters(trial.parameters, message.graph, message.solver)
    return message


def _trials(outcome: Outcome) -> list[Trial]:
    search = Search(2, 2)
    search.tell([outcome])
    return search.trials


# -- to other workers and back ---------------------------------------------------------------------------------------


def _trial_request(group: Group, until: float, request: job_pb2.FitRequest) -> TrialRequest:
    return TrialRequest(group=json.dumps(group.to_json()), until=until, fit=request)


def _outcomes(work: Work) -> list[Outcome]:
    """The outcomes of the trials so far. Failed ones count as given up, unless all failed."""
    outcomes, failures = [], []
    queue = work.stores.queue
    began = queue.first_started(work.task.name)
    for row in queue.children(work.task.name):
        if row.state not in FINAL:
            continue
        if row.state == SUCCEEDED:
            outcome = Outcome.from_json(json.loads(job_pb2.TrialResult.FromString(row.outcome).outcome))
        else:
            group = Group.from_json(json.loads(decode_trial(queue.get_request(row.number)).group))
            outcome = Outcome(group, (GIVEN_UP,) * len(group.trials), 0.0)
            if row.state == FAILED:
                failures.append(job_pb2.JobError.FromString(row.outcome))
        # By the database's clock, so that every worker that continues the search decides the same.
        outcomes.append(outcome._replace(ended=(row.finished or began) - began))
    if failures and len(failures) == len(outcomes):
        error = failures[0]
        raise error_of_code(error.code, error.message, error.reason, [])
    return outcomes
