"""Jobs: asked for, watched, waited for, cancelled."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import Row

from homophily_client._pb import dataset_pb2, embedding_pb2, model_pb2, points_pb2
from homophily_client._pb import job_pb2 as pb
from homophily_client.names import (
    DatasetName,
    EmbeddingName,
    JobName,
    ModelName,
    ProjectName,
    ResourceName,
    new_id,
)
from homophily_service.api.access import allowed_name, allowed_project, note_made
from homophily_service.api.batch_loader import Together
from homophily_service.api.embeddings import check_embed
from homophily_service.api.messages import (
    KINDS,
    STATES,
    event_message,
    job_message,
    next_page,
    page_limit,
    page_start,
)
from homophily_service.api.watcher import Watcher
from homophily_service.contract.arrays import Points, from_points, parts_from_points, shape_of
from homophily_service.contract.checks import apart, check_registration, check_search
from homophily_service.contract.errors import AlreadyExists, FailedPrecondition, InvalidRequest, NotFound
from homophily_service.contract.labels import check_two_classes, read_labels, values_of
from homophily_service.contract.names import check_id
from homophily_service.contract.values import graph_parameters, solver_parameters
from homophily_service.jobs.estimates import Cost, check_cost, estimate, fit_cost
from homophily_service.runtime.logs import request_id, trace
from homophily_service.runtime.processes import fair_memory, fair_threads
from homophily_service.runtime.settings import Settings
from homophily_service.storage import queue
from homophily_service.storage.queue import NewJob
from homophily_service.storage.quotas import check_bytes
from homophily_service.storage.sources import source_digest, source_name
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import limits_of, publish_dataset
from homophily_service.tracking.registry import URI

LONGEST_WAIT = 60.0
NO_TRACKING = "NO_TRACKING"

Request = TypeVar("Request", pb.FitRequest, pb.TransduceRequest, pb.EmbedRequest, pb.ImportModelRequest)
Name = TypeVar("Name", bound=ResourceName)


class Jobs:
    """The calls about jobs."""

    stores: Stores
    settings: Settings
    watcher: Watcher
    looks: Together[JobName, tuple[Row[Any], int]]

    async def Fit(self, request: pb.FitRequest, _: Any) -> pb.FitResponse:
        """Check what can be checked without computing, and queue."""
        project = allowed_project(request.parent, "parent")
        await asyncio.to_thread(self._check, self._check_fit, project, request)
        return pb.FitResponse(job=await self._submit(project, "fit", request))

    async def Transduce(self, request: pb.TransduceRequest, _: Any) -> pb.TransduceResponse:
        """Check what can be checked without computing, and queue."""
        project = allowed_name(ModelName, request.model, "model").project
        await asyncio.to_thread(self._check, self._check_transduce, project, request)
        return pb.TransduceResponse(job=await self._submit(project, "transduce", request))

    async def Embed(self, request: pb.EmbedRequest, _: Any) -> pb.EmbedResponse:
        """Check what can be checked without computing, and queue."""
        project = allowed_project(request.parent, "parent")
        await asyncio.to_thread(self._check, self._check_embed, project, request)
        return pb.EmbedResponse(job=await self._submit(project, "embed", request))

    async def ImportModel(self, request: pb.ImportModelRequest, _: Any) -> pb.ImportModelResponse:
        """Check what can be checked without asking the registry, and queue."""
        project = allowed_project(request.parent, "parent")
        await asyncio.to_thread(self._check, self._check_import, project, request)
        return pb.ImportModelResponse(job=await self._submit(project, "import", request))

    async def GetJob(self, request: pb.GetJobRequest, _: Any) -> pb.GetJobResponse:
        """A job."""
        return pb.GetJobResponse(job=await self._job(allowed_name(JobName, request.name, "name")))

    async def ListJobs(self, request: pb.ListJobsRequest, _: Any) -> pb.ListJobsResponse:
        """A page of jobs."""
        project = allowed_project(request.parent, "parent")
        limit, before = page_limit(request.page_size), page_start(request.page_token)
        states = [state for state, number in STATES.items() if number in request.states]
        if pb.JOB_STATE_UNSPECIFIED in request.states:
            states = []
        elif len(states) < len(set(request.states)):
            raise InvalidRequest("states", "holds a state that is not known")
        kind = next((kind for kind, number in KINDS.items() if number == request.kind), "")
        if request.kind and not kind:
            raise InvalidRequest("kind", f"{request.kind} is not known")

        def page() -> pb.ListJobsResponse:
            placed, has_more = self.stores.queue.page(project, states=states, kind=kind, before=before, limit=limit)
            token = next_page([row for row, _ in placed], has_more=has_more)
            return pb.ListJobsResponse(jobs=[job_message(row, place) for row, place in placed], next_page_token=token)

        return await asyncio.to_thread(page)

    async def WaitJob(self, request: pb.WaitJobRequest, context: Any) -> pb.WaitJobResponse:
        """The job when it has ended, or when the time is up."""
        name = allowed_name(JobName, request.name, "name")
        longest = _seconds(request.timeout, "timeout") if request.HasField("timeout") else math.inf
        remaining = context.time_remaining()
        if remaining is not None:
            # The answer itself takes a moment.
            longest = min(longest, max(0.0, remaining - 0.2))
        row = await asyncio.to_thread(self.stores.queue.get, name)
        await self._await_end(row, longest)
        return pb.WaitJobResponse(job=await self._job(name))

    async def WatchJob(self, request: pb.WatchJobRequest, _: Any) -> AsyncIterator[pb.WatchJobResponse]:
        """Events from the database, from where the caller wants them, until the job has ended."""
        name = allowed_name(JobName, request.name, "name")
        if request.after_sequence < 0:
            raise InvalidRequest("after_sequence", f"must be at least 0; got {request.after_sequence}")
        row = await asyncio.to_thread(self.stores.queue.get, name)
        # Who claims to know the future gets it as well: nothing would tell him of the end.
        sequence = min(request.after_sequence, row.last_sequence)
        while True:
            events = await asyncio.to_thread(self.stores.queue.events_after, row.number, sequence)
            for event in events:
                sequence = event.sequence
                if event.state not in queue.FINAL:
                    yield pb.WatchJobResponse(event=event_message(event))
            if events and events[-1].state in queue.FINAL:
                job = await self._job(name)
                yield pb.WatchJobResponse(event=event_message(events[-1]), job=job)
                return
            if not events:
                job = await self._job(name)
                if job.last_sequence <= sequence and job.HasField("finish_time"):
                    yield pb.WatchJobResponse(job=job)
                    return
            await self.watcher.changed(row.number, sequence)

    async def CancelJob(self, request: pb.CancelJobRequest, _: Any) -> pb.CancelJobResponse:
        """Cancel, or ask the worker to."""
        row = await asyncio.to_thread(self.stores.queue.cancel, allowed_name(JobName, request.name, "name"))
        return pb.CancelJobResponse(job=job_message(row))

    async def DeleteJob(self, request: pb.DeleteJobRequest, _: Any) -> pb.DeleteJobResponse:
        """Forget an ended job."""
        await asyncio.to_thread(self.stores.queue.delete, allowed_name(JobName, request.name, "name"))
        return pb.DeleteJobResponse()

    # -- asking --------------------------------------------------------------------------------------------------

    def _check(self, check: Callable[[str, Request], None], project: str, request: Request) -> None:
        """Refuse what is wrong; what a request that was sent before has named may be gone since."""
        try:
            check(project, request)
        except NotFound:
            if not self._is_repeated(project, request.options):
                raise

    def _check_fit(self, project: str, request: pb.FitRequest) -> None:
        """Refuse what is wrong; points that came inside the request are then a dataset of it."""
        if request.WhichOneof("points") is None:
            raise InvalidRequest("points", "must be a dataset's name or inline points")
        shape, points = self._look_at_points(project, request)
        rows, is_sparse = shape.rows, isinstance(shape, points_pb2.CsrShape)
        labels = read_labels(request.labels, rows, "labels", max_classes=self.settings.max_classes)
        check_two_classes(labels.classes, "labels")
        self._check_compared(request, rows, str(request.labels.classes.WhichOneof("kind")))
        if request.HasField("search"):
            check_search(request, "search", is_sparse=is_sparse)
            apart("validation", request.validation.points, request.labels.points)
        graph = graph_parameters(request.graph, is_sparse=is_sparse, field="graph")
        n_classes = len(np.unique(labels.classes))
        method, solver = solver_parameters(request.solver, "solver", n_classes=n_classes)
        size: dict[str, Any] = {
            "columns": shape.columns,
            "graph": graph,
            "method": method,
            "solver": solver,
            "classes": n_classes,
        }
        self._check_cost(fit_cost(rows, _elements(shape), **size), request.options)
        self._check_new(ModelName, project, request.model_id, "model_id", request.options)
        if points is not None:
            request.dataset = self._keep_inline(project, points, request.options)

    def _check_compared(self, request: pb.FitRequest | pb.TransduceRequest, rows: int, kind: str) -> None:
        """Refuse what is wrong with the labels that are not used, and with where the model goes."""
        for field in ("validation", "test"):
            message: model_pb2.Labels = getattr(request, field)
            labels = read_labels(message, rows, field, max_classes=self.settings.max_classes)
            if labels.points.size and message.classes.WhichOneof("kind") != kind:
                raise InvalidRequest(f"{field}.classes", f"must be {kind}, as those of the labels that are fitted to")
        if request.HasField("registration"):
            if not self.settings.tracking:
                raise FailedPrecondition(
                    "this service keeps no tracking runs to register models with", reason=NO_TRACKING
                )
            check_registration(request.registration, "registration")

    def _check_transduce(self, project: str, request: pb.TransduceRequest) -> None:
        """Refuse what is wrong."""
        name = ModelName.parse(request.model, "model")
        model = model_pb2.Model.FromString(self.stores.catalog.get(name).message)
        labels = read_labels(request.labels, model.points, "labels", max_classes=self.settings.max_classes)
        kind = str(model.classes.WhichOneof("kind"))
        self._check_compared(request, model.points, kind)
        if labels.points.size and request.labels.classes.WhichOneof("kind") != kind:
            raise InvalidRequest("labels.classes", f"must be {kind}, as the model's")
        withdrawn = np.array(request.withdrawn, dtype=np.int64)
        wrong = np.flatnonzero((withdrawn < 0) | (withdrawn >= model.points))
        if wrong.size:
            place = wrong[0]
            raise InvalidRequest(
                f"withdrawn[{place}]", f"must be between 0 and {model.points - 1}; got {withdrawn[place]}"
            )
        if len(np.unique(withdrawn)) < len(withdrawn):
            raise InvalidRequest("withdrawn", "must name each point once")
        n_classes = len({*values_of(model.classes), *values_of(request.labels.classes)})
        method, solver = solver_parameters(model.solver_parameters, "solver")
        graph = graph_parameters(model.graph_parameters, is_sparse=False, field="graph")
        size: dict[str, Any] = {
            "columns": model.dimensions,
            "graph": graph,
            "method": method,
            "solver": solver,
            "classes": n_classes,
        }
        self._check_cost(fit_cost(model.points, 0, **size, builds_graph=False), request.options)
        self._check_new(ModelName, project, request.model_id, "model_id", request.options)

    def _check_embed(self, project: str, request: pb.EmbedRequest) -> None:
        """Refuse what is wrong; points that came inside the request are then a dataset of it."""
        source, points = request.WhichOneof("points"), None
        if source is None:
            raise InvalidRequest("points", "must be the name of a dataset, model or embedding, or inline points")
        if source in ("dataset", "inline"):
            shape, points = self._look_at_points(project, request)
            rows, is_sparse = shape.rows, isinstance(shape, points_pb2.CsrShape)
            graph = graph_parameters(request.graph, is_sparse=is_sparse, field="graph")
            elements, columns = _elements(shape), shape.columns
        else:
            if request.graph.ListFields():
                raise InvalidRequest("graph", f"must not be given with {source}, which has its own")
            earlier = self._look_at_earlier(project, request, source)
            graph = graph_parameters(earlier.graph_parameters, is_sparse=False, field="graph")
            rows, elements, columns = earlier.points, 0, earlier.dimensions
        n_components, n_clusters = check_embed(request, rows, self.settings)
        width = n_components + (n_clusters or 0)
        self._check_cost(
            estimate(rows, elements, columns=columns, graph=graph, power=1, classes=width), request.options
        )
        self._check_new(EmbeddingName, project, request.embedding_id, "embedding_id", request.options)
        if points is not None:
            request.dataset = self._keep_inline(project, points, request.options)

    def _check_import(self, project: str, request: pb.ImportModelRequest) -> None:
        """Refuse what is wrong."""
        if not self.settings.tracking:
            raise FailedPrecondition("this service keeps no tracking runs, so it has no registry", reason=NO_TRACKING)
        if not URI.fullmatch(request.uri) or ".." in request.uri:
            raise InvalidRequest(
                "uri", "must be models:/{name}/{version}, models:/{name}@{alias} or runs:/{run}/{path}"
            )
        self._check_new(ModelName, project, request.model_id, "model_id", request.options)

    def _look_at_points(
        self, project: str, request: pb.FitRequest | pb.EmbedRequest
    ) -> tuple[points_pb2.DenseShape | points_pb2.CsrShape, Points | None]:
        """The shape of the points that a request is about, and those that came inside it."""
        points = None
        if request.WhichOneof("points") == "inline":
            points = from_points(request.inline, limits_of(self.settings), "inline")
            shape = shape_of(points)
        else:
            name = self._of_project(DatasetName, request.dataset, "dataset", project)
            shape = dataset_pb2.Dataset.FromString(self.stores.catalog.get(name).message).shape
        return shape.csr if shape.WhichOneof("layout") == "csr" else shape.dense, points

    def _look_at_earlier(
        self, project: str, request: pb.EmbedRequest, source: str
    ) -> model_pb2.Model | embedding_pb2.Embedding:
        """The model or the embedding that a request goes on from."""
        if source == "model":
            model = self._of_project(ModelName, request.model, "model", project)
            return model_pb2.Model.FromString(self.stores.catalog.get(model).message)
        name = self._of_project(EmbeddingName, request.embedding, "embedding", project)
        earlier = embedding_pb2.Embedding.FromString(self.stores.catalog.get(name).message)
        if request.HasField("n_components") and request.n_components != earlier.components:
            raise InvalidRequest("n_components", f"must be {earlier.components}, as the embedding's, or not given")
        return earlier

    def _check_cost(self, cost: Cost, options: pb.JobOptions) -> None:
        """Refuse what no worker can compute."""
        threads = fair_threads(self.settings)
        check_cost(cost, fair_memory(self.settings), _time_limit(options, self.settings), threads)

    def _of_project(self, kind: type[Name], text: str, field: str, project: str) -> Name:
        name = allowed_name(kind, text, field)
        if name.project != project:
            raise InvalidRequest(field, f"must be of {ProjectName(project)}")
        return name

    async def _submit(self, project: str, kind: str, request: Request) -> pb.Job:
        options = pb.JobOptions()
        options.CopyFrom(request.options)
        # How the job is run is no part of what is asked: the same key may come back with another wait.
        request.ClearField("options")
        job = _new_job(JobName(project, new_id()), kind, request, options, self.settings)
        wait = min(LONGEST_WAIT, _seconds(options.wait, "options.wait"))
        row = await asyncio.to_thread(self._queue, job, source_name(request))
        note_made(JobName(project, row.id))
        if wait:
            await self._await_end(row, wait)
        return await self._job(JobName(project, row.id))

    def _queue(self, job: NewJob, source: ResourceName | None) -> Row[Any]:
        """Queue a job on what its source is now, if the project may have more of them and of what they make."""
        if source is not None:
            # Gone, if the same request was sent before: then that job is the answer.
            with suppress(NotFound):
                job = job._replace(source_digest=source_digest(source, self.stores.catalog.get(source)))
        limits = self.settings.limits_of(job.name.project)
        if limits.max_project_bytes is not None and not self._knows(job.name.project, job.request_id):
            with self.stores.database.read() as connection:
                check_bytes(connection, job.name.project, 0, limits.max_project_bytes)
        assert limits.max_queued_jobs is not None
        return self.stores.queue.submit(job, limits.max_queued_jobs, limits.max_jobs_per_day)

    def _check_new(
        self, kind: type[ResourceName], project: str, new_id: str, field: str, options: pb.JobOptions
    ) -> None:
        """Refuse an id that is taken, unless the request may be one that was sent before."""
        if not new_id:
            return
        name = kind(project, check_id(new_id, field))
        if self.stores.catalog.has(name) and not self._is_repeated(project, options):
            raise AlreadyExists(f"{name} exists")

    def _is_repeated(self, project: str, options: pb.JobOptions) -> bool:
        """Whether a job was asked for with this request_id: then it is the answer, whatever has changed since."""
        return self._knows(project, options.request_id)

    def _knows(self, project: str, request_id: str) -> bool:
        return bool(request_id) and self.stores.queue.knows_request(project, request_id)

    def _keep_inline(self, project: str, points: Points, options: pb.JobOptions) -> str:
        """Store points that came inside a request, under the name of their bytes, once.

        Not for a job that would be refused: a full queue must not cost a write of megabytes each time.
        """
        limits = self.settings.limits_of(project)
        assert limits.max_queued_jobs is not None
        if not self._is_repeated(project, options):
            self.stores.queue.check_room(project, limits.max_queued_jobs)
        arrays = parts_from_points(points)
        shape = shape_of(points)
        digest = hashlib.sha256()
        for array in arrays.values():
            digest.update(np.ascontiguousarray(array).tobytes())
        named = hashlib.sha256(shape.SerializeToString(deterministic=True) + digest.digest()).hexdigest()
        name = DatasetName(project, f"inline-{named[:48]}")
        if not self.stores.catalog.has(name):
            start = dataset_pb2.UploadStart(shape=shape, description="came inside a request")
            size = sum(array.nbytes for array in arrays.values())
            # Two requests with the same points may come at a time.
            with suppress(AlreadyExists):
                most = limits.max_project_bytes
                publish_dataset(self.stores, name, start, digest.digest(), size, arrays=arrays, most=most)
        return str(name)

    async def _job(self, name: JobName) -> pb.Job:
        found = await self.looks.get(name)
        if found is None:
            raise NotFound(f"{name} does not exist")
        return job_message(*found)

    async def _await_end(self, row: Row[Any], seconds: float) -> None:
        """Wait until a job has ended, for so long at most."""

        async def ended() -> None:
            sequence, state = row.last_sequence, row.state
            while state not in queue.FINAL:
                await self.watcher.changed(row.number, sequence)
                versions = await asyncio.to_thread(self.stores.queue.versions, [row.number])
                if row.number not in versions:
                    raise NotFound(f"{JobName(row.project, row.id)} was deleted")
                sequence, state = versions[row.number]

        try:
            await asyncio.wait_for(ended(), None if seconds == math.inf else seconds)
        except TimeoutError:
            return


def _new_job(name: JobName, kind: str, request: Any, options: pb.JobOptions, settings: Settings) -> NewJob:
    if len(options.request_id) > 128 or not options.request_id.isprintable() or not options.request_id.isascii():
        raise InvalidRequest("options.request_id", "must be at most 128 printable ASCII characters")
    if not -100 <= options.priority <= 100:
        raise InvalidRequest("options.priority", f"must be between -100 and 100; got {options.priority}")
    attempts = options.max_attempts if options.HasField("max_attempts") else settings.max_attempts
    most = max(settings.max_attempts, settings.max_job_attempts)
    if not 1 <= attempts <= most:
        raise InvalidRequest("options.max_attempts", f"must be between 1 and {most}; got {attempts}")
    limit = _time_limit(options, settings)
    message = request.SerializeToString(deterministic=True)
    return NewJob(
        name, kind, message, options.request_id, options.priority, attempts, limit, request_id.get(), trace.get()
    )


def _time_limit(options: pb.JobOptions, settings: Settings) -> float:
    if not options.HasField("time_limit"):
        return settings.job_time_limit
    limit = _seconds(options.time_limit, "options.time_limit")
    if not 0.0 < limit <= settings.max_job_time_limit:
        raise InvalidRequest(
            "options.time_limit", f"must be positive and at most {settings.max_job_time_limit:g} s; got {limit:g} s"
        )
    return limit


def _elements(shape: points_pb2.DenseShape | points_pb2.CsrShape) -> int:
    """Numbers that points of this shape consist of."""
    return 2 * shape.values if isinstance(shape, points_pb2.CsrShape) else shape.rows * shape.columns


def _seconds(length: Duration, field: str) -> float:
    # By hand: the library's conversions overflow for what only looks like a duration.
    seconds = length.seconds + length.nanos / 1e9
    if not 0.0 <= seconds <= 315_576_000_000.0 or not -1e9 < length.nanos < 1e9:
        raise InvalidRequest(field, "must be a duration of at least 0")
    return seconds
