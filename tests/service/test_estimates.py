"""Memory and time of jobs, estimated before they are queued, and limited while they run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import grpc
import numpy as np
import pytest

from homophily_client._pb import job_pb2, model_pb2
from homophily_service.contract.errors import LimitExceeded
from homophily_service.jobs.estimates import Cost, check_cost, estimate, fit_cost

from .serving import Project, refusal

GIB = 1 << 30
GRAPH = {"n_neighbors": 10, "space": "input"}


def fitted(rows: int, columns: int = 20, **more: Any) -> Cost:
    settings: dict[str, Any] = {"graph": GRAPH, "method": "err", "solver": {}, "classes": 2} | more
    return fit_cost(rows, rows * columns, columns=columns, **settings)


def test_what_people_fit_on_a_laptop_is_let_through() -> None:
    for cost in (
        fitted(60_000, 784),
        fitted(1_000_000, 3, solver={"power": 1}),
        fitted(1_500, 12_000, classes=20),
        fitted(10_000, 500, graph=GRAPH | {"n_neighbors": 80}),
        fitted(1_000_000, 3, method="irr"),
    ):
        check_cost(cost, 8 * GIB, 3600.0, threads=2)


@pytest.mark.parametrize(
    "cost",
    [
        fitted(20_000, graph=GRAPH | {"n_neighbors": 10_000}),
        fitted(500_000, graph=GRAPH | {"n_neighbors": 200}),
        fitted(20_000_000, classes=1000),
        fitted(100_000, solver={"power": 8}),
        fitted(200_000, solver={"relationship_neighbors": 100_000}),
        estimate(20_000_000, 0, columns=2, graph=GRAPH, power=1, classes=100),
    ],
)
def test_what_no_worker_can_hold_is_refused_with_the_figures(cost: Cost) -> None:
    with pytest.raises(LimitExceeded, match=r"needs about [\d,.]+ GiB of memory, a worker has 4\.0 GiB: use fewer"):
        check_cost(cost, 4 * GIB, 86400.0, threads=2)


def test_what_cannot_end_in_time_is_refused_with_the_figures() -> None:
    cost = fitted(30_000, graph=GRAPH | {"n_neighbors": 5_000})
    with pytest.raises(LimitExceeded, match=r"needs at least [\d,]+ s, its time limit is 60 s") as caught:
        check_cost(cost, 1000 * GIB, 60.0, threads=2)
    assert caught.value.reason == "JOB_TOO_LONG"


def test_a_query_of_death_is_refused_at_the_call(idle_project: Project) -> None:
    """60 bytes × points × k, for k up to 10,000, took down one worker after the other."""
    dataset = idle_project.upload(np.random.default_rng(0).normal(size=(60_000, 2)).astype(np.float32))
    labels = {0: 0, 1: 1}
    graph = model_pb2.GraphParameters(n_neighbors=10_000)
    answer = refusal(idle_project.stub.Fit, idle_project.fit_request(dataset.name, labels, graph=graph))
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "JOB_TOO_LARGE")
    assert "GiB" in answer.message
    answer = refusal(idle_project.stub.Embed, idle_project.embed_request(dataset.name, [(0, 1)], graph=graph))
    assert answer.reason == "JOB_TOO_LARGE"
    often = job_pb2.JobOptions(max_attempts=100)
    answer = refusal(idle_project.stub.Fit, idle_project.fit_request(dataset.name, labels, options=often))
    assert (answer.code, answer.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["options.max_attempts"])
    assert "between 1 and 10; got 100" in answer.message


def test_a_computing_process_gets_no_more_memory_than_its_limit() -> None:
    program = """
import numpy as np
from pathlib import Path
from homophily_service.runtime.processes import limit_memory
limit_memory(1 << 30)
np.ones(1 << 26)
try:
    np.ones(1 << 28)
except MemoryError:
    print(Path("/proc/self/oom_score_adj").read_text().strip())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "1000\n"
