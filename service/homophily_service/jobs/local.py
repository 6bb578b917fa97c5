"""A fit in this process, without a server: the checks and the computing of the service, on stores of its own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from homophily.active import PointSuggestion, suggest_points
from homophily.storage import State, restore_classifier
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
from homophily_service.storage.models import graph_path, read_graph
from homophily_service.storage.stores import Stores

PROJECT = "local"


class LocalFit(NamedTuple):
    """A model, and its stored arrays."""

    model: model_pb2.Model
    stored: StoredObject
    #: The points to label next.
    suggestions: list[PointSuggestion]


def fit_here(request: job_pb2.FitRequest, report: Report, suggested: int) -> LocalFit:
    """Do what a service does with the request of a fit, in this process, and suggest what to label next."""
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
            threads = os.cpu_count() or 1
            result = compute(task, stores, settings, threads, report)
            if isinstance(result, Waiting):
                raise InternalError("a search on one machine has nothing to wait for")
            model = job_pb2.FitResult.FromString(result).model
            # The record of the graph is written when the job ends; here nothing ends it.
            graph = read_graph(stores.blobs, graph_path(model.graph.digest, task.token), threads).graph
            stored = stores.blobs.read(task.result_path)
            classifier = restore_classifier(State(stored.arrays, stored.document), graph)
            return LocalFit(model, stored, suggest_points(classifier, suggested))
        finally:
            stores.close()


def _any_name(kind: type[Name], name: str, field: str) -> Name:
    found: Name = parse_name(kind, name, field)
    assert isinstance(found, ResourceName)
    return found
