"""Budgets that projects share: calls under way, and bytes of messages that are being received."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextvars import ContextVar

from homophily_service.contract.errors import LimitExceeded

# Refused callers are asked to try again after this many seconds.
RETRY_SECONDS = 1.0
# How long a call waits for room for its message.
LONGEST_WAIT = 5.0

held: ContextVar[Held] = ContextVar("held")


class Budget:
    """A total of which each holder may take up to its share, and gives it back. Waiting holders are served in turn."""

    def __init__(self, total: int, share: int) -> None:
        self.total, self.share = total, share
        self.taken: Counter[str] = Counter()
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    def fits(self, holder: str, amount: int) -> bool:
        """Whether there is room."""
        return self.taken[holder] + amount <= self.share and self.taken.total() + amount <= self.total

    def take(self, holder: str, amount: int) -> bool:
        """Take an amount if there is room and no other holder waits."""
        if any(other == holder for other, _, _ in self._waiting) or not self.fits(holder, amount):
            return False
        self.taken[holder] += amount
        return True

    async def wait(self, holder: str, amount: int, seconds: float) -> bool:
        """Take an amount as soon as there is room; False if there is no room in time."""
        if self.take(holder, amount):
            return True
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (holder, amount, room)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await room
        except (TimeoutError, asyncio.CancelledError) as error:
            if entry in self._waiting:
                self._waiting.remove(entry)
            else:
                # It got the amount at the moment when it stopped waiting.
                self.give(holder, amount)
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def give(self, holder: str, amount: int) -> None:
        """Give an amount back; waiting holders get it."""
        self.taken[holder] -= amount
        if self.taken[holder] <= 0:
            del self.taken[holder]
        passed_over: set[str] = set()
        for entry in list(self._waiting):
            holder, wanted, room = entry
            if holder in passed_over:
                continue
            if not self.fits(holder, wanted):
                passed_over.add(holder)
                continue
            self.taken[holder] += wanted
            self._waiting.remove(entry)
            if not room.done():
                room.set_result(None)


class Held:
    """The bytes in flight that a call has taken; given back when it ends."""

    def __init__(self, budget: Budget, holder: str) -> None:
        self.budget, self.holder, self.amount = budget, holder, 0

    async def take(self, amount: int) -> None:
        """Take more, or LimitExceeded if there is no room for a while."""
        if not await self.budget.wait(self.holder, amount, LONGEST_WAIT):
            raise LimitExceeded(
                f"messages of {self.budget.taken[self.holder]} bytes are being received from this project, "
                f"which may send {self.budget.share} bytes at a time",
                reason="TOO_MANY_BYTES_IN_FLIGHT",
                retry_seconds=RETRY_SECONDS,
            )
        self.amount += amount

    def keep(self, amount: int) -> None:
        """Give back all but this."""
        if amount < self.amount:
            self.budget.give(self.holder, self.amount - amount)
            self.amount = amount
