"""A fit in this process, without a server: the checks and the computing of the service, on stores of its own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from homophily_client._pb import job_pb2, model_pb2
from homophily_client.names import JobName, ResourceName, new_id
from homophily_service.contract.errors import InternalError
from homophily_service.contract.internal_pb2 import Waiting
from homophily_service.contract.kinds import FIT
from homophily_service.contract.names import parse_name
from homophily_service.contract.tasks import Task
from homophily_service.jobs.checks import Checks, Name, check_fit
from homophily_service.jobs.compute import compute
from homophily_service.jobs.work import Report
from homophily_service.runtime.settings import load_settings
from homophily_service.storage.blobs.objects import StoredObject
from homophily_service.storage.stores import Stores

PROJECT = "local"


class LocalFit(NamedTuple):
    """A model, and its stored arrays."""

    model: model_pb2.Model
    stored: StoredObject


def fit_here(request: job_pb2.FitRequest, report: Report) -> LocalFit:
    """Do what a service does with the request of a fit, in this process."""
    with tempfile.TemporaryDirectory(prefix="homophily-") as folder:
        settings = load_settings(
            data_dir=Path(folder),
            database_url=f"sqlite:///{folder}/store.db",
            blobs_url=f"{folder}/blobs",
            tracking=False,
        )
        stores = Stores.open(settings)
        try:
            stores.database.migrate()
            check_fit(Checks(stores, settings, _any_name), PROJECT, request)
            task = Task(JobName(PROJECT, new_id()), FIT.name, request.SerializeToString(), new_id())
            # All cores are ours: nobody else uses this process.
            result = compute(task, stores, settings, os.cpu_count() or 1, report)
            if isinstance(result, Waiting):
                raise InternalError("a search on one machine has nothing to wait for")
            model = job_pb2.FitResult.FromString(result).model
            return LocalFit(model, stores.blobs.read(task.result_path))
        finally:
            stores.close()


def _any_name(kind: type[Name], name: str, field: str) -> Name:
    found: Name = parse_name(kind, name, field)
    assert isinstance(found, ResourceName)
    return found
