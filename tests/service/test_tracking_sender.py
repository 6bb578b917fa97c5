"""What the tracker sends of jobs and what it does not, to a real MLflow store; all in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert

from homophily.selection.search import default_trials
from homophily_client._pb import dataset_pb2, job_pb2, model_pb2
from homophily_client.names import DatasetName, JobName, ModelName, new_id
from homophily_service.contract.arrays import shape_of
from homophily_service.contract.tasks import Task, encode_trial
from homophily_service.jobs.compute import compute
from homophily_service.runtime.settings import Settings
from homophily_service.storage.records import Lease, NewJob
from homophily_service.storage.tables import runs_to_end
from homophily_service.tracking.place import connect
from homophily_service.tracking.tracker import Tracker

# MLflow's own: of types that it could not check, and of what it is built on.
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:mlflow",
    "ignore::FutureWarning:mlflow",
    "ignore::sqlalchemy.exc.SADeprecationWarning",
    "ignore::ResourceWarning",
)
POINTS = DatasetName("default", "clouds")


class Scene:
    """A tracker, its MLflow store, and a worker without its processes."""

    def __init__(self, folder: Path) -> None:
        self.tracker = Tracker(Settings(data_dir=folder, tracking_models="all"))
        self.stores = self.tracker.stores
        self.stores.database.migrate()
        self.client = connect(self.tracker.settings)
        rng, place = np.random.default_rng(7), np.arange(120) % 3
        points = (4.0 * rng.normal(size=(3, 5))[place] + rng.normal(size=(120, 5))).astype(np.float32)
        self.stores.blobs.write("datasets/clouds", {"points": points}, {})
        described = dataset_pb2.Dataset(name=str(POINTS), shape=shape_of(points), sha256=b"1" * 32)
        with self.stores.database.write() as connection:
            self.stores.catalog.add(connection, POINTS, described.SerializeToString(), "datasets/clouds")

    def begin(self, **fields: Any) -> Lease:
        """A fit that a worker has just taken."""
        labels = model_pb2.Labels(points=range(30))
        labels.classes.integers.values.extend(point % 3 for point in range(30))
        request = job_pb2.FitRequest(parent="projects/default", dataset=str(POINTS), labels=labels, **fields)
        request.solver.method = model_pb2.METHOD_IRR
        jobs = self.stores.queue
        jobs.submit(NewJob(JobName("default", new_id()), "fit", request.SerializeToString()), 100)
        lease = jobs.claim("worker", ["fit"], 600.0, b"")
        assert lease is not None
        return lease

    def compute(self, lease: Lease) -> Any:
        """What a worker's child answers."""
        return compute(task_of(lease), self.stores, self.tracker.settings, 1, lambda _: None)

    def end(self, lease: Lease) -> model_pb2.Model:
        result = self.compute(lease)
        assert isinstance(result, bytes)
        model = job_pb2.FitResult.FromString(result).model
        name, add = ModelName.parse(model.name, "name"), self.stores.catalog.add
        path = task_of(lease).result_path
        self.stores.queue.finish(
            lease,
            result,
            lambda connection: add(connection, name, model.SerializeToString(), path, graph=model.graph.digest),
        )
        return model

    def runs(self, lease: Lease) -> list[Any]:
        return self.found(f"tags.`homophily.job` = '{lease.name}'")

    def found(self, which: str) -> list[Any]:
        experiments = [one.experiment_id for one in self.client.search_experiments()]
        return list(self.client.search_runs(experiments, which))


def task_of(lease: Lease) -> Task:
    return Task(lease.name, lease.kind, lease.request, lease.token)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("sender"))
    yield scene
    scene.tracker.lock.close()
    scene.stores.close()


def test_a_search_that_mlflow_missed_is_told_with_pictures_and_the_model(scene: Scene) -> None:
    lease = scene.begin(search=model_pb2.SearchParameters(trials=4))
    model = scene.end(lease)
    assert scene.tracker.round() == 1
    (run,) = scene.runs(lease)
    assert run.info.status == "FINISHED"
    errors = [one.error_rate for one in model.search.trials if one.HasField("error_rate") and not one.pruned]
    (best,) = scene.client.get_metric_history(run.info.run_id, "search.best_error_rate")
    assert (best.step, best.value) == (len(model.search.trials), min(errors))
    assert run.data.metrics["validation_error"] == model.search.trials[model.search.best].error_rate
    pictures = {one.path for one in scene.client.list_artifacts(run.info.run_id, "pictures")}
    assert {"pictures/scores.png", "pictures/map.png", "pictures/map.html"} <= pictures
    assert len(run.outputs.model_outputs) == 1
    stored = scene.stores.queue.get(lease.name)
    assert stored.tracking_url == f"http://127.0.0.1:5000/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


