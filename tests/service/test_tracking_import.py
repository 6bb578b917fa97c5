"""Models that a program of its own has logged to MLflow's registry, imported by a worker; all in one process."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homophily import ERRClassifier, KNNGraph, Preprocessing
from homophily_client._pb import job_pb2, model_pb2, points_pb2
from homophily_client.names import JobName
from homophily_service.contract.errors import DataLoss, FailedPrecondition, LimitExceeded, NotFound
from homophily_service.contract.tasks import Task
from homophily_service.jobs.compute import compute
from homophily_service.runtime.settings import Settings
from homophily_service.storage import scratch
from homophily_service.storage.models import load_model
from homophily_service.storage.stores import Stores
from homophily_service.tracking.mlflow_models import log_model
from homophily_service.tracking.place import Place, connect

FOLDERS = "mlflow.store.artifact.local_artifact_repo.LocalArtifactRepository"
# MLflow's own: of types that it could not check, and of what it is built on.
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:mlflow",
    "ignore::FutureWarning:mlflow",
    "ignore::sqlalchemy.exc.SADeprecationWarning",
    "ignore::ResourceWarning",
)


class Worker:
    """What a worker's child does, without the processes around it."""

    def __init__(self, folder: Path) -> None:
        import mlflow  # takes seconds, which every process that collects these tests would need

        self.mlflow = mlflow
        self.settings = Settings(data_dir=folder)
        self.stores = Stores.open(self.settings)
        self.stores.database.migrate()
        self.client = connect(self.settings)
        place = Place.of(self.settings)
        self.experiment = self.client.create_experiment("elsewhere", place.artifacts)
        # Else models would go to MLflow's own experiment, which keeps them in the folder that the tests are run in.
        mlflow.set_experiment(experiment_id=self.experiment)

    def close(self) -> None:
        self.mlflow.tracking.fluent._active_experiment_id = None
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
        self.stores.close()

    def task(self, uri: str, token: str = "token") -> Task:
        request = job_pb2.ImportModelRequest(parent="projects/default", uri=uri).SerializeToString()
        return Task(JobName("default", "job"), "import", request, token)

    def logged(self) -> tuple[str, Path]:
        """A model's URI, and the folder of its artifacts."""
        run = self.client.create_run(self.experiment).info.run_id
        logged = log_model(fitted()[1], run_id=run)
        location = self.client.get_logged_model(logged.model_id).artifact_location
        return f"models:/{logged.model_id}", Path(location.removeprefix("file://"))

    def imported(self, uri: str, token: str = "token") -> model_pb2.Model:
        result = compute(self.task(uri, token), self.stores, self.settings, 1, lambda _: None)
        assert isinstance(result, bytes)
        assert list((self.settings.data_dir / "imports").iterdir()) == []
        return job_pb2.ImportResult.FromString(result).model


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("import"))
    yield worker
    worker.close()


def fitted() -> tuple[Any, ERRClassifier]:
    rng = np.random.default_rng(5)
    place = np.arange(120) % 2
    X = (4.0 * rng.normal(size=(2, 3))[place] + rng.normal(size=(120, 3))).astype(np.float32)
    y = np.where(place == 0, "yes", "no").astype(object)
    y[20:] = None
    classifier = ERRClassifier(
        KNNGraph(n_neighbors=7, space="whitened", n_directions=2), lambda2=0.02, class_prior=[0.4, 0.6]
    )
    return X, classifier.fit(X, y.astype(object))


def test_model_of_a_table_is_imported_with_its_recipe(worker: Worker) -> None:
    X, classifier = fitted()
    table = {"x": X[:, 0], "v": X[:, 1:], "city": np.where(X[:, 0] > 0, "a", "b"), "id": np.arange(120)}
    recipe = Preprocessing(scale="standard", ignore=["id"]).fit(table)
    classifier = ERRClassifier().fit(recipe.transform(table), np.where(np.arange(120) < 20, np.arange(120) % 2, -1))
    run = worker.client.create_run(worker.experiment)
    logged = log_model(classifier, run_id=run.info.run_id, preprocessing=recipe)
    model = worker.imported(f"models:/{logged.model_id}", "table")
    assert [(column.name, column.kind, column.width) for column in model.schema.columns] == [
        ("x", points_pb2.COLUMN_KIND_NUMBER, 0),
        ("v", points_pb2.COLUMN_KIND_VECTOR, 2),
        ("city", points_pb2.COLUMN_KIND_CATEGORY, 0),
    ]
    assert (model.schema.scale, list(model.schema.unused_columns)) == (points_pb2.SCALE_STANDARD, ["id"])
    assert list(model.preprocessing_steps) == recipe.steps_
    again, kept = load_model(worker.stores, worker.task("", "table").result_path, model.graph.digest, 1)
    assert kept is not None
    np.testing.assert_array_equal(again.predict(kept.transform(table)), classifier.predict(recipe.transform(table)))


