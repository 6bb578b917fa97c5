"""Options of the whole test suite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .service.databases import Postgres

# The tests run gRPC with its defaults. It reads these variables when it is imported, which is after this file.
for name in [name for name in os.environ if name.startswith("GRPC_")]:
    del os.environ[name]
# Several processes run tests at once: libraries that wait for threads of their own would take their cores. numba's are
# left, as the core counts its own threads by them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

#: The files that take longest. They are run first, so that no process is left with one of them at the end.
SLOWEST = (
    "service/test_tracking.py",
    "system/test_machines.py",
    "system/test_kills.py",
    "system/test_tracking.py",
    "service/test_readme.py",
    "system/test_outages.py",
    "system/test_frozen.py",
    "service/test_pictures.py",
    "system/test_search.py",
    "system/test_damage.py",
    "service/test_observability.py",
    "service/test_demo.py",
    "system/test_stopping.py",
    "service/test_queue.py",
    "system/test_cancel.py",
    "system/test_memory.py",
    "system/test_attempts.py",
    "system/test_predictors.py",
    "service/test_predictor.py",
    "client/test_reflection.py",
    "client/test_real_server.py",
    "service/test_api_server.py",
    "service/test_upgrades.py",
    "system/test_node_client.py",
    "system/test_device.py",
    "benchmarks/test_tables.py",
)

#: Tests in the files of `make test-gpu` whose subject a GPU does not have, and why.
OF_THE_CPU = {
    "test_large_data_report_the_recall_of_their_search": "a GPU searches among all pairs",
    "test_one_against_the_rest_mostly_agrees_with_the_vector_form": "it names the CPU's engine",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long forms of the reliability tests, as `make chaos`")
    parser.addoption(
        "--on-gpu", action="store_true", help="let what asks for the CPU run on the GPU, as `make test-gpu`"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--on-gpu"):
        from homophily import DeviceUnavailableError
        from homophily.device import backend

        try:
            backend._NUMPY = backend.get_backend("cupy")
        except DeviceUnavailableError as error:
            raise pytest.UsageError(str(error)) from error
        _keep_the_dense_engine()


def _keep_the_dense_engine() -> None:
    """Energies by the dense engine, which others are held against, are left to the CPU: a GPU has no such engine."""
    from homophily.device.gpu.operations import GpuOperations
    from homophily.device.operations import CpuOperations

    on_device = GpuOperations.evaluate

    def evaluate(self: Any, F: Any, sigma_f: float, **how: Any) -> Any:
        if how["engine"] != "dense":
            return on_device(self, F, sigma_f, **how)
        return CpuOperations(self.laplacian, None).evaluate(F, sigma_f, **how)

    GpuOperations.evaluate = evaluate  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    ranks = {tests / file: rank for rank, file in enumerate(SLOWEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    if config.getoption("--on-gpu"):
        for item in items:
            reason = OF_THE_CPU.get(item.name) or OF_THE_CPU.get(item.name.partition("[")[0])
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"of the CPU alone: {reason}"))


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the long form of a test is wanted; the short one does the same, less often."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A Postgres server, one for each of the processes that run tests."""
    from .service.databases import Postgres  # takes seconds, which tests of the core need not pay

    server = Postgres()
    yield server
    server.close()
