"""The content of a job's run, read from the job's messages: names, parameters, metrics. MLflow is not imported here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2, points_pb2
from homophily_client.names import DatasetName, EmbeddingName, JobName, ModelName
from homophily_client.tensors import DTYPES
from homophily_client.words import word
from homophily_service.contract import states
from homophily_service.contract.errors import NotFound, ServiceError
from homophily_service.contract.kinds import KINDS
from homophily_service.contract.names import parse_name
from homophily_service.contract.parameters import GRAPH
from homophily_service.contract.tables import size_of
from homophily_service.contract.values import embedding_parameters, graph_parameters, solver_parameters
from homophily_service.storage.records import Event, JobRecord
from homophily_service.storage.stores import Stores

# Parameters about how it was computed, not what.
#: Shares of more classes than this would crowd out other measures of a run.
_MOST_SHARES = 30
_NOT_ASKED = {"n_jobs", "callback", "graph"}
LONGEST_VALUE = 4000

Made = model_pb2.Model | embedding_pb2.Embedding
Request = job_pb2.FitRequest | job_pb2.TransduceRequest | job_pb2.EmbedRequest


class Measure(NamedTuple):
    """A number, measured at a time (in seconds), at a step of the optimiser."""

    key: str
    value: float
    time: float
    step: int = 0


class Data(NamedTuple):
    """The points of a job."""

    name: str
    digest: str
    is_sparse: bool
    dtype: str
    rows: int
    columns: int
    size: int
    #: Of a table: each column's name and what it contains.
    named: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, message: dataset_pb2.Dataset) -> Data:
        """Read a dataset's message."""
        shape = message.shape.csr if message.shape.WhichOneof("layout") == "csr" else message.shape.dense
        named = tuple(
            (one.name, word(points_pb2.ColumnKind.DESCRIPTOR, one.kind)) for one in message.shape.schema.columns
        )
        return cls(
            message.name,
            message.sha256.hex(),
            size_of(message.shape).is_sparse,
            DTYPES[shape.data_type].name,
            shape.rows,
            len(named) or shape.columns,
            message.size_bytes,
            named,
        )

    @property
    def profile(self) -> str:
        """A summary as JSON, for MLflow's page of the dataset."""
        layout = "sparse" if self.is_sparse else "dense"
        return json.dumps({"points": self.rows, "features": self.columns, "layout": layout, "bytes": self.size})

    @property
    def schema(self) -> str:
        """The schema, as MLflow writes that of a table or of an array."""
        if self.named:
            types: dict[str, dict[str, Any]] = {
                "number": {"type": "double"},
                "vector": {"type": "array", "items": {"type": "double"}},
            }
            columns = [
                {**types.get(kind, {"type": "string"}), "name": name, "required": True} for name, kind in self.named
            ]
            return json.dumps({"mlflow_colspec": columns})
        spec = {"type": "tensor", "tensor-spec": {"dtype": self.dtype, "shape": [-1, self.columns]}}
        return json.dumps({"mlflow_tensorspec": {"features": json.dumps([spec]), "targets": None}})


class Record(NamedTuple):
    """All that is known about a job at present."""

    job: JobName
    title: str
    tags: dict[str, str]
    parameters: dict[str, str]
    #: Numbers that are measured once.
    facts: list[Measure]
    #: Numbers by step.
    steps: list[Measure]
    data: Data | None
    made: Made | None
    registration: model_pb2.Registration | None
    #: Labels that the model is compared with at the end.
    test: model_pb2.Labels = model_pb2.Labels()


