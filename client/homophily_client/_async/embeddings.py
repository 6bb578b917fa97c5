"""Embeddings: make, continue, read, list, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client._async.connection import new_request_id
from homophily_client._async.handle import AsyncJobHandle
from homophily_client._async.jobs import AsyncJobs
from homophily_client._pb import embedding_pb2, job_pb2, model_pb2
from homophily_client.arrays import Map
from homophily_client.labels import GivenLabels, check_lengths
from homophily_client.links import Pairs, links_message, number_of_clusters
from homophily_client.names import DatasetName, EmbeddingName, ModelName, ProjectName
from homophily_client.options import GraphOptions, MapOptions
from homophily_client.parameters import JobOptions, job_message, to_message
from homophily_client.results import Dataset, Embedding, Model
from homophily_client.tables import Table, TableOptions, as_points
from homophily_client.tensors import from_tensor

_FIELDS: dict[str, embedding_pb2.EmbeddingField.ValueType] = {
    "coordinates": embedding_pb2.EMBEDDING_FIELD_COORDINATES,
    "clusters": embedding_pb2.EMBEDDING_FIELD_CLUSTERS,
    "must_link": embedding_pb2.EMBEDDING_FIELD_MUST_LINKS,
    "cannot_link": embedding_pb2.EMBEDDING_FIELD_CANNOT_LINKS,
    "violated_must": embedding_pb2.EMBEDDING_FIELD_VIOLATED_MUST_LINKS,
    "violated_cannot": embedding_pb2.EMBEDDING_FIELD_VIOLATED_CANNOT_LINKS,
}


class AsyncEmbeddings(AsyncJobs):
    """The calls about embeddings."""

    async def embed(
        self,
        data: Any,
        *,
        must_link: Pairs = (),
        cannot_link: Pairs = (),
        labels: Any = None,
        withdrawn_must: Pairs = (),
        withdrawn_cannot: Pairs = (),
        table: TableOptions | dict[str, Any] | None = None,
        dataset: Dataset | str | None = None,
        edges: Any = None,
        n_components: int | None = None,
        n_clusters: int | str | None = None,
        graph: GraphOptions | dict[str, Any] | None = None,
        solver: MapOptions | dict[str, Any] | None = None,
        embedding_id: str | None = None,
        job: JobOptions | dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> AsyncJobHandle[Embedding]:
        """Start a job that maps points so that links are obeyed.

        Parameters
        ----------
        data : Dataset, Model, Embedding, str or points
            A dataset or its name; points as for ``upload``; a Model, whose points and graph are used; or an Embedding,
            whose map, links and labels the job continues. Models and embeddings may also be given by their full names.
        must_link, cannot_link : iterable of pairs
            Points that belong together, or apart.
        labels : as y in ``fit``, optional
            Each pair of labelled points is a link.
        withdrawn_must, withdrawn_cannot : iterable of pairs
            Links of the earlier embedding that no longer count.
        table : TableOptions or dict, optional
            For a table with named columns: which column is what, and how its rows become points.
        dataset : Dataset or str, optional
            With an embedding: made by ``append_points`` from the embedding's dataset. Points keep their places, and new
            ones are placed among them; no links or labels may come with it.
        edges : Edges, sparse matrix, Dataset or str, optional
            As in ``fit``; not for models and embeddings, which have a graph.
        n_components : int, optional
            Dimensions of the map; 2 if not given, or those of an earlier embedding.
        n_clusters : int or "suggest", optional
            Also divide the points into this many clusters; "suggest" lets the graph decide.
        graph : GraphOptions or dict, optional
            The graph; models and embeddings have theirs already.
        solver : MapOptions or dict, optional
            How the map is made; see the core's ``ERREmbedding``. Where None is given, an earlier embedding's values
            count. With ``closure=True`` or "two-class", links that contradict each other are refused; by default they
            are weighed, and a warning of the embedding gives an example.
        embedding_id : str, optional
            The embedding's short name; the job's if not given.
        job, timeout
            As in ``fit``.
        """
        if not isinstance(data, Dataset | Model | Embedding | str):
            data = as_points(data, table)
        if labels is None and isinstance(data, Table):
            labels = data.labels
        given = {"labels": self._labels(labels, "labels")}
        request = job_pb2.EmbedRequest(
            links=links_message(must_link, cannot_link, "{}_link"),
            withdrawn=links_message(withdrawn_must, withdrawn_cannot, "withdrawn_{}"),
            labels=given["labels"].message,
            graph=to_message(model_pb2.GraphParameters, graph, "graph"),
            solver=to_message(embedding_pb2.EmbeddingParameters, solver, "solver"),
            n_components=n_components,
            n_clusters=number_of_clusters(n_clusters),
            embedding_id=embedding_id or "",
            appended_dataset="" if dataset is None else str(self._name(DatasetName, dataset, "dataset")),
            options=job_message(job, new_request_id()),
        )
        await self._use_source(request, data, given)
        await self._use_edges(request, edges)
        return await self._submit("Embed", request, timeout)

    async def read_embedding(self, embedding: Embedding | str, fields: Iterable[str] | None = None) -> Map:
        """Return the arrays of an embedding: all, or some of its ``fields``.

        They are "coordinates", "clusters" (if there are any), "must_link", "cannot_link", "violated_must" and
        "violated_cannot". With the coordinates come the ids of the points, if their table had an id column.
        """
        described = embedding if isinstance(embedding, Embedding) else await self.get_embedding(embedding)
        if fields is None:
            fields = [field for field in _FIELDS if field != "clusters" or described.clusters]
        fields = tuple(fields)
        for field in fields:
            if field not in _FIELDS:
                raise ValueError(f"fields must be among {', '.join(map(repr, _FIELDS))}. Got {field!r} instead.")
        ids: list[str] = []
        found = {field: await self._read(described.name, _FIELDS[field], ids) for field in fields}
        return Map(**found, ids=np.array(ids) if ids else None)

    async def get_embedding(self, embedding: Embedding | str, *, timeout: float | None = None) -> Embedding:
        """Return an embedding's description."""
        request = embedding_pb2.GetEmbeddingRequest(name=str(self._name(EmbeddingName, embedding, "embedding")))
        return Embedding.from_message((await self._connection.call("GetEmbedding", request, timeout=timeout)).embedding)

    async def list_embeddings(
        self,
        *,
        dataset: Dataset | str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        oldest_first: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Embedding]:
        """Yield the project's embeddings, newest first: all, or those of a dataset, or made in a span of time."""
        request = embedding_pb2.ListEmbeddingsRequest(parent=self._parent)
        if dataset is not None:
            request.dataset = str(self._name(DatasetName, dataset, "dataset"))
        self._listed(request, created_after, created_before, oldest_first=oldest_first)
        async for page in self._pages("ListEmbeddings", request, timeout):
            for message in page.embeddings:
                yield Embedding.from_message(message)

    async def delete_embedding(self, embedding: Embedding | str, *, timeout: float | None = None) -> None:
        """Delete an embedding. Those that continued it stay."""
        request = embedding_pb2.DeleteEmbeddingRequest(name=str(self._name(EmbeddingName, embedding, "embedding")))
        await self._connection.delete("DeleteEmbedding", request, timeout)

    async def _use_source(self, request: job_pb2.EmbedRequest, data: Any, given: dict[str, GivenLabels]) -> None:
        """Set the source in the request, and check the lengths of labels, which the server cannot do."""
        full_name = data if isinstance(data, str) else getattr(data, "name", "")
        is_named = isinstance(data, Model | Embedding | str)
        has_length = given["labels"].length is not None
        if is_named and f"/{ModelName.collection}/" in full_name:
            model = self._name(ModelName, data, "data")
            request.parent, request.model = str(ProjectName(model.project)), str(model)
            if has_length:
                check_lengths(given, (data if isinstance(data, Model) else await self.get_model(data)).points)
        elif is_named and f"/{EmbeddingName.collection}/" in full_name:
            embedding = self._name(EmbeddingName, data, "data")
            request.parent, request.embedding = str(ProjectName(embedding.project)), str(embedding)
            if has_length:
                described = data if isinstance(data, Embedding) else await self.get_embedding(data)
                check_lengths(given, described.points)
        elif isinstance(data, Dataset | str):
            await self._use_dataset(request, data, given)
        else:
            await self._use_points(request, data, given)

    async def _read(self, name: str, field: embedding_pb2.EmbeddingField.ValueType, ids: list[str]) -> NDArray[Any]:
        """An array of an embedding; ``ids`` gets the points' ids along with the coordinates."""
        has_ids = field == embedding_pb2.EMBEDDING_FIELD_COORDINATES
        found: list[NDArray[Any]] = []

        def keep(answer: embedding_pb2.ReadEmbeddingResponse) -> int:
            part = from_tensor(answer.rows)
            if not found:
                found.append(np.empty((answer.total, *part.shape[1:]), dtype=part.dtype))
            found[0][answer.start : answer.start + answer.count] = part
            if has_ids:
                ids[answer.start :] = answer.ids
            return answer.total

        request = embedding_pb2.ReadEmbeddingRequest(name=name, field=field, ids=has_ids)
        await self._ranges("ReadEmbedding", request, None, keep)
        return found[0]