def test_trials_that_nobody_gave_a_number_for_are_told_as_the_core_has_them(scene: Scene) -> None:
    lease = scene.begin(search=model_pb2.SearchParameters())
    scene.tracker.round()
    (run,) = scene.runs(lease)
    assert run.data.params["search.trials"] == str(default_trials("irr"))
    scene.stores.queue.fail(lease, b"", "")
    scene.tracker.round()


def test_trials_that_had_ended_when_their_search_was_cancelled_are_told(scene: Scene) -> None:
    jobs = scene.stores.queue
    lease = scene.begin(search=model_pb2.SearchParameters(spread=True))
    waiting = scene.compute(lease)
    assert len(waiting.trials) > 1
    jobs.wait_for(
        lease,
        [NewJob(JobName("default", one.id), "trial", encode_trial(one.request)) for one in waiting.trials],
        "",
    )
    first = jobs.claim("worker", ["trial"], 600.0, b"")
    assert first is not None
    result = scene.compute(first)
    jobs.finish(first, result)
    jobs.cancel(lease.name)
    assert scene.tracker.round() == 1
    (run,) = scene.runs(lease)
    assert run.info.status == "KILLED"
    below = scene.found(f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    told = {one.data.tags["homophily.trial"]: one.data.metrics["validation_error"] for one in below}
    assert told == {str(one.number): one.error_rate for one in job_pb2.TrialResult.FromString(result).trials}
    assert {(one.info.status, one.data.tags["homophily.best"]) for one in below} == {("FINISHED", "false")}


def test_of_several_runs_of_a_job_one_stays(scene: Scene) -> None:
    lease = scene.begin()
    scene.tracker.round()
    (run,) = scene.runs(lease)
    for _ in range(2):
        # Heard long after it was said, and given up.
        scene.client.create_run(run.info.experiment_id, tags={"homophily.job": str(lease.name)})
    assert len(scene.runs(lease)) == 3
    scene.end(lease)
    scene.tracker.round()
    assert [one.info.run_id for one in scene.runs(lease)] == [run.info.run_id]


def test_a_registration_that_mlflow_refuses_is_noted_and_the_run_ends(scene: Scene) -> None:
    # The API refuses it, but another MLflow may refuse more.
    lease = scene.begin(registration=model_pb2.Registration(name="clouds", aliases=["Latest"]))
    scene.end(lease)
    assert scene.tracker.round() == 1
    (run,) = scene.runs(lease)
    assert run.info.status == "FINISHED"
    assert "reserved" in run.data.tags["homophily.refused"]
    assert scene.client.list_artifacts(run.info.run_id, "pictures")
    assert scene.client.get_model_version("default.clouds", "1").run_id == run.info.run_id
    assert not scene.stores.queue.get(lease.name).untracked


def test_the_run_of_a_deleted_job_is_ended(scene: Scene) -> None:
    """It stayed RUNNING in MLflow for ever."""
    lease = scene.begin()
    scene.tracker.round()
    [run] = scene.runs(lease)
    assert run.info.status == "RUNNING"
    queue = scene.stores.queue
    queue.cancel(lease.name)
    queue.cancelled(lease)
    queue.delete(lease.name)
    scene.tracker.round()
    [run] = scene.runs(lease)
    assert run.info.status == "KILLED"
    assert scene.tracker.outbox.runs_to_end(10) == []


def test_the_run_of_a_job_that_is_deleted_while_its_run_is_made_is_ended(scene: Scene) -> None:
    lease = scene.begin()
    scene.stores.queue.fail(lease, job_pb2.JobError(message="no").SerializeToString(), "failed")
    sender = scene.tracker._connected()
    make = sender._new_run

    def deleting(*arguments: Any) -> Any:
        scene.stores.queue.delete(lease.name)
        return make(*arguments)

    sender._new_run = deleting  # type: ignore[method-assign]
    try:
        scene.tracker.round()
    finally:
        sender._new_run = make  # type: ignore[method-assign]
    [run] = scene.runs(lease)
    assert run.info.status == "FAILED"


def test_a_run_of_a_deleted_job_that_mlflow_lost_is_forgotten(scene: Scene) -> None:
    with scene.stores.database.write() as connection:
        connection.execute(insert(runs_to_end).values(run="0" * 32, state="succeeded", finished=1.0))
    scene.tracker.round()
    assert scene.tracker.outbox.runs_to_end(10) == []
