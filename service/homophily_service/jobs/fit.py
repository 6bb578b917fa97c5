"""The jobs that make models: fits, and transductions from an earlier fit."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.active import suspicious_labels
from homophily.device.backend import get_backend
from homophily.estimators.classifiers import Start
from homophily.solve.nonlinear_cg import State as Iterate
from homophily.solve.sharpen import Round
from homophily.storage import PointLabels, fit_arguments, labels_of
from homophily_client._pb import dataset_pb2, job_pb2, model_pb2
from homophily_client.names import ModelName
from homophily_service.contract.errors import InvalidRequest
from homophily_service.contract.internal_pb2 import Waiting
from homophily_service.contract.labels import check_same_kind, check_two_classes, class_values, classes_of
from homophily_service.contract.tables import Size, size_of
from homophily_service.contract.values import graph_parameters, solver_parameters
from homophily_service.jobs.estimates import check_cost, fit_cost
from homophily_service.jobs.evaluation import evaluation
from homophily_service.jobs.search import find, planned_cost
from homophily_service.jobs.work import (
    Work,
    describe_computing,
    graph_of,
    sentences,
    together,
)
from homophily_service.runtime.processes import fair_memory
from homophily_service.storage.models import CLASSIFIERS, Classifier, load_model, save_model

#: Labels that the model's message names.
LISTED_SUSPECTS = 100
#: Models of a chain of transductions that the message of the last one names.
MOST_STEPS = 1000


class Compared(NamedTuple):
    """Labels that are only compared with the answers: validation labels for choices, test labels for the result."""

    validation: PointLabels
    test: PointLabels


def fit(work: Work) -> bytes | Waiting:
    """Fit a model; the result is a FitResult."""
    request = job_pb2.FitRequest.FromString(work.task.request)
    cost = planned_cost(request) if request.HasField("search") else 0.0
    work.stage.plan(
        "load",
        *(["search"] if cost else []),
        "graph",
        "solve",
        *(["calibrate"] if request.calibrate else []),
        "save",
        search=cost,
    )
    work.stage.enter("load")
    search = None
    if request.HasField("search"):
        found = find(work, request)
        if isinstance(found, Waiting):
            return found
        search = found
    row = work.source(request)
    dataset = dataset_pb2.Dataset.FromString(row.message)
    rows = size_of(dataset.shape).rows
    labels = work.labels(request.labels, rows, "labels", request.dataset, soft=True)
    check_two_classes(labels.classes, "labels")
    compared = _compared(work, request, rows, request.dataset, labels.classes)
    n_classes = len(set(labels.classes.tolist()))
    classifier = _classifier(request.solver, n_classes)
    if request.labels.HasField("column"):
        # Before it was queued, the number of classes was not known.
        _check_cost(work, size_of(dataset.shape), request, n_classes)
    model = model_pb2.Model(
        name=str(ModelName(work.task.name.project, request.model_id or work.task.name.id)),
        dataset=request.dataset,
        graph_parameters=request.graph,
        solver_parameters=request.solver,
        search=search,
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        graph = graph_of(work, dataset, row.blob, model, request.edges_dataset)
        _solve(work, model, classifier, graph, labels, compared, calibrate=request.calibrate)
    model.warnings.extend(sentences(warned))
    return job_pb2.FitResult(model=model).SerializeToString()


def transduce(work: Work) -> bytes:
    """Make a model with changed labels; the result is a TransduceResult."""
    request = job_pb2.TransduceRequest.FromString(work.task.request)
    grows = ["graph"] if request.appended_dataset else []
    work.stage.plan("load", *grows, "solve", *(["calibrate"] if request.calibrate else []), "save")
    work.stage.enter("load")
    row = work.source(request)
    parent = model_pb2.Model.FromString(row.message)
    before, _ = load_model(work.stores, row.blob, row.graph, work.threads)
    known = classes_of(parent.classes)
    appended = work.appended(request.appended_dataset, parent)
    dataset = parent.dataset if appended is None else appended.dataset.name
    n_points = parent.point_count if appended is None else size_of(appended.dataset.shape).rows
    # The check of an appended dataset has seen that it begins with the model's points.
    earlier_model = parent if appended is None else None
    changed = work.labels(request.labels, n_points, "labels", dataset, soft=True, like=known, earlier=earlier_model)
    check_same_kind(changed.classes, known, "labels")
    compared = _compared(work, request, n_points, dataset, known, earlier_model)
    labels = _changed_labels(before, known, changed, np.array(request.withdrawn, dtype=np.int64))
    check_two_classes(labels.classes, "labels")
    classes = np.unique(labels.classes)
    classifier = _classifier(parent.solver_parameters, len(classes))
    model = model_pb2.Model(
        name=str(ModelName(work.task.name.project, request.model_id or work.task.name.id)),
        dataset=dataset,
        parent_model=parent.name,
        graph_parameters=parent.graph_parameters,
        solver_parameters=parent.solver_parameters,
        dimension_count=parent.dimension_count,
        graph=parent.graph,
        preprocessing_steps=parent.preprocessing_steps,
        schema=parent.schema if parent.HasField("schema") else None,
        label_steps=_steps_before(parent),
    )
    model.graph.reused = True
    # Start from the old solution only if the classes are the same.
    earlier = before.solution_ if np.array_equal(classes, known) else None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        graph = before.graph_
        if appended is not None:
            del model.preprocessing_steps[:]
            graph = graph_of(work, appended.dataset, appended.blob, model)
            earlier = None if earlier is None else _spread_to_new(earlier, graph)
        _solve(work, model, classifier, graph, labels, compared, calibrate=request.calibrate, earlier=earlier)
    model.warnings.extend(sentences(warned))
    now = classes[classifier.transduction_[: parent.point_count]]
    moved = int(np.count_nonzero(known[before.transduction_] != now))
    return job_pb2.TransduceResult(model=model, changed_point_count=moved).SerializeToString()


def _compared(
    work: Work,
    request: job_pb2.FitRequest | job_pb2.TransduceRequest,
    n_points: int,
    dataset: str,
    classes: NDArray[Any],
    earlier: model_pb2.Model | None = None,
) -> Compared:
    """The labels to compare with the answers, which are of the kind of ``classes``."""
    found = [
        work.labels(getattr(request, field), n_points, field, dataset, like=classes, earlier=earlier)
        for field in Compared._fields
    ]
    for field, known in zip(Compared._fields, found, strict=True):
        check_same_kind(known.classes, classes, field)
    return Compared(*found)


def _check_cost(work: Work, size: Size, request: job_pb2.FitRequest, n_classes: int) -> None:
    """Refuse a fit that takes more memory than this worker has."""
    graph = graph_parameters(request.graph, is_sparse=size.is_sparse, field="graph")
    method, solver = solver_parameters(request.solver, "solver", n_classes=n_classes)
    asked: dict[str, Any] = {"graph": graph, "method": method, "solver": solver, "classes": n_classes}
    cost = fit_cost(size.rows, size.elements, columns=size.columns, **asked)
    check_cost(cost, fair_memory(work.settings), math.inf, work.threads)


def _spread_to_new(earlier: Any, graph: KNNGraph) -> Any:
    """A solution of a graph's first points, with means of their neighbours among these for the others."""
    u = len(earlier)
    links = graph.W[u:, :u]
    totals = np.asarray(links.sum(axis=1))
    return np.concatenate([earlier, links @ earlier / np.where(totals > 0, totals, 1.0)[:, None]])


