"""Answers of the service as plain values: they can be kept, compared, pickled and printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2, points_pb2, server_pb2
from homophily_client.errors import JobFailed, from_job
from homophily_client.records import Record, computed, named
from homophily_client.tensors import DTYPES


@dataclass(frozen=True)
class ServerInfo(Record, of=server_pb2.GetServerInfoResponse):
    """What the server is."""

    #: The version of the homophily distribution, such as "0.1.0".
    version: str
    #: The version of the interface, such as "v1".
    api_version: str
    #: Whether jobs are recorded in a tracking server.
    tracking: bool


def _shape(message: dataset_pb2.Dataset) -> Any:
    return getattr(message.shape, message.shape.WhichOneof("layout") or "dense")


@dataclass(frozen=True)
class Column(Record, of=points_pb2.Column):
    """A column of a table."""

    name: str
    #: "number", "vector", "category", "text", "id" or "label".
    kind: str
    #: The length of a vector; 0 otherwise.
    width: int


@dataclass(frozen=True, kw_only=True)
class TableSchema(Record, of=points_pb2.TableSchema):
    """The columns of a table, and how its rows become points."""

    columns: tuple[Column, ...]
    scale: str
    missing: str
    #: Columns that are no features; new rows may have them.
    unused_columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DatasetBase(Record, of=dataset_pb2.DatasetBase):
    """A dataset that another one begins with."""

    #: Its name; it may have been deleted.
    dataset: str
    #: The number of its points.
    points: int = field(metadata=named("row_count"))
    #: SHA-256 of its points with their shape and type.
    digest: str


@dataclass(frozen=True, kw_only=True)
class DatasetSource(Record, of=dataset_pb2.DatasetSource):
    """The files that a dataset was made from, as they were when they were read."""

    address: str
    files: int = field(metadata=named("file_count"))
    size_bytes: int
    #: Of the names, sizes and ETags of the files and of the choice of columns, in hexadecimal digits.
    digest: str = computed(lambda message: message.digest.hex())


@dataclass(frozen=True, kw_only=True)
class Dataset(Record, of=dataset_pb2.Dataset):
    """Points that were uploaded, or read from an address."""

    name: str
    #: The number of points.
    points: int = computed(lambda message: _shape(message).rows)
    #: The number of features of a point.
    dimensions: int = computed(lambda message: _shape(message).columns)
    #: Whether only values other than 0 are stored.
    is_sparse: bool = computed(lambda message: message.shape.HasField("csr"))
    #: The type of the values, such as "float32".
    dtype: str = computed(lambda message: DTYPES[_shape(message).data_type].name)
    #: The columns, if it is a table.
    schema: TableSchema | None = computed(
        lambda message: TableSchema.from_message(message.shape.schema) if message.shape.HasField("schema") else None
    )
    #: The bytes of each column of strings.
    string_bytes: tuple[int, ...] = computed(lambda message: tuple(message.shape.string_bytes))
    #: Of the points' bytes, in hexadecimal digits.
    sha256: str = computed(lambda message: message.sha256.hex())
    size_bytes: int
    create_time: datetime
    description: str
    #: The files that it was made from, if it was made by ``create_dataset``.
    source: DatasetSource | None
    #: The dataset that its first rows are from, if it was made by ``append_points``.
    base: DatasetBase | None


@dataclass(frozen=True)
class Graph(Record, of=model_pb2.GraphSummary):
    """The graph of a model or an embedding."""

    #: SHA-256 of the project, the points and the graph's parameters.
    digest: str
    #: Whether it existed already, so that no neighbours had to be searched for.
    reused: bool
    edges: int = field(metadata=named("edge_count"))
    #: The share of true neighbours that the search found.
    recall: float
    components: int = field(metadata=named("component_count"))
    #: The number of points that were searched as a whole; others were appended.
    searched: int = field(metadata=named("searched_count"))
    #: The dataset of edges that count besides those of near points; empty if there is none.
    edges_dataset: str


@dataclass(frozen=True)
class Trace(Record, of=model_pb2.Trace):
    """The optimiser's steps, the start first. Long traces are thinned out."""

    iterations: tuple[int, ...]
    energies: tuple[float, ...]
    #: Relative to the start's.
    gradient_norms: tuple[float, ...]
    #: Energy evaluations so far.
    evaluations: tuple[int, ...] = field(metadata=named("evaluation_counts"))


