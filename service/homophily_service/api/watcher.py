"""Wakes waiting calls when a job has changed: one query for all of them, a few times a second."""

from __future__ import annotations

import asyncio
import logging

from homophily_service.contract.errors import Unavailable
from homophily_service.storage.queue import Queue

_log = logging.getLogger(__name__)


class Watcher:
    """Waiting calls register here; one task polls the database for all of them."""

    def __init__(self, queue: Queue, poll_seconds: float) -> None:
        self.queue, self.poll_seconds = queue, poll_seconds
        self._waiting: dict[asyncio.Future[None], tuple[int, int]] = {}
        self._somebody = asyncio.Event()
        self._stopped = False

    async def changed(self, number: int, sequence: int) -> None:
        """Wait until a job has an event after ``sequence``, or was deleted."""
        if self._stopped:
            raise Unavailable("the server is stopping", retry_seconds=1.0)
        news = asyncio.get_running_loop().create_future()
        self._waiting[news] = (number, sequence)
        self._somebody.set()
        try:
            await news
        finally:
            self._waiting.pop(news, None)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self._somebody.wait()
            self._somebody.clear()
            while self._waiting:
                try:
                    await self._look()
                except Unavailable as error:
                    _log.warning("waiting for the database: %s", error.message)
                except Exception:
                    # Whatever it is, the calls that wait here must not wait for ever.
                    _log.exception("internal error while polling for changes")
                await asyncio.sleep(self.poll_seconds)

    async def _look(self) -> None:
        numbers = {number for number, _ in self._waiting.values()}
        versions = await asyncio.to_thread(self.queue.versions, numbers)
        for news, (number, sequence) in list(self._waiting.items()):
            has_news = number not in versions or versions[number][0] > sequence
            # Only jobs of this query: other calls may have registered meanwhile.
            if has_news and number in numbers and not news.done():
                news.set_result(None)

    def stop(self) -> None:
        """End all waiting calls."""
        self._stopped = True
        for news in self._waiting:
            if not news.done():
                news.set_exception(Unavailable("the server is stopping", retry_seconds=1.0))