def _steps_before(parent: model_pb2.Model) -> list[model_pb2.LabelStep]:
    """How the labels of a model grew. Models of older versions do not say."""
    step = model_pb2.LabelStep(labelled_count=parent.labelled_count)
    if parent.HasField("test"):
        step.test_error = parent.test.error_rate
    return [*(parent.label_steps or [step])][1 - MOST_STEPS :]


def _classifier(message: model_pb2.SolverParameters, n_classes: int) -> Classifier:
    method, parameters = solver_parameters(message, "solver", n_classes=n_classes)
    return CLASSIFIERS[method](**parameters)


def _changed_labels(before: Classifier, known: Any, changed: PointLabels, withdrawn: Any) -> PointLabels:
    """The model's labels without those withdrawn, and with those that are new or changed."""
    old = labels_of(before)
    if changed.points.size and changed.classes.dtype.kind != known.dtype.kind:
        raise InvalidRequest("labels.classes", "must be strings or integers, like the model's")
    unlabelled = ~np.isin(withdrawn, old.points)
    if unlabelled.any():
        place = int(np.flatnonzero(unlabelled)[0])
        raise InvalidRequest(f"withdrawn[{place}]", f"point {withdrawn[place]} has no label in the model")
    twice = np.isin(withdrawn, changed.points)
    if twice.any():
        place = int(np.flatnonzero(twice)[0])
        raise InvalidRequest(f"withdrawn[{place}]", f"point {withdrawn[place]} gets a label in the same request")
    stays = ~np.isin(old.points, np.concatenate([withdrawn, changed.points]))
    shares = None if old.shares is None else old.shares[stays]
    kept = PointLabels(old.points[stays], known[old.classes[stays]], old.weights[stays], shares)
    return together(kept, changed) if changed.points.size else kept


