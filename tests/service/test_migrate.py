"""`homophily migrate`: the tables, before anything else runs; and what does not migrate."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import psycopg
import pytest
from click.testing import Result
from sqlalchemy import text
from typer.testing import CliRunner

from homophily_client import Client
from homophily_service.cli.commands import app
from homophily_service.contract.errors import FailedPrecondition, Unavailable
from homophily_service.storage.database import Database

from .databases import Postgres
from .serving import PATIENCE, running

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KEDA = re.compile(r"query: (SELECT .+)")


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


# -- a role for each purpose -------------------------------------------------------------------------------------------


def test_the_service_needs_no_right_to_change_tables(postgres: Postgres, tmp_path: Path) -> None:
    """As deploy/roles.sql makes them: one role migrates, another serves, a third counts jobs."""
    administrator = postgres.new_database()
    owner, ours, scaler = (
        administrator.replace("postgres@", f"{role}@") for role in ("homophily_owner", "homophily", "homophily_scaler")
    )
    execute(administrator, (DEPLOY / "roles.sql").read_text())

    def migrate(url: str) -> Result:
        return CliRunner().invoke(app, ["migrate", "--set", f"database_url={url}"])

    refused = migrate(ours)
    assert isinstance(refused.exception, FailedPrecondition)
    assert "role that owns the tables" in refused.exception.message
    assert migrate(owner).exit_code == 0
    (grant,) = re.findall(r"GRANT SELECT \(.+ TO homophily_scaler;", (DEPLOY / "README.md").read_text())
    execute(owner, grant)

    with running(tmp_path, database_url=ours, workers=1, predictors=0) as service:
        X = np.random.default_rng(0).normal(size=(30, 2))
        with Client(service.target) as client:
            client.fit(X, [0, 1] + 28 * [-1]).result(timeout=PATIENCE)
    keda = KEDA.search((DEPLOY / "kubernetes" / "production" / "scaling.yaml").read_text())
    assert keda is not None
    execute(scaler, keda[1])
    for url, statement in (
        (ours, "DROP TABLE jobs"),
        (ours, "ALTER TABLE jobs ADD COLUMN more TEXT"),
        (ours, "CREATE TABLE more (number INTEGER)"),
        (scaler, "SELECT request FROM jobs"),
        (scaler, "DELETE FROM jobs"),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(url, statement)


def execute(url: str, statements: str) -> None:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(statements.encode())
