"""What to ask a person next, and why an answer is what it is: checked here, answered by a predictor process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from homophily_client._pb import embedding_pb2, model_pb2
from homophily_client._pb import suggestion_pb2 as pb
from homophily_client.names import EmbeddingName, ModelName
from homophily_service.api.access import allowed_name
from homophily_service.api.rows import ids_of
from homophily_service.contract.arrays import row_count
from homophily_service.contract.errors import DataLoss
from homophily_service.contract.internal_pb2 import PredictCall
from homophily_service.contract.questions import check_explain, check_suggest
from homophily_service.predictor.pool import Predictors
from homophily_service.storage.records import ResourceRecord
from homophily_service.storage.stores import Stores


class Questions:
    """The calls that ask about a model or an embedding."""

    stores: Stores
    predictors: Predictors

    async def Suggest(self, request: pb.SuggestRequest, _: Any) -> pb.SuggestResponse:
        """Which points to label next, or which pairs to compare."""
        is_of_pairs = f"/{EmbeddingName.collection}/" in request.name
        row = await self._row(request.name, EmbeddingName if is_of_pairs else ModelName)
        call = PredictCall(path=row.blob, graph=row.graph or "", suggest=request)
        described: model_pb2.Model | embedding_pb2.Embedding
        if is_of_pairs:
            described = embedding_pb2.Embedding.FromString(row.message)
            call.map.CopyFrom(described.solver_parameters)
            call.map.SetInParent()
        else:
            described = model_pb2.Model.FromString(row.message)
            call.classes.CopyFrom(described.classes)
        check_suggest(request, described.point_count, of_pairs=is_of_pairs)
        response = (await self.predictors.ask(call)).suggestions
        if isinstance(described, model_pb2.Model):
            response.classes.CopyFrom(described.classes)
        if request.ids:
            points = [one.point for one in response.points]
            ends = [end for pair in response.pairs for end in (pair.first, pair.second)]
            ids = await asyncio.to_thread(self._ids, described, [*points, *ends])
            for one in response.points:
                one.id = ids.get(one.point, "")
            for pair in response.pairs:
                pair.first_id, pair.second_id = ids.get(pair.first, ""), ids.get(pair.second, "")
        return response

    async def Explain(self, request: pb.ExplainRequest, _: Any) -> pb.ExplainResponse:
        """Which labels carry the answers."""
        row = await self._row(request.name, ModelName)
        model = model_pb2.Model.FromString(row.message)
        check_explain(
            request, model.point_count, row_count(request.new_points) if request.HasField("new_points") else 0
        )
        call = PredictCall(path=row.blob, graph=row.graph or "", explain=request)
        response = (await self.predictors.ask(call)).explanations
        response.classes.CopyFrom(model.classes)
        if request.ids:
            parts = [part for one in response.explanations for part in one.contributions]
            ids = await asyncio.to_thread(self._ids, model, [part.point for part in parts])
            for part in parts:
                part.id = ids.get(part.point, "")
        return response

    async def _row(self, name: str, kind: type[ModelName] | type[EmbeddingName]) -> ResourceRecord:
        row = await asyncio.to_thread(self.stores.catalog.get, allowed_name(kind, name, "name"))
        if row.graph is None:
            raise DataLoss(f"{name} has no graph")
        return row

    def _ids(self, described: model_pb2.Model | embedding_pb2.Embedding, points: Iterable[int]) -> dict[int, str]:
        """The ids of some points; none if their table had no id column."""
        ids = ids_of(self.stores, described)
        return {} if ids is None else {point: ids.rows(point, point + 1)[0] for point in set(points)}
