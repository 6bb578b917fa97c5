"""What the service answers, as plain values: they can be kept, compared, pickled and printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from homophily_service._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2
from homophily_service.arrays import DTYPES
from homophily_service.client.errors import JobFailed, from_job
from homophily_service.client.fitting import Evaluation, Search, Trace
from homophily_service.client.labels import class_array
from homophily_service.client.parameters import to_dict


@dataclass(frozen=True)
class Dataset:
    """Points that were uploaded."""

    name: str
    points: int
    dimensions: int
    is_sparse: bool
    dtype: str
    #: In hexadecimal digits, of the points' bytes.
    sha256: str
    size_bytes: int
    create_time: datetime
    description: str

    @classmethod
    def from_message(cls, message: dataset_pb2.Dataset) -> Dataset:
        """Read a message."""
        is_sparse = message.shape.WhichOneof("layout") == "csr"
        shape = message.shape.csr if is_sparse else message.shape.dense
        return cls(
            name=message.name,
            points=shape.rows,
            dimensions=shape.columns,
            is_sparse=is_sparse,
            dtype=DTYPES[shape.data_type].name,
            sha256=message.sha256.hex(),
            size_bytes=message.size_bytes,
            create_time=_time(message.create_time),
            description=message.description,
        )


@dataclass(frozen=True)
class Graph:
    """The graph of a model or an embedding."""

    #: SHA-256 of the points and of the graph's parameters.
    digest: str
    #: True if it was there already, so that no neighbours were searched for.
    reused: bool
    edges: int
    #: The share of true neighbours that the search found.
    recall: float
    components: int

    @classmethod
    def from_message(cls, message: model_pb2.GraphSummary) -> Graph:
        """Read a message."""
        return cls(message.digest, message.reused, message.edges, message.recall, message.components)


@dataclass(frozen=True)
class Model:
    """A fitted model; its answers are read by ``Client.read_solution`` and ``Client.predict``."""

    name: str
    #: The dataset it was fitted on, which may be deleted since.
    dataset: str
    job: str
    #: The model whose labels were changed to make this one; None for a fit.
    parent_model: str | None
    #: The classes, sorted.
    classes: tuple[str, ...] | tuple[int, ...]
    points: int
    dimensions: int
    labelled: int
    #: Parameters that were given, by the core's names.
    graph_parameters: dict[str, Any]
    solver_parameters: dict[str, Any]
    graph: Graph
    energy: float
    iterations: int
    evaluations: int
    #: The engine that computed the relationships; empty for IRR.
    engine: str
    #: The share of wrong answers among the validation labels, if there were any.
    error_rate: float | None
    #: By phase: load, graph, solve, calibrate, save.
    seconds: dict[str, float]
    calibrated: bool
    create_time: datetime
    #: What was worth telling, such as components without a label.
    warnings: tuple[str, ...]
    size_bytes: int
    #: The way of the optimiser; None for IRR.
    trace: Trace | None
    #: The answers against the validation labels, and against the test labels, where there were any.
    validation: Evaluation | None
    test: Evaluation | None
    #: The search that found the parameters, if there was one.
    search: Search | None
    #: The most memory that the process which fitted it held.
    peak_memory_bytes: int
    #: What it was computed on, such as cpu, and the versions of the software by package.
    device: str
    software: dict[str, str]
    #: Where it was imported from; None if it was fitted here.
    source: str | None

    @classmethod
    def from_message(cls, message: model_pb2.Model) -> Model:
        """Read a message."""
        return cls(
            name=message.name,
            dataset=message.dataset,
            job=message.job,
            parent_model=message.parent_model or None,
            classes=tuple(class_array(message.classes).tolist()),
            points=message.points,
            dimensions=message.dimensions,
            labelled=message.labelled,
            graph_parameters=to_dict(message.graph_parameters),
            solver_parameters=to_dict(message.solver_parameters),
            graph=Graph.from_message(message.graph),
            energy=message.energy,
            iterations=message.iterations,
            evaluations=message.evaluations,
            engine=message.engine,
            error_rate=message.error_rate if message.HasField("error_rate") else None,
            seconds=dict(message.seconds),
            calibrated=message.calibrated,
            create_time=_time(message.create_time),
            warnings=tuple(message.warnings),
            size_bytes=message.size_bytes,
            trace=Trace.from_message(message.trace),
            validation=Evaluation.from_message(message.validation),
            test=Evaluation.from_message(message.test),
            search=Search.from_message(message.search),
            peak_memory_bytes=message.peak_memory_bytes,
            device=message.device,
            software=dict(message.software),
            source=message.source or None,
        )


@dataclass(frozen=True)
class LinkCounts:
    """How many links there were, and how many are not obeyed; which they are is read by ``Client.read_embedding``."""

    #: Those that stand for labels and those of earlier embeddings among them.
    must: int
    cannot: int
    #: Must-links whose points are apart on the map, and cannot-links whose points are together there.
    violated_must: int
    violated_cannot: int
    #: Must-links between clusters, and cannot-links within one.
    divided_must: int
    joined_cannot: int
    #: The violated ones, the first 100 of each kind.
    listed_must: tuple[tuple[int, int], ...]
    listed_cannot: tuple[tuple[int, int], ...]

    @classmethod
    def from_message(cls, message: embedding_pb2.LinkSummary) -> LinkCounts:
        """Read a message."""
        return cls(
            must=message.must,
            cannot=message.cannot,
            violated_must=message.violated_must,
            violated_cannot=message.violated_cannot,
            divided_must=message.divided_must,
            joined_cannot=message.joined_cannot,
            listed_must=tuple((link.first, link.second) for link in message.violated.must),
            listed_cannot=tuple((link.first, link.second) for link in message.violated.cannot),
        )


@dataclass(frozen=True)
class Embedding:
    """A map of points; its coordinates, clusters and links are read by ``Client.read_embedding``."""

    name: str
    #: The dataset, which may be deleted since.
    dataset: str
    job: str
    points: int
    components: int
    #: 0 if none were asked for.
    clusters: int
    create_time: datetime
    #: The embedding that this one went on from; None if it began anew.
    parent_embedding: str | None
    #: The model whose points and graph were taken, if it was one.
    model: str | None
    dimensions: int
    labelled: int
    #: Parameters that were given, by the core's names.
    graph_parameters: dict[str, Any]
    solver_parameters: dict[str, Any]
    graph: Graph
    links: LinkCounts
    energy: float
    iterations: int
    evaluations: int
    #: The engine that computed the relationships.
    engine: str
    #: By phase: load, graph, solve, cluster, save.
    seconds: dict[str, float]
    #: What was worth telling, such as links that contradict each other.
    warnings: tuple[str, ...]
    size_bytes: int
    #: The way of the optimiser.
    trace: Trace | None
    #: The most memory that the process which made it held.
    peak_memory_bytes: int
    #: What it was computed on, such as cpu, and the versions of the software by package.
    device: str
    software: dict[str, str]

    @classmethod
    def from_message(cls, message: embedding_pb2.Embedding) -> Embedding:
        """Read a message."""
        return cls(
            name=message.name,
            dataset=message.dataset,
            job=message.job,
            points=message.points,
            components=message.components,
            clusters=message.clusters,
            create_time=_time(message.create_time),
            parent_embedding=message.parent_embedding or None,
            model=message.model or None,
            dimensions=message.dimensions,
            labelled=message.labelled,
            graph_parameters=to_dict(message.graph_parameters),
            solver_parameters=to_dict(message.solver_parameters),
            graph=Graph.from_message(message.graph),
            links=LinkCounts.from_message(message.links),
            energy=message.energy,
            iterations=message.iterations,
            evaluations=message.evaluations,
            engine=message.engine,
            seconds=dict(message.seconds),
            warnings=tuple(message.warnings),
            size_bytes=message.size_bytes,
            trace=Trace.from_message(message.trace),
            peak_memory_bytes=message.peak_memory_bytes,
            device=message.device,
            software=dict(message.software),
        )


class JobState(StrEnum):
    """Where a job is; equal to its lower-case word."""

    UNSPECIFIED = "unspecified"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: For jobs of its own, such as the trials of a search.
    WAITING = "waiting"

    @property
    def is_final(self) -> bool:
        """True if the job has ended."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


