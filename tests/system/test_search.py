"""A search whose trials are spread over workers outlives them, and finds what it would have found alone."""

from __future__ import annotations

import random
import signal
import time

from homophily_client._pb import job_pb2, model_pb2
from homophily_service.contract import states

from .conftest import MakeCluster
from .harness import Cluster, eventually, fit_request, signal_to


def search_request(points: int, **search: object) -> job_pb2.FitRequest:
    return fit_request(3, points, 3, search=model_pb2.SearchParameters(**search))


def found(cluster: Cluster, name: object) -> model_pb2.Model:
    job = cluster.ended(name)
    assert job.state == states.SUCCEEDED, job.outcome
    cluster.has_one_end(name)
    return job_pb2.FitResult.FromString(job.outcome).model


def test_a_spread_search_survives_the_death_of_workers(make_cluster: MakeCluster, long: bool) -> None:
    cluster = make_cluster()
    workers = [cluster.worker() for _ in range(2)]
    points, trials, most_kills, longest_pause = (400, 24, 40, 2.0) if long else (200, 12, 2, 0.5)
    alone = found(cluster, cluster.submit_fit(search_request(points, trials=trials)))
    assert len(alone.search.trials) == trials

    rng = random.Random(0)
    name = cluster.submit_fit(search_request(points, trials=trials, spread=True), max_attempts=1000)
    kills = 0
    while cluster.job(name).state not in states.FINAL and kills < most_kills:
        eventually("trials run", lambda: cluster.children() or cluster.job(name).state in states.FINAL)
        time.sleep(rng.uniform(0.0, longest_pause))
        if rng.random() < 0.5:
            place = rng.randrange(len(workers))
            workers[place].kill()
            workers[place] = cluster.worker()
        elif children := cluster.children():
            signal_to(rng.choice(children), signal.SIGKILL)
        kills += 1
    model = found(cluster, name)
    assert kills >= 2
    assert model.search.best == alone.search.best
    assert model.solver_parameters == alone.solver_parameters
    assert model.graph_parameters == alone.graph_parameters
    tried = [[(trial.number, trial.error_rate, trial.score) for trial in one.search.trials] for one in (model, alone)]
    assert tried[0] == tried[1]
    for child in cluster.queue.children(name):
        assert child.state == states.SUCCEEDED
