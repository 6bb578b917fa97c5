"""Who is calling, and what they may see. Permission is asked for before anything is looked up."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TypeVar

from homophily_service.errors import PermissionDenied
from homophily_service.names import ProjectName, ResourceName
from homophily_service.tokens import EVERY_PROJECT

# The project that the caller's token opens; set by the authentication interceptor for each call.
caller: ContextVar[str] = ContextVar("caller", default="")

Name = TypeVar("Name", bound=ResourceName)


def allowed_project(name: str, field: str) -> str:
    """The project of ``projects/{project}``, if the caller may use it."""
    return _allowed(ProjectName.parse(name, field).project)


def allowed_name(kind: type[Name], name: str, field: str) -> Name:
    """A resource's name, if the caller may use its project."""
    parsed = kind.parse(name, field)
    _allowed(parsed.project)
    return parsed


def _allowed(project: str) -> str:
    if caller.get() not in (project, EVERY_PROJECT):
        raise PermissionDenied(f"the token does not open project {project}")
    return project
