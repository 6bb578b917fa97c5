"""Calls that are answered by one look at the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection

import pytest

from homophily_service.api.batch_loader import BatchLoader


class Looks:
    """A slow look that remembers what it was asked for."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_end = threading.Event()

    def __call__(self, keys: Collection[int]) -> dict[int, str]:
        self.batches.append(list(keys))
        self.may_end.wait(10.0)
        if 13 in keys:
            raise OSError("no luck")
        return {key: str(key) for key in keys if key > 0}


async def asked(together: BatchLoader[int, str], looks: Looks, keys: list[int]) -> list[asyncio.Task[str | None]]:
    """Ask for the first key, and while that look is under way for all others."""
    tasks = [asyncio.create_task(together.get(keys[0]))]
    while not looks.batches:
        await asyncio.sleep(0.001)
    tasks += [asyncio.create_task(together.get(key)) for key in keys[1:]]
    await asyncio.sleep(0.01)
    return tasks


def test_who_asks_meanwhile_is_in_the_next_look() -> None:
    async def run() -> None:
        looks = Looks()
        together = BatchLoader(looks)
        tasks = await asked(together, looks, [1, 2, 1, 3, 2, 0])
        looks.may_end.set()
        assert await asyncio.gather(*tasks) == ["1", "2", "1", "3", "2", None]
        assert looks.batches == [[1], [2, 1, 3, 0]]

    asyncio.run(run())


def test_a_failure_reaches_those_of_its_look_and_nobody_else() -> None:
    async def run() -> None:
        looks = Looks()
        together = BatchLoader(looks)
        tasks = await asked(together, looks, [1, 2, 13])
        looks.may_end.set()
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        assert first == "1"
        assert isinstance(second, OSError)
        assert isinstance(third, OSError)
        assert await together.get(5) == "5"

    asyncio.run(run())


def test_a_caller_who_leaves_takes_nobody_along() -> None:
    async def run() -> None:
        looks = Looks()
        together = BatchLoader(looks)
        tasks = await asked(together, looks, [1, 2, 2])
        tasks[1].cancel()
        looks.may_end.set()
        assert await tasks[0] == "1"
        assert await tasks[2] == "2"
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]

    asyncio.run(run())
