"""The README's examples, pasted as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .serving import Service, running

README = Path(__file__).parents[2] / "README.md"
DIGITS = "load_digits(return_X_y=True)"


def examples(language: str, begin: str, end: str) -> list[str]:
    """All of one language in a part of it, with fewer digits: here they shall run, not impress."""
    part = README.read_text().partition(begin)[2].partition(end)[0]
    part = part.replace(DIGITS, f"[part[:400] for part in {DIGITS}]")
    return re.findall(rf"```{language}\n(.*?)```", part, re.DOTALL)


def run(command: list[str], folder: Path, **environment: str) -> None:
    ended = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=1200
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def python(program: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", program]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service in which nothing is prepared."""
    with running(tmp_path_factory.mktemp("readme") / "data") as service:
        yield service


def test_the_examples_of_the_package_run_one_after_the_other(tmp_path: Path) -> None:
    found = examples("python", "## Use the package", "## Label a file")
    assert len(found) == 6
    script = "\n".join(found)
    assert "400" in script
    run(python(script), tmp_path)


def test_a_file_is_labelled_without_a_server(tmp_path: Path) -> None:
    found = examples("sh", "## Label a file", "## Use the service")
    assert len(found) == 1
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(["sh", "-e", "-c", found[0]], tmp_path, PATH=path)
    assert len((tmp_path / "labelled.csv").read_text().splitlines()) == 201


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_of_the_client_run(fresh: Service, number: int, tmp_path: Path) -> None:
    found = examples("python", "## Use the service", "## Where ERR differs")
    assert len(found) == 2
    run(python(found[number].replace("127.0.0.1:50051", fresh.target)), tmp_path)


def test_the_commands_of_the_service_run_one_after_the_other(fresh: Service, tmp_path: Path) -> None:
    found = examples("sh", "## Use the service", "## Where ERR differs")
    assert len(found) == 3
    script = "\n".join(found).replace("--trials 20", "--trials 2")
    # Which goes on until Ctrl-C, and has a test of its own.
    script, pages = re.subn(r"^homophily ui .*$", "", script, flags=re.MULTILINE)
    assert pages == 1
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(["sh", "-e", "-c", script], tmp_path, PATH=path, HOMOPHILY_TARGET=fresh.target)
    made = {"answers.csv", "map.csv", "map.png", "map.html", "map2.html", "tuned-report"}
    assert made <= set(os.listdir(tmp_path))
