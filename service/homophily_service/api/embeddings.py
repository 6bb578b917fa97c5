"""Embeddings: get, list, delete, and read their arrays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from homophily_client._pb import embedding_pb2 as pb
from homophily_client.names import DatasetName, EmbeddingName
from homophily_client.tensors import to_tensor
from homophily_service.api.access import allowed_name, allowed_project
from homophily_service.api.budgets import held
from homophily_service.api.messages import next_page, page_asked
from homophily_service.api.rows import ids_of
from homophily_service.contract.errors import FailedPrecondition, InvalidRequest
from homophily_service.storage.embeddings import (
    CANNOT_LINKS,
    CLUSTERS,
    COORDINATES,
    MUST_LINKS,
    VIOLATED_CANNOT_LINKS,
    VIOLATED_MUST_LINKS,
)
from homophily_service.storage.stores import Stores

FIELDS = {
    pb.EMBEDDING_FIELD_UNSPECIFIED: COORDINATES,
    pb.EMBEDDING_FIELD_COORDINATES: COORDINATES,
    pb.EMBEDDING_FIELD_CLUSTERS: CLUSTERS,
    pb.EMBEDDING_FIELD_MUST_LINKS: MUST_LINKS,
    pb.EMBEDDING_FIELD_CANNOT_LINKS: CANNOT_LINKS,
    pb.EMBEDDING_FIELD_VIOLATED_MUST_LINKS: VIOLATED_MUST_LINKS,
    pb.EMBEDDING_FIELD_VIOLATED_CANNOT_LINKS: VIOLATED_CANNOT_LINKS,
}
CHUNK_BYTES = 1 << 20


class Embeddings:
    """The calls about embeddings."""

    stores: Stores

    async def GetEmbedding(self, request: pb.GetEmbeddingRequest, _: Any) -> pb.GetEmbeddingResponse:
        """An embedding's description."""
        row = await asyncio.to_thread(self.stores.catalog.get, allowed_name(EmbeddingName, request.name, "name"))
        return pb.GetEmbeddingResponse(embedding=pb.Embedding.FromString(row.message))

    async def ListEmbeddings(self, request: pb.ListEmbeddingsRequest, _: Any) -> pb.ListEmbeddingsResponse:
        """A page of embeddings."""
        project = allowed_project(request.parent, "parent")
        asked = page_asked(request)
        dataset = str(allowed_name(DatasetName, request.dataset, "dataset")) if request.dataset else ""
        rows, has_more = await asyncio.to_thread(
            self.stores.catalog.page, EmbeddingName.collection, project, asked, dataset=dataset
        )
        embeddings = [pb.Embedding.FromString(row.message) for row in rows]
        return pb.ListEmbeddingsResponse(embeddings=embeddings, next_page_token=next_page(rows, has_more=has_more))

    async def DeleteEmbedding(self, request: pb.DeleteEmbeddingRequest, _: Any) -> pb.DeleteEmbeddingResponse:
        """Delete the record of an embedding, then its arrays."""
        blob = await asyncio.to_thread(self.stores.catalog.remove, allowed_name(EmbeddingName, request.name, "name"))
        await asyncio.to_thread(self.stores.discard, blob)
        return pb.DeleteEmbeddingResponse()

    async def ReadEmbedding(self, request: pb.ReadEmbeddingRequest, _: Any) -> AsyncIterator[pb.ReadEmbeddingResponse]:
        """An array of an embedding, in ranges of about a mebibyte."""
        name = allowed_name(EmbeddingName, request.name, "name")
        if request.field not in FIELDS:
            raise InvalidRequest("field", f"must be a known field; got {request.field}")
        if request.count < 0:
            raise InvalidRequest("count", f"must be at least 0; got {request.count}")
        row = await asyncio.to_thread(self.stores.catalog.get, name)
        embedding = pb.Embedding.FromString(row.message)
        if request.field == pb.EMBEDDING_FIELD_CLUSTERS and not embedding.cluster_count:
            raise FailedPrecondition(f"{name} was made without clusters", reason="NO_CLUSTERS")
        field = FIELDS[request.field]
        if request.ids and field not in (COORDINATES, CLUSTERS):
            raise InvalidRequest("ids", "must not be asked for with links, which are pairs of points")
        # The next rows are read when the caller has taken these.
        await held.get().take(2 * CHUNK_BYTES)
        [array] = await asyncio.to_thread(self.stores.read_rows, row.blob, field)
        total = array.shape[0]
        if not 0 <= request.start <= total:
            raise InvalidRequest("start", f"must be between 0 and {total}; got {request.start}")
        ids = await asyncio.to_thread(ids_of, self.stores, embedding) if request.ids else None
        step = max(1, CHUNK_BYTES // ((array.row_bytes or 1) + (ids.row_bytes if ids else 0)))
        end = min(total, request.start + request.count) if request.count else total
        for start in range(request.start, end, step) or (request.start,):
            rows = await asyncio.to_thread(array.rows, start, max(start, min(end, start + step)))
            answer = pb.ReadEmbeddingResponse(start=start, count=len(rows), total=total, rows=to_tensor(rows))
            if ids is not None:
                answer.ids.extend(await asyncio.to_thread(ids.rows, start, start + len(rows)))
            yield answer
