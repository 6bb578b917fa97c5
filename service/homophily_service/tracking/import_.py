"""Imports models from MLflow's registry, to be served here.

Their content is not trusted. It is read in the store's own checked format, restored by the core, which checks every
number, and written again. The graph is stored under the digest of what was read, never under the one that it claims, so
that no import can replace a graph that others use.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from homophily_client._pb import job_pb2, model_pb2
from homophily_client.names import ModelName
from homophily_service.contract import parameters
from homophily_service.contract.errors import DataLoss, FailedPrecondition, LimitExceeded, NotFound, Unavailable
from homophily_service.contract.labels import class_values
from homophily_service.contract.values import choices, set_value
from homophily_service.jobs.fit import describe_shares
from homophily_service.jobs.work import Work
from homophily_service.storage.blobs.backends import MANIFEST
from homophily_service.storage.models import CLASSIFIERS, Classifier, StoredGraph, graph_path, save_graph, save_model
from homophily_service.storage.recipes import schema_of, stored_ids
from homophily_service.storage.scratch import scratch_folder
from homophily_service.tracking.artifact import GRAPH, Parts, read_parts
from homophily_service.tracking.place import connect
from homophily_service.tracking.registry import importable

# Our folder inside MLflow's.
FOLDER = "homophily"
_RUNS = "runs:/"
# Our three folders have a few dozen files.
_MOST_FILES = 1000
_SMALLEST_LIMIT = 1 << 20
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE")


def import_model(work: Work) -> bytes:
    """Make a model of this service from a registered one; the result is an ImportResult."""
    request = job_pb2.ImportModelRequest.FromString(work.task.request)
    work.stage.plan("load", "save")
    work.stage.enter("load")
    with scratch_folder(work.settings, work.task.token) as folder:
        path = _download(work, request.uri, folder)
        parts = _read(path, request.uri)
        try:
            classifier = parts.classifier(by_position=True)
        except ValueError as error:
            raise DataLoss(f"{request.uri} is damaged: {error}") from error
        model = _described(work, parts, classifier, request)
        work.stage.enter("save")
        model.graph.digest = _keep_graph(work, path / GRAPH / MANIFEST, classifier, parts)
        classifier.set_params(n_jobs=work.threads)
        model.size_bytes = save_model(
            work.stores.blobs, work.task.result_path, classifier, calibrate=parts.is_calibrated
        )
    work.stage.leave()
    model.create_time.GetCurrentTime()
    return job_pb2.ImportResult(model=model).SerializeToString()


# -- the download


def _download(work: Work, uri: str, folder: Path) -> Path:
    """Fetch our folder of a registered model after checking its size; returns where it is."""
    client = connect(work.settings)
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    try:
        uri = importable(client, work.task.name.project, uri)
    except MlflowException as error:
        raise Unavailable(f"the registry does not answer: {' '.join(str(error).split())[:300]}") from error
    run, _, path = uri.removeprefix(_RUNS).partition("/")
    root, path = (f"{_RUNS}{run}", path.rstrip("/")) if uri.startswith(_RUNS) else (uri, "")
    ours = f"{path}/{FOLDER}" if path else FOLDER
    limit = work.settings.max_dataset_bytes
    try:
        repository: Any = get_artifact_repository(root)
        sizes = _sizes(repository, ours)
        if not sizes:
            if not repository.list_artifacts(path or None):
                raise NotFound(f"{uri}: there is no such artifact")
            raise FailedPrecondition(f"{uri}: it is not a model of Homophily", reason="NOT_A_MODEL")
        if sum(sizes.values()) > limit:
            raise LimitExceeded(f"{uri} has {sum(sizes.values())} bytes, the limit is {limit}")
        for file, size in sizes.items():
            with _limited_file_size(size):
                repository.download_artifacts(file, dst_path=str(folder))
            work.stage.report_if_due()
    except MlflowException as error:
        sentence = " ".join(str(error).split())[:300]
        if error.error_code in _MISSING:
            raise NotFound(f"{uri}: {sentence}") from error
        if os.strerror(errno.EFBIG) in sentence:
            raise LimitExceeded(f"{uri} has more bytes than its registry said") from error
        raise Unavailable(f"the registry does not answer: {sentence}") from error
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise LimitExceeded(f"{uri} has more bytes than its registry said") from error
        raise Unavailable(f"{uri} cannot be fetched: {error}") from error
    return folder / ours


def _sizes(repository: Any, path: str) -> dict[str, int]:
    """The files below a path, with the bytes that each is said to have."""
    sizes: dict[str, int] = {}
    folders = [path]
    while folders:
        for found in repository.list_artifacts(folders.pop()):
            if found.is_dir:
                folders.append(found.path)
            else:
                sizes[found.path] = int(found.file_size or 0)
            if len(sizes) + len(folders) > _MOST_FILES:
                raise FailedPrecondition(f"{path} has more files than any model of Homophily", reason="NOT_A_MODEL")
    return sizes


@contextmanager
def _limited_file_size(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes: a larger write fails with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Other files that are written meanwhile, such as a log, must not fail for a small limit.
    wanted = max(size, _SMALLEST_LIMIT)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- the content


def _read(path: Path, uri: str) -> Parts:
    try:
        parts = read_parts(path)
    except FailedPrecondition as error:
        raise FailedPrecondition(f"{uri}: {error.message}", reason=error.reason) from error
    except DataLoss as error:
        raise DataLoss(f"{uri}: {error.message}") from error
    if parts.classes.dtype.kind not in "iuO":
        raise FailedPrecondition(f"{uri} has classes of {parts.classes.dtype}; they must be strings or integers")
    return parts


def _keep_graph(work: Work, manifest: Path, classifier: Classifier, parts: Parts) -> str:
    """Store the graph, unless it is here; its digest is that of the manifest, in which the digests of all files are."""
    stored = StoredGraph(classifier.graph_, parts.recipe(), stored_ids(parts.graph))
    project = work.task.name.project
    digest = hashlib.sha256(f"imported by {project}".encode() + manifest.read_bytes()).hexdigest()
    path = graph_path(digest, work.task.token)
    size = save_graph(work.stores.blobs, path, stored)
    if work.stores.catalog.add_graph(digest, path, size, project) != path:
        # It exists already.
        work.stores.blobs.delete(path)
    return digest


def _described(
    work: Work, parts: Parts, classifier: Classifier, request: job_pb2.ImportModelRequest
) -> model_pb2.Model:
    """The model's description; whatever can be computed from its arrays is computed, not trusted."""
    model = model_pb2.Model()
    if parts.described is not None:
        model.CopyFrom(parts.described)
    else:
        _describe_parameters(model, classifier)
    for elsewhere in ("dataset", "parent_model"):
        model.ClearField(elsewhere)
    graph = classifier.graph_
    model.name = str(ModelName(work.task.name.project, request.model_id or work.task.name.id))
    model.job, model.source = str(work.task.name), request.uri
    model.classes.CopyFrom(class_values(parts.classes))
    model.point_count, model.dimension_count = graph.n_points, int(graph.n_features_in_)
    model.labelled_count = len(parts.model.arrays["label_points"])
    model.energy, model.iteration_count = float(classifier.energy_), classifier.n_iter_
    model.evaluation_count, model.engine = classifier.n_evaluations_, classifier.engine_ or ""
    model.calibrated = parts.is_calibrated
    describe_shares(model, classifier)
    recipe = parts.recipe()
    if recipe is not None and not model.HasField("schema"):
        model.schema.CopyFrom(schema_of(recipe))
        model.preprocessing_steps.extend(recipe.steps_)
    model.graph.CopyFrom(
        model_pb2.GraphSummary(edge_count=graph.W.nnz // 2, recall=graph.recall_, component_count=graph.n_components)
    )
    return model


def _describe_parameters(model: model_pb2.Model, classifier: Classifier) -> None:
    """Describe the parameters of a classifier that another program fitted."""
    # As they were given: the value of a default depends on the labels, which a transduction may change.
    given = classifier.get_params(deep=False)
    given["method"] = next(name for name, kind in CLASSIFIERS.items() if type(classifier) is kind)
    _describe(parameters.SOLVER, model.solver_parameters, given)
    _describe(parameters.GRAPH, model.graph_parameters, classifier.graph_.resolved_params_)


def _describe(group: parameters.Group, message: Message, given: Mapping[str, Any]) -> None:
    for row in group:
        value = given.get(row.name)
        if value is None or (value == "auto" and row.type in (bool, str)):
            continue
        if row.type is str and value not in choices(row, message):
            raise FailedPrecondition(f"the service has no {row.name}={value!r}, with which the model was fitted")
        if row.type is parameters.Shares:
            _describe_shares(getattr(message, row.field_name), value)
        else:
            set_value(group, message, row.name, value)


def _describe_shares(message: model_pb2.ClassPrior, prior: Any) -> None:
    if isinstance(prior, str):
        if prior not in parameters.Shares.WORDS:
            raise FailedPrecondition(f"the service has no class_prior={prior!r}, with which the model was fitted")
        setattr(message, prior, True)
    elif isinstance(prior[0], Sequence):
        message.bounds.lows.extend(low for low, _ in prior)
        message.bounds.highs.extend(high for _, high in prior)
    else:
        message.shares.values.extend(prior)
