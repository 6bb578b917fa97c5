"""Models: get, list, delete; answers for new points and for a model's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_service._pb import model_pb2
from homophily_service.client.answers import Prediction, Solution
from homophily_service.client.base import INLINE_BYTES, Base, from_tensor
from homophily_service.client.errors import Unavailable
from homophily_service.client.labels import class_array
from homophily_service.client.parameters import choice
from homophily_service.client.points import Points
from homophily_service.client.results import Model
from homophily_service.names import ModelName

# New points in one call at most, so that answers stay small too when points have few features.
PREDICT_ROWS = 10_000

_FIELDS = {
    "labels": model_pb2.SOLUTION_FIELD_CLASS_INDICES,
    "scores": model_pb2.SOLUTION_FIELD_SCORES,
    "values": model_pb2.SOLUTION_FIELD_VALUES,
    "probabilities": model_pb2.SOLUTION_FIELD_PROBABILITIES,
}


class Models(Base):
    """The calls about models."""

    def get_model(self, model: Model | str) -> Model:
        """A model's description."""
        request = model_pb2.GetModelRequest(name=str(self._name(ModelName, model, "model")))
        return Model.from_message(self._connection.call(self._stub.GetModel, request).model)

    def list_models(self) -> Iterator[Model]:
        """The project's models, newest first."""
        request = model_pb2.ListModelsRequest(parent=self._parent)
        for page in self._pages(self._stub.ListModels, request):
            yield from map(Model.from_message, page.models)

    def delete_model(self, model: Model | str) -> None:
        """Delete a model. Models that were made from it stay."""
        request = model_pb2.DeleteModelRequest(name=str(self._name(ModelName, model, "model")))
        self._connection.delete(self._stub.DeleteModel, request)

    def predict(self, model: Model | str, X: Any, *, probabilities: bool = False) -> Prediction:
        """The classes and scores of new points, given as for ``upload``; many points take several calls.

        ``probabilities`` needs a model that was fitted with calibrate=True.
        """
        name = str(self._name(ModelName, model, "model"))
        points = Points(X)
        found: dict[str, NDArray[Any]] = {}
        classes: NDArray[Any] = np.empty(0)
        # No rows make one call too, so that the server says what it thinks of that.
        for start, stop in list(points.batches(INLINE_BYTES, PREDICT_ROWS)) or [(0, 0)]:
            request = model_pb2.PredictRequest(
                name=name, points=points.message(start, stop), probabilities=probabilities
            )
            answer = self._connection.call(self._stub.Predict, request)
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

    def read_solution(self, model: Model | str, fields: Iterable[str] = ("labels",)) -> Solution:
        """The answers for the points that a model was fitted on.

        ``fields`` are "labels", "scores", "values" and "probabilities" (with calibrate=True only).
        """
        fields = tuple(dict.fromkeys(fields))
        numbers = [choice(_FIELDS, field, "fields") for field in fields]
        described = model if isinstance(model, Model) else self.get_model(model)
        request = model_pb2.ReadSolutionRequest(
            name=described.name, fields=[model_pb2.SolutionField.ValueType(number) for number in numbers]
        )
        found: dict[str, NDArray[Any]] = {}
        patience = self._connection.long()
        while request.start < described.points:
            try:
                for answer in self._connection.stream(self._stub.ReadSolution, request):
                    patience.renew()
                    for field, tensor in zip(fields, answer.tensors, strict=True):
                        part = from_tensor(tensor)
                        if field not in found:
                            found[field] = np.empty((described.points, *part.shape[1:]), dtype=part.dtype)
                        found[field][answer.start : answer.start + answer.count] = part
                    request.start = answer.start + answer.count
                failure = Unavailable(f"the solution of {described.name} broke off at point {request.start}")
            except Unavailable as error:
                failure = error
            if request.start < described.points:
                patience.wait(failure)
        return Solution(np.array(described.classes), class_indices=found.pop("labels", None), **found)
