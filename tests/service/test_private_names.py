"""The service uses the core by its public names only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import homophily_service

SERVICE = Path(homophily_service.__file__).parent
#: Public in spite of their underscore: those of named tuples, and Python's own.
PUBLIC = {"_asdict", "_fields", "_replace", "_exit"}


def private_names(source: str) -> Iterator[str]:
    """Attributes with an underscore of anything but ``self`` and ``cls``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr not in PUBLIC:
                yield node.attr


def test_no_private_attribute_of_another_object_is_read() -> None:
    paths = [path for path in SERVICE.rglob("*.py") if not path.name.endswith("_pb2.py")]
    assert {path.name: list(private_names(path.read_text(encoding="utf-8"))) for path in paths} == {
        path.name: [] for path in paths
    }


def test_private_attributes_are_seen() -> None:
    assert list(private_names("model._power + self._a + job._replace(x=1)")) == ["_power"]
