"""The client: uploads points, starts jobs, asks models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import numpy as np
from numpy.typing import ArrayLike, NDArray

from homophily_service._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2
from homophily_service.arrays import DTYPES
from homophily_service.client.connection import BRIEF_SECONDS, Connection, Patience, is_unavailable, new_request_id
from homophily_service.client.errors import ClientError, LimitExceeded, Unavailable
from homophily_service.client.jobs import LONGEST_WAIT, JobHandle
from homophily_service.client.labels import GivenLabels, class_array, to_labels, whole_numbers
from homophily_service.client.parameters import choice, graph_message, options_message, solver_message
from homophily_service.client.points import Points
from homophily_service.client.results import KINDS, STATES, Dataset, Embedding, JobState, Model, Prediction, Solution
from homophily_service.client.upload import Upload
from homophily_service.errors import InvalidRequest
from homophily_service.names import (
    DEFAULT_PROJECT,
    DatasetName,
    EmbeddingName,
    JobName,
    ModelName,
    ProjectName,
    ResourceName,
    check_id,
)

# Servers take messages of 4 MiB unless told otherwise; some room is left for the rest of the message.
INLINE_BYTES = 7 << 19
# New points in one call at most, so that answers stay small too when points have few features.
PREDICT_ROWS = 10_000

_FIELDS = {
    "labels": ("class_indices", model_pb2.SOLUTION_FIELD_CLASS_INDICES),
    "scores": ("scores", model_pb2.SOLUTION_FIELD_SCORES),
    "values": ("values", model_pb2.SOLUTION_FIELD_VALUES),
    "probabilities": ("probabilities", model_pb2.SOLUTION_FIELD_PROBABILITIES),
}

Name = TypeVar("Name", bound=ResourceName)
Pairs = Iterable[tuple[int, int]]


class Client:
    """A connection to a Homophily server. Threads may share it; other processes make their own.

    Parameters
    ----------
    target : the server's address, host:port.
    token : a bearer token, if the server wants one.
    project : the project of short names.
    timeout : seconds that an answer may take. Uploads, watches and results take what they take.
    patience : seconds for which uploads, watches and results go on trying while the server is away, restarting for
        example. Other calls give up after five.
    credentials : for TLS, such as ``grpc.ssl_channel_credentials()``.
    retry_full_queue : also wait, patiently, for a place in a full queue, instead of raising LimitExceeded.

    Whatever has a name may be given by its short name («digits»), its full name («projects/default/models/digits»),
    or by what the client answered before (a Dataset, Model, Embedding or JobHandle).

    >>> import numpy as np
    >>> from homophily_service.client import Client
    >>> client = Client("localhost:50051")
    >>> X = np.concatenate([np.random.default_rng(0).normal(place, 1.0, (100, 2)) for place in (-5.0, 5.0)])
    >>> y = np.full(200, -1)
    >>> y[[0, 199]] = 0, 1
    >>> model = client.fit(X, y).result()
    >>> client.read_solution(model).labels[[1, 2, 150]].tolist()
    [0, 0, 1]
    >>> client.predict(model, [[-4.0, -4.0], [6.0, 4.0]]).labels.tolist()
    [0, 1]
    >>> client.close()
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        project: str = DEFAULT_PROJECT,
        timeout: float = 30.0,
        patience: float = 60.0,
        credentials: grpc.ChannelCredentials | None = None,
        retry_full_queue: bool = False,
    ) -> None:
        self.project = _refusing(check_id, project, "project")
        self.retry_full_queue = retry_full_queue
        self._connection = Connection(target, token=token, credentials=credentials, timeout=timeout, patience=patience)
        self._stub = self._connection.stub

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs go on."""
        self._connection.close()

    # -- datasets ------------------------------------------------------------------------------------------------

    def upload(
        self,
        X: Any,
        *,
        name: str | None = None,
        description: str = "",
        progress: Callable[[int, int], object] | None = None,
    ) -> Dataset:
        """Upload points that are used more than once, or too large to go along with ``fit``.

        X is a NumPy array (a memory map too), a SciPy sparse matrix or a pandas DataFrame, with a row a point.
        float32 and float64 are kept; bool, float16 and integers of at most 16 bits become float32, other numbers
        float64; sparse matrices become CSR. It is sent in chunks of 1 MiB without a copy of the whole, and a broken
        connection is taken up where it stopped.

        ``progress(sent, total)`` is called with bytes after each chunk, from another thread; after a break ``sent``
        may go back. What it raises ends the upload.

        >>> import numpy as np
        >>> from homophily_service.client import Client
        >>> client = Client("localhost:50051")
        >>> dataset = client.upload(np.eye(3, dtype=np.float32), description="three points")
        >>> dataset.points, dataset.dimensions, dataset.dtype, dataset.size_bytes
        (3, 3, 'float32', 36)
        """
        upload_id = new_request_id()
        parsed = DatasetName(self.project, upload_id) if name is None else self._name(DatasetName, name, "name")
        return self._upload(Points(X), parsed, upload_id, description, progress)

    def get_dataset(self, dataset: Dataset | str) -> Dataset:
        """A dataset's description."""
        request = dataset_pb2.GetDatasetRequest(name=str(self._name(DatasetName, dataset, "dataset")))
        return Dataset.from_message(self._connection.call(self._stub.GetDataset, request).dataset)

    def list_datasets(self) -> Iterator[Dataset]:
        """The project's datasets, newest first."""
        request = dataset_pb2.ListDatasetsRequest(parent=self._parent)
        while True:
            page = self._connection.call(self._stub.ListDatasets, request)
            yield from map(Dataset.from_message, page.datasets)
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def delete_dataset(self, dataset: Dataset | str) -> None:
        """Delete a dataset. Models that were fitted on it go on working."""
        request = dataset_pb2.DeleteDatasetRequest(name=str(self._name(DatasetName, dataset, "dataset")))
        self._connection.delete(self._stub.DeleteDataset, request)

    # -- jobs ----------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        y: Any,
        *,
        method: str = "err",
        n_neighbors: int | None = None,
        metric: str | None = None,
        weights: str | None = None,
        sigma_x: float | None = None,
        exponent: int | None = None,
        symmetrize: str | None = None,
        power: int | None = None,
        lambda1: float | None = None,
        lambda2: float | None = None,
        sigma_f: float | None = None,
        repulsion: float | None = None,
        max_iter: int | None = None,
        tol: float | None = None,
        normalized: bool | None = None,
        relationship_neighbors: int | None = None,
        multiclass: str | None = None,
        class_prior: ArrayLike | str | None = None,
        validation: Any = None,
        calibrate: bool = False,
        model_id: str | None = None,
        wait: float = 0.0,
        priority: int = 0,
        time_limit: float | None = None,
        max_attempts: int | None = None,
        request_id: str | None = None,
    ) -> JobHandle[Model]:
        """Start a job that fits a model.

        Parameters
        ----------
        data : a dataset, its name, or the points themselves as for ``upload``; small points go along with the
            request, larger ones are uploaded first.
        y : the labels. With an entry for each point, −1, None, NaN and "" mean unlabelled. A dictionary
            ``{point: class}`` or a pair ``(points, classes)`` names a few points, and every class counts, −1 too.
            Classes are whole numbers (True is 1) or strings.
        method, n_neighbors … class_prior : see the core's ``KNNGraph``, ``ERRClassifier`` (method="err") and
            ``IRRClassifier`` ("irr"). None takes the default, which for the metric of sparse points is cosine.
        validation : labels, as y, that are not used, only compared with.
        calibrate : so that probabilities can be asked for; takes about five more fits.
        model_id : the model's short name; the job's if not given.
        wait : seconds, at most 60, for which the answer may take its time to come back with a finished job.
        priority : −100 to 100; higher ones are started first.
        time_limit : seconds that an attempt may take.
        max_attempts : how often the job may be started when its worker dies.
        request_id : a key of yours: the same key with the same request is the same job. Made if not given.
        """
        request = job_pb2.FitRequest(
            graph=graph_message(
                n_neighbors=n_neighbors,
                metric=metric,
                weights=weights,
                sigma_x=sigma_x,
                exponent=exponent,
                symmetrize=symmetrize,
            ),
            solver=solver_message(
                method=method,
                power=power,
                lambda1=lambda1,
                lambda2=lambda2,
                sigma_f=sigma_f,
                repulsion=repulsion,
                max_iter=max_iter,
                tol=tol,
                normalized=normalized,
                relationship_neighbors=relationship_neighbors,
                multiclass=multiclass,
                class_prior=class_prior,
            ),
            calibrate=calibrate,
            model_id=model_id or "",
            options=options_message(
                request_id=request_id,
                wait=wait,
                priority=priority,
                time_limit=time_limit,
                max_attempts=max_attempts,
            ),
        )
        given = {"labels": to_labels(y), "validation": to_labels(validation, "validation")}
        request.labels.CopyFrom(given["labels"].message)
        request.validation.CopyFrom(given["validation"].message)
        if isinstance(data, Dataset | str):
            self._use_dataset(request, data, given)
        else:
            self._use_points(request, data, given)
        return JobHandle(self._connection, self._submit(self._stub.Fit, request).job)

    def transduce(
        self,
        model: Model | str,
        labels: Any = None,
        *,
        withdrawn: ArrayLike = (),
        validation: Any = None,
        calibrate: bool = False,
        model_id: str | None = None,
        wait: float = 0.0,
        priority: int = 0,
        time_limit: float | None = None,
        max_attempts: int | None = None,
        request_id: str | None = None,
    ) -> JobHandle[Model]:
        """Start a job that makes a model with other labels, from a model's graph and solution.

        ``labels`` are new or changed ones, given as y in ``fit``; points without an entry keep what they have, and
        ``withdrawn`` are points that lose their label. The rest is as in ``fit``.
        """
        name = self._name(ModelName, model, "model")
        given = {"labels": to_labels(labels, "labels"), "validation": to_labels(validation, "validation")}
        if any(one.length is not None for one in given.values()):
            _check_lengths(given, (model if isinstance(model, Model) else self.get_model(model)).points)
        request = job_pb2.TransduceRequest(
            model=str(name),
            labels=given["labels"].message,
            withdrawn=whole_numbers(withdrawn, "withdrawn"),
            validation=given["validation"].message,
            calibrate=calibrate,
            model_id=model_id or "",
            options=options_message(
                request_id=request_id,
                wait=wait,
                priority=priority,
                time_limit=time_limit,
                max_attempts=max_attempts,
            ),
        )
        return JobHandle(self._connection, self._submit(self._stub.Transduce, request).job)

    def embed(
        self,
        data: Any,
        *,
        must_link: Pairs = (),
        cannot_link: Pairs = (),
        labels: Any = None,
        n_components: int | None = None,
        n_clusters: int | None = None,
        n_neighbors: int | None = None,
        metric: str | None = None,
        weights: str | None = None,
        sigma_x: float | None = None,
        exponent: int | None = None,
        symmetrize: str | None = None,
        embedding_id: str | None = None,
        wait: float = 0.0,
        priority: int = 0,
        time_limit: float | None = None,
        max_attempts: int | None = None,
        request_id: str | None = None,
    ) -> JobHandle[Embedding]:
        """Start a job that maps points so that links are obeyed. Servers of this version answer UNIMPLEMENTED.

        ``data`` is a dataset, points as for ``upload``, a Model (its points and graph), or an Embedding to go on from;
        models and embeddings may also be given by their full names. ``must_link`` and ``cannot_link`` are pairs of
        points; of ``labels``, given as y in ``fit``, each pair is a link. The rest is as in ``fit``.
        """
        given = {"labels": to_labels(labels, "labels")}
        request = job_pb2.EmbedRequest(
            links=embedding_pb2.Links(must=_links(must_link, "must_link"), cannot=_links(cannot_link, "cannot_link")),
            labels=given["labels"].message,
            graph=graph_message(
                n_neighbors=n_neighbors,
                metric=metric,
                weights=weights,
                sigma_x=sigma_x,
                exponent=exponent,
                symmetrize=symmetrize,
            ),
            n_components=n_components,
            n_clusters=n_clusters,
            embedding_id=embedding_id or "",
            options=options_message(
                request_id=request_id,
                wait=wait,
                priority=priority,
                time_limit=time_limit,
                max_attempts=max_attempts,
            ),
        )
        full_name = data if isinstance(data, str) else getattr(data, "name", "")
        if isinstance(data, Model | Embedding | str) and f"/{ModelName.collection}/" in full_name:
            model = self._name(ModelName, data, "data")
            request.parent, request.model = str(ProjectName(model.project)), str(model)
        elif isinstance(data, Model | Embedding | str) and f"/{EmbeddingName.collection}/" in full_name:
            embedding = self._name(EmbeddingName, data, "data")
            request.parent, request.embedding = str(ProjectName(embedding.project)), str(embedding)
        elif isinstance(data, Dataset | str):
            self._use_dataset(request, data, given)
        else:
            self._use_points(request, data, given)
        return JobHandle(self._connection, self._submit(self._stub.Embed, request).job)

    def job(self, job: JobHandle[Any] | str) -> JobHandle[Any]:
        """A job by its name."""
        request = job_pb2.GetJobRequest(name=str(self._name(JobName, job, "job")))
        return JobHandle(self._connection, self._connection.call(self._stub.GetJob, request).job)

    def list_jobs(self, *, states: Iterable[JobState | str] = (), kind: str | None = None) -> Iterator[JobHandle[Any]]:
        """The project's jobs, newest first: all, or those in some states, or of a kind (fit, transduce, embed)."""
        request = job_pb2.ListJobsRequest(parent=self._parent)
        for state in states:
            request.states.append(job_pb2.JobState.ValueType(choice(STATES, state, "states")))
        if kind is not None:
            request.kind = job_pb2.JobKind.ValueType(choice(KINDS, kind, "kind"))
        while True:
            page = self._connection.call(self._stub.ListJobs, request)
            for job in page.jobs:
                yield JobHandle(self._connection, job)
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    # -- models --------------------------------------------------------------------------------------------------

    def get_model(self, model: Model | str) -> Model:
        """A model's description."""
        request = model_pb2.GetModelRequest(name=str(self._name(ModelName, model, "model")))
        return Model.from_message(self._connection.call(self._stub.GetModel, request).model)

    def list_models(self) -> Iterator[Model]:
        """The project's models, newest first."""
        request = model_pb2.ListModelsRequest(parent=self._parent)
        while True:
            page = self._connection.call(self._stub.ListModels, request)
            yield from map(Model.from_message, page.models)
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def delete_model(self, model: Model | str) -> None:
        """Delete a model. Models that were made from it stay."""
        request = model_pb2.DeleteModelRequest(name=str(self._name(ModelName, model, "model")))
        self._connection.delete(self._stub.DeleteModel, request)

    def predict(self, model: Model | str, X: Any, *, probabilities: bool = False) -> Prediction:
        """The classes and scores of new points, given as for ``upload``; many points take several calls.

        ``probabilities`` needs a model that was fitted with calibrate=True.
        """
        name = str(self._name(ModelName, model, "model"))
        points = Points(X)
        found: dict[str, NDArray[Any]] = {}
        classes: NDArray[Any] = np.empty(0)
        # No rows make one call too, so that the server says what it thinks of that.
        for start, stop in list(points.batches(INLINE_BYTES, PREDICT_ROWS)) or [(0, 0)]:
            request = model_pb2.PredictRequest(
                name=name, points=points.message(start, stop), probabilities=probabilities
            )
            answer = self._connection.call(self._stub.Predict, request)
            classes = class_array(answer.classes)
            parts = {"class_indices": np.array(answer.class_indices, dtype=np.int32), "scores": _array(answer.scores)}
            if probabilities:
                parts["probabilities"] = _array(answer.probabilities)
            for field, part in parts.items():
                if field not in found:
                    found[field] = np.empty((points.shape[0], *part.shape[1:]), dtype=part.dtype)
                found[field][start:stop] = part
        return Prediction(classes, found["class_indices"], found["scores"], found.get("probabilities"))

    def read_solution(self, model: Model | str, fields: Iterable[str] = ("labels",)) -> Solution:
        """The answers for the points that a model was fitted on.

        ``fields`` are "labels", "scores", "values" and "probabilities" (with calibrate=True only).
        """
        fields = tuple(dict.fromkeys(fields))
        numbers = [choice({word: number for word, (_, number) in _FIELDS.items()}, field, "fields") for field in fields]
        described = model if isinstance(model, Model) else self.get_model(model)
        request = model_pb2.ReadSolutionRequest(
            name=described.name, fields=[model_pb2.SolutionField.ValueType(number) for number in numbers]
        )
        found: dict[str, NDArray[Any]] = {}
        patience = Patience(self._connection.patience)
        while request.start < described.points:
            try:
                for answer in self._connection.stream(self._stub.ReadSolution, request):
                    patience.renew()
                    for field, tensor in zip(fields, answer.tensors, strict=True):
                        part, place = _array(tensor), _FIELDS[field][0]
                        if place not in found:
                            found[place] = np.empty((described.points, *part.shape[1:]), dtype=part.dtype)
                        found[place][answer.start : answer.start + answer.count] = part
                    request.start = answer.start + answer.count
                failure = Unavailable(f"the solution of {described.name} broke off at point {request.start}")
            except Unavailable as error:
                failure = error
            if request.start < described.points:
                patience.wait(failure)
        return Solution(np.array(described.classes), **found)

    # -- embeddings ----------------------------------------------------------------------------------------------

    def get_embedding(self, embedding: Embedding | str) -> Embedding:
        """An embedding's description."""
        request = embedding_pb2.GetEmbeddingRequest(name=str(self._name(EmbeddingName, embedding, "embedding")))
        return Embedding.from_message(self._connection.call(self._stub.GetEmbedding, request).embedding)

    def list_embeddings(self) -> Iterator[Embedding]:
        """The project's embeddings, newest first."""
        request = embedding_pb2.ListEmbeddingsRequest(parent=self._parent)
        while True:
            page = self._connection.call(self._stub.ListEmbeddings, request)
            yield from map(Embedding.from_message, page.embeddings)
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def delete_embedding(self, embedding: Embedding | str) -> None:
        """Delete an embedding."""
        request = embedding_pb2.DeleteEmbeddingRequest(name=str(self._name(EmbeddingName, embedding, "embedding")))
        self._connection.delete(self._stub.DeleteEmbedding, request)

    # -- what these share ----------------------------------------------------------------------------------------

    @property
    def _parent(self) -> str:
        return str(ProjectName(self.project))

    def _name(self, kind: type[Name], value: Any, argument: str) -> Name:
        """A name out of a short name, a full name, or something that has one."""
        text = value if isinstance(value, str) else getattr(value, "name", None)
        if not isinstance(text, str):
            raise TypeError(f"{argument} must be a name or something that has one. Got {type(value).__name__} instead.")
        if "/" in text:
            return _refusing(kind.parse, text, argument)
        return kind(self.project, _refusing(check_id, text, argument))

    def _upload(
        self,
        points: Points,
        name: DatasetName,
        upload_id: str,
        description: str = "",
        progress: Callable[[int, int], object] | None = None,
        *,
        resume: bool = False,
    ) -> Dataset:
        start = dataset_pb2.UploadStart(
            parent=str(ProjectName(name.project)),
            dataset_id=name.id,
            upload_id=upload_id,
            shape=points.shape_message(),
            description=description,
        )
        return Dataset.from_message(Upload(self._connection, start, points, progress).run(resume=resume))

    def _use_dataset(
        self, request: job_pb2.FitRequest | job_pb2.EmbedRequest, data: Dataset | str, given: dict[str, GivenLabels]
    ) -> None:
        name = self._name(DatasetName, data, "data")
        request.parent, request.dataset = str(ProjectName(name.project)), str(name)
        if any(one.length is not None for one in given.values()):
            # The server sees only points with labels: that y has the wrong length is noticed here or nowhere.
            _check_lengths(given, (data if isinstance(data, Dataset) else self.get_dataset(data)).points)

    def _use_points(
        self, request: job_pb2.FitRequest | job_pb2.EmbedRequest, data: Any, given: dict[str, GivenLabels]
    ) -> None:
        points = Points(data)
        _check_lengths(given, points.shape[0])
        request.parent = self._parent
        if points.bytes + request.ByteSize() <= INLINE_BYTES:
            request.inline.CopyFrom(points.message())
            return
        # The same request_id makes the same upload, so that asking again is the same request.
        upload_id = hashlib.sha256(f"{self.project}/{request.options.request_id}".encode()).hexdigest()[:32]
        name = DatasetName(self.project, upload_id)
        request.dataset = self._upload(points, name, upload_id, resume=True).name

    def _submit(self, method: grpc.UnaryUnaryMultiCallable[Any, Any], request: Any) -> Any:
        """Ask for a job."""
        wait = min(LONGEST_WAIT, request.options.wait.ToNanoseconds() / 1e9)
        if self.retry_full_queue:
            patience = Patience(self._connection.patience, lambda error: is_unavailable(error) or _is_full(error))
        else:
            patience = Patience(BRIEF_SECONDS)
        return self._connection.call(method, request, timeout=self._connection.timeout + wait, patience=patience)