@dataclass(frozen=True)
class ReliabilityBin(Record, of=model_pb2.ReliabilityBin):
    """Answers of about the same confidence."""

    #: The mean of the largest probability.
    confidence: float
    #: The share of right answers.
    accuracy: float
    points: int = field(metadata=named("point_count"))


def _rows(counts: Any) -> tuple[tuple[int, ...], ...]:
    width = round(len(counts) ** 0.5)
    return tuple(tuple(counts[row * width : (row + 1) * width]) for row in range(width))


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record, of=model_pb2.Evaluation):
    """How well the answers agree with labels that were held back."""

    #: The number of labels compared with.
    points: int = field(metadata=named("point_count"))
    error_rate: float
    #: Points by true class (row) and answer (column), in the order of the model's classes. Labels of other classes are
    #: counted as wrong, but not listed. Empty for more than 100 classes.
    confusion: tuple[tuple[int, ...], ...] = computed(lambda message: _rows(message.confusion))
    #: Probabilities compared with the facts; empty for a model that is not calibrated.
    reliability: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class Trial(Record, of=model_pb2.Trial):
    """Parameters that a search tried."""

    number: int
    #: 1: the graph and IRR, 2: ERR.
    stage: int
    graph: dict[str, Any]
    solver: dict[str, Any]
    #: The share of wrong answers among the held-out labels; None if the trial was not started.
    error_rate: float | None
    #: The mean log-loss of these answers.
    score: float | None
    seconds: float
    #: Whether it was stopped early, or not started.
    pruned: bool
    #: The number of answers that the error rate and the score are means of.
    held_out: int = field(metadata=named("held_out_count"))


@dataclass(frozen=True)
class Search(Record, of=model_pb2.SearchSummary):
    """The search that found a model's parameters."""

    trials: tuple[Trial, ...]
    #: The number of the trial whose parameters were chosen; None if time ran out first.
    best: int | None


@dataclass(frozen=True)
class ClassShare(Record, of=model_pb2.ClassShare):
    """The share of a class among all points."""

    #: Given or inferred.
    share: float
    #: The share of points whose probability of this class is at least 0.9, and at least 0.1.
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class SuspiciousLabel(Record, of=model_pb2.SuspiciousLabel):
    """A label that its surroundings contradict."""

    point: int
    #: Positions in the model's classes: the class that was given, and the one that the other labels give the point.
    class_position: int
    answer_position: int
    #: From 0 to 1: the share of the answer in what the other labels say of the point, less that of the given class.
    suspicion: float


@dataclass(frozen=True)
class LabelStep(Record, of=model_pb2.LabelStep):
    """A model in a chain of transductions."""

    labelled: int = field(metadata=named("labelled_count"))
    #: The share of wrong answers among the test labels, if there were any.
    test_error: float | None


@dataclass(frozen=True)
class Model(Record, of=model_pb2.Model):
    """A fitted model; ``Client.read_solution`` and ``Client.predict`` give its answers."""

    name: str
    #: The dataset it was fitted on, which may have been deleted since.
    dataset: str
    job: str
    #: The model whose labels were changed to make this one; None for a fit.
    parent_model: str | None
    #: The classes, sorted.
    classes: tuple[str, ...] | tuple[int, ...]
    points: int = field(metadata=named("point_count"))
    dimensions: int = field(metadata=named("dimension_count"))
    labelled: int = field(metadata=named("labelled_count"))
    #: The parameters that were given, by the core's names.
    graph_parameters: dict[str, Any]
    solver_parameters: dict[str, Any]
    graph: Graph
    energy: float
    iterations: int = field(metadata=named("iteration_count"))
    evaluations: int = field(metadata=named("evaluation_count"))
    #: The engine that computed the relationships; empty for IRR.
    engine: str
    #: The share of wrong answers among the validation labels, if there were any.
    error_rate: float | None
    #: By phase: load, graph, solve, calibrate, save.
    seconds: dict[str, float]
    calibrated: bool
    create_time: datetime
    #: For people, such as "2 components have no label".
    warnings: tuple[str, ...]
    size_bytes: int
    #: None for IRR.
    trace: Trace | None
    #: The answers compared with the validation labels, and with the test labels.
    validation: Evaluation | None
    test: Evaluation | None
    #: The search that found the parameters, if there was one.
    search: Search | None
    #: The peak memory of the process that fitted it.
    peak_memory_bytes: int
    #: What it was computed on, such as cpu, and the versions of the software by package.
    device: str
    software: dict[str, str]
    #: Where it was imported from; None if it was fitted here.
    source: str | None
    #: The columns of its table, by whose names new rows are matched; None if it was fitted on an array.
    schema: TableSchema | None
    #: What was done to the columns, in sentences.
    preprocessing_steps: tuple[str, ...]
    #: In the order of the classes; empty for models of older versions.
    class_shares: tuple[ClassShare, ...]
    #: Labels that the points would not get if they had none, the most suspicious first; at most 100.
    suspicious_labels: tuple[SuspiciousLabel, ...]
    #: How the labels grew: the last step is this model, the ones before it are those that it was made from.
    label_steps: tuple[LabelStep, ...]