STATES: dict[str, job_pb2.JobState.ValueType] = {
    JobState.QUEUED: job_pb2.JOB_STATE_QUEUED,
    JobState.RUNNING: job_pb2.JOB_STATE_RUNNING,
    JobState.SUCCEEDED: job_pb2.JOB_STATE_SUCCEEDED,
    JobState.FAILED: job_pb2.JOB_STATE_FAILED,
    JobState.CANCELLED: job_pb2.JOB_STATE_CANCELLED,
    JobState.WAITING: job_pb2.JOB_STATE_WAITING,
}
KINDS = {
    "fit": job_pb2.JOB_KIND_FIT,
    "transduce": job_pb2.JOB_KIND_TRANSDUCE,
    "embed": job_pb2.JOB_KIND_EMBED,
    "trial": job_pb2.JOB_KIND_TRIAL,
    "import": job_pb2.JOB_KIND_IMPORT,
}
_STATES_BACK = {number: JobState(state) for state, number in STATES.items()}
_KINDS_BACK = {number: kind for kind, number in KINDS.items()}


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    phase: str
    iteration: int
    #: 0 where it is not known.
    max_iterations: int
    energy: float | None
    error_rate: float | None
    #: The share of the work that is done, roughly.
    fraction: float
    #: In a search: the settings tried, at most so many, and the lowest error rate among them.
    trials: int
    max_trials: int
    best_error_rate: float | None

    @classmethod
    def from_message(cls, message: job_pb2.Progress) -> Progress:
        """Read a message."""
        return cls(
            phase=message.phase,
            iteration=message.iteration,
            max_iterations=message.max_iterations,
            energy=message.energy if message.HasField("energy") else None,
            error_rate=message.error_rate if message.HasField("error_rate") else None,
            fraction=message.fraction,
            trials=message.trials,
            max_trials=message.max_trials,
            best_error_rate=message.best_error_rate if message.HasField("best_error_rate") else None,
        )


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job. What concerns progress is None when only the state changed."""

    sequence: int
    time: datetime
    state: JobState
    attempt: int
    phase: str | None
    iteration: int | None
    max_iterations: int | None
    energy: float | None
    error_rate: float | None
    fraction: float | None
    trials: int | None
    max_trials: int | None
    best_error_rate: float | None
    message: str

    @classmethod
    def from_message(cls, message: job_pb2.JobEvent) -> JobEvent:
        """Read a message."""
        if message.HasField("progress"):
            progress = asdict(Progress.from_message(message.progress))
        else:
            progress = dict.fromkeys(field.name for field in fields(Progress))
        return cls(
            sequence=message.sequence,
            time=_time(message.time),
            state=_state(message.state),
            attempt=message.attempt,
            message=message.message,
            **progress,
        )


@dataclass(frozen=True)
class Job:
    """A job as it was when it was last looked at."""

    name: str
    #: fit, transduce or embed.
    kind: str
    state: JobState
    priority: int
    #: The jobs that will be started before this one.
    queue_position: int
    attempt: int
    max_attempts: int
    progress: Progress | None
    #: What a fit, a transduction or an import made.
    model: Model | None
    #: The points whose class a transduction has changed.
    changed_points: int | None
    embedding: Embedding | None
    #: Why it failed.
    error: JobFailed | None
    create_time: datetime
    start_time: datetime | None
    finish_time: datetime | None
    #: Seconds that an attempt may take.
    time_limit: float
    request_id: str
    cancel_requested: bool
    last_sequence: int
    tracking_run: str
    #: Where people find that run.
    tracking_url: str

    @classmethod
    def from_message(cls, message: job_pb2.Job) -> Job:
        """Read a message."""
        outcome = message.WhichOneof("outcome")
        model = getattr(message, outcome).model if outcome in ("fit", "transduce", "imported") else None
        return cls(
            name=message.name,
            kind=_KINDS_BACK.get(message.kind, "unspecified"),
            state=_state(message.state),
            priority=message.priority,
            queue_position=message.queue_position,
            attempt=message.attempt,
            max_attempts=message.max_attempts,
            progress=Progress.from_message(message.progress) if message.HasField("progress") else None,
            model=None if model is None else Model.from_message(model),
            changed_points=message.transduce.changed_points if outcome == "transduce" else None,
            embedding=Embedding.from_message(message.embed.embedding) if outcome == "embed" else None,
            error=from_job(message.name, message.error) if outcome == "error" else None,
            create_time=_time(message.create_time),
            start_time=_time(message.start_time) if message.HasField("start_time") else None,
            finish_time=_time(message.finish_time) if message.HasField("finish_time") else None,
            time_limit=message.time_limit.ToNanoseconds() / 1e9,
            request_id=message.request_id,
            cancel_requested=message.cancel_requested,
            last_sequence=message.last_sequence,
            tracking_run=message.tracking_run,
            tracking_url=message.tracking_url,
        )


def _state(number: int) -> JobState:
    return _STATES_BACK.get(job_pb2.JobState.ValueType(number), JobState.UNSPECIFIED)


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
