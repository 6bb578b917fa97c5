"""Modules that scikit-learn imports and homophily does not use are imported by those who do use them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from homophily.scikit_learn import postponed

from ..patience import COMPUTING_SECONDS

PROGRAM = """
import sys
import homophily

slow = ("scipy.stats", "pandas", "sklearn.cluster", "sklearn.metrics", "sklearn.feature_extraction", "scipy.optimize")
assert not [name for name in slow if name in sys.modules]

import scipy, sklearn.utils.fixes
assert sklearn.utils.fixes._mode([1, 2, 2])[0] == 2
assert "scipy.stats" in sys.modules and scipy.stats is sys.modules["scipy.stats"]
from scipy.stats import rankdata
import pandas
assert sklearn.utils.fixes.pd.DataFrame is pandas.DataFrame
from sklearn.cluster import KMeans
"""


def test_importing_homophily_leaves_slow_modules_to_those_who_use_them() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=COMPUTING_SECONDS)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "slow_to_import.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_to_import", raising=False)
    return "slow_to_import"


def test_a_postponed_module_is_imported_when_something_of_it_is_used(module: str) -> None:
    with postponed(module):
        early = import_module(module)
    assert module not in sys.modules
    assert early.answer == 42
    assert sys.modules[module].answer == 42


def test_a_postponed_module_may_be_used_at_once(module: str) -> None:
    with postponed(module):
        from slow_to_import import answer
    assert answer == 42
    assert sys.modules[module].answer == 42


def test_a_module_that_is_not_installed_stays_missing() -> None:
    with postponed("not_installed_anywhere"), pytest.raises(ModuleNotFoundError):
        import_module("not_installed_anywhere")


def test_a_module_that_is_there_already_stays(module: str) -> None:
    before = import_module(module)
    with postponed(module):
        assert import_module(module) is before
    assert sys.modules[module] is before
