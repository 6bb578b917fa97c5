"""Who is calling, and what they may see. Permission is checked before anything is looked up."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import TypeVar

from homophily_client.names import ResourceName
from homophily_service.contract.errors import PermissionDenied
from homophily_service.contract.names import parse_name, parse_project
from homophily_service.storage.tokens import EVERY_PROJECT

# The project that the caller's token gives access to; set by the authentication interceptor for each call.
caller: ContextVar[str] = ContextVar("caller", default="")
# Callers without a token, from other machines and from this one, such as probes. No project can have these ids.
STRANGERS, NEIGHBOURS = "?", "localhost?"


@dataclass
class AuditRecord:
    """The audit log's fields about a call: one object per call, which any of its threads may fill in."""

    token: str = ""
    certificate: str = ""
    peer: str = ""
    project: str = ""
    resource: str = ""
    made: str = ""

    def fields(self) -> dict[str, str]:
        """The fields that are known."""
        return {name: value for name, value in asdict(self).items() if value}


audit_record: ContextVar[AuditRecord] = ContextVar("audit_record")


def current_record() -> AuditRecord:
    """The record of the current call."""
    return audit_record.get(None) or AuditRecord()


Name = TypeVar("Name", bound=ResourceName)


def allowed_project(name: str, field: str) -> str:
    """The project of ``projects/{project}``, if the caller may use it."""
    parsed = parse_project(name, field)
    return _allowed(parsed.project, str(parsed))


def allowed_name(kind: type[Name], name: str, field: str) -> Name:
    """A resource's name, if the caller may use its project."""
    parsed = parse_name(kind, name, field)
    _allowed(parsed.project, str(parsed))
    return parsed


def note_made(name: ResourceName) -> None:
    """Record what a call has made, for the audit log."""
    current_record().made = str(name)


def _allowed(project: str, resource: str) -> str:
    done = current_record()
    if not done.resource:
        done.project, done.resource = project, resource
    if caller.get() not in (project, EVERY_PROJECT):
        raise PermissionDenied(f"the token gives no access to project {project}")
    return project
