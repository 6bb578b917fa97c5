"""Who is calling, and what they may see. Permission is asked for before anything is looked up."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import TypeVar

from homophily_client.names import ResourceName
from homophily_service.contract.errors import PermissionDenied
from homophily_service.contract.names import parse_name, parse_project
from homophily_service.storage.tokens import EVERY_PROJECT

# The project that the caller's token opens; set by the authentication interceptor for each call.
caller: ContextVar[str] = ContextVar("caller", default="")
# Callers without a token: from other machines, and from this one, where probes come from. No project has such an id.
STRANGERS, NEIGHBOURS = "?", "localhost?"


@dataclass
class AuditRecord:
    """What the audit log says about a call. One object per call, so that every thread of it adds to the same one."""

    token: str = ""
    certificate: str = ""
    peer: str = ""
    project: str = ""
    resource: str = ""
    made: str = ""

    def fields(self) -> dict[str, str]:
        """What is known."""
        return {name: value for name, value in asdict(self).items() if value}


audit_record: ContextVar[AuditRecord] = ContextVar("audit_record")


def current_record() -> AuditRecord:
    """Return the record of the current call."""
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
    """Tell the audit log what a call has made."""
    current_record().made = str(name)


def _allowed(project: str, resource: str) -> str:
    done = current_record()
    if not done.resource:
        done.project, done.resource = project, resource
    if caller.get() not in (project, EVERY_PROJECT):
        raise PermissionDenied(f"the token does not open project {project}")
    return project