def record_of(job: JobRecord, events: Iterable[Event], stores: Stores) -> Record:
    """Read a job that has been started, with its latest events."""
    kind = KINDS[job.kind]
    request: Any = kind.request.FromString(stores.queue.get_request(job.number))
    name = job.name
    made = kind.fitted(job.outcome) if job.state == states.SUCCEEDED else None
    ended = job.finished or 0.0
    data = _data(made.dataset if made is not None and made.dataset else _dataset(request, stores), stores)
    result = kind.made_name(job.project, job.id, request)
    tags = {
        "homophily.job": str(name),
        "homophily.kind": job.kind,
        "homophily.project": job.project,
        "homophily.attempt": str(job.attempt),
        f"homophily.{kind.made_field}": str(result),
        "mlflow.source.type": "JOB",
        "mlflow.source.name": f"homophily {job.kind}",
    }
    # In the order in which MLflow's page shows them.
    facts: list[Measure] = []
    if job.state == states.FAILED:
        error = job_pb2.JobError.FromString(job.outcome)
        tags |= {"homophily.error": error.message, "homophily.error_reason": error.reason}
    if isinstance(request, job_pb2.TransduceRequest):
        tags["homophily.parent_model"] = request.model
    if isinstance(made, model_pb2.Model):
        facts += _facts_of_model(made, ended)
    elif made is not None:
        facts += _facts_of_embedding(made, ended)
    if isinstance(request, job_pb2.TransduceRequest) and made is not None:
        changed = job_pb2.TransduceResult.FromString(job.outcome).changed_point_count
        facts.append(Measure("changed_points", changed, ended))
    if job.finished is not None and job.started is not None:
        facts.append(Measure("seconds.total", job.finished - job.started, job.finished))
    if made is not None:
        tags["mlflow.note.content"] = f"{kind.made_field.capitalize()} `{made.name}`, made by `{name}`."
        if made.preprocessing_steps:
            tags["homophily.preprocessing"] = "\n".join(made.preprocessing_steps)
        if made.warnings:
            tags["homophily.warnings"] = "\n".join(made.warnings)
    steps = [*_steps(events, with_energy=made is None or not made.trace.iterations)]
    if made is not None:
        steps += _traced(made.trace, ended)
    if isinstance(made, model_pb2.Model):
        steps += _searched(made.search, ended)
    registration = None
    if not isinstance(request, job_pb2.EmbedRequest) and request.HasField("registration"):
        registration = request.registration
    return Record(
        name,
        f"{job.kind} {result.id}",
        {key: value[:LONGEST_VALUE] for key, value in tags.items()},
        _shown(_parameters(request, made, data)),
        [one for one in facts if math.isfinite(one.value)],
        [one for one in steps if math.isfinite(one.value)],
        data,
        made,
        registration,
        model_pb2.Labels() if isinstance(request, job_pb2.EmbedRequest) else request.test,
    )


def trial_parameters(trial: model_pb2.Trial) -> dict[str, str]:
    """The settings of a trial, as those of a run."""
    given = {f"graph.{key}": value for key, value in _given(trial.graph, "graph").items()}
    return _shown(given | {f"solver.{key}": value for key, value in _given(trial.solver, "solver").items()})


def trial_measures(trial: model_pb2.Trial, time: float) -> list[Measure]:
    """The metrics of a trial."""
    found = {"seconds.total": trial.seconds}
    if trial.HasField("error_rate"):
        found["validation_error"] = trial.error_rate
    if trial.HasField("score"):
        found["score"] = trial.score
    return [Measure(key, value, time) for key, value in found.items() if math.isfinite(value)]


# -- messages ----------------------------------------------------------------------------------------------------


def _dataset(request: Request, stores: Stores) -> str:
    """The dataset of a job that has not ended."""
    if not isinstance(request, job_pb2.TransduceRequest) and request.dataset:
        return request.dataset
    earlier = request.embedding if isinstance(request, job_pb2.EmbedRequest) else ""
    try:
        if earlier:
            row = stores.catalog.get(EmbeddingName.parse(earlier, "embedding"))
            return embedding_pb2.Embedding.FromString(row.message).dataset
        if not isinstance(request, job_pb2.FitRequest):
            row = stores.catalog.get(ModelName.parse(request.model, "model"))
            return model_pb2.Model.FromString(row.message).dataset
    except NotFound:
        pass
    return ""


def _data(name: str, stores: Stores) -> Data | None:
    try:
        row = stores.catalog.get(parse_name(DatasetName, name, "dataset"))
    except ServiceError:
        # Deleted since, or never one of this service's.
        return None
    return Data.of(dataset_pb2.Dataset.FromString(row.message))


# -- parameters --------------------------------------------------------------------------------------------------


