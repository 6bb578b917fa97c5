"""Where jobs are computed."""

from __future__ import annotations

import pytest

from homophily.device.backend import get_backend
from homophily.exceptions import DeviceUnavailableError
from homophily_client._pb import job_pb2
from homophily_service.contract import states

from .conftest import MakeCluster
from .harness import eventually, fit_request


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
