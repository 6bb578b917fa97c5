"""Jobs are bound to what their source was when they were submitted, not to its name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from homophily_client import Client, LabelColumn
from homophily_client._pb import dataset_pb2, job_pb2, model_pb2
from homophily_service.contract.errors import FailedPrecondition
from homophily_service.jobs.compute import compute
from homophily_service.worker.supervisor import Worker, _task

from .serving import Project, Service, labels_of, running

X = np.random.default_rng(0).normal(size=(40, 3)) + 9 * np.arange(40)[:, None] % 2
LABELS = {point: str(point % 2) for point in range(8)}
IRR = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server without workers: jobs run when a test has them run."""
    with running(tmp_path_factory.mktemp("sources"), workers=0, predictors=0) as service:
        yield service


@pytest.fixture
def worker(service: Service) -> Iterator[Worker]:
    worker = Worker(service.settings)
    yield worker
    worker.stores.close()


def run_next(worker: Worker) -> None:
    """Have the only job that waits computed, in this process."""
    queue = worker.stores.queue
    lease = queue.claim("a worker", ["fit", "transduce", "embed"], 60.0, b"")
    assert lease is not None
    try:
        outcome = compute(_task(lease), worker.stores, worker.settings, 1, lambda _: None)
    except FailedPrecondition as error:
        queue.fail(lease, b"", error.message)
        raise
    assert isinstance(outcome, bytes)
    worker._succeed(lease, outcome)


def upload_again(project: Project, name: str, points: np.ndarray) -> None:
    project.stub.DeleteDataset(dataset_pb2.DeleteDatasetRequest(name=name))
    assert project.upload(points, dataset_id=name.rpartition("/")[2]).name == name


@pytest.mark.parametrize("kind", ["fit", "embed"])
def test_a_job_does_not_use_a_dataset_that_took_the_name_of_its_own(
    project: Project, worker: Worker, kind: str
) -> None:
    dataset = project.upload(X)
    if kind == "fit":
        project.stub.Fit(project.fit_request(dataset.name, LABELS, solver=IRR))
    else:
        project.stub.Embed(project.embed_request(dataset.name, [(0, 2)]))
    upload_again(project, dataset.name, X[::-1].copy())
    with pytest.raises(FailedPrecondition, match="created again after the job was submitted") as caught:
        run_next(worker)
    assert caught.value.reason == "SOURCE_CHANGED"


def test_a_job_does_not_use_labels_that_took_the_name_of_its_own(
    service: Service, project: Project, worker: Worker
) -> None:
    dataset = project.upload(X)
    with Client(service.target, project=project.id) as client:

        def upload_labels(reverse: bool) -> None:
            labels = [LABELS.get(point, "") for point in range(len(X))]
            client.upload({"y": labels[::-1] if reverse else labels}, table={"label_column": "y"}, name="answers")

        upload_labels(reverse=False)
        client.fit(dataset.name, LabelColumn("answers"), solver={"method": "irr"})
        client.delete_dataset("answers")
        upload_labels(reverse=True)
    with pytest.raises(FailedPrecondition, match="answers was deleted and created again"):
        run_next(worker)


@pytest.mark.parametrize("kind", ["transduce", "embed"])
def test_a_job_does_not_use_a_model_that_took_the_name_of_its_own(project: Project, worker: Worker, kind: str) -> None:
    dataset = project.upload(X)
    fit = project.fit_request(dataset.name, LABELS, solver=IRR, model_id="m")
    project.stub.Fit(fit)
    run_next(worker)
    model = f"{project.name}/models/m"
    if kind == "transduce":
        project.stub.Transduce(job_pb2.TransduceRequest(model=model, labels=labels_of({10: "1"})))
    else:
        project.stub.Embed(project.embed_request(model, [(0, 2)]))
    project.stub.DeleteModel(model_pb2.DeleteModelRequest(name=model))
    # The model is made anew before the other job's turn.
    fit.options.priority = 1
    project.stub.Fit(fit)
    run_next(worker)
    with pytest.raises(FailedPrecondition, match="created again after the job was submitted"):
        run_next(worker)


def test_a_job_takes_a_dataset_that_was_uploaded_again_with_the_same_content(project: Project, worker: Worker) -> None:
    dataset = project.upload(X)
    job = project.stub.Fit(project.fit_request(dataset.name, LABELS, solver=IRR)).job
    upload_again(project, dataset.name, X)
    run_next(worker)
    assert project.ended(job).state == job_pb2.JOB_STATE_SUCCEEDED
