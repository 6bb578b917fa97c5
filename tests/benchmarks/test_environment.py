"""Benchmarks run gRPC with an option of their own; nobody who imports them shall have it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_importing_the_benchmarks_changes_no_environment() -> None:
    script = "import os; before = dict(os.environ); import benchmarks; assert os.environ == before"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=clean, check=True)


def test_the_tests_run_with_grpcs_defaults() -> None:
    # All test files were imported to find this test.
    assert [name for name in os.environ if name.startswith("GRPC_")] == []
