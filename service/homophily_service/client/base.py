"""What the parts of the client share: the connection, names, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from homophily_service._pb import points_pb2
from homophily_service.arrays import DTYPES
from homophily_service.client.connection import Connection
from homophily_service.errors import InvalidRequest
from homophily_service.names import ProjectName, ResourceName, check_id

# Servers take messages of 4 MiB unless told otherwise; some room is left for the rest of the message.
INLINE_BYTES = 7 << 19

Name = TypeVar("Name", bound=ResourceName)
Parsed = TypeVar("Parsed")


class Base:
    """A connection, and the project of short names."""

    def __init__(self, connection: Connection, project: str) -> None:
        self.project = refusing(check_id, project, "project")
        self._connection, self._stub = connection, connection.stub

    @property
    def _parent(self) -> str:
        return str(ProjectName(self.project))

    def _name(self, kind: type[Name], value: Any, argument: str) -> Name:
        """A name out of a short name, a full name, or something that has one."""
        text = value if isinstance(value, str) else getattr(value, "name", None)
        if not isinstance(text, str):
            raise TypeError(f"{argument} must be a name or something that has one. Got {type(value).__name__} instead.")
        if "/" in text:
            return refusing(kind.parse, text, argument)
        return kind(self.project, refusing(check_id, text, argument))

    def _pages(self, method: grpc.UnaryUnaryMultiCallable[Any, Any], request: Any) -> Iterator[Any]:
        """The pages of a list."""
        while True:
            page = self._connection.call(method, request)
            yield page
            request.page_token = page.next_page_token
            if not request.page_token:
                return


def refusing(check: Callable[[str, str], Parsed], text: str, argument: str) -> Parsed:
    """The names module's check, its refusal as this side's."""
    try:
        return check(text, argument)
    except InvalidRequest as error:
        raise ValueError(error.message) from None


def from_tensor(tensor: points_pb2.Tensor) -> NDArray[Any]:
    """An array that the server sent."""
    return np.frombuffer(tensor.data, dtype=DTYPES[tensor.data_type]).reshape(tuple(tensor.shape))
