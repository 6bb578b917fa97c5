"""The examples of the README and of docs/, pasted as a reader would, and the figures in the README."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from .serving import Service, running

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
DIGITS = "load_digits(return_X_y=True)"
ADDRESS = "127.0.0.1:50051"


def examples(page: str, language: str) -> list[str]:
    """All of one language on a page, with fewer digits: here they need only run."""
    text = (ROOT / page).read_text().replace(DIGITS, f"[part[:400] for part in {DIGITS}]")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(command: list[str], folder: Path, **environment: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path} | environment
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def python(program: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", program]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service in which nothing is prepared."""
    with running(tmp_path_factory.mktemp("readme") / "data") as service:
        yield service


def test_the_readme_labels_a_frame(tmp_path: Path) -> None:
    said = run(python(examples("README.md", "python")[0]), tmp_path).splitlines()
    assert said[0] == "13 numbers standardised. No value is missing."
    assert float(said[1]) > 0.9


def test_the_readme_labels_a_file_without_a_server(tmp_path: Path) -> None:
    (script,) = examples("README.md", "sh")
    assert "Column 'bottle' is taken as the id" in run(["sh", "-e", "-c", f"{{ {script} }} 2>&1"], tmp_path)
    assert len((tmp_path / "labelled.csv").read_text().splitlines()) == 179


def test_the_readme_uses_the_service_and_maps_the_same_points(fresh: Service, tmp_path: Path) -> None:
    _, client, maps = examples("README.md", "python")
    run(python(f"{client}\n{maps}".replace(ADDRESS, fresh.target)), tmp_path)


def test_the_examples_of_the_package_run_one_after_the_other(tmp_path: Path) -> None:
    found = examples("docs/package.md", "python")
    assert len(found) == 6
    script = "\n".join(found)
    assert "400" in script
    run(python(script), tmp_path)


@pytest.mark.parametrize(("page", "number"), [("docs/service.md", 0), ("docs/service.md", 1), ("docs/tables.md", 0)])
def test_the_examples_of_the_client_run(fresh: Service, page: str, number: int, tmp_path: Path) -> None:
    run(python(examples(page, "python")[number].replace(ADDRESS, fresh.target)), tmp_path)


def test_the_commands_of_the_service_run_one_after_the_other(fresh: Service, tmp_path: Path) -> None:
    found = examples("docs/service.md", "sh")
    assert len(found) == 3
    script = "\n".join(found).replace("--trials 20", "--trials 2")
    # It runs until Ctrl-C, and has a test of its own.
    script, pages = re.subn(r"^homophily ui .*$", "", script, flags=re.MULTILINE)
    assert pages == 1
    run(["sh", "-e", "-c", script], tmp_path, HOMOPHILY_TARGET=fresh.target)
    made = {"answers.csv", "map.csv", "map.png", "map.html", "map2.html", "tuned-report"}
    assert made <= set(os.listdir(tmp_path))


def test_the_readme_is_short() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.encode()) <= 9 << 10


def test_the_figures_of_the_readme_are_those_of_the_records() -> None:
    lines = (ROOT / "benchmarks" / "results" / "readme.jsonl").read_text().splitlines()
    records = {record["method"]: record for record in map(json.loads, lines)}
    shown = dict(re.findall(r"^\| \*{0,2}([\w ,'()-]+?)\*{0,2} \| \*{0,2}([\d.]+) %", README.read_text(), re.MULTILINE))
    assert len(shown) == len(records)
    for name, record in records.items():
        (row,) = [row for row in shown if row.split(",")[0].split(" (")[0] == name.split(",")[0].split(" (")[0]]
        assert float(shown[row]) == round(float(np.mean(record["errors"])), 1), name
        assert len(record["draws"]) == 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_readme_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)", README.read_text()))
    assert linked == {f"docs/{page.name}" for page in PAGES[1:]}
