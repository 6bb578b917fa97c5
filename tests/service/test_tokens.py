"""Bearer tokens, on SQLite and on Postgres."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from homophily_service.contract.errors import InvalidRequest, NotFound, Unauthenticated
from homophily_service.storage.database import Database
from homophily_service.storage.tokens import EVERY_PROJECT, PREFIX, Tokens


@pytest.fixture
def tokens(database: Database) -> Tokens:
    return Tokens(database)


def opened(tokens: Tokens, secret: str) -> str | None:
    """The project that a secret opens."""
    try:
        return tokens.look_up(secret).project
    except Unauthenticated:
        return None


def test_a_secret_opens_its_project(tokens: Tokens) -> None:
    _, one = tokens.create("one")
    _, every = tokens.create(EVERY_PROJECT)
    assert opened(tokens, one) == "one"
    assert opened(tokens, every) == EVERY_PROJECT


def test_secrets_differ_and_can_be_told_by_their_beginning(tokens: Tokens) -> None:
    secrets = {tokens.create("one")[1] for _ in range(10)}
    assert len(secrets) == 10
    assert all(secret.startswith(PREFIX) and len(secret) > 40 for secret in secrets)


def test_other_secrets_open_nothing(tokens: Tokens) -> None:
    identifier, secret = tokens.create("one")
    for other in ("", secret[:-1], secret + "a", secret.upper(), identifier, "\0", "ä", "%", "' OR 1=1 --"):
        assert opened(tokens, other) is None


def test_a_revoked_secret_opens_nothing(tokens: Tokens) -> None:
    identifier, secret = tokens.create("one")
    _, other = tokens.create("one")
    tokens.revoke(identifier)
    assert opened(tokens, secret) is None
    assert opened(tokens, other) == "one"
    with pytest.raises(NotFound, match=f"there is no token {identifier}"):
        tokens.revoke(identifier)


def test_only_tokens_that_exist_are_revoked(tokens: Tokens) -> None:
    with pytest.raises(NotFound):
        tokens.revoke("nothing")


def test_all_tokens_are_listed_oldest_first(tokens: Tokens) -> None:
    first, _ = tokens.create("one", "for the nightly job")
    second, _ = tokens.create("two")
    tokens.revoke(first)
    rows = tokens.all()
    assert [(row.id, row.project, row.description) for row in rows] == [
        (first, "one", "for the nightly job"),
        (second, "two", ""),
    ]
    assert rows[0].revoked >= rows[0].created
    assert rows[1].revoked is None


def test_the_secret_is_stored_nowhere(tokens: Tokens) -> None:
    _, secret = tokens.create("one")
    with tokens.database.read() as connection:
        stored = connection.execute(text("SELECT * FROM tokens")).all()
    assert len(stored) == 1
    assert secret not in repr(stored)
    assert secret.removeprefix(PREFIX) not in repr(stored)


@pytest.mark.parametrize("project", ["", "..", "One", "a/b", "**", "a\0"])
def test_tokens_are_for_projects_that_can_be(tokens: Tokens, project: str) -> None:
    with pytest.raises(InvalidRequest, match="project: must be"):
        tokens.create(project)
    assert tokens.all() == []


def test_a_token_opens_its_project_until_it_expires(tokens: Tokens) -> None:
    identifier, secret = tokens.create("one", expires_seconds=0.5)
    _, later = tokens.create("one", expires_seconds=3600.0)
    found = tokens.look_up(secret)
    assert (found.id, found.project) == (identifier, "one")
    assert found.seconds_left is not None
    assert 0.0 < found.seconds_left <= 0.5
    time.sleep(found.seconds_left)
    with pytest.raises(Unauthenticated, match=f"token {identifier} has expired") as caught:
        tokens.look_up(secret)
    assert caught.value.reason == "TOKEN_EXPIRED"
    assert secret not in caught.value.message
    assert tokens.look_up(later).project == "one"
    # Nobody learns of an expired token by guessing its id.
    with pytest.raises(Unauthenticated, match="not known") as caught:
        tokens.look_up(identifier)
    assert caught.value.reason == "NO_VALID_TOKEN"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_lives_that_cannot_be_are_refused(tokens: Tokens, seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="expires: must be"):
        tokens.create("one", expires_seconds=seconds)
