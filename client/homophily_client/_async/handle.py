"""A handle on a job: refresh, watch, wait, cancel."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from typing import Generic, TypeVar, cast

from homophily_client._async.connection import AsyncConnection
from homophily_client._async.transport import closing, sleep
from homophily_client._pb import job_pb2 as pb
from homophily_client.errors import DeadlineExceeded, FailedPrecondition, JobCancelled, JobFailed, Unavailable
from homophily_client.parameters import duration
from homophily_client.results import Dataset, Embedding, Job, JobEvent, JobState, Model
from homophily_client.retries import FIRST_PAUSE

# The server answers a wait after a minute at the latest.
LONGEST_WAIT = 60.0
# Seconds between two questions whether a model is registered.
REGISTRATION_PAUSE = 0.5
# Time for the answer to arrive, beyond the time that the wait was asked to take.
ANSWER_SECONDS = 1.0

Result = TypeVar("Result", bound=Model | Embedding | Dataset, covariant=True)


class AsyncJobHandle(Generic[Result]):
    """A job on the server, as it was when last seen; the job does not depend on the handle.

    Attributes
    ----------
    info : Job
        Everything about the job.
    """

    def __init__(self, connection: AsyncConnection, message: pb.Job) -> None:
        self._connection = connection
        self.info = Job.from_message(message)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.kind}, {self.state}>"

    @property
    def name(self) -> str:
        """projects/{project}/jobs/{job}."""
        return self.info.name

    @property
    def kind(self) -> str:
        """fit, transduce, embed, import, create-dataset or append-points."""
        return self.info.kind

    @property
    def state(self) -> JobState:
        """The job's state when last seen."""
        return self.info.state

    async def refresh(self, *, timeout: float | None = None) -> Job:
        """Get the job's current state."""
        answer = await self._connection.call("GetJob", pb.GetJobRequest(name=self.name), timeout=timeout)
        return self._seen(answer.job)

    async def watch(self, after: int = 0) -> AsyncIterator[JobEvent]:
        """Yield events from the first, or the one after number ``after``, until the job has ended.

        A broken connection is resumed at the next event, also across a restart of the server. ``state`` and ``result``
        say whether the job succeeded.
        """
        patience = self._connection.long()
        ended = False
        while not ended:
            request = pb.WatchJobRequest(name=self.name, after_sequence=after)
            failure = Unavailable(f"the events of {self.name} broke off")
            try:
                async with closing(self._connection.stream("WatchJob", request)) as answers:
                    async for answer in answers:
                        patience.renew()
                        if answer.HasField("job"):
                            # Read on to the end of the stream: leaving it here would cancel the call.
                            self._seen(answer.job)
                            ended = True
                        if answer.HasField("event") and answer.event.sequence > after:
                            after = answer.event.sequence
                            yield JobEvent.from_message(answer.event)
            except Unavailable as error:
                failure = error
            if not ended:
                await sleep(patience.pause(failure))

    async def result(self, timeout: float | None = None) -> Result:
        """Wait for the end of the job, and return its model, embedding or dataset.

        Raises JobFailed, JobCancelled, or TimeoutError after ``timeout`` seconds, in which case the job continues.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self.state.is_final:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.name} is {self.state} after {timeout:g} s")
            await self._wait(left)
        if self.info.error is not None:
            raise self.info.error.with_traceback(None)
        if self.state == JobState.CANCELLED:
            raise JobCancelled(f"{self.name} was cancelled")
        found = self.info.model or self.info.embedding or self.info.dataset
        if found is None:
            raise JobFailed(f"{self.name} is {self.state}, but has no result that this client knows")
        return cast(Result, found)

    async def registered(self, timeout: float | None = None) -> str:
        """Wait until the job's model is registered, and return where: ``models:/{name}/{version}``.

        That happens some seconds after the end of the job, or later if the tracking server is down. Raises TimeoutError
        after ``timeout`` seconds, in which case it may still happen; FailedPrecondition if it will not; and what
        ``result`` raises.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        await self.result(timeout)
        while not self.info.registered_version:
            await self.refresh()
            if self.info.registered_version:
                break
            if self.info.tracking_complete:
                raise FailedPrecondition(
                    f"the model of {self.name} is not registered, and will not be: that was not asked for, or MLflow "
                    "refused it, as the tag homophily.refused of its run says"
                )
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the model of {self.name} is not registered after {timeout:g} s")
            await sleep(min(left, REGISTRATION_PAUSE))
        return self.info.registered_version

    async def cancel(self, *, timeout: float | None = None) -> Job:
        """Cancel the job: at once if it is queued, within seconds if it runs. A finished job stays as it is."""
        answer = await self._connection.call("CancelJob", pb.CancelJobRequest(name=self.name), timeout=timeout)
        return self._seen(answer.job)

    async def delete(self, *, timeout: float | None = None) -> None:
        """Delete the record of a job that has ended. What it made stays."""
        await self._connection.delete("DeleteJob", pb.DeleteJobRequest(name=self.name), timeout)

    async def _wait(self, left: float) -> None:
        """One long poll, which ends with the job, or within ``left`` seconds."""
        wait = min(LONGEST_WAIT, left)
        try:
            answer = await self._connection.call(
                "WaitJob",
                pb.WaitJobRequest(name=self.name, timeout=duration(wait)),
                timeout=min(wait + self._connection.timeout, left + ANSWER_SECONDS),
                patience=self._connection.long(at_most=left),
            )
        except (Unavailable, DeadlineExceeded):
            # With less time left than the client's patience, the caller's timeout decides.
            if left > self._connection.patience:
                raise
            await sleep(min(left, FIRST_PAUSE))
            return
        self._seen(answer.job)

    def _seen(self, message: pb.Job) -> Job:
        self.info = Job.from_message(message)
        return self.info
