"""Models: get, list, delete; answers for new points and for a model's own points."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client._async.base import INLINE_BYTES, AsyncBase
from homophily_client._pb import model_pb2
from homophily_client.arrays import Prediction, Solution
from homophily_client.labels import class_array
from homophily_client.names import ModelName
from homophily_client.points import Points
from homophily_client.results import Model
from homophily_client.tensors import from_tensor

# The most new points in one call, so that answers stay small when points have few features.
PREDICT_ROWS = 10_000

_FIELDS = {
    "labels": model_pb2.SOLUTION_FIELD_CLASS_INDICES,
    "scores": model_pb2.SOLUTION_FIELD_SCORES,
    "values": model_pb2.SOLUTION_FIELD_VALUES,
    "probabilities": model_pb2.SOLUTION_FIELD_PROBABILITIES,
}


class AsyncModels(AsyncBase):
    """The calls about models."""

    async def get_model(self, model: Model | str, *, timeout: float | None = None) -> Model:
        """Return a model's description."""
        request = model_pb2.GetModelRequest(name=str(self._name(ModelName, model, "model")))
        return Model.from_message((await self._connection.call("GetModel", request, timeout=timeout)).model)

    async def list_models(self, *, timeout: float | None = None) -> AsyncIterator[Model]:
        """Yield the project's models, newest first."""
        request = model_pb2.ListModelsRequest(parent=self._parent)
        async for page in self._pages("ListModels", request, timeout):
            for message in page.models:
                yield Model.from_message(message)

    async def delete_model(self, model: Model | str, *, timeout: float | None = None) -> None:
        """Delete a model. Models that were made from it stay."""
        request = model_pb2.DeleteModelRequest(name=str(self._name(ModelName, model, "model")))
        await self._connection.delete("DeleteModel", request, timeout)

    async def predict(
        self, model: Model | str, X: Any, *, probabilities: bool = False, timeout: float | None = None
    ) -> Prediction:
        """Return the classes and scores of new points, given as for ``upload``; many points take several calls.

        ``probabilities`` needs a model that was fitted with calibrate=True.
        """
        name = str(self._name(ModelName, model, "model"))
        points = Points(X)
        found: dict[str, NDArray[Any]] = {}
        classes: NDArray[Any] = np.empty(0)
        # Without rows there is still one call, as the server reports the error.
        for start, stop in list(points.batches(INLINE_BYTES, PREDICT_ROWS)) or [(0, 0)]:
            request = model_pb2.PredictRequest(
                name=name, points=points.message(start, stop), probabilities=probabilities
            )
            answer = await self._connection.call("Predict", request, timeout=timeout)
            classes = class_array(answer.classes)
            parts = {
                "class_indices": np.array(answer.class_indices, dtype=np.int32),
                "scores": from_tensor(answer.scores),
            }
            if probabilities:
                parts["probabilities"] = from_tensor(answer.probabilities)
            for field, part in parts.items():
                if field not in found:
                    found[field] = np.empty((points.shape[0], *part.shape[1:]), dtype=part.dtype)
                found[field][start:stop] = part
        return Prediction(classes, found["class_indices"], found["scores"], found.get("probabilities"))

    async def read_solution(self, model: Model | str, fields: Iterable[str] = ("labels",)) -> Solution:
        """Return the answers for the points that a model was fitted on.

        ``fields`` are "labels", "scores", "values" and "probabilities" (with calibrate=True only).
        """
        fields = tuple(dict.fromkeys(fields))
        for field in fields:
            if field not in _FIELDS:
                raise ValueError(f"fields must be among {', '.join(map(repr, _FIELDS))}. Got {field!r} instead.")
        described = model if isinstance(model, Model) else await self.get_model(model)
        request = model_pb2.ReadSolutionRequest(name=described.name, fields=[_FIELDS[field] for field in fields])
        found: dict[str, NDArray[Any]] = {}

        def keep(answer: model_pb2.ReadSolutionResponse) -> int:
            for field, tensor in zip(fields, answer.tensors, strict=True):
                part = from_tensor(tensor)
                if field not in found:
                    found[field] = np.empty((described.points, *part.shape[1:]), dtype=part.dtype)
                found[field][answer.start : answer.start + answer.count] = part
            return described.points

        await self._ranges("ReadSolution", request, described.points, keep)
        return Solution(np.array(described.classes), class_indices=found.pop("labels", None), **found)