def _is_full(error: ClientError) -> bool:
    # Other limits do not pass by waiting, and say nothing of a time.
    return isinstance(error, LimitExceeded) and error.retry_seconds is not None


def _refusing(check: Callable[[str, str], Any], text: str, argument: str) -> Any:
    """The names module's check, its refusal as this side's."""
    try:
        return check(text, argument)
    except InvalidRequest as error:
        raise ValueError(error.message) from None


def _check_lengths(given: dict[str, GivenLabels], points: int) -> None:
    for name, labels in given.items():
        if labels.length is not None and labels.length != points:
            raise ValueError(f"{name} must have an entry for each of {points} points. Got {labels.length} instead.")


def _links(pairs: Pairs, argument: str) -> list[embedding_pb2.Link]:
    links = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs))
    if links.size and (links.ndim != 2 or links.shape[1] != 2 or links.dtype.kind not in "iu"):
        raise ValueError(f"{argument} must be pairs of row numbers. Got an array of shape {links.shape} instead.")
    return [embedding_pb2.Link(first=first, second=second) for first, second in links.tolist()]


def _array(tensor: Any) -> NDArray[Any]:
    """The server's tensor."""
    return np.frombuffer(tensor.data, dtype=DTYPES[tensor.data_type]).reshape(tuple(tensor.shape))
