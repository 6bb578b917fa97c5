"""Models: get, list, delete; answers for new points and for a model's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from homophily_client._pb import model_pb2
from homophily_client.names import DatasetName, ModelName
from homophily_client.tensors import to_tensor
from homophily_service.api.access import allowed_name, allowed_project
from homophily_service.api.budgets import held
from homophily_service.api.messages import next_page, page_asked
from homophily_service.api.rows import Given, ids_of
from homophily_service.contract.errors import FailedPrecondition, InvalidRequest
from homophily_service.predictor.pool import Predictors
from homophily_service.runtime.settings import Settings
from homophily_service.storage.blobs.objects import StoredRows
from homophily_service.storage.solutions import CLASS_INDICES, LABELLED, PROBABILITIES, SCORES, VALUES
from homophily_service.storage.stores import Stores

FIELDS = {
    model_pb2.SOLUTION_FIELD_CLASS_INDICES: CLASS_INDICES,
    model_pb2.SOLUTION_FIELD_SCORES: SCORES,
    model_pb2.SOLUTION_FIELD_VALUES: VALUES,
    model_pb2.SOLUTION_FIELD_PROBABILITIES: PROBABILITIES,
    model_pb2.SOLUTION_FIELD_GIVEN: LABELLED,
}
CHUNK_BYTES = 1 << 20
SECONDS_REMEMBERED = 1.0
MODELS_REMEMBERED = 100


class Models:
    """The calls about models."""

    stores: Stores
    settings: Settings
    predictors: Predictors

    def __init__(self) -> None:
        # The models used last: when they were looked up, their descriptions, the paths of their arrays.
        self._known: dict[ModelName, tuple[float, model_pb2.Model, str]] = {}

    async def GetModel(self, request: model_pb2.GetModelRequest, _: Any) -> model_pb2.GetModelResponse:
        """A model's description."""
        row = await asyncio.to_thread(self.stores.catalog.get, allowed_name(ModelName, request.name, "name"))
        return model_pb2.GetModelResponse(model=model_pb2.Model.FromString(row.message))

    async def ListModels(self, request: model_pb2.ListModelsRequest, _: Any) -> model_pb2.ListModelsResponse:
        """A page of models."""
        project = allowed_project(request.parent, "parent")
        asked = page_asked(request)
        dataset = str(allowed_name(DatasetName, request.dataset, "dataset")) if request.dataset else ""
        rows, has_more = await asyncio.to_thread(
            self.stores.catalog.page, ModelName.collection, project, asked, dataset=dataset
        )
        models = [model_pb2.Model.FromString(row.message) for row in rows]
        return model_pb2.ListModelsResponse(models=models, next_page_token=next_page(rows, has_more=has_more))

    async def DeleteModel(self, request: model_pb2.DeleteModelRequest, _: Any) -> model_pb2.DeleteModelResponse:
        """Delete the record of a model, then its arrays; its graph stays for others."""
        name = allowed_name(ModelName, request.name, "name")
        self._known.pop(name, None)
        blob = await asyncio.to_thread(self.stores.catalog.remove, name)
        await asyncio.to_thread(self.stores.discard, blob)
        return model_pb2.DeleteModelResponse()

    async def Predict(self, request: model_pb2.PredictRequest, _: Any) -> model_pb2.PredictResponse:
        """Answers for new points, by a predictor process."""
        name = allowed_name(ModelName, request.name, "name")
        model, blob = await self.described(name)
        if request.probabilities and not model.calibrated:
            raise FailedPrecondition(
                f"{name} was not fitted with calibrate: it has no probabilities", reason="NOT_CALIBRATED"
            )
        response = await self.predictors.predict(blob, model.graph.digest, request)
        response.classes.CopyFrom(model.classes)
        return response

    async def described(self, name: ModelName) -> tuple[model_pb2.Model, str]:
        """A model and the path of its arrays, cached for a second: it may be deleted by another server."""
        known = self._known.get(name)
        if known is None or time.monotonic() - known[0] > SECONDS_REMEMBERED:
            row = await asyncio.to_thread(self.stores.catalog.get, name)
            if len(self._known) >= MODELS_REMEMBERED:
                self._known.clear()
            known = self._known[name] = (time.monotonic(), model_pb2.Model.FromString(row.message), row.blob)
        return known[1], known[2]

    async def ReadSolution(
        self, request: model_pb2.ReadSolutionRequest, _: Any
    ) -> AsyncIterator[model_pb2.ReadSolutionResponse]:
        """The answers for a model's own points, in ranges of about a mebibyte."""
        name = allowed_name(ModelName, request.name, "name")
        fields = list(request.fields) or [model_pb2.SOLUTION_FIELD_CLASS_INDICES]
        for place, field in enumerate(fields):
            if field not in FIELDS:
                raise InvalidRequest(f"fields[{place}]", f"must be a known field; got {field}")
        if len(set(fields)) < len(fields):
            raise InvalidRequest("fields", "must be different from each other")
        row = await asyncio.to_thread(self.stores.catalog.get, name)
        model = model_pb2.Model.FromString(row.message)
        if model_pb2.SOLUTION_FIELD_PROBABILITIES in fields and not model.calibrated:
            raise FailedPrecondition(
                f"{name} was not fitted with calibrate: it has no probabilities", reason="NOT_CALIBRATED"
            )
        if not 0 <= request.start <= model.point_count:
            raise InvalidRequest("start", f"must be between 0 and {model.point_count}; got {request.start}")
        if request.count < 0:
            raise InvalidRequest("count", f"must be at least 0; got {request.count}")
        # The next rows are read when the caller has taken these.
        await held.get().take(2 * CHUNK_BYTES)
        arrays = await asyncio.to_thread(self._arrays, row.blob, fields)
        ids = await asyncio.to_thread(ids_of, self.stores, model) if request.ids else None
        read = arrays if ids is None else [*arrays, ids]
        step = max(1, CHUNK_BYTES // max(1, sum(array.row_bytes for array in read)))
        end = min(model.point_count, request.start + request.count) if request.count else model.point_count
        for start in range(request.start, end, step):
            stop = min(end, start + step)
            tensors = await asyncio.to_thread(lambda: [to_tensor(array.rows(start, stop)) for array in arrays])  # noqa: B023
            answer = model_pb2.ReadSolutionResponse(start=start, count=stop - start, tensors=tensors)
            if ids is not None:
                answer.ids.extend(await asyncio.to_thread(ids.rows, start, stop))
            yield answer

    def _arrays(self, blob: str, fields: list[model_pb2.SolutionField.ValueType]) -> list[StoredRows | Given]:
        """What is read for each field."""
        arrays = self.stores.read_rows(blob, *(FIELDS[field] for field in fields))
        given = model_pb2.SOLUTION_FIELD_GIVEN
        return [Given(array) if field == given else array for field, array in zip(fields, arrays, strict=True)]
