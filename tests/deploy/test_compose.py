"""compose.yaml is valid, its settings exist, and only this machine reaches it."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from homophily_service.runtime.settings import load_settings

from .modules import load

check = load("compose/check.py")
PROJECT: dict[str, Any] = check.project()
OURS = [name for name, service in PROJECT["services"].items() if "homophily" in service["image"]]


def test_it_keeps_to_the_specification() -> None:
    assert check.problems(PROJECT) == []


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("api", "imag", "x"),
        ("api", "ports", 50051),
        ("api", "depends_on", {"none": {"condition": "service_started"}}),
        ("api", "depends_on", {"migrate": {"condition": "service_healthy"}}),
        ("worker", "volumes", ["none:/data"]),
    ],
)
def test_what_is_wrong_is_found(place: str, key: str, value: Any) -> None:
    wrong = deepcopy(PROJECT)
    wrong["services"][place][key] = value
    assert check.problems(wrong)


@pytest.mark.parametrize("name", [name for name in OURS if name != "mlflow"])
def test_settings_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = PROJECT["services"][name]
    for variable, value in service["environment"].items():
        assert isinstance(value, str)
        monkeypatch.setenv(variable, value)
    settings = load_settings()
    assert settings.database.startswith("postgresql+psycopg://homophily:homophily@postgres")
    assert settings.blobs == "s3://homophily/laptop"
    assert service["command"][0] in ("migrate", "serve", "worker")


def test_all_of_ours_are_one_image_that_can_be_replaced() -> None:
    assert {PROJECT["services"][name]["image"] for name in OURS} == {"${HOMOPHILY_IMAGE:-homophily:0.1.0}"}
    for service in PROJECT["services"].values():
        assert service["image"].startswith("${")
    dockerfile = Path(check.FILE).parent / PROJECT["services"]["api"]["build"]["context"] / "deploy/docker/Dockerfile"
    assert dockerfile.is_file()


def test_only_this_machine_reaches_it() -> None:
    ports = [port for service in PROJECT["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_mlflow_takes_its_options() -> None:
    service = PROJECT["services"]["mlflow"]
    assert service["entrypoint"] == ["mlflow", "server"]
    run = [sys.executable, "-m", "mlflow", "server", *service["command"], "--help"]
    assert subprocess.run(run, capture_output=True, check=False).returncode == 0
