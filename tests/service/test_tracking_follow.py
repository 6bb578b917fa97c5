"""MLflow's own ways with models, in a real server: metrics and data of logged models, tables, aliases that move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydantic import ValidationError

from homophily import IRRClassifier
from homophily_client import Client, Model
from homophily_service.runtime.settings import load_settings
from homophily_service.tracking.follow import followed_name
from homophily_service.tracking.mlflow_models import log_model

from .mlflow_server import MlflowServer
from .serving import PATIENCE, Service, eventually, running

# MLflow's own: of types that it could not check, and of what it is built on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:mlflow", "ignore::FutureWarning:mlflow")
SOLVER = {"method": "irr"}


class Following(NamedTuple):
    """A service that follows aliases, and the server that has them."""

    service: Service
    mlflow: MlflowServer

    def client(self, project: str) -> Client:
        return Client(self.service.target, project=project)


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Following]:
    folder = tmp_path_factory.mktemp("following")
    mlflow = MlflowServer(folder / "mlflow")
    mlflow.start()
    # An experiment of an earlier release, which does not say what it is.
    mlflow.client.create_experiment("homophily/old")
    aliases = {"team": ["digits@champion", "digits@none"], "other": ["team.digits@champion"], "full": ["x@best"]}
    settings: dict[str, Any] = {"tracking": True, "tracking_uri": mlflow.url, "follow_aliases": aliases}
    settings |= {"follow_seconds": 0.2, "project_limits": {"full": {"max_jobs_per_day": 1}}}
    try:
        with running(folder / "data", **settings) as service:
            yield Following(service, mlflow)
    finally:
        mlflow.stop()


def clouds() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    y = np.arange(120) % 3
    return 5.0 * rng.normal(size=(3, 4))[y] + rng.normal(size=(120, 4)), y


def fitted(client: Client, *, register: str | None = None, aliases: tuple[str, ...] = (), **more: Any) -> Any:
    X, y = clouds()
    words = np.array(["ant", "bee", "cat"])[y]
    few, test = {point: words[point] for point in range(12)}, {point: words[point] for point in range(60, 120)}
    # Some that no model can answer rightly.
    test |= {60: "bee", 61: "cat"}
    dataset = client.upload(X, name="clouds")
    job = client.fit(dataset, few, solver=SOLVER, test=test, register=register, aliases=aliases, **more)
    job.result(PATIENCE)
    return job


def test_a_logged_model_has_its_metrics_parameters_and_data_and_the_run_a_table(following: Following) -> None:
    with following.client("logging") as client:
        job = fitted(client, register="clouds", aliases=("champion",), calibrate=True)
        version = job.registered(PATIENCE).rpartition("/")[2]
        model = job.info.model
    mlflow = following.mlflow.client
    (run,) = eventually(lambda: [one for one in following.mlflow.runs_of(job.name) if one.info.status == "FINISHED"])
    (output,) = run.outputs.model_outputs
    logged = mlflow.get_logged_model(output.model_id)
    metrics = {one.key: one for one in logged.metrics}
    assert metrics["test_error"].value == model.test.error_rate == run.data.metrics["test_error"]
    assert set(metrics) <= set(run.data.metrics)
    (data,) = run.inputs.dataset_inputs
    assert {(one.dataset_name, one.dataset_digest) for one in logged.metrics} == {("clouds", data.dataset.digest)}
    assert logged.params["solver.method"] == "irr" == run.data.params["solver.method"]
    # Found by them, as on MLflow's page of models.
    found = mlflow.search_logged_models([run.info.experiment_id], f"metrics.test_error = {model.test.error_rate}")
    assert [one.model_id for one in found] == [logged.model_id]
    named = mlflow.get_model_version_by_alias("logging.clouds", "champion")
    assert (named.version, named.source) == (version, f"models:/{logged.model_id}")

    listed = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert {"path": "eval_results_table.json", "type": "table"} in listed
    table = json.loads(Path(mlflow.download_artifacts(run.info.run_id, "eval_results_table.json")).read_text())
    assert table["columns"] == ["point", "label", "answer", "right", "probability"]
    rows = table["data"]
    assert len(rows) == 60
    assert [row[3] for row in rows] == sorted(row[3] for row in rows)
    assert sum(not row[3] for row in rows) == round(60 * model.test.error_rate) >= 2
    assert {60, 61} <= {row[0] for row in rows if not row[3]}
    assert all(0.0 < row[4] <= 1.0 for row in rows)
    assert all((row[1] == row[2]) == row[3] for row in rows)


@pytest.mark.parametrize("project", ["new", "old"])
def test_runs_land_in_the_view_of_machine_learning(following: Following, project: str) -> None:
    with following.client(project) as client:
        job = fitted(client)
    (run,) = eventually(lambda: following.mlflow.runs_of(job.name))
    experiment = following.mlflow.client.get_experiment(run.info.experiment_id)
    assert experiment.name == f"homophily/{project}"
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def models(following: Following, project: str) -> dict[str, Model]:
    with following.client(project) as client:
        return {one.name.rpartition("/")[2]: one for one in client.list_models()}


def imports(following: Following, project: str) -> int:
    with following.client(project) as client:
        return len(list(client.list_jobs(kind="import")))


def register_elsewhere(following: Following, name: str) -> str:
    """Another program's model as a new version; returns its number."""
    import mlflow

    X, y = clouds()
    mlflow.set_tracking_uri(following.mlflow.url)
    client = following.mlflow.client
    experiment = client.get_experiment_by_name("elsewhere")
    number = client.create_experiment("elsewhere") if experiment is None else experiment.experiment_id
    run = client.create_run(number)
    mlflow.set_experiment(experiment_id=number)
    try:
        classifier = IRRClassifier().fit(X, np.where(np.arange(120) < 30, y, -1))
        info = log_model(classifier, run_id=run.info.run_id, registered_model_name=name)
    finally:
        mlflow.tracking.fluent._active_experiment_id = None
    return str(info.registered_model_version)


