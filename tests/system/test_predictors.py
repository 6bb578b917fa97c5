"""A predictor that is killed costs the calls it was answering, and no others."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc

from homophily_client._pb import model_pb2
from homophily_service.contract import states

from .conftest import MakeCluster
from .harness import PATIENCE, Client, clouds, code, eventually, fit_request, points, signal_to

CALLERS = 4
SECONDS_BETWEEN_CALLS = 0.02


def test_predict_works_again_a_moment_after_predictors_were_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.serve(workers=1, predictors=2)
    client = cluster.client()
    name = client.submit("Fit", fit_request(0))
    assert cluster.ended(name).state == states.SUCCEEDED
    X, _ = clouds(0)
    request = model_pb2.PredictRequest(name=client.job(name).fit.model.name, points=points(X[:50] + 0.1))
    answer = client.call("Predict", request)
    predictors = eventually("both predictors run", lambda: len(pids := cluster.running("predictor")) == 2 and pids)
    answered: Counter[str] = Counter()
    enough = threading.Event()

    def ask(client: Client) -> None:
        while not enough.wait(SECONDS_BETWEEN_CALLS):
            try:
                assert client.stub.Predict(request, timeout=PATIENCE) == answer
                answered["OK"] += 1
            except grpc.RpcError as error:
                answered[code(error).name] += 1

    with ThreadPoolExecutor(CALLERS) as pool:
        calls = [pool.submit(ask, cluster.client()) for _ in range(CALLERS)]
        try:
            for victims in (predictors[:1], None):
                before = answered["OK"]
                for pid in victims or cluster.running("predictor"):
                    signal_to(pid, signal.SIGKILL)
                eventually("Predict works again", lambda: answered["OK"] > before + 2 * CALLERS)  # noqa: B023
        finally:
            enough.set()
        for call in calls:
            call.result()
    assert answered.keys() <= {"OK", "UNAVAILABLE"}
    # At each of the two kills, those that were being answered.
    assert answered["UNAVAILABLE"] <= 2 * CALLERS
    assert client.call("Predict", request) == answer
    assert cluster.exceptions() == []
