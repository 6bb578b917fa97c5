"""The page for contributors names modules and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing" / "index.md").read_text()
TREES = [
    ROOT / "core" / "homophily",
    ROOT / "service" / "homophily_service",
    ROOT / "client" / "homophily_client",
    ROOT,
]
#: `api/jobs.py: Jobs.Fit`, or a file alone.
NAMED = sorted(set(re.findall(r"`([\w/]+\.(?:py|proto|cuh))(?:: ([\w.]+))?`", " ".join(PAGE.split()))))


def files(name: str) -> list[Path]:
    protos = ROOT / "proto" / "homophily" / "v1"
    return [tree / name for tree in (*TREES, protos, TREES[0] / "relationship") if (tree / name).exists()]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_the_page_names_exists(file: str, name: str) -> None:
    assert files(file), f"{file} does not exist"
    text = "\n".join(path.read_text() for path in files(file))
    for part in filter(None, name.split(".")):
        assert re.search(rf"\b(def|class) {part}\b", text), f"{file} has no {part}"


def test_every_package_is_on_the_page() -> None:
    packages = [path.parent.name for tree in TREES[:2] for path in tree.glob("*/__init__.py")]
    assert [name for name in packages if f"{name}/" not in PAGE] == []
