"""What the supervisor and its child say to each other. Light to import: a supervisor needs nothing that computes.

The child says that it is ready, and which kinds of job it knows. Then it gets a task at a time and answers with
progress, as often as it likes, and one success (with the result), error, or list of jobs that it has to wait for.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Self

from homophily_client.names import EmbeddingName, JobName, ModelName

# The first letter of what the child says.
READY, PROGRESS, SUCCESS, ERROR, WAIT = b"R", b"P", b"S", b"E", b"W"


class Child(NamedTuple):
    """A job that another one has to wait for: trials of a search."""

    id: str
    request: bytes


class Waiting(NamedTuple):
    """The answer of a task that can go on only when these have ended."""

    children: list[Child]
    message: str

    def encode(self) -> bytes:
        """The answer as one message: a line of JSON, then the requests."""
        head = {"message": self.message, "children": [[child.id, len(child.request)] for child in self.children]}
        return json.dumps(head).encode() + b"\n" + b"".join(child.request for child in self.children)

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """The answer out of such a message."""
        line, _, requests = message.partition(b"\n")
        head = json.loads(line)
        children, place = [], 0
        for name, length in head["children"]:
            children.append(Child(name, requests[place : place + length]))
            place += length
        return cls(children, head["message"])


class Task(NamedTuple):
    """A job as the child sees it."""

    name: JobName
    kind: str
    request: bytes
    token: str
    # The call that asked for it, for logs.
    origin: str = ""
    trace: str = ""
    # Of the dataset, model or embedding that the job was submitted for; empty for jobs of older versions.
    source_digest: str = ""

    @property
    def result_path(self) -> str:
        """Where what the job makes is written by the holder of the token; only the one that finishes is recorded."""
        collection = EmbeddingName.collection if self.kind == "embed" else ModelName.collection
        return f"{collection}/{self.name.project}/{self.name.id}/{self.token}"

    def encode(self) -> bytes:
        """The task as one message: a line of JSON, then the request."""
        head = {"project": self.name.project, "id": self.name.id, "kind": self.kind, "token": self.token}
        head |= {"origin": self.origin, "trace": self.trace, "source_digest": self.source_digest}
        return json.dumps(head).encode() + b"\n" + self.request

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """The task out of such a message."""
        line, _, request = message.partition(b"\n")
        head = json.loads(line)
        more = (head[name] for name in ("origin", "trace", "source_digest"))
        return cls(JobName(head["project"], head["id"]), head["kind"], request, head["token"], *more)
