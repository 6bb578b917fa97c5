"""`homophily migrate`: the tables, before anything else runs; and what does not migrate."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from homophily_service.cli.main import app
from homophily_service.errors import FailedPrecondition, Unavailable
from homophily_service.store.database import Database

from .serving import running


def test_makes_the_tables_and_may_run_again(tmp_path: Path) -> None:
    for _ in range(2):
        result = CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)])
        assert result.exit_code == 0, result.output
    database = Database(f"sqlite:///{tmp_path / 'homophily.db'}")
    database.check_version()
    database.close()


def test_refuses_a_database_of_a_later_version(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)]).exit_code == 0
    database = Database(f"sqlite:///{tmp_path / 'homophily.db'}")
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    result = CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)])
    assert isinstance(result.exception, FailedPrecondition)


def test_waits_for_a_database_that_is_not_there_yet_only_as_long_as_told() -> None:
    # Nothing listens on port 1.
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    result = CliRunner().invoke(app, ["migrate", "--wait", "1.5", "--set", f"database_url={url}"])
    assert isinstance(result.exception, Unavailable)


@pytest.mark.parametrize("flag", ["--wait=soon"])
def test_refuses_a_wait_that_is_no_number(flag: str) -> None:
    assert CliRunner().invoke(app, ["migrate", flag]).exit_code == 2


COMMANDS = (["token", "list"], ["token", "create"], ["token", "revoke", "any"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_about_tokens_do_not_migrate(command: list[str], empty_url: str, tmp_path: Path) -> None:
    # Listing the tokens brought the tables of a cluster to another version.
    place = ["--set", f"database_url={empty_url}", "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(app, [*command, *place])
    assert isinstance(result.exception, Unavailable)
    assert "homophily migrate" in result.exception.message
    database = Database(empty_url)
    with pytest.raises(FailedPrecondition, match="schema None"):
        database.check_version()
    database.close()


def test_looking_for_tokens_where_nothing_is_makes_no_files(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["token", "list", "--data-dir", str(tmp_path / "typo")])
    assert list(tmp_path.iterdir()) == []


def test_the_api_migrates_a_database_of_its_own_and_no_other(empty_url: str, backend: str, tmp_path: Path) -> None:
    settings = {"database_url": empty_url, "workers": 0, "predictors": 0}
    database = Database(empty_url)
    if backend == "postgres":
        with (
            pytest.raises(AssertionError, match="run `homophily migrate`"),
            running(tmp_path, **settings),
        ):
            pass
        with pytest.raises(FailedPrecondition, match="schema None"):
            database.check_version()
        assert CliRunner().invoke(app, ["migrate", "--set", f"database_url={empty_url}"]).exit_code == 0
    with running(tmp_path, **settings):
        database.check_version()
    database.close()
