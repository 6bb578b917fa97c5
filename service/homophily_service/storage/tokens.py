"""Bearer tokens: each gives access to one project, or to all; only its SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row, insert, select, update

from homophily_client.names import new_id
from homophily_service.contract.errors import InvalidRequest, NotFound, Unauthenticated
from homophily_service.contract.names import check_id
from homophily_service.storage.database import Database, now
from homophily_service.storage.tables import tokens

EVERY_PROJECT = "*"
PREFIX = "hph_"


# A century; anything longer is a typing error.
LONGEST_LIFE = 100 * 365.25 * 86400.0


class Token(NamedTuple):
    """A valid token: its id, the project it gives access to, and the seconds until it expires (None: never)."""

    id: str
    project: str
    seconds_left: float | None


class Tokens:
    """The tokens of a service."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(self, project: str, description: str = "", expires_seconds: float | None = None) -> tuple[str, str]:
        """A new token's id and secret; the secret is not stored. It is invalid after ``expires_seconds``."""
        if project != EVERY_PROJECT:
            check_id(project, "project")
        if expires_seconds is not None and not 0.0 < expires_seconds <= LONGEST_LIFE:
            raise InvalidRequest("expires", "must be longer than 0 and at most a hundred years")
        identifier, secret = new_id(), PREFIX + secrets.token_urlsafe(32)
        with self.database.write() as connection:
            connection.execute(
                insert(tokens).values(
                    id=identifier,
                    project=project,
                    digest=_digest(secret),
                    description=description,
                    created=now(),
                    expires=None if expires_seconds is None else now() + expires_seconds,
                )
            )
        return identifier, secret

    def revoke(self, identifier: str) -> None:
        """Revoke a token, or NotFound."""
        with self.database.write() as connection:
            query = update(tokens).where(tokens.c.id == identifier, tokens.c.revoked.is_(None)).values(revoked=now())
            if connection.execute(query).rowcount == 0:
                raise NotFound(f"there is no token {identifier}")

    def all(self) -> Sequence[Row[Any]]:
        """Every token, oldest first."""
        with self.database.read() as connection:
            return connection.execute(select(tokens).order_by(tokens.c.created)).all()

    def look_up(self, secret: str) -> Token:
        """The token of a secret, or Unauthenticated; only the holder of the secret learns that it has expired."""
        query = select(tokens.c.id, tokens.c.project, (tokens.c.expires - now()).label("left")).where(
            tokens.c.digest == _digest(secret), tokens.c.revoked.is_(None)
        )
        with self.database.read() as connection:
            found = connection.execute(query).one_or_none()
        if found is None:
            raise Unauthenticated("the token is not known, or was revoked")
        if found.left is not None and found.left <= 0.0:
            raise Unauthenticated(f"token {found.id} has expired: ask for a new one", reason="TOKEN_EXPIRED")
        return Token(found.id, found.project, found.left)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
