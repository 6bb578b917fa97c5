"""Imports inside the service go one way: a package may import those before it in the order, never those after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import homophily_client
import homophily_service

SERVICE = Path(homophily_service.__file__).parent
CLIENT = Path(homophily_client.__file__).parent

#: Packages of one line are beside each other: the processes of the service, which may use each other's.
ORDER = (
    ("contract",),
    ("runtime",),
    ("storage",),
    ("jobs",),
    ("plots",),
    ("tracking",),
    ("api", "predictor", "worker"),
    ("studio",),
    ("cli",),
    ("", "__main__"),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
MODULES = sorted(path for path in SERVICE.rglob("*.py") if "migrations" not in path.parts)


def imported(source: str, package: str) -> Iterator[str]:
    """The packages of ``package`` that a source imports anywhere, also inside of functions."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if "." in node.module else [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first == package:
                yield rest.partition(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SERVICE)))
def test_no_import_points_back(path: Path) -> None:
    mine = path.relative_to(SERVICE).parts[0].removesuffix(".py").replace("__init__", "")
    wrong = {part for part in imported(path.read_text(), "homophily_service") if RANK[part] > RANK[mine]}
    assert not wrong


def test_every_package_is_in_the_order_and_no_module_is_loose() -> None:
    assert {path.relative_to(SERVICE).parts[0] for path in MODULES} == {
        *(part for parts in ORDER for part in parts if part not in ("", "__main__")),
        "__init__.py",
        "__main__.py",
    }


def test_the_client_imports_nothing_of_ours() -> None:
    for path in CLIENT.rglob("*.py"):
        source = path.read_text()
        assert not [*imported(source, "homophily_service"), *imported(source, "homophily")], path


def sqlalchemy_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sqlalchemy":
            yield from (alias.name for alias in node.names)


def test_only_storage_speaks_sql() -> None:
    for path in MODULES:
        if path.relative_to(SERVICE).parts[0] != "storage":
            wrong = {"select", "execute", "Row", "text"} & set(sqlalchemy_names(path.read_text()))
            assert not wrong, path
