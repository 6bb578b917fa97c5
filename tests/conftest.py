"""Options of the whole test suite."""

from __future__ import annotations

import gc
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
# Several processes run tests at once: threads of libraries would compete for their cores. numba's number of threads is
# left, as the core takes its own from it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

# Imports and the collected tests make objects that stay: no garbage is looked for until all are there.
gc.disable()

#: The slowest files. They run first, so that none of them is left for the end.
SLOWEST = (
    "service/test_tracking.py",
    "system/test_machines.py",
    "system/test_kills.py",
    "system/test_tracking.py",
    "docs/test_examples.py",
    "system/test_outages.py",
    "system/test_frozen.py",
    "docs/test_backup.py",
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

#: Tests in the files of `make test-gpu` that do not apply to a GPU, and why.
OF_THE_CPU = {
    "test_large_data_report_the_recall_of_their_search": "a GPU searches among all pairs",
    "test_one_against_the_rest_mostly_agrees_with_the_vector_form": "it names the CPU's engine",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="run the long forms of the reliability tests, as `make chaos` does"
    )
    parser.addoption("--on-gpu", action="store_true", help="run tests for the CPU on the GPU, as `make test-gpu` does")


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
    """Leave the dense engine, with which others are compared, to the CPU: a GPU has no such engine."""
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
                item.add_marker(pytest.mark.skip(reason=f"for the CPU only: {reason}"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether to run the long form of a test; the short one does the same, less often."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A Postgres server, one per process that runs tests."""
    from .service.databases import Postgres  # takes seconds, which tests of the core need not wait for

    server = Postgres()
    yield server
    server.close()
