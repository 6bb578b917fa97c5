"""Tasks that a server repeats as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from homophily_service.contract.errors import Unavailable

_log = logging.getLogger(__name__)


async def repeat(what: str, action: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
    """Repeat an action until cancelled, whatever goes wrong; ``what`` names it in the log."""
    while True:
        try:
            await action()
        except Unavailable as error:
            _log.warning("%s: postponed: %s", what, error.message)
        except Exception:
            _log.exception("%s: failed, trying again", what)
        await asyncio.sleep(pause_seconds)
