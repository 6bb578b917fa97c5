"""Who may call, and how much at a time: the interceptors of tokens and of limits."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from homophily_service.api.access import NEIGHBOURS, STRANGERS, caller, current_record
from homophily_service.api.budgets import RETRY_SECONDS, Budget, Held, held
from homophily_service.api.inference import PROBES
from homophily_service.api.interceptors import Context, Interceptor, metadata_of
from homophily_service.contract.errors import LimitExceeded, ServiceError, Unauthenticated
from homophily_service.runtime.settings import Settings
from homophily_service.storage.tokens import EVERY_PROJECT, Token, Tokens

LOOPBACK = re.compile(r"unix:|ipv4:127\.|ipv6:(\[|%5B)::1(\]|%5D)")


class Authentication(Interceptor):
    """Identifies the caller by the bearer token. Anybody may ask whether the service is healthy."""

    # A revoked token works at most for the sum of both, even in calls that are under way.
    SECONDS_REMEMBERED, SECONDS_BETWEEN_CHECKS = 1.0, 0.5

    def __init__(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        self._known: dict[str, tuple[float, Token]] = {}

    def around(self, method: str, context: Context) -> _AuthenticatedCall:
        """Set the caller."""
        return _AuthenticatedCall(self, method, context)

    async def token(self, header: str) -> Token:
        """The token in a header, or Unauthenticated."""
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise Unauthenticated("a bearer token is needed in the metadata: authorization: Bearer hph_…")
        until, token = self._known.get(secret, (0.0, None))
        if token is not None and time.monotonic() < until:
            return token
        assert self.tokens is not None
        # Wrong secrets do not delay callers whose token was valid a moment ago.
        caller.set(STRANGERS if token is None else token.project)
        try:
            token = await asyncio.to_thread(self.tokens.look_up, secret)
        except Unauthenticated:
            self._known.pop(secret, None)
            raise
        if len(self._known) > 10_000:
            self._known.clear()
        left = self.SECONDS_REMEMBERED if token.seconds_left is None else token.seconds_left
        self._known[secret] = time.monotonic() + min(self.SECONDS_REMEMBERED, left), token
        return token


class _AuthenticatedCall:
    def __init__(self, authentication: Authentication, method: str, context: Context) -> None:
        self.authentication, self.method, self.context = authentication, method, context
        self.refused: Unauthenticated | None = None
        self._task: asyncio.Task[Any] | None = None
        self._next_check: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        if self.authentication.tokens is None:
            caller.set(EVERY_PROJECT)
        elif self.method.startswith("/grpc.health.") or self.method in PROBES:
            caller.set(NEIGHBOURS if LOOPBACK.match(self.context.peer()) else STRANGERS)
        else:
            self.header = metadata_of(self.context, "authorization")
            token = await self.authentication.token(self.header)
            caller.set(token.project)
            current_record().token = token.id
            self._task = asyncio.current_task()
            self._check_later()

    async def __aexit__(self, *_: object) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
        # The call has ended, so a running check has nothing to cancel.
        task, self._task = self._task, None
        if self.refused is not None:
            if task is not None:
                task.uncancel()
            raise self.refused

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_check = loop.call_later(self.authentication.SECONDS_BETWEEN_CHECKS, self._begin_check)

    def _begin_check(self) -> None:
        self._checking = asyncio.create_task(self._check())

    async def _check(self) -> None:
        """End the call if its token has been revoked, or has expired, since it began."""
        try:
            await self.authentication.token(self.header)
        except Unauthenticated as error:
            if self._task is not None:
                self.refused = error
                self._task.cancel()
        except ServiceError:
            # The database is down; the next check will decide.
            self._check_later()
        else:
            self._check_later()


class Admission(Interceptor):
    """Refuses calls if a project, or all projects together, have too many under way."""

    # The share of calls and bytes that one project may have.
    SHARE = 0.125

    def __init__(self, settings: Settings) -> None:
        # Without tokens there are no projects to tell apart.
        share = 1.0 if settings.auth == "none" else self.SHARE
        # An upload holds two messages: one is received while the other is written.
        in_flight = max(settings.max_bytes_in_flight, 2 * settings.max_message_bytes)
        self.calls = Budget(settings.max_calls, max(1, int(share * settings.max_calls)))
        self.bytes = Budget(in_flight, max(int(share * in_flight), 2 * settings.max_message_bytes))

    def around(self, method: str, context: Context) -> _AdmittedCall:  # noqa: ARG002
        """Count the call."""
        return _AdmittedCall(self)


class _AdmittedCall:
    def __init__(self, admission: Admission) -> None:
        self.calls, self.bytes = admission.calls, admission.bytes

    async def __aenter__(self) -> None:
        # The project, * for a token for all projects, or one of the names for callers without a token.
        holder = caller.get()
        if not self.calls.take(holder, 1):
            raise LimitExceeded(
                f"{self.calls.taken[holder]} of at most {self.calls.share} calls of this project are under way, "
                f"and {self.calls.taken.total()} of at most {self.calls.total} in all",
                reason="TOO_MANY_CALLS",
                retry_seconds=RETRY_SECONDS,
            )
        self.held = Held(self.bytes, holder)
        held.set(self.held)

    async def __aexit__(self, *_: object) -> None:
        self.held.keep(0)
        self.calls.give(self.held.holder, 1)