def _parameters(request: Request, made: Made | None, data: Data | None) -> dict[str, Any]:
    """All parameters, given or chosen, with defaults filled in, except those that a search has yet to find."""
    found: dict[str, Any] = {}
    searches = isinstance(request, job_pb2.FitRequest) and request.HasField("search")
    if isinstance(request, job_pb2.FitRequest) and searches:
        search = request.search
        found |= {
            "search.trials": search.trials if search.HasField("trials") else _default_trials(request.solver),
            "search.seconds": search.seconds if search.HasField("seconds") else None,
            "search.seed": search.seed,
            "search.spread": search.spread,
            # None stands for the core's choice, as in the core.
            "search.vary": list(search.vary) or None,
            "search.warm_start": search.warm_start,
        }
    if made is None and (searches or not isinstance(request, job_pb2.FitRequest)):
        # The rest comes from the model or embedding that it continues; it is known when the job has ended.
        return found
    source: Any = request if made is None else made
    graph = source.graph if made is None else source.graph_parameters
    solver = source.solver if made is None else source.solver_parameters
    n_points = made.point_count if made is not None else 0 if data is None else data.rows
    found |= {f"graph.{key}": value for key, value in _complete_graph(graph, data, is_made=made is not None).items()}
    found |= {
        f"solver.{key}": value for key, value in _complete_solver(solver, _n_classes(request, made), n_points).items()
    }
    if made is None:
        return found
    found |= {
        "data.points": made.point_count,
        "data.dimensions": made.dimension_count,
        "data.labelled": made.labelled_count,
        "device": made.device or None,
        "engine": made.engine or None,
        **{f"software.{package}": version for package, version in sorted(made.software.items())},
    }
    if isinstance(made, model_pb2.Model):
        found |= {"data.classes": _n_classes(request, made), "calibrated": made.calibrated}
    else:
        found |= {"solver.n_components": made.component_count, "solver.n_clusters": made.cluster_count or None}
    return {key: value for key, value in found.items() if not (key in ("device", "engine") and value is None)}


def _default_trials(solver: model_pb2.SolverParameters) -> int:
    from homophily.selection.search import default_trials

    return default_trials("irr" if solver.method == model_pb2.METHOD_IRR else "err")


def _complete_graph(message: model_pb2.GraphParameters, data: Data | None, *, is_made: bool) -> dict[str, Any]:
    parameters = graph_parameters(message, is_sparse=data is not None and data.is_sparse, field="graph")
    if data is None and not message.metric:
        # The default distance depends on the points, which were deleted.
        del parameters["metric"]
    if is_made and not message.HasField("n_neighbors"):
        # Made by an earlier release, or of dense points.
        parameters["n_neighbors"] = GRAPH["n_neighbors"].default
    return parameters


def _n_classes(request: Request, made: Made | None) -> int:
    classes = made.classes if isinstance(made, model_pb2.Model) else request.labels.classes
    kind = classes.WhichOneof("kind")
    return len(set(getattr(classes, kind).values)) if kind else 0


def _complete_solver(
    message: model_pb2.SolverParameters | embedding_pb2.EmbeddingParameters, n_classes: int, n_points: int
) -> dict[str, Any]:
    # Only here: the core takes seconds to load, and the tracker of an idle service must stay small.
    from homophily import ERRClassifier, IRRClassifier
    from homophily_service.jobs.maps import complete_parameters

    if isinstance(message, embedding_pb2.EmbeddingParameters):
        complete = complete_parameters(embedding_parameters(message, "solver"))
        return {name: value for name, value in complete.items() if name not in _NOT_ASKED}
    method, given = solver_parameters(message, "solver")
    estimator: Any = {"irr": IRRClassifier, "err": ERRClassifier}[method](**given)
    resolved = estimator.resolve_params(n_classes, n_points)
    return {"method": method} | {name: value for name, value in resolved.items() if name not in _NOT_ASKED}


def _given(message: Any, field: str) -> dict[str, Any]:
    """Only the parameters that a message sets."""
    if field == "solver":
        method, given = solver_parameters(message, field)
        return {"method": method} | {key: value for key, value in given.items() if value is not None}
    complete = graph_parameters(message, is_sparse=False, field=field)
    return {descriptor.name: complete[descriptor.name] for descriptor, _ in message.ListFields()}


