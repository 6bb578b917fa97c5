"""Fixtures of the service's tests that those of the documentation share."""

from __future__ import annotations

from ..service.conftest import closed_after_the_module, closed_after_the_test, s3_endpoint, s3_url  # noqa: F401
