"""Fixtures of the service that tests of its client share."""

from __future__ import annotations

from ..service.conftest import closed_after_the_module, closed_after_the_test, service  # noqa: F401
