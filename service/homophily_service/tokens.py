"""Bearer tokens: each opens one project, or all; only its SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, insert, select, update

from homophily_service.errors import NotFound
from homophily_service.names import check_id, new_id
from homophily_service.store.database import Database, now
from homophily_service.store.tables import tokens

EVERY_PROJECT = "*"
PREFIX = "hph_"


class Tokens:
    """The tokens of a service."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(self, project: str, description: str = "") -> tuple[str, str]:
        """A new token's id and secret; the secret is not kept."""
        if project != EVERY_PROJECT:
            check_id(project, "project")
        identifier, secret = new_id(), PREFIX + secrets.token_urlsafe(32)
        with self.database.write() as connection:
            connection.execute(
                insert(tokens).values(
                    id=identifier, project=project, digest=_digest(secret), description=description, created=now()
                )
            )
        return identifier, secret

    def revoke(self, identifier: str) -> None:
        """Make a token worthless, or NotFound."""
        with self.database.write() as connection:
            query = update(tokens).where(tokens.c.id == identifier, tokens.c.revoked.is_(None)).values(revoked=now())
            if connection.execute(query).rowcount == 0:
                raise NotFound(f"there is no token {identifier}")

    def all(self) -> Sequence[Row[Any]]:
        """Every token, oldest first."""
        with self.database.read() as connection:
            return connection.execute(select(tokens).order_by(tokens.c.created)).all()

    def project_of(self, secret: str) -> str | None:
        """The project that a secret opens; None if it is not known or was revoked."""
        query = select(tokens.c.project).where(tokens.c.digest == _digest(secret), tokens.c.revoked.is_(None))
        with self.database.read() as connection:
            project = connection.scalar(query)
        return None if project is None else str(project)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