def _shown(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value)[:LONGEST_VALUE] for key, value in parameters.items()}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, np.ndarray | list | tuple):
        return ", ".join(map(_text, np.asarray(value).tolist()))
    return str(value)


# -- measures ----------------------------------------------------------------------------------------------------


def _steps(events: Iterable[Event], *, with_energy: bool) -> Iterator[Measure]:
    """The progress that a job reported while it ran."""
    for event in events:
        if not event.progress:
            continue
        progress = job_pb2.Progress.FromString(event.progress)
        if progress.HasField("best_error_rate"):
            yield Measure("search.best_error_rate", progress.best_error_rate, event.time, progress.trial_count)
        if not with_energy or progress.phase != "solve" or not progress.HasField("energy"):
            continue
        yield Measure("energy", progress.energy, event.time, progress.iteration)
        if progress.HasField("gradient_norm"):
            yield Measure("gradient_norm", progress.gradient_norm, event.time, progress.iteration)
        if progress.evaluation_count:
            yield Measure("evaluations", progress.evaluation_count, event.time, progress.iteration)


def _searched(search: model_pb2.SearchSummary, time: float) -> Iterator[Measure]:
    """The final result of the search, which the last event may lack."""
    errors = [trial.error_rate for trial in search.trials if trial.HasField("error_rate") and not trial.pruned]
    if errors:
        yield Measure("search.best_error_rate", min(errors), time, len(search.trials))


def _traced(trace: model_pb2.Trace, time: float) -> Iterator[Measure]:
    columns: dict[str, Iterable[float]] = {
        "energy": trace.energies,
        "gradient_norm": trace.gradient_norms,
        "evaluations": trace.evaluation_counts,
    }
    for key, values in columns.items():
        for step, value in zip(trace.iterations, values, strict=False):
            yield Measure(key, float(value), time, step)


def _facts_of(made: Made, time: float) -> Iterator[Measure]:
    if not made.trace.iterations:
        yield Measure("energy", made.energy, time, made.iteration_count)
        yield Measure("evaluations", made.evaluation_count, time, made.iteration_count)
    yield Measure("iterations", made.iteration_count, time)
    graph = made.graph
    yield Measure("graph.edges", graph.edge_count, time)
    yield Measure("graph.components", graph.component_count, time)
    yield Measure("graph.recall", graph.recall, time)
    yield Measure("graph.reused", float(graph.reused), time)
    if made.peak_memory_bytes:
        yield Measure("peak_memory_mb", made.peak_memory_bytes / 1e6, time)
    for phase, seconds in sorted(made.seconds.items()):
        yield Measure(f"seconds.{phase}", seconds, time)


def _facts_of_model(model: model_pb2.Model, time: float) -> Iterator[Measure]:
    if model.HasField("validation"):
        yield Measure("validation_error", model.validation.error_rate, time)
    elif model.HasField("error_rate"):
        yield Measure("validation_error", model.error_rate, time)
    elif model.search.HasField("best"):
        # From the folds of the labels that the search held out.
        yield Measure("validation_error", _trial(model.search, model.search.best).error_rate, time)
    if model.HasField("test"):
        yield Measure("test_error", model.test.error_rate, time)
    if len(model.class_shares) <= _MOST_SHARES:
        for position, one in enumerate(model.class_shares):
            for key in ("share", "low", "high"):
                yield Measure(f"class_{key}.{position}", getattr(one, key), time)
    # A curve over the number of labels.
    for step in model.label_steps:
        if step.HasField("test_error"):
            yield Measure("test_error_by_labels", step.test_error, time, step.labelled_count)
    if model.label_steps:
        yield Measure("suspicious_labels", len(model.suspicious_labels), time)
    yield from _facts_of(model, time)


def _trial(search: model_pb2.SearchSummary, number: int) -> model_pb2.Trial:
    return next(trial for trial in search.trials if trial.number == number)


def _facts_of_embedding(embedding: embedding_pb2.Embedding, time: float) -> Iterator[Measure]:
    yield from _facts_of(embedding, time)
    links = embedding.links
    for key in ("must", "cannot", "violated_must", "violated_cannot", "divided_must", "joined_cannot"):
        yield Measure(f"links.{key}", getattr(links, f"{key}_link_count"), time)
