"""Commands of the command line, run against a real server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from homophily_service.cli import main

from .serving import Project, Service


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture
def run(
    service: Service,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    """Runs commands in a new project, in this process: loading the client takes longer than most commands."""
    monkeypatch.chdir(tmp_path)
    for name, value in environment(service.target, project).items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str | Path, code: int = 0) -> Ended:
        monkeypatch.setattr(sys, "argv", ["homophily", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        found = Ended(int(ended.value.code or 0), *capfd.readouterr())
        assert found.code == code, found
        return found

    return run


def environment(target: str, project: Project, token: str = "") -> dict[str, str]:
    return {"HOMOPHILY_TARGET": target, "HOMOPHILY_PROJECT": project.id} | ({"HOMOPHILY_TOKEN": token} if token else {})
