"""Options of the whole test suite."""

from __future__ import annotations

import os

import pytest

# Postgres is started by a fork that runs another program at once. gRPC would stop its channels for it, and was seen
# not to go on: before it is imported, it is told that there is nothing to prepare.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long forms of the reliability tests, as `make chaos`")
    parser.addoption(
        "--on-gpu", action="store_true", help="let what asks for the CPU run on the GPU, as `make test-gpu`"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--on-gpu"):
        from homophily import DeviceUnavailableError, backend

        try:
            backend._NUMPY = backend.get_backend("cupy")
        except DeviceUnavailableError as error:
            raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the long form of a test is wanted; the short one does the same, less often."""
    return bool(request.config.getoption("--long"))