def _pairs(links: Any) -> tuple[tuple[int, int], ...]:
    return tuple((link.first, link.second) for link in links)


@dataclass(frozen=True, kw_only=True)
class LinkCounts(Record, of=embedding_pb2.LinkSummary):
    """The numbers of links and of violated ones; ``Client.read_embedding`` lists them."""

    #: Including those inferred from labels and those of earlier embeddings.
    must: int = field(metadata=named("must_link_count"))
    cannot: int = field(metadata=named("cannot_link_count"))
    #: Must-links whose points are apart on the map, and cannot-links whose points are together there.
    violated_must: int = field(metadata=named("violated_must_link_count"))
    violated_cannot: int = field(metadata=named("violated_cannot_link_count"))
    #: Must-links between clusters, and cannot-links within one.
    divided_must: int = field(metadata=named("divided_must_link_count"))
    joined_cannot: int = field(metadata=named("joined_cannot_link_count"))
    #: The first 100 violated must-links.
    listed_must: tuple[tuple[int, int], ...] = computed(lambda message: _pairs(message.violated.must))
    #: The first 100 violated cannot-links.
    listed_cannot: tuple[tuple[int, int], ...] = computed(lambda message: _pairs(message.violated.cannot))


@dataclass(frozen=True)
class Embedding(Record, of=embedding_pb2.Embedding):
    """A map of points; ``Client.read_embedding`` gives its coordinates, clusters and links."""

    name: str
    #: It may have been deleted since.
    dataset: str
    job: str
    points: int = field(metadata=named("point_count"))
    components: int = field(metadata=named("component_count"))
    #: 0 if none were asked for.
    clusters: int = field(metadata=named("cluster_count"))
    create_time: datetime
    #: The embedding that this one continues; None if it started afresh.
    parent_embedding: str | None
    #: The model whose points and graph were used, if any.
    model: str | None
    dimensions: int = field(metadata=named("dimension_count"))
    labelled: int = field(metadata=named("labelled_count"))
    #: The parameters that were given, by the core's names.
    graph_parameters: dict[str, Any]
    solver_parameters: dict[str, Any]
    graph: Graph
    links: LinkCounts
    energy: float
    iterations: int = field(metadata=named("iteration_count"))
    evaluations: int = field(metadata=named("evaluation_count"))
    #: The engine that computed the relationships.
    engine: str
    #: By phase: load, graph, solve, cluster, save.
    seconds: dict[str, float]
    #: For people, such as links that contradict each other.
    warnings: tuple[str, ...]
    size_bytes: int
    trace: Trace | None
    #: The peak memory of the process that made it.
    peak_memory_bytes: int
    #: What it was computed on, such as cpu, and the versions of the software by package.
    device: str
    software: dict[str, str]
    #: The columns of its table; None if it was made from an array.
    schema: TableSchema | None
    #: What was done to the columns, in sentences.
    preprocessing_steps: tuple[str, ...]


