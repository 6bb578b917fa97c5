"""What to ask a person next, and why an answer is what it is: checked here, answered by a predictor process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeAlias

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

Described: TypeAlias = model_pb2.Model | embedding_pb2.Embedding


class Questions:
    """The calls that ask about a model or an embedding."""

    stores: Stores
    predictors: Predictors

    async def Suggest(self, request: pb.SuggestRequest, _: Any) -> pb.SuggestResponse:
        """Which points to label next, or which pairs to compare."""
        row, described = await self._described(request.name)
        is_of_pairs = isinstance(described, embedding_pb2.Embedding)
        call = _call(row, described)
        call.suggest.CopyFrom(request)
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
        """Which labels carry the answers, or which links hold the points."""
        row, described = await self._described(request.name)
        model = described if isinstance(described, model_pb2.Model) else None
        new_count = row_count(request.new_points) if request.HasField("new_points") else 0
        check_explain(request, described.point_count, new_count, model)
        call = _call(row, described)
        call.explain.CopyFrom(request)
        response = (await self.predictors.ask(call)).explanations
        if model is not None:
            response.classes.CopyFrom(model.classes)
        if request.ids:
            parts = [part for one in response.explanations for part in one.contributions]
            links = [link for one in response.places for link in one.links]
            ends = [end for link in links for end in (link.first, link.second)]
            ids = await asyncio.to_thread(self._ids, described, [*(part.point for part in parts), *ends])
            for part in parts:
                part.id = ids.get(part.point, "")
            for link in links:
                link.first_id, link.second_id = ids.get(link.first, ""), ids.get(link.second, "")
        return response

    async def _described(self, name: str) -> tuple[ResourceRecord, Described]:
        """The record and the description of a model, or of an embedding."""
        is_map = f"/{EmbeddingName.collection}/" in name
        kind = EmbeddingName if is_map else ModelName
        row = await asyncio.to_thread(self.stores.catalog.get, allowed_name(kind, name, "name"))
        if row.graph is None:
            raise DataLoss(f"{name} has no graph")
        message = embedding_pb2.Embedding if is_map else model_pb2.Model
        return row, message.FromString(row.message)

    def _ids(self, described: Described, points: Iterable[int]) -> dict[int, str]:
        """The ids of some points; none if their table had no id column."""
        ids = ids_of(self.stores, described)
        return {} if ids is None else {point: ids.rows(point, point + 1)[0] for point in set(points)}


def _call(row: ResourceRecord, described: Described) -> PredictCall:
    """A question about a model or an embedding, without what is asked."""
    call = PredictCall(path=row.blob, graph=row.graph or "")
    if isinstance(described, embedding_pb2.Embedding):
        call.map.CopyFrom(described.solver_parameters)
        call.map.SetInParent()
    else:
        call.classes.CopyFrom(described.classes)
    return call
