"""Datasets: upload, get, list, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from homophily_client._async.base import AsyncBase
from homophily_client._async.connection import new_request_id
from homophily_client._async.upload import AsyncUpload, Progress
from homophily_client._pb import dataset_pb2
from homophily_client.names import DatasetName, ProjectName
from homophily_client.points import Points
from homophily_client.results import Dataset
from homophily_client.tables import TableOptions, as_points


class AsyncDatasets(AsyncBase):
    """The calls about datasets."""

    async def upload(
        self,
        X: Any,
        *,
        table: TableOptions | dict[str, Any] | None = None,
        name: str | None = None,
        description: str = "",
        progress: Progress | None = None,
    ) -> Dataset:
        """Upload points that are used more than once, or are too large to be sent with ``fit``.

        The points are sent in chunks of 1 MiB without a copy of the whole, and a broken connection is resumed where it
        stopped.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame or Arrow table
            One row per point. float32 and float64 are kept; bool, float16 and integers of at most 16 bits become
            float32, other numbers float64; sparse matrices become CSR. Memory maps are welcome. A table with named
            columns may hold numbers, strings and vectors, and new rows are later matched by name.
        table : TableOptions or dict, optional
            Which columns of a table are what, and how its rows become points. Its ``label_column`` is stored with the
            dataset: ``fit`` takes the labels from there, or others refer to it by a :class:`LabelColumn`. A table may
            have labels only.
        name : str, optional
            The dataset's name; generated if not given.
        description : str, optional
            A text for people.
        progress : callable, optional
            Called as ``progress(sent, total)``, in bytes, after each chunk; after a broken connection ``sent`` may go
            back. An exception that it raises ends the upload.
        """
        upload_id = new_request_id()
        parsed = DatasetName(self.project, upload_id) if name is None else self._name(DatasetName, name, "name")
        return await self._upload(
            Points(as_points(X, table, keep_labels=True)), parsed, upload_id, description, progress
        )

    async def get_dataset(self, dataset: Dataset | str, *, timeout: float | None = None) -> Dataset:
        """Return a dataset's description."""
        request = dataset_pb2.GetDatasetRequest(name=str(self._name(DatasetName, dataset, "dataset")))
        return Dataset.from_message((await self._connection.call("GetDataset", request, timeout=timeout)).dataset)

    async def list_datasets(
        self,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        oldest_first: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Dataset]:
        """Yield the project's datasets, newest first: all, or those made in a span of time."""
        request = dataset_pb2.ListDatasetsRequest(parent=self._parent)
        self._listed(request, created_after, created_before, oldest_first=oldest_first)
        async for page in self._pages("ListDatasets", request, timeout):
            for message in page.datasets:
                yield Dataset.from_message(message)

    async def delete_dataset(self, dataset: Dataset | str, *, timeout: float | None = None) -> None:
        """Delete a dataset. Models that were fitted on it keep working."""
        request = dataset_pb2.DeleteDatasetRequest(name=str(self._name(DatasetName, dataset, "dataset")))
        await self._connection.delete("DeleteDataset", request, timeout)

    async def _upload(
        self,
        points: Points,
        name: DatasetName,
        upload_id: str,
        description: str = "",
        progress: Progress | None = None,
        *,
        resume: bool = False,
    ) -> Dataset:
        start = dataset_pb2.UploadStart(
            parent=str(ProjectName(name.project)),
            dataset_id=name.id,
            upload_id=upload_id,
            shape=points.shape_message(),
            description=description,
        )
        return Dataset.from_message(await AsyncUpload(self._connection, start, points, progress).run(resume=resume))
