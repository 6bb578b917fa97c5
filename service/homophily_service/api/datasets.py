"""Datasets: upload, get, list, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from homophily_client._pb import dataset_pb2 as pb
from homophily_client.names import DatasetName
from homophily_service.api.access import allowed_name, allowed_project, note_made
from homophily_service.api.messages import next_page, page_asked
from homophily_service.contract.errors import InvalidRequest
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import Upload, Uploads

T = TypeVar("T")


class Datasets:
    """The calls about datasets."""

    stores: Stores
    uploads: Uploads
    upload_threads: Executor
    # Stopping the server waits for these: cancelled ones still have files to close.
    under_way: set[asyncio.Task[Any]]

    async def UploadDataset(self, requests: AsyncIterator[pb.UploadDatasetRequest], _: Any) -> pb.UploadDatasetResponse:
        """Write chunks as they arrive; the next one is received while the last one is written."""
        if (task := asyncio.current_task()) is not None:
            self.under_way.add(task)
            task.add_done_callback(self.under_way.discard)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "start":
            raise InvalidRequest("start", "must be the first message")
        project = allowed_project(first.start.parent, "start.parent")
        opened = self.uploads.begin(project, first.start)
        try:
            upload = await self._in_thread(opened.__enter__)
            note_made(upload.name)
            return pb.UploadDatasetResponse(dataset=await self._receive(upload, requests))
        finally:
            await self._in_thread(opened.__exit__, None, None, None)

    async def _receive(self, upload: Upload, requests: AsyncIterator[pb.UploadDatasetRequest]) -> pb.Dataset:
        writing: asyncio.Task[None] | None = None
        try:
            async for request in requests:
                if writing is not None:
                    await writing
                    writing = None
                part = request.WhichOneof("part")
                if part == "chunk":
                    chunk = request.chunk
                    writing = asyncio.create_task(self._in_thread(upload.write, chunk.offset, chunk.data))
                elif part == "end":
                    return await self._in_thread(upload.finish, request.end.sha256)
                else:
                    raise InvalidRequest("part", "must be a chunk or the end after the start")
            if writing is not None:
                await writing
            raise InvalidRequest("end", "is missing: the stream ended before it")
        finally:
            if writing is not None:
                await asyncio.gather(writing, return_exceptions=True)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in a thread. It continues if the caller leaves: until it ends, no other call may write."""
        run = partial(copy_context().run, function, *arguments)
        running = asyncio.get_running_loop().run_in_executor(self.upload_threads, run)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            raise

    async def GetUpload(self, request: pb.GetUploadRequest, _: Any) -> pb.GetUploadResponse:
        """How much of an upload has arrived."""
        project = allowed_project(request.parent, "parent")
        received, total = await asyncio.to_thread(self.uploads.received, project, request.upload_id)
        return pb.GetUploadResponse(received_bytes=received, total_bytes=total)

    async def GetDataset(self, request: pb.GetDatasetRequest, _: Any) -> pb.GetDatasetResponse:
        """A dataset's description."""
        row = await asyncio.to_thread(self.stores.catalog.get, allowed_name(DatasetName, request.name, "name"))
        return pb.GetDatasetResponse(dataset=pb.Dataset.FromString(row.message))

    async def ListDatasets(self, request: pb.ListDatasetsRequest, _: Any) -> pb.ListDatasetsResponse:
        """A page of datasets."""
        project = allowed_project(request.parent, "parent")
        asked = page_asked(request)
        rows, has_more = await asyncio.to_thread(self.stores.catalog.page, DatasetName.collection, project, asked)
        datasets = [pb.Dataset.FromString(row.message) for row in rows]
        return pb.ListDatasetsResponse(datasets=datasets, next_page_token=next_page(rows, has_more=has_more))

    async def DeleteDataset(self, request: pb.DeleteDatasetRequest, _: Any) -> pb.DeleteDatasetResponse:
        """Delete the record of a dataset, then its arrays."""
        blob = await asyncio.to_thread(self.stores.catalog.remove, allowed_name(DatasetName, request.name, "name"))
        await asyncio.to_thread(self.stores.discard, blob)
        return pb.DeleteDatasetResponse()
