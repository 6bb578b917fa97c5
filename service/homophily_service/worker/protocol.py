"""What the supervisor and its child say to each other. Light to import: a supervisor needs nothing that computes.

The child says that it is ready, and which kinds of job it knows. Then it gets a task at a time and answers with
progress, as often as it likes, and one success (with the result) or error.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Self

from homophily_service.names import EmbeddingName, JobName, ModelName

# The first letter of what the child says.
READY, PROGRESS, SUCCESS, ERROR = b"R", b"P", b"S", b"E"


class Task(NamedTuple):
    """A job as the child sees it."""

    name: JobName
    kind: str
    request: bytes
    token: str

    @property
    def result_path(self) -> str:
        """Where what the job makes is written by the holder of the token; only the one that finishes is recorded."""
        collection = EmbeddingName.collection if self.kind == "embed" else ModelName.collection
        return f"{collection}/{self.name.project}/{self.name.id}/{self.token}"

    def encode(self) -> bytes:
        """The task as one message: a line of JSON, then the request."""
        head = {"project": self.name.project, "id": self.name.id, "kind": self.kind, "token": self.token}
        return json.dumps(head).encode() + b"\n" + self.request

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """The task out of such a message."""
        line, _, request = message.partition(b"\n")
        head = json.loads(line)
        return cls(JobName(head["project"], head["id"]), head["kind"], request, head["token"])
