"""Several servers and workers on one database and one store of arrays, as on several machines."""

from __future__ import annotations

from collections import Counter

from homophily_service import queue

from .conftest import MakeCluster, Postgres
from .harness import fit_request, free_port

JOBS, DATASETS = 60, 4


def test_two_servers_and_three_workers_do_each_job_once(make_cluster: MakeCluster, postgres: Postgres) -> None:
    cluster = make_cluster(database_url=postgres.new_database())
    # Uploads are of one machine; what they become, of all.
    blobs, other_port = str(cluster.folder / "shared-blobs"), free_port()
    cluster.serve(blobs_url=blobs)
    cluster.serve(blobs_url=blobs, port=other_port, data_dir=cluster.folder / "other-data")
    for number in range(3):
        cluster.worker(blobs_url=blobs, data_dir=cluster.folder / f"worker-data-{number}")
    here, there = clients = cluster.client(), cluster.client(other_port)

    # The first job on a dataset builds its graph; those that start at the same time would build it too.
    names = [clients[seed % 2].submit("Fit", fit_request(seed)) for seed in range(DATASETS)]
    for name in names:
        cluster.ended(name)
    names += [clients[number % 2].submit("Fit", fit_request(number % DATASETS)) for number in range(DATASETS, JOBS)]

    workers, reused, digests = Counter(), Counter(), set()
    for name in names:
        job = cluster.ended(name)
        assert (job.state, job.attempt) == (queue.SUCCEEDED, 1)
        cluster.has_one_end(name)
        model = here.job(name).fit.model
        assert there.job(name).fit.model == model
        solution = here.solution(model.name)
        assert (there.solution(model.name) == solution).all()
        assert len(solution) == model.points
        workers[job.worker] += 1
        reused[model.graph.reused] += 1
        digests.add(model.graph.digest)
    assert reused == {False: DATASETS, True: JOBS - DATASETS}
    assert len(digests) == DATASETS
    assert len(workers) == 3, workers
    assert cluster.exceptions() == []
