"""When a call is tried again, and how long to wait before it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from homophily_client.errors import ClientError, LimitExceeded, Unavailable

# Long enough for a hiccup, short enough to notice a wrong address.
BRIEF_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

Retryable = Callable[[ClientError], bool]


def is_unavailable(error: ClientError) -> bool:
    """Whether the server could not be reached: then every call may be sent again."""
    return isinstance(error, Unavailable)


def is_unavailable_or_full(error: ClientError) -> bool:
    """Whether the server could not be reached, or its queue was full. Other limits do not suggest a time to retry."""
    return is_unavailable(error) or (isinstance(error, LimitExceeded) and error.retry_seconds is not None)


class Patience:
    """How long failures are retried, counted from the first failure since the last success."""

    def __init__(self, seconds: Callable[[], float], retryable: Retryable = is_unavailable) -> None:
        self.seconds, self.retryable = seconds, retryable
        self.failures = 0
        self._since = 0.0

    def pause(self, error: ClientError) -> float:
        """Return the seconds to wait before the next attempt, or raise the error."""
        if not self.retryable(error):
            raise error
        now = time.monotonic()
        if not self.failures:
            self._since = now
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.failures, 10)) * random.uniform(0.5, 1.0)
        pause = max(pause, error.retry_seconds or 0.0)
        if now + pause > self._since + self.seconds():
            raise error
        self.failures += 1
        return pause

    def renew(self) -> None:
        """Restart the count: something succeeded."""
        self.failures = 0