def test_a_model_is_imported_when_its_alias_moves(following: Following) -> None:
    registry = following.mlflow.client
    # It has no version of that alias at first, which is no error for long.
    with following.client("team") as client:
        job = fitted(client, register="digits", aliases=("champion",), model_id="own")
        assert job.registered(PATIENCE) == "models:/team.digits/1"
    theirs = register_elsewhere(following, "team.digits")
    registry.set_registered_model_alias("team.digits", "champion", theirs)
    imported = eventually(lambda: models(following, "team").get(f"digits-v{theirs}"), pause=0.2)
    assert imported.source == f"models:/team.digits/{theirs}"
    with following.client("team") as client:
        X, y = clouds()
        assert (client.predict(imported, X[60:]).labels == y[60:]).mean() > 0.9
        # The first version was made here, so it was not imported.
        assert set(models(following, "team")) == {"own", f"digits-v{theirs}"}
        # It moves back: the model is here still. Once it is deleted, it is imported.
        registry.set_registered_model_alias("team.digits", "champion", "1")
        client.delete_model("own")
    eventually(lambda: "digits-v1" in models(following, "team"), pause=0.2)
    assert imports(following, "team") == 2
    # Of another project, whose alias the third one named, nothing was imported; and nothing beyond a quota.
    assert imports(following, "other") == 0


def test_an_import_that_a_quota_refuses_waits_for_room(following: Following) -> None:
    with following.client("full") as client:
        fitted(client)
    version = register_elsewhere(following, "full.x")
    following.mlflow.client.set_registered_model_alias("full.x", "best", version)

    def warned() -> bool:
        lines = [json.loads(line) for line in following.service.log.read_text().splitlines()]
        messages = [line["message"] for line in lines if "x@best of project full is not imported" in line["message"]]
        return any("max_jobs_per_day" in message for message in messages)

    eventually(warned, pause=0.2)
    assert imports(following, "full") == 0


@pytest.mark.parametrize("wrong", [{"team": ["digits"]}, {"team": ["digits/3"]}, {"team": ["a/b@c"]}, {"No": ["a@b"]}])
def test_what_is_no_alias_stops_the_service_at_its_start(tmp_path: Path, wrong: dict[str, list[str]]) -> None:
    with pytest.raises(ValidationError, match="follow_aliases"):
        load_settings(data_dir=tmp_path, follow_aliases=wrong)


def test_versions_have_names_that_ids_may_have_and_that_differ() -> None:
    assert followed_name("p", "digits@best", 12).id == "digits-v12"
    names = {followed_name("p", f"{name}@a", 1).id for name in ("My model", "my-model", "my model", 60 * "ä", 90 * "x")}
    assert len(names) == 5
    assert all(len(name) <= 63 for name in names)
