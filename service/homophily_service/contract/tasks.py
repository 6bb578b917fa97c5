"""A job as the supervisor hands it to its child process, encoded as a message of ``internal.proto``."""

from __future__ import annotations

import json
import math
from typing import NamedTuple, Self

from homophily_client._pb import job_pb2
from homophily_client.names import JobName, ModelName
from homophily_service.contract import internal_pb2 as pb
from homophily_service.contract.kinds import KINDS


class Task(NamedTuple):
    """A job to compute."""

    name: JobName
    kind: str
    request: bytes
    token: str
    # The call that asked for it, for logs.
    origin: str = ""
    trace: str = ""
    # Digest of the dataset, model or embedding that the job was submitted for; empty for jobs of older versions.
    source_digest: str = ""

    @property
    def result_path(self) -> str:
        """Where the holder of the token writes what the job makes; recorded only if it finishes the job."""
        makes = KINDS[self.kind].makes or ModelName
        return f"{makes.collection}/{self.name.project}/{self.name.id}/{self.token}"

    def encode(self) -> bytes:
        """The task as a message."""
        message = pb.Task(
            project=self.name.project,
            id=self.name.id,
            kind=self.kind,
            request=self.request,
            token=self.token,
            origin=self.origin,
            trace=self.trace,
            source_digest=self.source_digest,
        )
        return message.SerializeToString()

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """The task in a message."""
        task = pb.Task.FromString(message)
        return cls(
            JobName(task.project, task.id),
            task.kind,
            task.request,
            task.token,
            task.origin,
            task.trace,
            task.source_digest,
        )


def encode_trial(trial: pb.TrialRequest) -> bytes:
    """The request of a trial as it is queued: a line of JSON, then the fit.

    Workers of earlier releases, which may run beside this one, read no other form. The next release writes the message
    itself, which this one reads.
    """
    head = {"group": json.loads(trial.group), "until": trial.until}
    return json.dumps(head).encode() + b"\n" + trial.fit.SerializeToString(deterministic=True)


def decode_trial(body: bytes) -> pb.TrialRequest:
    """The request of a trial, in the form of this, the next or an earlier release."""
    if not body.startswith(b"{"):
        return pb.TrialRequest.FromString(body)
    line, _, fit = body.partition(b"\n")
    head = json.loads(line)
    # The first release wrote the group alone.
    group, until = (head["group"], head["until"]) if "group" in head else (head, math.inf)
    return pb.TrialRequest(group=json.dumps(group), until=until, fit=job_pb2.FitRequest.FromString(fit))
