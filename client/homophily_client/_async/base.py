"""What the parts of the client share: the connection, names, pages, and arrays read in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, TypeVar

from homophily_client._async.connection import AsyncConnection
from homophily_client._async.transport import closing, sleep
from homophily_client.errors import Unavailable
from homophily_client.labels import GivenLabels, to_labels
from homophily_client.names import DatasetName, ProjectName, ResourceName, check_id

# Servers accept messages of 4 MiB by default; this leaves room for the rest of the message.
INLINE_BYTES = 7 << 19

Name = TypeVar("Name", bound=ResourceName)


class AsyncBase:
    """A connection, and the project of short names."""

    def __init__(self, connection: AsyncConnection, project: str) -> None:
        self.project = check_id(project, "project")
        self._connection = connection

    @property
    def _parent(self) -> str:
        return str(ProjectName(self.project))

    def _name(self, kind: type[Name], value: Any, argument: str) -> Name:
        """Read a name from a short name, a full name, or an object that has one."""
        text = value if isinstance(value, str) else getattr(value, "name", None)
        if not isinstance(text, str):
            raise TypeError(f"{argument} must be a name or an object with a name. Got {type(value).__name__} instead.")
        if "/" in text:
            return kind.parse(text, argument)
        return kind(self.project, check_id(text, argument))

    def _labels(self, y: Any, name: str, weights: Any = None) -> GivenLabels:
        """Labels as they are sent, with the full name of the dataset that they refer to."""
        given = to_labels(y, name, weights)
        if given.message.column.dataset:
            given.message.column.dataset = str(self._name(DatasetName, given.message.column.dataset, f"{name}.dataset"))
        return given

    @staticmethod
    def _listed(request: Any, after: datetime | None, before: datetime | None, *, oldest_first: bool) -> None:
        """Say what part of a list is wanted, and in which order."""
        for name, time in (("created_after", after), ("created_before", before)):
            if time is None:
                continue
            if time.tzinfo is None:
                raise ValueError(f"{name} must have a time zone, such as datetime.now(UTC). Got {time} instead.")
            getattr(request, name).FromDatetime(time)
        request.oldest_first = oldest_first

    async def _pages(self, method: str, request: Any, timeout: float | None) -> AsyncIterator[Any]:
        """The pages of a list."""
        while True:
            page = await self._connection.call(method, request, timeout=timeout)
            yield page
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def _ranges(self, method: str, request: Any, total: int | None, keep: Callable[[Any], int]) -> None:
        """Read ranges from ``request.start`` to the end, resumed where a connection broke.

        ``keep`` takes a range's answer and returns the number of rows in all; ``total`` is that number if it is known.
        """
        patience = self._connection.long()
        while total is None or request.start < total:
            failure = Unavailable(f"{request.name} broke off at row {request.start}")
            try:
                async with closing(self._connection.stream(method, request)) as answers:
                    async for answer in answers:
                        patience.renew()
                        total = keep(answer)
                        request.start = answer.start + answer.count
            except Unavailable as error:
                failure = error
            if total is None or request.start < total:
                await sleep(patience.pause(failure))
