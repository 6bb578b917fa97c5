"""Modules of deploy/, which is no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def load(path: str) -> ModuleType:
    """The module at a path in deploy/."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), DEPLOY / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
