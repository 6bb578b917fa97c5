"""Jobs: started, listed, found again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc
from numpy.typing import ArrayLike

from homophily_service._pb import job_pb2
from homophily_service.client.base import INLINE_BYTES
from homophily_service.client.connection import is_unavailable
from homophily_service.client.datasets import Datasets
from homophily_service.client.errors import ClientError, LimitExceeded
from homophily_service.client.handle import LONGEST_WAIT, JobHandle
from homophily_service.client.labels import GivenLabels, to_labels, whole_numbers
from homophily_service.client.models import Models
from homophily_service.client.parameters import (
    choice,
    graph_message,
    options_message,
    registration_message,
    search_message,
    solver_message,
)
from homophily_service.client.points import Points
from homophily_service.client.results import KINDS, STATES, Dataset, JobState, Model
from homophily_service.names import DatasetName, JobName, ModelName, ProjectName


class Jobs(Datasets, Models):
    """The calls about jobs; they take points, datasets and models."""

    retry_full_queue: bool

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
        space: str | None = None,
        n_directions: int | None = None,
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
        test: Any = None,
        search: bool | int | Mapping[str, Any] | None = None,
        calibrate: bool = False,
        register: str | None = None,
        aliases: Iterable[str] = (),
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
        validation : labels, as y, that are not used, only compared with; a search decides by them.
        test : labels, as y, that are compared with when everything is decided.
        search : look for the hyper-parameters that are not given: True, a number of trials, or a dictionary with
            ``trials``, ``seconds``, ``seed``, ``spread`` (True: as jobs of their own, over all workers),
            ``warm_start`` (True: every ERR trial starts from the solution of the next smaller lambda2; faster, a little
            less exact) and ``vary``, the names of those to look for: space, n_directions, n_neighbors, weights,
            sigma_x, lambda1, sigma_f and lambda2, and if asked for power and repulsion.
        calibrate : so that probabilities can be asked for; takes about five more fits.
        register : register the model under this name with the tracking server, as a new version, which gets
            ``aliases`` such as "champion". It is there seconds after the job has ended.
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
                space=space,
                n_directions=n_directions,
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
            search=search_message(search),
            calibrate=calibrate,
            registration=registration_message(register, aliases),
            model_id=model_id or "",
            options=options_message(
                request_id=request_id,
                wait=wait,
                priority=priority,
                time_limit=time_limit,
                max_attempts=max_attempts,
            ),
        )
        given = {
            "y": to_labels(y),
            "validation": to_labels(validation, "validation"),
            "test": to_labels(test, "test"),
        }
        request.labels.CopyFrom(given["y"].message)
        request.validation.CopyFrom(given["validation"].message)
        request.test.CopyFrom(given["test"].message)
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
        test: Any = None,
        calibrate: bool = False,
        register: str | None = None,
        aliases: Iterable[str] = (),
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
        given = {
            "labels": to_labels(labels, "labels"),
            "validation": to_labels(validation, "validation"),
            "test": to_labels(test, "test"),
        }
        if any(one.length is not None for one in given.values()):
            check_lengths(given, (model if isinstance(model, Model) else self.get_model(model)).points)
        request = job_pb2.TransduceRequest(
            model=str(name),
            labels=given["labels"].message,
            withdrawn=whole_numbers(withdrawn, "withdrawn"),
            validation=given["validation"].message,
            test=given["test"].message,
            calibrate=calibrate,
            registration=registration_message(register, aliases),
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

    def import_model(
        self,
        uri: str,
        *,
        model_id: str | None = None,
        wait: float = 0.0,
        priority: int = 0,
        time_limit: float | None = None,
        max_attempts: int | None = None,
        request_id: str | None = None,
    ) -> JobHandle[Model]:
        """Start a job that makes a model out of one in the tracking server's registry, to be served here.

        ``uri`` is ``models:/name/version``, ``models:/name@alias`` or ``runs:/run/path``. The rest is as in ``fit``.
        """
        request = job_pb2.ImportModelRequest(
            parent=self._parent,
            uri=uri,
            model_id=model_id or "",
            options=options_message(
                request_id=request_id,
                wait=wait,
                priority=priority,
                time_limit=time_limit,
                max_attempts=max_attempts,
            ),
        )
        return JobHandle(self._connection, self._submit(self._stub.ImportModel, request).job)

    def job(self, job: JobHandle[Any] | str) -> JobHandle[Any]:
        """A job by its name."""
        request = job_pb2.GetJobRequest(name=str(self._name(JobName, job, "job")))
        return JobHandle(self._connection, self._connection.call(self._stub.GetJob, request).job)

    def list_jobs(self, *, states: Iterable[JobState | str] = (), kind: str | None = None) -> Iterator[JobHandle[Any]]:
        """The project's jobs, newest first: all, or those in some states, or of a kind (fit, transduce, embed, …)."""
        request = job_pb2.ListJobsRequest(parent=self._parent)
        for state in states:
            request.states.append(job_pb2.JobState.ValueType(choice(STATES, state, "states")))
        if kind is not None:
            request.kind = job_pb2.JobKind.ValueType(choice(KINDS, kind, "kind"))
        for page in self._pages(self._stub.ListJobs, request):
            for job in page.jobs:
                yield JobHandle(self._connection, job)

    def _use_dataset(
        self, request: job_pb2.FitRequest | job_pb2.EmbedRequest, data: Dataset | str, given: dict[str, GivenLabels]
    ) -> None:
        name = self._name(DatasetName, data, "data")
        request.parent, request.dataset = str(ProjectName(name.project)), str(name)
        if any(one.length is not None for one in given.values()):
            # The server sees only points with labels: that y has the wrong length is noticed here or nowhere.
            check_lengths(given, (data if isinstance(data, Dataset) else self.get_dataset(data)).points)

    def _use_points(
        self, request: job_pb2.FitRequest | job_pb2.EmbedRequest, data: Any, given: dict[str, GivenLabels]
    ) -> None:
        points = Points(data)
        check_lengths(given, points.shape[0])
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
            patience = self._connection.long(lambda error: is_unavailable(error) or _is_full(error))
        else:
            patience = self._connection.long()
        return self._connection.call(method, request, timeout=self._connection.timeout + wait, patience=patience)


def _is_full(error: ClientError) -> bool:
    # Other limits do not pass by waiting, and say nothing of a time.
    return isinstance(error, LimitExceeded) and error.retry_seconds is not None


def check_lengths(given: dict[str, GivenLabels], points: int) -> None:
    """Refuse labels that have an entry for each point, but of other points."""
    for name, labels in given.items():
        if labels.length is not None and labels.length != points:
            raise ValueError(f"{name} must have an entry for each of {points} points. Got {labels.length} instead.")
