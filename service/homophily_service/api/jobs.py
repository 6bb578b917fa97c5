"""Jobs: submit, get, list, wait, watch, cancel, delete."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, TypeVar

from homophily_client._pb import job_pb2 as pb
from homophily_client.names import (
    DatasetName,
    JobName,
    ModelName,
    ResourceName,
    new_id,
)
from homophily_service.api.access import allowed_name, allowed_project, note_made
from homophily_service.api.batch_loader import BatchLoader
from homophily_service.api.messages import (
    STATES,
    event_message,
    job_message,
    next_page,
    page_asked,
)
from homophily_service.api.watcher import Watcher
from homophily_service.contract import states
from homophily_service.contract.errors import InvalidRequest, NotFound
from homophily_service.contract.kinds import (
    APPEND_POINTS,
    CREATE_DATASET,
    EMBED,
    FIT,
    IMPORT,
    KINDS,
    TRANSDUCE,
    Kind,
    load,
)
from homophily_service.contract.names import parse_name
from homophily_service.jobs.checks import Checks
from homophily_service.jobs.options import new_job, seconds
from homophily_service.runtime.settings import Settings
from homophily_service.storage.quotas import check_bytes
from homophily_service.storage.records import JobRecord, NewJob
from homophily_service.storage.sources import FIELDS, digest_of, source_name
from homophily_service.storage.stores import Stores

LONGEST_WAIT = 60.0

Request = TypeVar(
    "Request",
    pb.FitRequest,
    pb.TransduceRequest,
    pb.EmbedRequest,
    pb.ImportModelRequest,
    pb.CreateDatasetRequest,
    pb.AppendPointsRequest,
)


class Jobs:
    """The calls about jobs."""

    stores: Stores
    settings: Settings
    watcher: Watcher
    looks: BatchLoader[JobName, tuple[JobRecord, int]]

    async def Fit(self, request: pb.FitRequest, _: Any) -> pb.FitResponse:
        """Start a fit."""
        return pb.FitResponse(job=await self._start(FIT, allowed_project(request.parent, "parent"), request))

    async def Transduce(self, request: pb.TransduceRequest, _: Any) -> pb.TransduceResponse:
        """Start a transduction."""
        project = allowed_name(ModelName, request.model, "model").project
        return pb.TransduceResponse(job=await self._start(TRANSDUCE, project, request))

    async def Embed(self, request: pb.EmbedRequest, _: Any) -> pb.EmbedResponse:
        """Start an embedding."""
        return pb.EmbedResponse(job=await self._start(EMBED, allowed_project(request.parent, "parent"), request))

    async def ImportModel(self, request: pb.ImportModelRequest, _: Any) -> pb.ImportModelResponse:
        """Start an import."""
        project = allowed_project(request.parent, "parent")
        return pb.ImportModelResponse(job=await self._start(IMPORT, project, request))

    async def CreateDataset(self, request: pb.CreateDatasetRequest, _: Any) -> pb.CreateDatasetResponse:
        """Start the reading of files into a dataset."""
        project = allowed_project(request.parent, "parent")
        return pb.CreateDatasetResponse(job=await self._start(CREATE_DATASET, project, request))

    async def AppendPoints(self, request: pb.AppendPointsRequest, _: Any) -> pb.AppendPointsResponse:
        """Start the making of a dataset with more points."""
        project = allowed_name(DatasetName, request.dataset, "dataset").project
        return pb.AppendPointsResponse(job=await self._start(APPEND_POINTS, project, request))

    async def GetJob(self, request: pb.GetJobRequest, _: Any) -> pb.GetJobResponse:
        """A job."""
        return pb.GetJobResponse(job=await self._job(allowed_name(JobName, request.name, "name")))

    async def ListJobs(self, request: pb.ListJobsRequest, _: Any) -> pb.ListJobsResponse:
        """A page of jobs."""
        project = allowed_project(request.parent, "parent")
        asked = page_asked(request)
        states = [state for state, number in STATES.items() if number in request.states]
        if pb.JOB_STATE_UNSPECIFIED in request.states:
            states = []
        elif len(states) < len(set(request.states)):
            raise InvalidRequest("states", "must be known states")
        kind = next((kind.name for kind in KINDS.values() if kind.number == request.kind), "")
        if request.kind and not kind:
            raise InvalidRequest("kind", f"must be a known kind; got {request.kind}")

        source = str(_source(request.source)) if request.source else ""

        def page() -> pb.ListJobsResponse:
            placed, has_more = self.stores.queue.page(project, asked, states=states, kind=kind, source=source)
            token = next_page([row for row, _ in placed], has_more=has_more)
            return pb.ListJobsResponse(jobs=[job_message(row, place) for row, place in placed], next_page_token=token)

        return await asyncio.to_thread(page)

    async def WaitJob(self, request: pb.WaitJobRequest, context: Any) -> pb.WaitJobResponse:
        """Return the job when it has ended, or when the time is up."""
        name = allowed_name(JobName, request.name, "name")
        longest = seconds(request.timeout, "timeout") if request.HasField("timeout") else math.inf
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
        # Clamp `after_sequence`; otherwise the watch of a future event would never end.
        sequence = min(request.after_sequence, row.last_sequence)
        while True:
            events = await asyncio.to_thread(self.stores.queue.events_after, row.number, sequence)
            for event in events:
                sequence = event.sequence
                if event.state not in states.FINAL:
                    yield pb.WatchJobResponse(event=event_message(event))
            if events and events[-1].state in states.FINAL:
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
        """Delete the record of an ended job."""
        await asyncio.to_thread(self.stores.queue.delete, allowed_name(JobName, request.name, "name"))
        return pb.DeleteJobResponse()

    # -- submitting --------------------------------------------------------------------------------------------------

    async def _start(self, kind: Kind, project: str, request: Request) -> pb.Job:
        """Check what can be checked without computing, queue the job, and wait for it as long as the request says."""
        checks = Checks(self.stores, self.settings, allowed_name)
        await asyncio.to_thread(_check, checks, kind, project, request)
        options = pb.JobOptions()
        options.CopyFrom(request.options)
        # The options are not part of the request's identity: the same request_id may come with another wait.
        request.ClearField("options")
        job = new_job(JobName(project, new_id()), kind.name, request, options, self.settings)
        wait = min(LONGEST_WAIT, seconds(options.wait, "options.wait"))
        record = await asyncio.to_thread(self._queue, job, request)
        note_made(record.name)
        if wait:
            await self._await_end(record, wait)
        return await self._job(record.name)

    def _queue(self, job: NewJob, request: Request) -> JobRecord:
        """Queue a job on the current state of its sources, if the project's quotas allow it."""
        # A source may be gone if the same request was sent before: then that job is the answer.
        with suppress(NotFound):
            job = job._replace(source_digest=digest_of(self.stores.catalog, request))
        job = job._replace(source=str(source_name(request) or ""))
        limits = self.settings.limits_of(job.name.project)
        if limits.max_project_bytes is not None and not self.stores.queue.knows_request(
            job.name.project, job.request_id
        ):
            with self.stores.database.read() as connection:
                check_bytes(connection, job.name.project, 0, limits.max_project_bytes)
        assert limits.max_queued_jobs is not None
        return self.stores.queue.submit(job, limits.max_queued_jobs, limits.max_jobs_per_day)

    async def _job(self, name: JobName) -> pb.Job:
        found = await self.looks.get(name)
        if found is None:
            raise NotFound(f"{name} does not exist")
        return job_message(*found)

    async def _await_end(self, job: JobRecord, longest: float) -> None:
        """Wait until a job has ended, ``longest`` seconds at most."""

        async def ended() -> None:
            sequence, state = job.last_sequence, job.state
            while state not in states.FINAL:
                await self.watcher.changed(job.number, sequence)
                versions = await asyncio.to_thread(self.stores.queue.versions, [job.number])
                if job.number not in versions:
                    raise NotFound(f"{job.name} was deleted")
                sequence, state = versions[job.number]

        try:
            await asyncio.wait_for(ended(), None if longest == math.inf else longest)
        except TimeoutError:
            return


def _source(name: str) -> ResourceName:
    """The name of something that a job may work on."""
    kinds = list(FIELDS.values())
    return parse_name(next((kind for kind in kinds if f"/{kind.collection}/" in name), kinds[0]), name, "source")


def _check(checks: Checks, kind: Kind, project: str, request: Request) -> None:
    """Check a request, unless it was sent before: what it names may have been deleted since."""
    try:
        load(kind.check)(checks, project, request)
    except NotFound:
        if not checks.is_repeated(project, request.options):
            raise
