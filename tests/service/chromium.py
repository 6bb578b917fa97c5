"""Whether there is a browser for the tests of pages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.browser import chromium


def need_chromium() -> None:
    """Skip a test without a browser; fail if CI is set, where all tests must run."""
    if chromium() is None:
        reason = f"Chromium is not installed: {_why_no_chromium()}"
        assert "CI" not in os.environ, f"{reason}; continuous integration must check the pages"
        pytest.skip(reason)


def _why_no_chromium() -> str:
    """The last line of apt's output when `make test` tried to install it."""
    said = Path(sys.prefix) / "chromium.log"
    lines = said.read_text().splitlines() if said.is_file() else []
    return lines[-1] if lines else "install Debian's package `chromium`"
