"""The models that a predictor keeps in memory."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np

from homophily_service._pb import model_pb2

from .serving import inline, refusal, running

X = np.random.default_rng(0).normal(size=(40, 3)) + 9.0 * (np.arange(40) % 2)[:, None]
IRR = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR)


def test_a_predictor_forgets_the_model_that_was_used_longest_ago(tmp_path: Path) -> None:
    with running(tmp_path, predictor_models=2) as service:
        project = service.project()
        points = project.upload(X).name
        a, b, c = (project.model(points, {0: 0, 1: 1, 2 + point: 0}, solver=IRR).name for point in (0, 2, 4))
        answers = {name: project.predict(name, X[:9]) for name in (a, b, a, c)}
        # What is in memory needs no files.
        models = tmp_path / "blobs" / "models"
        models.rename(tmp_path / "elsewhere")
        for name in (a, c):
            assert project.predict(name, X[:9]) == answers[name]
        request = model_pb2.PredictRequest(name=b, points=inline(X[:9]))
        assert refusal(project.stub.Predict, request).code is grpc.StatusCode.NOT_FOUND
        (tmp_path / "elsewhere").rename(models)
        assert project.predict(b, X[:9]) == answers[b]
