"""Resource names, ``projects/{project}/{collection}/{id}``. Nobody else writes or parses them.

Ids are 1 to 63 characters out of a–z, 0–9 and «-», the first a letter or digit: they are safe in paths, URLs and SQL.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import ClassVar, Self

from homophily_service.errors import InvalidRequest

DEFAULT_PROJECT = "default"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)


def check_id(value: str, field: str) -> str:
    """The id itself, or InvalidRequest."""
    if _ID.fullmatch(value) is None:
        raise InvalidRequest(
            field,
            f"must be 1 to 63 characters out of a-z, 0-9 and '-', the first a letter or digit; got {_shown(value)}",
        )
    return value


def new_id() -> str:
    """An id that nobody has: 96 random bits."""
    return secrets.token_hex(12)


@dataclass(frozen=True)
class ProjectName:
    """``projects/{project}``."""

    project: str

    def __str__(self) -> str:
        return f"projects/{self.project}"

    @classmethod
    def parse(cls, name: str, field: str) -> Self:
        """Read a name out of ``field``."""
        prefix, _, project = name.partition("/")
        if prefix != "projects":
            raise InvalidRequest(field, f"must be projects/{{project}}; got {_shown(name)}")
        return cls(check_id(project, field))


@dataclass(frozen=True)
class ResourceName:
    """``projects/{project}/{collection}/{id}``; each collection has a class of its own."""

    collection: ClassVar[str]
    project: str
    id: str

    def __str__(self) -> str:
        return f"projects/{self.project}/{self.collection}/{self.id}"

    @classmethod
    def parse(cls, name: str, field: str) -> Self:
        """Read a name out of ``field``."""
        parts = name.split("/")
        if len(parts) != 4 or parts[0] != "projects" or parts[2] != cls.collection:
            raise InvalidRequest(field, f"must be projects/{{project}}/{cls.collection}/{{id}}; got {_shown(name)}")
        return cls(check_id(parts[1], field), check_id(parts[3], field))


class DatasetName(ResourceName):
    """A dataset's name."""

    collection = "datasets"


class ModelName(ResourceName):
    """A model's name."""

    collection = "models"


class EmbeddingName(ResourceName):
    """An embedding's name."""

    collection = "embeddings"


class JobName(ResourceName):
    """A job's name."""

    collection = "jobs"


def _shown(value: str) -> str:
    """A value for an error message: quoted, escaped and short."""
    return ascii(value[:80]) + ("…" if len(value) > 80 else "")
