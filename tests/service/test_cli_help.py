"""What the command line tells of itself."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from homophily_service.api.messages import STATES
from homophily_service.cli import failures
from homophily_service.cli.commands import app
from homophily_service.contract.kinds import KINDS
from homophily_service.runtime.settings import Settings

from .commands import Run


def shown(*arguments: str) -> str:
    """The words of a help, without frames and breaks of lines."""
    ended = CliRunner().invoke(app, [*arguments, "--help"])
    assert ended.exit_code == 0
    return " ".join(ended.output.replace("│", " ").split())


def test_the_help_ends_with_the_exit_codes() -> None:
    codes = shown().partition("Exit codes: ")[2]
    expected = [value for name, value in vars(failures).items() if name.isupper()]
    assert [int(word) for word in codes.split() if word.isdecimal()] == [0, *expected]


def test_every_state_and_kind_of_job_can_be_asked_for() -> None:
    told = shown("jobs")
    assert all(word in told for word in (*STATES, *KINDS))


def test_the_help_of_serve_has_the_defaults_of_the_settings() -> None:
    told = shown("serve")
    for name in ("data_dir", "host", "port", "workers", "auth", "metrics_port", "log_level"):
        default = Settings.model_fields[name].default
        help_text = told.partition(f"--{name.replace('_', '-')} ")[2].partition(" --")[0]
        assert f"default {str(default).lower()}" in help_text


def test_flags_have_no_type() -> None:
    for arguments in ([], ["fit"], ["token"], ["token", "create"], ["store"], ["store", "adopt"]):
        assert "<bool>" not in shown(*arguments)


def test_label_has_no_option_that_needs_a_service() -> None:
    assert "--spread" in shown("fit")
    assert "--spread" not in shown("label")


def test_a_service_without_mlflow_refuses_to_register_before_anything_is_sent(run: Run, tmp_path: Path) -> None:
    """The command waited for a minute, and then said that MLflow would answer."""
    (tmp_path / "points.csv").write_text("x,label\n" + "".join(f"{row}.5,{'ab'[row % 2]}\n" for row in range(20)))
    refused = run("fit", "points.csv", "--label-column", "label", "--register", "name", code=1)
    assert "cannot register models" in refused.err
    assert "pip install 'homophily[tracking]'" in refused.err
    assert run("datasets", "--json").json == []


@pytest.mark.parametrize("path", ["", os.environ["PATH"]], ids=["elsewhere", "as usual"])
def test_what_the_demonstration_says_to_type_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    from homophily_service.cli.demonstration import command  # loads half of scikit-learn

    monkeypatch.setenv("PATH", path)
    monkeypatch.chdir(tmp_path)
    subprocess.run(["/bin/sh", "-c", f"{command()} --help"], check=True, stdout=subprocess.DEVNULL)


def test_versions_of_the_program_and_of_the_service(run: Run) -> None:
    own = version("homophily")
    assert run("--version").out == f"homophily {own}\n"
    told = run("version", "--json").json
    assert told == {"program": own, "service": {"version": own, "api_version": "v1", "tracking": False}}
    assert run("version").out.split() == ["program", own, "service", own, "interface", "v1", "tracking", "no"]