def test_model_of_another_program_is_served_here(worker: Worker) -> None:
    X, classifier = fitted()
    run = worker.client.create_run(worker.experiment)
    log_model(classifier, registered_model_name="answers", run_id=run.info.run_id)
    worker.client.set_registered_model_alias("answers", "champion", "1")
    for uri in ("models:/answers@champion", "models:/answers/1"):
        model = worker.imported(uri)
        assert (model.source, model.point_count, model.dimension_count, model.labelled_count) == (uri, 120, 3, 20)
        assert list(model.classes.strings.values) == ["no", "yes"]
        assert not model.calibrated
        assert (model.graph_parameters.n_neighbors, model.solver_parameters.lambda2) == (7, 0.02)
        assert (model.graph_parameters.space, model.graph_parameters.n_directions) == (model_pb2.SPACE_WHITENED, 2)
        assert list(model.solver_parameters.class_prior.shares.values) == [0.4, 0.6]
        again, _ = load_model(worker.stores, worker.task(uri).result_path, model.graph.digest, 1)
        found, expected = again.answer(X + 0.1), classifier.answer(X + 0.1)
        assert [["no", "yes"][index] for index in found.classes] == expected.classes.tolist()
        np.testing.assert_array_equal(found.scores, expected.scores)


def test_what_is_missing_damaged_or_something_else_is_refused(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing"):
        worker.imported("models:/nothing@champion")
    run = worker.client.create_run(worker.experiment).info.run_id
    (tmp_path / "notes.txt").write_text("no model")
    worker.client.log_artifact(run, str(tmp_path / "notes.txt"), "notes")
    with pytest.raises(FailedPrecondition, match="not a model of Homophily"):
        worker.imported(f"runs:/{run}/notes")
    uri, folder = worker.logged()
    file = folder / "homophily" / "graph" / "weights_data.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(DataLoss, match="weights_data"):
        worker.imported(uri)
    with pytest.raises(NotFound, match="nothing"):
        worker.imported(f"runs:/{run}/nothing")


def test_a_model_of_a_run_is_imported_without_what_lies_beside_it(worker: Worker) -> None:
    run = worker.client.create_run(worker.experiment).info.run_id
    log_model(fitted()[1], name="model", run_id=run)
    assert worker.imported(f"runs:/{run}/model").point_count == 120


def test_a_model_beyond_the_limit_is_refused_before_it_is_downloaded(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of it was downloaded first.
    uri, folder = worker.logged()
    size = sum(file.stat().st_size for file in (folder / "homophily").rglob("*") if file.is_file())

    def download(*_: Any, **__: Any) -> str:
        raise AssertionError("nothing is to be downloaded")

    with monkeypatch.context() as patch:
        patch.setattr(f"{FOLDERS}.download_artifacts", download)
        patch.setattr(worker, "settings", worker.settings.model_copy(update={"max_dataset_bytes": size - 1}))
        with pytest.raises(LimitExceeded, match=f"has {size} bytes, the limit is {size - 1}"):
            worker.imported(uri)
    monkeypatch.setattr(worker, "settings", worker.settings.model_copy(update={"max_dataset_bytes": size}))
    assert worker.imported(uri).point_count == 120


def test_a_file_that_is_larger_than_announced_is_not_downloaded_whole(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.entities import FileInfo
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    uri, folder = worker.logged()
    (folder / "homophily" / "graph" / "weights_data.npy").write_bytes(bytes(8 << 20))
    list_artifacts, largest = LocalArtifactRepository.list_artifacts, [0]

    def lie(self: Any, path: str | None = None) -> list[Any]:
        return [FileInfo(one.path, one.is_dir, 100) for one in list_artifacts(self, path)]

    rmtree = shutil.rmtree

    def look_first(path: Any, **more: Any) -> None:
        largest[0] = max(file.stat().st_size for file in Path(path).rglob("*"))
        rmtree(path, **more)

    monkeypatch.setattr(LocalArtifactRepository, "list_artifacts", lie)
    monkeypatch.setattr(shutil, "rmtree", look_first)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(LimitExceeded, match="more bytes than its registry said"):
        worker.imported(uri)
    assert largest[0] <= 1 << 20
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == limit


def test_the_folder_of_a_killed_download_is_removed_and_that_of_a_living_one_stays(
    worker: Worker,
) -> None:
    # It stayed in the system's folder for temporary files.
    dead, alive = (worker.settings.data_dir / "imports" / name for name in ("dead", "alive"))
    for folder in (dead, alive):
        (folder / "homophily").mkdir(parents=True)
        (folder / "homophily" / "points.npy").write_bytes(bytes(1000))
    descriptor = os.open(alive, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    scratch.remove_abandoned(worker.settings)
    assert not dead.exists()
    assert (alive / "homophily" / "points.npy").exists()
    os.close(descriptor)
    scratch.remove_abandoned(worker.settings)
    assert not alive.exists()
    scratch.remove_abandoned(worker.settings.model_copy(update={"data_dir": Path("nowhere")}))
