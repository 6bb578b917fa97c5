"""Hundreds of jobs at a time from one asyncio process: submitted, watched and read, with uploads beside them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from homophily_client import AsyncClient, JobEvent, Model

from .conftest import MakeCluster
from .harness import eventually

JOBS, UPLOADS = 200, 20
ROWS = 20


def cloud(seed: int) -> tuple[Any, dict[int, int]]:
    """Points of two classes, one of which is far from the other, and two labels."""
    y = np.arange(ROWS) % 2
    return np.random.default_rng(seed).normal(10.0 * y[:, None], 1.0, (ROWS, 3)), {0: 0, 1: 1}


async def one_job(client: AsyncClient, seed: int) -> tuple[list[JobEvent], Model, Any]:
    X, y = cloud(seed)
    job = await client.fit(X, y, graph={"n_neighbors": 5}, solver={"method": "irr"})
    events = [event async for event in job.watch()]
    model = await job.result()
    return events, model, (await client.read_solution(model)).labels


async def all_at_once(target: str) -> tuple[list[Any], list[Any], float]:
    async with AsyncClient(target, timeout=120.0) as client:
        start = time.monotonic()
        uploads = [client.upload(cloud(seed)[0], name=f"upload-{seed}") for seed in range(UPLOADS)]
        jobs = [one_job(client, seed) for seed in range(JOBS)]
        done = await asyncio.gather(*jobs, *uploads)
        seconds = time.monotonic() - start
        names = {dataset.name async for dataset in client.list_datasets()}
        assert {dataset.name for dataset in done[JOBS:]} <= names
    # What is left over of a call would still be here.
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
    return done[:JOBS], done[JOBS:], seconds


def open_sockets() -> int:
    """The network connections of this process."""
    links = (os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(link.startswith("socket:") for link in links)


def test_two_hundred_jobs_of_one_process_all_succeed_and_leave_nothing_open(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(workers=1, max_queued_jobs=JOBS)
    cluster.serve()
    before = open_sockets()
    jobs, uploads, seconds = asyncio.run(all_at_once(f"127.0.0.1:{cluster.port}"))
    print(f"\n{JOBS} jobs and {UPLOADS} uploads in {seconds:.1f} s")
    for events, model, labels in jobs:
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert (events[0].state, events[-1].state) == ("queued", "succeeded")
        assert labels.tolist() == [0, 1] * (ROWS // 2)
        assert model.points == ROWS
    assert len({model.name for _, model, _ in jobs}) == JOBS
    assert len({dataset.name for dataset in uploads}) == UPLOADS
    eventually("the connections are closed", lambda: open_sockets() <= before)
    assert cluster.exceptions() == []
