"""Where jobs are computed. A device is the stand-in for CuPy of ``tests/gpu``, found in the place of the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from homophily.device.backend import get_backend
from homophily.exceptions import DeviceUnavailableError
from homophily_client._pb import job_pb2, model_pb2
from homophily_client.names import JobName
from homophily_service.contract import states

from ..gpu import emulator
from ..gpu.needs import skip_unless_ci
from ..service.serving import production_path
from .conftest import MakeCluster
from .harness import Cluster, Process, eventually, fit_request, free_port

ROOT = Path(__file__).parents[2]
# Fails in the first launch of a job while a file exists, and for the rest of the process; warming up goes well.
STANDIN = """
import os, sys, traceback
from tests.gpu import standin

watched = standin._synchronize

def check():
    if os.path.exists({broken!r}) and "compute" in [frame.name for frame in traceback.extract_stack()]:
        standin.counters.fails_after = 0
    watched()

standin._synchronize = check
sys.modules[__name__] = standin.module()
"""


def test_a_worker_without_its_gpu_says_so_and_takes_nothing(make_cluster: MakeCluster) -> None:
    try:
        get_backend("cupy")
    except DeviceUnavailableError:
        pass
    else:
        pytest.skip("this machine has a GPU")
    cluster = make_cluster()
    lost = cluster.worker(device="cuda:0")
    name = cluster.submit_fit(fit_request(0))
    eventually(
        "it says what is missing", lambda: cluster.logged(lost, "cannot compute on cuda:0: backend='cupy' needs")
    )
    assert cluster.job(name).state == states.QUEUED
    cluster.worker(device="auto")
    job = cluster.ended(name)
    assert job_pb2.FitResult.FromString(job.outcome).model.device == "cpu"


def test_each_worker_of_a_server_has_a_device_of_its_own_and_so_have_predictors(make_cluster: MakeCluster) -> None:
    server = make_cluster().serve(workers=2, device="cuda:101,102", predictors=1, predict_device="cuda:103")
    for device in ("compute on cuda:101", "compute on cuda:102", "predict on cuda:103, so the CPU does"):
        words = f"cannot {device}: backend='cupy' needs"
        eventually(f"a process asks to {device}", lambda words=words: words in server.log.read_text())


class OnStandin:
    """A cluster whose worker computes on the stand-in, which can be broken."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.broken, self.metrics_port = cluster, cluster.folder / "broken", free_port()
        packages = cluster.folder / "packages"
        for name, text in (("cupy", STANDIN.format(broken=str(self.broken))), ("cupyx", "")):
            (packages / name).mkdir(parents=True)
            (packages / name / "__init__.py").write_text(text)
        self.path = f"PYTHONPATH={packages}:{ROOT}:{production_path()}"

    def worker(self) -> Process:
        return self.cluster.worker(("env", self.path), device="cuda:0", metrics_port=self.metrics_port)

    def submit(self, seed: int) -> JobName:
        """Queue a short job whose energy is computed by kernels."""
        solver = model_pb2.SolverParameters(sharpen=False, power=1, max_iter=2)
        return self.cluster.submit_fit(fit_request(seed, 60, solver=solver))

    def is_ready(self) -> bool:
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            return "homophily_worker_ready 1.0" in answer.read().decode()


@pytest.fixture
def on_standin(make_cluster: MakeCluster) -> OnStandin:
    if emulator.missing_compiler:
        skip_unless_ci(emulator.missing_compiler)
    return OnStandin(make_cluster())


def device_of(job: Any) -> str:
    return str(job_pb2.FitResult.FromString(job.outcome).model.device)


def test_a_failed_gpu_ends_the_child_and_one_that_fails_twice_leaves_jobs_to_other_workers(
    on_standin: OnStandin,
) -> None:
    cluster = on_standin.cluster
    worker = on_standin.worker()
    assert device_of(cluster.ended(on_standin.submit(0))) == "cuda:0"
    first = cluster.child_of(worker)
    on_standin.broken.touch()
    name = on_standin.submit(1)
    eventually("the failure is noticed", lambda: cluster.logged(worker, "the GPU failed"))
    on_standin.broken.unlink()
    job = cluster.ended(name)
    assert (device_of(job), job.attempt) == ("cuda:0", 2)
    assert cluster.child_of(worker) != first

    # After a success, failures are counted anew.
    eventually("it is ready", on_standin.is_ready)
    on_standin.broken.touch()
    name = on_standin.submit(2)
    eventually("it gives up", lambda: cluster.logged(worker, "failed 2 times in a row: no jobs for"))
    assert cluster.job(name).attempt == 2
    assert not on_standin.is_ready()
    cluster.worker(device="cpu")
    job = cluster.ended(name)
    assert (device_of(job), job.attempt) == ("cpu", 3)
