"""Datasets: upload, get, list, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from homophily_service._pb import dataset_pb2
from homophily_service.client.base import Base
from homophily_service.client.connection import new_request_id
from homophily_service.client.points import Points
from homophily_service.client.results import Dataset
from homophily_service.client.upload import Upload
from homophily_service.names import DatasetName, ProjectName


class Datasets(Base):
    """The calls about datasets."""

    def upload(
        self,
        X: Any,
        *,
        name: str | None = None,
        description: str = "",
        progress: Callable[[int, int], object] | None = None,
    ) -> Dataset:
        """Upload points that are used more than once, or too large to go along with ``fit``.

        X is a NumPy array (a memory map too), a SciPy sparse matrix or a pandas DataFrame, with a row a point.
        float32 and float64 are kept; bool, float16 and integers of at most 16 bits become float32, other numbers
        float64; sparse matrices become CSR. It is sent in chunks of 1 MiB without a copy of the whole, and a broken
        connection is taken up where it stopped.

        ``progress(sent, total)`` is called with bytes after each chunk, from another thread; after a break ``sent``
        may go back. What it raises ends the upload.

        >>> import numpy as np
        >>> from homophily_service.client import Client
        >>> client = Client("localhost:50051")
        >>> dataset = client.upload(np.eye(3, dtype=np.float32), description="three points")
        >>> dataset.points, dataset.dimensions, dataset.dtype, dataset.size_bytes
        (3, 3, 'float32', 36)
        """
        upload_id = new_request_id()
        parsed = DatasetName(self.project, upload_id) if name is None else self._name(DatasetName, name, "name")
        return self._upload(Points(X), parsed, upload_id, description, progress)

    def get_dataset(self, dataset: Dataset | str) -> Dataset:
        """A dataset's description."""
        request = dataset_pb2.GetDatasetRequest(name=str(self._name(DatasetName, dataset, "dataset")))
        return Dataset.from_message(self._connection.call(self._stub.GetDataset, request).dataset)

    def list_datasets(self) -> Iterator[Dataset]:
        """The project's datasets, newest first."""
        request = dataset_pb2.ListDatasetsRequest(parent=self._parent)
        for page in self._pages(self._stub.ListDatasets, request):
            yield from map(Dataset.from_message, page.datasets)

    def delete_dataset(self, dataset: Dataset | str) -> None:
        """Delete a dataset. Models that were fitted on it go on working."""
        request = dataset_pb2.DeleteDatasetRequest(name=str(self._name(DatasetName, dataset, "dataset")))
        self._connection.delete(self._stub.DeleteDataset, request)

    def _upload(
        self,
        points: Points,
        name: DatasetName,
        upload_id: str,
        description: str = "",
        progress: Callable[[int, int], object] | None = None,
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
        return Dataset.from_message(Upload(self._connection, start, points, progress).run(resume=resume))
