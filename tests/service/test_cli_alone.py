"""The command where only the core is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# As after `pip install homophily`.
SITE = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, fullname, *_):
        if fullname.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{fullname!r}}", name=fullname)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize(
    ("absent", "arguments"),
    [
        (["typer", "rich", "grpc", "google", "homophily_client", "sqlalchemy", "pydantic_settings"], ["--version"]),
        (["grpc", "google", "homophily_client"], ["jobs"]),
        (["grpc", "google"], ["jobs"]),
        (["sqlalchemy"], ["serve"]),
    ],
    ids=["core", "no client", "no gRPC", "no database"],
)
def test_a_command_without_its_dependencies_says_what_to_install(
    tmp_path: Path, absent: list[str], arguments: list[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE.format(absent=absent))
    ended = subprocess.run(
        [sys.executable, "-m", "homophily_service", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("Error: ")
    assert absent[0] in ended.stderr or "homophily_client" in ended.stderr
    assert "pip install 'homophily[service]'" in ended.stderr
