"""A handle on a job: look, watch, wait, cancel."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from homophily_service._pb import job_pb2 as pb
from homophily_service.client.connection import FIRST_PAUSE, Connection
from homophily_service.client.errors import DeadlineExceeded, JobCancelled, JobFailed, Unavailable
from homophily_service.client.parameters import duration
from homophily_service.client.results import Embedding, Job, JobEvent, JobState, Model

# The server answers a wait after a minute at the latest.
LONGEST_WAIT = 60.0
# Beyond the time that a wait was asked to take, for its answer to arrive.
ANSWER_SECONDS = 1.0

Result = TypeVar("Result", bound=Model | Embedding, covariant=True)


class JobHandle(Generic[Result]):
    """A job on the server. The handle remembers how it looked last; the job goes on without it.

    >>> from homophily_service.client import Client
    >>> import numpy as np
    >>> client = Client("localhost:50051")
    >>> X = np.random.default_rng(0).normal(size=(100, 3))
    >>> job = client.fit(X, {0: "left", 1: "right"}, n_neighbors=5)
    >>> for event in job.watch():
    ...     last = event.state
    >>> str(last), job.result().points
    ('succeeded', 100)
    """

    def __init__(self, connection: Connection, message: pb.Job) -> None:
        self._connection = connection
        self.info = Job.from_message(message)

    def __repr__(self) -> str:
        return f"<JobHandle {self.name}: {self.kind}, {self.state}>"

    @property
    def name(self) -> str:
        """projects/{project}/jobs/{job}."""
        return self.info.name

    @property
    def kind(self) -> str:
        """fit, transduce or embed."""
        return self.info.kind

    @property
    def state(self) -> JobState:
        """Where the job was when it was last looked at."""
        return self.info.state

    def refresh(self) -> Job:
        """Look at the job again; everything about it."""
        answer = self._connection.call(self._connection.stub.GetJob, pb.GetJobRequest(name=self.name))
        return self._seen(answer.job)

    def watch(self, after: int = 0) -> Iterator[JobEvent]:
        """Events from the first (or the one after number ``after``) until the job has ended.

        A broken connection is taken up again at the next event, also over a restart of the server. Whether the job
        succeeded is told by ``state`` and ``result``.
        """
        patience = self._connection.long()
        ended = False
        while not ended:
            request = pb.WatchJobRequest(name=self.name, after_sequence=after)
            try:
                for answer in self._connection.stream(self._connection.stub.WatchJob, request):
                    patience.renew()
                    if answer.HasField("job"):
                        # Read on to the stream's own end all the same: leaving it here would cancel the call.
                        self._seen(answer.job)
                        ended = True
                    if answer.HasField("event") and answer.event.sequence > after:
                        after = answer.event.sequence
                        yield JobEvent.from_message(answer.event)
                failure = Unavailable(f"the events of {self.name} broke off")
            except Unavailable as error:
                failure = error
            if not ended:
                patience.wait(failure)

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the job's end: the model, or the embedding.

        Raises JobFailed, JobCancelled, or TimeoutError after ``timeout`` seconds, in which case the job goes on.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self.state.is_final:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.name} is {self.state} after {timeout:g} s")
            self._wait(left)
        if self.info.error is not None:
            raise self.info.error.with_traceback(None)
        if self.state == JobState.CANCELLED:
            raise JobCancelled(f"{self.name} was cancelled")
        found = self.info.model or self.info.embedding
        if found is None:
            raise JobFailed(f"{self.name} is {self.state}, but has no result that this client knows")
        return cast(Result, found)

    def cancel(self) -> Job:
        """Cancel the job: at once if it is queued, within seconds if it runs. A finished job stays as it is."""
        answer = self._connection.call(self._connection.stub.CancelJob, pb.CancelJobRequest(name=self.name))
        return self._seen(answer.job)

    def delete(self) -> None:
        """Delete the record of a job that has ended. What it made stays."""
        self._connection.delete(self._connection.stub.DeleteJob, pb.DeleteJobRequest(name=self.name))

    def _wait(self, left: float) -> None:
        """One long poll, which ends with the job, or within ``left`` seconds."""
        wait = min(LONGEST_WAIT, left)
        try:
            answer = self._connection.call(
                self._connection.stub.WaitJob,
                pb.WaitJobRequest(name=self.name, timeout=duration(wait)),
                timeout=min(wait + self._connection.timeout, left + ANSWER_SECONDS),
                patience=self._connection.long(at_most=left),
            )
        except (Unavailable, DeadlineExceeded):
            # Not reached is an error of its own only if there was time to be more patient.
            if left > self._connection.patience:
                raise
            time.sleep(min(left, FIRST_PAUSE))
            return
        self._seen(answer.job)

    def _seen(self, message: pb.Job) -> Job:
        self.info = Job.from_message(message)
        return self.info
