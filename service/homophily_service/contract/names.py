"""Resource names in requests: an invalid name is an InvalidRequest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from homophily_client import names
from homophily_client.names import InvalidName, ResourceName
from homophily_service.contract.errors import InvalidRequest

Name = TypeVar("Name", bound=ResourceName)


def parse_name(kind: type[Name], name: str, field: str) -> Name:
    """Read the name in a field of a request."""
    with _refusing():
        return kind.parse(name, field)


def parse_project(name: str, field: str) -> names.ProjectName:
    """Read the name of a project in a field of a request."""
    with _refusing():
        return names.ProjectName.parse(name, field)


def check_id(value: str, field: str) -> str:
    """Check the id in a field of a request, and return it."""
    with _refusing():
        return names.check_id(value, field)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except InvalidName as error:
        raise InvalidRequest(error.field, error.description) from None
