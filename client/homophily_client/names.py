"""Resource names, ``projects/{project}/{collection}/{id}``. No other module builds or parses them.

Ids have 1 to 63 characters from a–z, 0–9 and "-" and start with a letter or digit: safe in paths, URLs and SQL.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import ClassVar, Self

DEFAULT_PROJECT = "default"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)


class InvalidName(ValueError):
    """An invalid name or id; says which argument or field has it."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field, self.description = field, description

    def __reduce__(self) -> tuple[type[InvalidName], tuple[str, str]]:
        return type(self), (self.field, self.description)


def check_id(value: str, field: str) -> str:
    """Return the id itself, or raise InvalidName."""
    if _ID.fullmatch(value) is None:
        raise InvalidName(
            field,
            f"must be 1 to 63 characters of a-z, 0-9 and '-', the first a letter or digit; got {_quoted(value)}",
        )
    return value


def new_id() -> str:
    """Return an unused id: 96 random bits."""
    return secrets.token_hex(12)


@dataclass(frozen=True)
class ProjectName:
    """``projects/{project}``."""

    project: str

    def __str__(self) -> str:
        return f"projects/{self.project}"

    @classmethod
    def parse(cls, name: str, field: str) -> Self:
        """Read the name in ``field``."""
        prefix, _, project = name.partition("/")
        if prefix != "projects":
            raise InvalidName(field, f"must be projects/{{project}}; got {_quoted(name)}")
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
        """Read the name in ``field``."""
        parts = name.split("/")
        if len(parts) != 4 or parts[0] != "projects" or parts[2] != cls.collection:
            raise InvalidName(field, f"must be projects/{{project}}/{cls.collection}/{{id}}; got {_quoted(name)}")
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


def _quoted(value: str) -> str:
    """A value for an error message: quoted, escaped and short."""
    return ascii(value[:80]) + ("…" if len(value) > 80 else "")