def _solve(
    work: Work,
    model: model_pb2.Model,
    classifier: Classifier,
    graph: KNNGraph,
    labels: PointLabels,
    compared: Compared,
    *,
    calibrate: bool,
    earlier: Any = None,
) -> None:
    """Fit, compare with labels that were not used, store the model, and describe it in ``model``.

    ``earlier`` is the solution for other labels, from which the linear solution starts.
    """
    stage = work.stage
    # The core gets positions: here −1 may be a class, there it means unlabelled.
    classes, positions = np.unique(labels.classes, return_inverse=True)
    y, weights = fit_arguments(labels._replace(classes=positions), graph.n_points)
    stage.enter("solve")
    most = int(getattr(classifier, "max_iter", 0))
    used = classifier.resolve_params(len(classes), graph.n_points)
    runs = len(classes) if used.get("multiclass") == "one-vs-rest" and len(classes) > 2 else 1

    def follow(state: Iterate | Start | Round | int, *_: Any) -> None:
        # The state on a GPU is only like an Iterate, so test for the other types.
        if isinstance(state, int | Start | Round):
            stage.step(state if isinstance(state, int) else state.iteration, most, runs)
        else:
            stage.optimised(state, most, runs)

    backend = work.backend
    classifier.set_params(n_jobs=work.threads, callback=follow, backend=backend)
    # One job on the device, so that the graph is sent once for both solutions.
    with get_backend(backend).job():
        start = earlier
        if earlier is not None and isinstance(classifier, ERRClassifier):
            start = _irr_start(classifier, graph, y, weights, earlier)
        classifier.fit(graph, y, sample_weight=weights, init=start)
    classifier.set_params(callback=None)
    model.trace.CopyFrom(stage.trace)
    if calibrate:
        stage.enter("calibrate")
        _ = classifier.calibration_
    probabilities = classifier.label_distributions_ if calibrate else None
    for field, known in zip(Compared._fields, compared, strict=True):
        if known.points.size:
            answers = classifier.transduction_[known.points], probabilities
            getattr(model, field).CopyFrom(evaluation(classes, known, *answers))
    if model.HasField("validation"):
        model.error_rate = model.validation.error_rate
    stage.enter("save", model.error_rate if model.HasField("validation") else None)
    model.size_bytes = save_model(work.stores.blobs, work.task.result_path, classifier, calibrate=calibrate)
    stage.leave()
    model.job = str(work.task.name)
    model.classes.CopyFrom(class_values(classes))
    model.point_count, model.labelled_count = graph.n_points, len(np.unique(labels.points))
    model.energy, model.iteration_count = float(classifier.energy_), classifier.n_iter_
    model.evaluation_count, model.engine = classifier.n_evaluations_, classifier.engine_ or ""
    model.calibrated = calibrate
    describe_shares(model, classifier)
    describe_suspects(model, classifier)
    step = model.label_steps.add(labelled_count=model.labelled_count)
    if model.HasField("test"):
        step.test_error = model.test.error_rate
    model.seconds.update(stage.seconds)
    describe_computing(model, backend)
    model.create_time.GetCurrentTime()


def describe_shares(model: model_pb2.Model, classifier: IRRClassifier | ERRClassifier) -> None:
    """Describe the shares of the classes, and how sure they are."""
    del model.class_shares[:]
    for share, (low, high) in zip(classifier.class_prior_, classifier.class_share_range_, strict=True):
        model.class_shares.add(share=share, low=low, high=high)


def describe_suspects(model: model_pb2.Model, classifier: Classifier) -> None:
    """Describe the labels that their surroundings contradict. Classes are positions here."""
    for one in suspicious_labels(classifier)[:LISTED_SUSPECTS]:
        model.suspicious_labels.add(
            point=one.point, class_position=one.label, answer_position=one.answer, suspicion=one.suspicion
        )


def _irr_start(classifier: ERRClassifier, graph: KNNGraph, y: Any, weights: Any, earlier: Any) -> Any:
    """ERR's usual start, computed from the earlier solution: answers must depend on the labels, not on their history.

    ERR must not start from the earlier solution itself. Its relationships are the same with two classes swapped, so it
    would stay there although the labels were corrected.
    """
    if classifier.resolve_params(2, graph.n_points)["multiclass"] == "one-vs-rest":
        return None
    power = classifier.power or (2 if classifier.relationship_neighbors is None else 1)
    irr = IRRClassifier(
        power=power,
        lambda1=classifier.lambda1,
        normalized=classifier.normalized,
        n_jobs=classifier.n_jobs,
        backend=classifier.backend,
    )
    return irr.fit(graph, y, sample_weight=weights, init=earlier).solution_
