"""What the tests need that is not everywhere."""

from __future__ import annotations

import os

import pytest


def skip_unless_ci(reason):
    """Skip what cannot be run here; where tests are run for everybody (the variable CI is set), it must be."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (a skip outside of CI)")
    pytest.skip(reason)
