"""One query for all calls that wait: with many callers, a thread and a statement for each would cost too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from homophily_service.api.access import caller

Key = TypeVar("Key")
Value = TypeVar("Value")

# SQLite accepts some ten thousand values in a statement.
MOST_AT_ONCE = 1000


class BatchLoader(Generic[Key, Value]):
    """Loads keys in batches. Keys asked for during a load go into the next, so that no caller gets an older state."""

    def __init__(self, look: Callable[[Collection[Key]], Mapping[Key, Value]]) -> None:
        self.look = look
        self._asked: dict[Key, list[asyncio.Future[Value | None]]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def get(self, key: Key) -> Value | None:
        """The value of a key; None if there is none."""
        answer: asyncio.Future[Value | None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(key, []).append(answer)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return await answer

    async def _look(self) -> None:
        # The query is for all projects, so it is no project's turn.
        caller.set("")
        try:
            while self._asked:
                keys = list(self._asked)[:MOST_AT_ONCE]
                asked = [(key, answer) for key in keys for answer in self._asked.pop(key)]
                found: Mapping[Key, Value] = {}
                failure: Exception | None = None
                try:
                    found = await asyncio.to_thread(self.look, keys)
                except Exception as error:
                    failure = error
                for key, answer in asked:
                    # A future that is done belongs to a caller that has left.
                    if answer.done():
                        continue
                    if failure is not None:
                        answer.set_exception(failure)
                    else:
                        answer.set_result(found.get(key))
        finally:
            self._looking = None
