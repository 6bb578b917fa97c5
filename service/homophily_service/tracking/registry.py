"""Registered models by project: MLflow's registry has no projects, so each name there begins with the project's.

A model that project ``team`` registers as ``digits`` is ``team.digits`` in MLflow. Ids of projects have no dot, so that
names of different projects never clash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from homophily_client.names import DEFAULT_PROJECT, JobName
from homophily_service.contract.checks import IMPORT_URI
from homophily_service.contract.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

JOB_TAG, MODEL_TAG = "homophily.job", "homophily.model"
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE")


def registered_name(project: str, name: str) -> str:
    """The name in MLflow of a project's registered model."""
    return f"{project}.{name}"


def importable(client: MlflowClient, project: str, uri: str) -> str:
    """Resolve a project's URI to one without aliases; NotFound if the project has no such model.

    Models that the service tracked or registered carry the name of their job. Models of other programs carry none: the
    default project may import them, other projects only under a name that begins with their own. Whether another
    project's model exists is not revealed.
    """
    match = IMPORT_URI.fullmatch(uri)
    if match is None:
        raise InvalidRequest("uri", "must be models:/{name}/{version}, models:/{name}@{alias} or runs:/{run}/{path}")
    if match["run"] or match["model"]:
        found = _run(client, match["run"]) if match["run"] else _model(client, match["model"])
        if found is None or not _may_have(found, project):
            raise _missing(project, uri)
        return uri
    version = find_version(client, project, uri)
    return f"models:/{version.name}/{version.version}"


def find_version(client: MlflowClient, project: str, uri: str) -> ModelVersion:
    """The version that a project's URI of a registered model means; NotFound if it has none."""
    match = IMPORT_URI.fullmatch(uri)
    if match is None or not match["name"]:
        raise InvalidRequest("uri", "must be models:/{name}/{version} or models:/{name}@{alias}")
    for name in (registered_name(project, match["name"]), match["name"]):
        version: ModelVersion | None = _version(client, name, match["version"], match["alias"])
        is_own_name = name.startswith(registered_name(project, ""))
        if version is not None and _may_have(version.tags, project, is_own_name=is_own_name):
            return version
    raise _missing(project, uri)


def _missing(project: str, uri: str) -> NotFound:
    return NotFound(f"{uri}: project {project} has no such model in MLflow")


def _may_have(tags: dict[str, str], project: str, *, is_own_name: bool = False) -> bool:
    job = tags.get(JOB_TAG)
    if job is None:
        return is_own_name or project == DEFAULT_PROJECT
    return JobName.parse(job, "job").project == project


def _version(client: MlflowClient, name: str, version: str | None, alias: str | None) -> Any:
    if version is not None:
        return _unless_missing(client.get_model_version, name, version)
    return _unless_missing(client.get_model_version_by_alias, name, alias)


def _run(client: MlflowClient, run: str) -> dict[str, str] | None:
    found = _unless_missing(client.get_run, run)
    return None if found is None else dict(found.data.tags)


def _model(client: MlflowClient, model: str) -> dict[str, str] | None:
    found = _unless_missing(client.get_logged_model, model)
    return None if found is None else dict(found.tags)


def _unless_missing(ask: Any, *arguments: Any) -> Any:
    """MLflow's answer; None if it has nothing of this name."""
    from mlflow.exceptions import MlflowException

    try:
        return ask(*arguments)
    except MlflowException as error:
        if error.error_code in _MISSING:
            return None
        raise
