"""The benchmark's client gets the answers that gRPC's own gets."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from benchmarks.light_client import LightClient
from benchmarks.service import PREDICT
from homophily_client._pb import model_pb2, points_pb2
from homophily_client.tensors import to_tensor

from .serving import Project, Service

X = np.random.default_rng(0).normal(size=(30, 3))


def test_a_light_client_is_answered_as_any_other_and_told_of_failure(service: Service, project: Project) -> None:
    model = project.model(X, {0: "a", 1: "b", 2: "a"})
    requests = [
        model_pb2.PredictRequest(name=model.name, points=points_pb2.Points(dense=to_tensor(X[point : point + 1] + 0.1)))
        for point in range(len(X))
    ]

    async def ask() -> list[bytes]:
        client = await LightClient.connect(service.target, PREDICT)
        # More than the first window holds, so that the service must have opened it again.
        answers = [await client.call(request.SerializeToString()) for request in requests * 40]
        with pytest.raises(RuntimeError, match="refused"):
            await client.call(model_pb2.PredictRequest(name="nothing").SerializeToString())
        client.close()
        return answers

    expected = [project.stub.Predict(request) for request in requests]
    assert [model_pb2.PredictResponse.FromString(answer) for answer in asyncio.run(ask())] == expected * 40
