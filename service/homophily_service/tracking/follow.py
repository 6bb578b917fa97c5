"""Follows aliases in the registry: when one moves, the model that it names now is imported.

What a project may follow is what it may import, and an import counts towards its quotas like any job.
"""

from __future__ import annotations

import hashlib
import logging
import re
from typing import TYPE_CHECKING

from homophily_client._pb import job_pb2
from homophily_client.names import InvalidName, JobName, ModelName, ProjectName, new_id
from homophily_service.contract.errors import ServiceError, Unavailable
from homophily_service.contract.kinds import IMPORT
from homophily_service.jobs.options import new_job
from homophily_service.runtime.settings import Settings
from homophily_service.storage.quotas import check_bytes
from homophily_service.storage.stores import Stores
from homophily_service.tracking.registry import MODEL_TAG, find_version

if TYPE_CHECKING:
    from mlflow import MlflowClient

_log = logging.getLogger(__name__)


def follow(client: MlflowClient, settings: Settings, stores: Stores, told: dict[str, str]) -> None:
    """Submit an import for each alias that names another version than before.

    Why one cannot be imported is logged once: ``told`` has what was logged last of each.
    """
    for project, aliases in settings.follow_aliases.items():
        for entry in aliases:
            try:
                _follow(client, settings, stores, project, entry)
            except Unavailable:
                raise
            except ServiceError as error:
                # There is no such alias yet, or a quota is used up: the next look may find otherwise.
                if told.get(f"{project} {entry}") != error.message:
                    _log.warning("%s of project %s is not imported: %s", entry, project, error.message)
                told[f"{project} {entry}"] = error.message
            else:
                told.pop(f"{project} {entry}", None)


def _follow(client: MlflowClient, settings: Settings, stores: Stores, project: str, entry: str) -> None:
    version = find_version(client, project, f"models:/{entry}")
    name = followed_name(project, entry, int(version.version))
    if stores.catalog.has(name) or _is_here(stores, project, version.tags.get(MODEL_TAG, "")):
        return
    uri = f"models:/{version.name}/{version.version}"
    request_id = f"follow-{hashlib.sha256(uri.encode()).hexdigest()[:32]}"
    if stores.queue.knows_request(project, request_id):
        # It is being imported, or could not be.
        return
    limits = settings.limits_of(project)
    assert limits.max_queued_jobs is not None
    with stores.database.read() as connection:
        check_bytes(connection, project, 0, limits.max_project_bytes)
    request = job_pb2.ImportModelRequest(parent=str(ProjectName(project)), uri=uri, model_id=name.id)
    options = job_pb2.JobOptions(request_id=request_id)
    job = new_job(JobName(project, new_id()), IMPORT.name, request, options, settings)
    stores.queue.submit(job, limits.max_queued_jobs, limits.max_jobs_per_day)
    _log.info("%s of project %s is %s now, to be imported as %s", entry, project, uri, name)


def _is_here(stores: Stores, project: str, text: str) -> bool:
    """Whether the version is a model that this project has here: it was registered from here."""
    try:
        name = ModelName.parse(text, "model")
    except InvalidName:
        return False
    return name.project == project and stores.catalog.has(name)


def followed_name(project: str, entry: str, version: int) -> ModelName:
    """The name under which a version is imported: of ``digits@champion``, version 3, ``digits-v3``.

    >>> str(followed_name("team", "digits@champion", 3))
    'projects/team/models/digits-v3'
    """
    registered = entry.rpartition("@")[0]
    slug = re.sub(r"[^a-z0-9]+", "-", registered.lower(), flags=re.ASCII).strip("-")[:40]
    if slug != registered:
        # Other names may become the same.
        slug = f"{slug or 'model'}-{hashlib.sha256(registered.encode()).hexdigest()[:6]}"
    return ModelName(project, f"{slug}-v{version}")
