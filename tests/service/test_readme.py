"""The README's examples, pasted as a reader would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .serving import running

README = Path(__file__).parents[2] / "README.md"


def examples(begin: str, end: str) -> list[str]:
    part = README.read_text().partition(begin)[2].partition(end)[0]
    return re.findall(r"```python\n(.*?)```", part, re.DOTALL)


def run(program: str, folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr


def test_the_examples_of_the_package_run_one_after_the_other(tmp_path: Path) -> None:
    found = examples("## Use the package", "## Use the service")
    assert len(found) == 4
    run("\n".join(found), tmp_path)


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_of_the_client_run(number: int, tmp_path: Path) -> None:
    found = examples("## Use the service", "## Where ERR differs")
    assert len(found) == 2
    with running(tmp_path / "data") as service:
        run(found[number].replace("127.0.0.1:50051", service.target), tmp_path)