class JobState(StrEnum):
    """The state of a job; equal to its lower-case word."""

    #: A state that this client does not know.
    UNSPECIFIED = "unspecified"
    #: The job waits for a worker.
    QUEUED = "queued"
    #: A worker runs the job.
    RUNNING = "running"
    #: The job ended with a result.
    SUCCEEDED = "succeeded"
    #: The job ended with an error.
    FAILED = "failed"
    #: The job was cancelled.
    CANCELLED = "cancelled"
    #: The job waits for jobs of its own, such as the trials of a search.
    WAITING = "waiting"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @classmethod
    def of(cls, message: Any) -> JobState:
        """Read the state of a job or an event."""
        name = job_pb2.JobState.Name(message.state) if message.state in job_pb2.JobState.values() else ""
        return cls(name.removeprefix("JOB_STATE_").lower() or "unspecified")


@dataclass(frozen=True)
class Progress(Record, of=job_pb2.Progress):
    """The progress of a job."""

    phase: str
    iteration: int
    #: 0 if it is not known.
    max_iterations: int
    energy: float | None
    error_rate: float | None
    #: Roughly the share of the work that is done.
    fraction: float
    #: In a search: the trials so far, their largest number, and the lowest error rate among them.
    trials: int = field(metadata=named("trial_count"))
    max_trials: int
    best_error_rate: float | None
    #: Relative to the start's.
    gradient_norm: float | None
    #: Energy evaluations so far.
    evaluations: int = field(metadata=named("evaluation_count"))


@dataclass(frozen=True, kw_only=True)
class JobEvent(Record, of=job_pb2.JobEvent):
    """Something that happened to a job."""

    sequence: int
    time: datetime
    state: JobState = computed(JobState.of)
    attempt: int
    #: None when only the state changed.
    progress: Progress | None
    #: For people, such as why the job went back to the queue.
    message: str


def _model(job: job_pb2.Job) -> Model | None:
    outcome = job.WhichOneof("outcome")
    made = getattr(getattr(job, outcome), "model", None) if outcome else None
    return None if made is None else Model.from_message(made)


def _dataset(job: job_pb2.Job) -> Dataset | None:
    outcome = job.WhichOneof("outcome")
    made = getattr(getattr(job, outcome), "dataset", None) if outcome else None
    return None if made is None else Dataset.from_message(made)


@dataclass(frozen=True, kw_only=True)
class Job(Record, of=job_pb2.Job):
    """A job as it was when last seen."""

    name: str
    #: fit, transduce, embed, import, create-dataset, append-points, or trial for a part of a search.
    kind: str
    state: JobState = computed(JobState.of)
    priority: int
    #: The number of jobs that will be started before this one.
    queue_position: int
    attempt: int
    max_attempts: int
    progress: Progress | None
    #: What a fit, a transduction or an import made.
    model: Model | None = computed(_model)
    #: The number of points whose class a transduction changed.
    changed_points: int | None = computed(
        lambda job: job.transduce.changed_point_count if job.HasField("transduce") else None
    )
    #: The embedding that the job made, if it makes one and has succeeded.
    embedding: Embedding | None = computed(
        lambda job: Embedding.from_message(job.embed.embedding) if job.HasField("embed") else None
    )
    #: The dataset that the job made, or that was there already.
    dataset: Dataset | None = computed(_dataset)
    #: Whether that dataset was there already, made from the same files.
    unchanged: bool = computed(lambda job: job.create_dataset.unchanged)
    #: What was concluded about the columns of a table, as sentences.
    notes: tuple[str, ...] = computed(lambda job: tuple(job.create_dataset.notes))
    #: The trials of a part of a search.
    trials: tuple[Trial, ...] = computed(lambda job: tuple(map(Trial.from_message, job.trial.trials)))
    #: Why it failed.
    error: JobFailed | None = computed(lambda job: from_job(job.name, job.error) if job.HasField("error") else None)
    create_time: datetime
    start_time: datetime | None
    finish_time: datetime | None
    #: Seconds that an attempt may take.
    time_limit: float
    request_id: str
    cancel_requested: bool
    last_sequence: int
    tracking_run: str
    #: The address of that run's page.
    tracking_url: str
    #: The job of the search that a trial belongs to.
    parent_job: str | None
    #: Where its model is registered, models:/{name}/{version}, once it is.
    registered_version: str | None
    #: Whether the tracking run has everything: a model that is not registered by then will not be.
    tracking_complete: bool
