"""Tasks that a server repeats as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from homophily_service.contract.errors import Unavailable

_log = logging.getLogger(__name__)


async def repeat(what: str, action: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
    """Do it again and again until cancelled, whatever goes wrong; ``what`` names it in the log."""
    while True:
        try:
            await action()
        except Unavailable as error:
            _log.warning("%s: put off: %s", what, error.message)
        except Exception:
            _log.exception("%s: failed, and is tried again", what)
        await asyncio.sleep(pause_seconds)
