"""Lists of a part of what a project has, in either order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import numpy as np
import pytest

from homophily_client import Client
from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2

from .commands import Run
from .serving import Project, Service, refusal

X = np.random.default_rng(0).normal(size=(30, 3)) + 9 * (np.arange(30)[:, None] % 2)
FEW = {0: "a", 1: "b"}
IRR = {"method": "irr"}


@pytest.fixture
def client(service: Service, project: Project) -> Any:
    with Client(service.target, project=project.id) as client:
        yield client


def test_models_maps_and_jobs_of_one_dataset(client: Client, run: Run) -> None:
    first, second = client.upload(X, name="first"), client.upload(-X, name="second")
    models = [client.fit(data, FEW, solver=IRR).result() for data in (first, second, first)]
    again = client.transduce(models[0], {3: "b"}).result()
    made = client.embed(second, must_link=[(0, 2)], solver={"max_iter": 2}).result()

    def names(listed: Any) -> list[str]:
        return [one.name for one in listed]

    assert names(client.list_models(dataset=first)) == [again.name, models[2].name, models[0].name]
    assert names(client.list_models(dataset="second")) == [models[1].name]
    assert names(client.list_models(oldest_first=True)) == [*names(models), again.name]
    assert names(client.list_embeddings(dataset=second)) == [made.name]
    assert names(client.list_embeddings(dataset=first)) == []
    assert names(client.list_datasets(oldest_first=True)) == [first.name, second.name]
    assert [job.info.kind for job in client.list_jobs(source=models[0])] == ["transduce"]
    assert [job.info.kind for job in client.list_jobs(source=second, oldest_first=True)] == ["fit", "embed"]
    assert [job.info.kind for job in client.list_jobs(source=second, kind="embed")] == ["embed"]
    # A deleted dataset still names its models.
    client.delete_dataset(second)
    assert names(client.list_models(dataset="second")) == [models[1].name]
    listed = run("models", "--dataset", "first", "--oldest-first", "--json").json
    assert names_of(listed) == [models[0].name, models[2].name, again.name]
    assert names_of(run("embeddings", "--dataset", "second", "--json").json) == [made.name]
    assert names_of(run("datasets", "--oldest-first", "--json").json) == [first.name]
    jobs = run("jobs", "--source", "datasets/second", "--oldest-first", "--json").json
    assert [job["kind"] for job in jobs] == ["fit", "embed"]


def names_of(listed: Any) -> list[str]:
    return [one["name"] for one in listed]


def test_lists_of_a_span_of_time(client: Client) -> None:
    made = [client.upload(X + shift, name=f"d{shift}") for shift in range(3)]
    second = made[1].create_time
    assert second is not None
    # A dataset is described a moment before it is recorded.
    after = list(client.list_datasets(created_after=second))
    assert {one.name for one in after} >= {made[1].name, made[2].name}
    before = datetime.now(UTC) - timedelta(hours=1)
    assert list(client.list_datasets(created_before=before)) == []
    assert list(client.list_models(created_after=before)) == list(client.list_embeddings(created_after=before)) == []
    assert list(client.list_jobs(created_after=before)) == []
    with pytest.raises(ValueError, match="created_after must have a time zone"):
        list(client.list_models(created_after=datetime(2026, 1, 1)))


def test_pages_go_on_in_the_order_that_was_asked_for(project: Project) -> None:
    names = [project.upload(X + shift).name for shift in range(5)]
    found: list[str] = []
    request = dataset_pb2.ListDatasetsRequest(parent=project.name, page_size=2, oldest_first=True)
    while True:
        page = project.stub.ListDatasets(request)
        found += [one.name for one in page.datasets]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert found == names


def test_times_out_of_range_are_refused(project: Project) -> None:
    request = dataset_pb2.ListDatasetsRequest(parent=project.name)
    request.created_before.seconds = 2**40
    found = refusal(project.stub.ListDatasets, request)
    assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["created_before"])


def test_filters_that_are_no_names_are_refused(project: Project) -> None:
    for call, request, field in (
        ("ListModels", model_pb2.ListModelsRequest(dataset="first"), "dataset"),
        ("ListEmbeddings", embedding_pb2.ListEmbeddingsRequest(dataset=f"{project.name}/models/m"), "dataset"),
        ("ListJobs", job_pb2.ListJobsRequest(source="first"), "source"),
    ):
        request.parent = project.name
        found = refusal(getattr(project.stub, call), request)
        assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])
