"""Settings: where they come from, what is refused, what is hidden."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import make_url

from homophily_service.cli.serve import show_config
from homophily_service.runtime.settings import Settings, load_settings, sends_runs
from homophily_service.storage.database import Database

URL = "postgresql+psycopg://homophily:hunter2@database/homophily"


@pytest.fixture(autouse=True)
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("HOMOPHILY_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "homophily.toml"
    path.write_text('port = 1\nworkers = 1\nlog_level = "debug"\n')
    return path


def test_everything_has_a_default() -> None:
    settings = load_settings()
    assert settings.host == "127.0.0.1"
    assert settings.auth == "none"
    assert settings.database == f"sqlite:///{Path.cwd()}/homophily-data/homophily.db"
    assert settings.blobs == f"{Path.cwd()}/homophily-data/blobs"


def test_flags_go_before_the_environment_and_that_before_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMOPHILY_PORT", "2")
    monkeypatch.setenv("HOMOPHILY_WORKERS", "2")
    settings = load_settings(file, port=3)
    assert (settings.port, settings.workers, settings.log_level) == (3, 2, "debug")
    assert settings.max_attempts == 3


def test_flags_that_were_not_given_change_nothing(file: Path) -> None:
    assert load_settings(file, port=None).port == 1


def test_a_file_is_read_only_where_it_is_named(file: Path) -> None:
    assert load_settings(file).port == 1
    assert load_settings().port == 50051


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing\.toml"):
        load_settings(tmp_path / "nothing.toml")


def test_unknown_keys_are_refused(file: Path) -> None:
    with pytest.raises(ValidationError, match="prot"):
        load_settings(prot=1)
    file.write_text("prot = 1")
    with pytest.raises(ValidationError, match="prot"):
        load_settings(file)


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65536},
        {"port": "tcp://10.0.0.1:50051"},
        {"workers": -1},
        {"lease_seconds": 0},
        {"auth": "perhaps"},
        {"threads": 0},
        {"max_points": 0},
    ],
    ids=str,
)
def test_values_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        load_settings(**wrong)


def test_secrets_are_not_shown() -> None:
    settings = load_settings(database_url=URL)
    for shown in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert "hunter2" not in shown
    assert settings.database == URL


@pytest.mark.parametrize("key", ["databse_url", "database_url"])
def test_secrets_are_not_shown_in_errors(file: Path, key: str) -> None:
    file.write_text(f'{key} = ["{URL}"]')
    with pytest.raises(ValidationError, match=key) as caught:
        load_settings(file)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["port=7", "tracking=false", "traces_ratio=1e-7", 'tracking_experiment=a "b" \\ 💥'],
        ['project_limits={"team-a": {"max_jobs_per_day": 3}}', f"database_url={URL}"],
    ],
    ids=["defaults", "values", "secrets"],
)
def test_the_settings_that_are_printed_are_a_file_to_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    show_config(assignments=given)
    printed = capsys.readouterr().out
    file = tmp_path / "homophily.toml"
    file.write_text(printed)
    values = tomllib.loads(printed)
    lines = printed.splitlines()
    for name, field in Settings.model_fields.items():
        value = next(line for line in lines if line.removeprefix("# ").startswith(f"{name} ="))
        assert value.startswith("#") != (name in values)
        assert lines[lines.index(value) - 1] == f"# {field.description}"
    settings = load_settings(**dict(one.split("=", 1) for one in given))
    # A secret is not printed, nor anything in its place: it is given once more.
    assert "hunter2" not in printed
    assert load_settings(file).database_url is None
    assert load_settings(file, database_url=settings.database_url).model_dump() == settings.model_dump()


def test_children_get_all_settings_and_the_secret(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMOPHILY_THREADS", "2")
    settings = load_settings(file, database_url=URL, max_attempts=7)
    sent = settings.for_children()
    # The child's own environment counts for nothing.
    monkeypatch.setenv("HOMOPHILY_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("HOMOPHILY_METRICS_PORT", "nonsense")
    child = Settings.model_validate_json(sent)
    assert (child.port, child.threads, child.max_attempts, child.metrics_port) == (1, 2, 7, None)
    assert child.database == URL
    assert child.model_dump() == settings.model_dump() | {
        "blobs_url": settings.blobs,
        "database_url": child.database_url,
    }
    assert child.for_children() == sent


def test_children_find_the_same_places_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(data_dir=Path("data"))
    sent = json.loads(settings.for_children())
    assert sent["database_url"] == f"sqlite:///{tmp_path}/data/homophily.db"
    assert sent["blobs_url"] == f"{tmp_path}/data/blobs"


@pytest.mark.parametrize("folder", ["with space", "why?", "100%", "%20", "a#b", "dätä"])
def test_the_database_lies_in_the_data_folder_whatever_its_name(tmp_path: Path, folder: str) -> None:
    settings = load_settings(data_dir=tmp_path / folder)
    assert make_url(settings.database).database == str(tmp_path / folder / "homophily.db")
    database = Database(settings.database)
    database.migrate()
    database.close()
    assert (tmp_path / folder / "homophily.db").exists()
    assert len(list(tmp_path.iterdir())) == 1


LIMITS = '{"team-a": {"max_jobs_per_day": 3}, "b": {"max_project_bytes": 7, "max_queued_jobs": 2}}'


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_limits_of_single_projects_go_before_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    file = tmp_path / "homophily.toml"
    file.write_text("max_jobs_per_day = 9\n")
    if source == "file":
        with file.open("a") as more:
            more.write("project_limits = {team-a = {max_jobs_per_day = 3}, ")
            more.write("b = {max_project_bytes = 7, max_queued_jobs = 2}}\n")
    elif source == "environment":
        monkeypatch.setenv("HOMOPHILY_PROJECT_LIMITS", LIMITS)
    settings = load_settings(file, project_limits=LIMITS if source == "flag" else None)
    a, b, other = (settings.limits_of(project) for project in ("team-a", "b", "other"))
    assert (a.max_jobs_per_day, a.max_project_bytes, a.max_queued_jobs) == (3, None, 1000)
    assert (b.max_jobs_per_day, b.max_project_bytes, b.max_queued_jobs) == (9, 7, 2)
    assert (other.max_jobs_per_day, other.max_project_bytes, other.max_queued_jobs) == (9, None, 1000)
    assert Settings.model_validate_json(settings.for_children()).limits_of("b") == b


@pytest.mark.parametrize("wrong", ["nonsense", '{"a": 1}', '{"a": {"max_queues": 1}}', '{"a": {"max_queued_jobs": 0}}'])
def test_limits_that_cannot_be_are_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="project_limits"):
        load_settings(project_limits=wrong)


def test_runs_are_sent_if_mlflow_is_here_or_a_tracker_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homophily_service.runtime.settings.has_mlflow", lambda: False)
    assert not sends_runs(load_settings())
    assert sends_runs(load_settings(tracker=False))
    assert not sends_runs(load_settings(tracker=False, tracking=False))


def test_workers_take_the_devices_of_a_list_by_turns() -> None:
    def devices(device: str) -> list[str]:
        return [load_settings(device=device).of_worker(number).device for number in range(3)]

    assert devices("cuda:0,2") == ["cuda:0", "cuda:2", "cuda:0"]
    for one in ("cpu", "auto", "cuda", "cuda:1"):
        assert devices(one) == [one] * 3
    with pytest.raises(ValidationError, match="device"):
        load_settings(device="cuda:0,")
