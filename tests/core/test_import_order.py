"""Imports inside the core go one way: a package may import those before it in the order, never those after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import homophily

CORE = Path(homophily.__file__).parent

#: Those of the first line may be imported by all; ``homophily`` itself imports all and is imported by none.
ORDER = (
    ("arrays", "exceptions", "parameters", "scikit_learn", "state", "threads"),
    ("tables",),
    ("graph",),
    ("relationship",),
    ("solve",),
    ("supervision",),
    ("device",),
    ("estimators",),
    ("baselines",),
    ("storage",),
    ("selection", "model_selection"),
    ("active",),
    ("",),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}


def name_of(path: Path) -> str:
    parts = path.relative_to(CORE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(CORE.rglob("*.py"))}


def part_of(module: str) -> str:
    """The package of a module, or the module itself where it is in none."""
    return module.partition(".")[2].partition(".")[0]


def imports(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """The modules of the core that a source imports anywhere, those inside of functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "homophily")
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base.split(".")[0] == "homophily":
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield inner if inner in MODULES else base


def backward(module: str, source: str, *, is_package: bool = False) -> set[tuple[str, str]]:
    found = set(imports(module, source, is_package=is_package))
    return {(module, imported) for imported in found if RANK[part_of(imported)] > RANK[part_of(module)]}


def test_every_module_has_a_place_in_the_order():
    assert {part_of(module) for module in MODULES} == set(RANK)


def test_no_import_points_backwards():
    found = set()
    for module, path in MODULES.items():
        found |= backward(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "import homophily.selection.driver",
        "from homophily.selection.driver import find",
        "from homophily.selection import driver",
        "from ..selection.driver import find",
        "from ..selection import driver as search",
        "def choose():\n    from homophily.selection.driver import find",
        "if TYPE_CHECKING:\n    from homophily.selection.driver import find",
    ],
)
def test_imports_are_seen_in_every_form(source):
    module = "homophily.estimators.transduction"
    assert backward(module, source) == {(module, "homophily.selection.driver")}


@pytest.mark.parametrize(
    ("module", "source", "allowed"),
    [
        ("homophily.graph.knn_graph", "from homophily.graph.neighbors import read_only", True),
        ("homophily.solve.irr", "from homophily.exceptions import HomophilyWarning", True),
        ("homophily.device.gpu.linear", "from homophily.solve import irr", True),
        ("homophily.baselines.sl", "from homophily.estimators.partition import normalized_cut", True),
        ("homophily.storage", "from homophily.estimators.classifiers import ERRClassifier", True),
        ("homophily.storage", "from homophily.selection import Search", False),
        ("homophily.threads", "from homophily.graph.laplacian import BLOCK", False),
        ("homophily.estimators.partition", "from homophily.baselines import CSP", False),
        ("homophily.graph.spectral", "from homophily import KNNGraph", False),
        ("homophily.graph.spectral", "import homophily", False),
        ("homophily", "from homophily.selection import Search", True),
    ],
)
def test_the_order_says_who_may_import_whom(module, source, allowed):
    assert (backward(module, source) == set()) is allowed


def test_only_the_device_package_asks_what_device_it_is_on():
    for module, path in MODULES.items():
        if part_of(module) != "device":
            assert "CupyBackend" not in path.read_text(encoding="utf-8"), module
