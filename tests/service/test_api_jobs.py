"""Jobs over gRPC: what fits and transductions answer, and how jobs are waited for, watched, cancelled, deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily_client._pb import dataset_pb2, model_pb2
from homophily_client._pb import job_pb2 as pb
from homophily_service.storage.models import graph_digest
from homophily_service.storage.sources import dataset_digest

from .serving import (
    PATIENCE,
    Matrix,
    Project,
    Service,
    bytes_of,
    descendants,
    eventually,
    labels_of,
    open_stores,
    refusal,
    seconds,
    shape_of,
    values_of,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def groups(points: int, classes: int, seed: int = 0) -> tuple[Any, list[int]]:
    """Points around well-parted centres, and the number of each one's centre."""
    truth = np.arange(points) % classes
    return np.random.default_rng(seed).normal(size=(points, 4)) + 12 * np.eye(classes, 4)[truth], truth.tolist()


X, TRUTH = groups(60, 3)
TWO, TRUTH_OF_TWO = groups(40, 2)
IRR = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR)
LABELS = dict(enumerate(TRUTH[:9]))


def watched(project: Project, name: str, after: int = 0) -> list[pb.WatchJobResponse]:
    return list(project.stub.WatchJob(pb.WatchJobRequest(name=name, after_sequence=after), timeout=PATIENCE))


# -- fits --------------------------------------------------------------------------------------------------------------


def solver(**parameters: Any) -> model_pb2.SolverParameters:
    return model_pb2.SolverParameters(**parameters)


def shares(*values: float) -> model_pb2.ClassPrior:
    return model_pb2.ClassPrior(shares=model_pb2.ClassShares(values=values))


@pytest.mark.parametrize(
    ("points", "truth", "classes", "parameters"),
    [
        (X, TRUTH, ["a", "b", "ζ 👍"], solver()),
        (X.astype(np.float32), TRUTH, [-1, 0, 2**63 - 1], solver(multiclass=model_pb2.MULTICLASS_ONE_VS_REST)),
        (X, TRUTH, [-(2**63), -7, -1], solver(method=model_pb2.METHOD_IRR, power=1, tolerance=1e-8)),
        (X, TRUTH, ["1", "10", "9"], solver(relationship_neighbors=5, max_iter=3)),
        (X, TRUTH, [5, 6, 7], solver(class_prior=shares(1 / 3, 1 / 3, 1 / 3), normalized=False)),
        (TWO, TRUTH_OF_TWO, ["no", "yes"], solver(class_prior=model_pb2.ClassPrior(estimate=True))),
        (TWO, TRUTH_OF_TWO, [-1, 1], solver(method=model_pb2.METHOD_IRR)),
        (csr_array(np.maximum(X, 0)), TRUTH, ["a", "b", "c"], solver(lambda1=0.1, lambda2=0, sigma_f=1, repulsion=1)),
    ],
    ids=["strings", "one-vs-rest", "IRR", "sparse ERR", "shares", "estimate", "IRR of two", "csr"],
)
def test_every_point_gets_its_class(
    project: Project, points: Matrix, truth: list[int], classes: list[Any], parameters: model_pb2.SolverParameters
) -> None:
    known = {point: classes[truth[point]] for point in range(8)}
    model = project.model(points, labels_of(known, weights=[1.5] * 8), solver=parameters)
    assert values_of(model.classes) == classes
    assert project.classes(model) == [classes[number] for number in truth]
    assert model.solver_parameters == parameters


def test_a_model_tells_how_it_was_made(project: Project) -> None:
    dataset = project.upload(X)
    graph = model_pb2.GraphParameters(n_neighbors=7, weights=model_pb2.EDGE_WEIGHTS_GLOBAL)
    wrong = {point: TRUTH[point] for point in range(20, 28)} | {28: 2 - TRUTH[28], 29: 2 - TRUTH[29]}
    compared = {"validation": labels_of(wrong), "calibrate": True}
    job = project.fit(dataset.name, LABELS, graph=graph, **compared, model_id="m", solver=solver(sharpen=False))
    model = job.fit.model
    assert job.state == pb.JOB_STATE_SUCCEEDED
    assert (job.kind, job.attempt, job.max_attempts, job.queue_position) == (pb.JOB_KIND_FIT, 1, 3, 0)
    assert job.create_time.ToNanoseconds() <= job.start_time.ToNanoseconds() <= job.finish_time.ToNanoseconds()
    assert job.time_limit.seconds == 3600
    assert model.name == f"{project.name}/models/m"
    assert (model.dataset, model.job, model.parent_model) == (dataset.name, job.name, "")
    assert (model.point_count, model.dimension_count, model.labelled_count) == (60, 4, 9)
    assert model.graph_parameters == graph
    assert len(model.graph.digest) == 64
    assert (model.graph.reused, model.graph.recall, model.graph.component_count) == (False, 1.0, 3)
    assert model.graph.edge_count > 0
    assert model.energy > 0
    assert model.iteration_count > 0
    assert model.evaluation_count >= model.iteration_count
    assert model.engine
    assert model.error_rate == pytest.approx(0.1 if TRUTH[28] == 1 or TRUTH[29] == 1 else 0.2)
    assert set(model.seconds) == {"load", "graph", "solve", "calibrate", "save"}
    assert model.calibrated
    assert model.HasField("create_time")
    assert model.size_bytes > 0
    assert project.stub.GetModel(model_pb2.GetModelRequest(name=model.name)).model == model


def test_a_graph_is_built_once_for_the_same_points_and_parameters(project: Project) -> None:
    dataset = project.upload(X + 1)
    first = project.model(dataset.name, LABELS, solver=IRR)
    second = project.model(X + 1, {point: str(TRUTH[point]) for point in range(12)}, solver=IRR)
    other = project.model(dataset.name, LABELS, solver=IRR, graph=model_pb2.GraphParameters(n_neighbors=5))
    assert (first.graph.reused, second.graph.reused, other.graph.reused) == (False, True, False)
    assert first.graph.digest == second.graph.digest != other.graph.digest


def test_graphs_are_named_by_project_shape_type_layout_and_parameters() -> None:
    def digest(points: Matrix, project: str = "p", **parameters: Any) -> str:
        dataset = dataset_pb2.Dataset(shape=shape_of(points), sha256=hashlib.sha256(bytes_of(points)).digest())
        return graph_digest(project, dataset_digest(dataset), parameters)

    points = np.random.default_rng(0).normal(size=(12, 4))
    others = [points.reshape(6, 8), points.reshape(24, 2), points.view(np.float32), csr_array(points)]
    assert digest(points) == digest(points.copy())
    names = {digest(points), *map(digest, others), digest(points, "q"), digest(points, n_neighbors=5)}
    assert len(names) == 3 + len(others)


def test_the_same_bytes_of_another_shape_are_not_the_same_graph(service: Service) -> None:
    """A tenant who sent another's points in another shape had that graph reused, silently."""
    points = np.ascontiguousarray(np.repeat(X, 2, axis=1)) + 5
    hostile, honest = service.project(), service.project()
    hostile.model(points.reshape(len(points) * 2, -1), LABELS, solver=IRR)
    model = honest.model(points, LABELS, solver=IRR)
    assert not model.graph.reused
    assert (model.point_count, model.dimension_count) == points.shape
    assert honest.model(points, LABELS, solver=IRR).graph.reused


def test_graphs_are_not_shared_between_projects(service: Service) -> None:
    points = X + 7
    first, second = (service.project().model(points, LABELS, solver=IRR) for _ in range(2))
    assert (first.graph.reused, second.graph.reused) == (False, False)
    assert first.graph.digest != second.graph.digest


def test_a_stored_graph_of_other_points_is_built_again(service: Service, project: Project) -> None:
    model, other = (project.model(points, LABELS, solver=IRR) for points in (X + 8, np.hstack([X, X]) + 8))
    stores = open_stores(service)
    path = stores.catalog.use_graph(other.graph.digest)
    assert path is not None
    stores.catalog.replace_graph(model.graph.digest, path)
    stores.close()
    again = project.model(X + 8, LABELS, solver=IRR)
    assert not again.graph.reused
    assert again.graph.edge_count == model.graph.edge_count


def test_classes_that_differ_where_points_vary_little_need_whitened_points(project: Project) -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(200) % 2
    points = np.column_stack([100 * rng.normal(size=200), truth + 0.1 * rng.normal(size=200)])
    known = dict(enumerate(truth[:20].tolist()))
    dataset = project.upload(points).name
    wrong, digests = {}, set()
    for space in (model_pb2.SPACE_INPUT, model_pb2.SPACE_PRINCIPAL, model_pb2.SPACE_WHITENED):
        graph = model_pb2.GraphParameters(space=space)
        model = project.model(dataset, known, graph=graph)
        assert (model.graph_parameters, model.graph.reused) == (graph, False)
        digests.add(model.graph.digest)
        wrong[space] = np.mean(np.array(project.classes(model)) != truth)
    assert wrong[model_pb2.SPACE_WHITENED] < 0.02 < 0.2 < wrong[model_pb2.SPACE_INPUT]
    assert len(digests) == 3
    # From the stored graph, which has kept its directions.
    answer = project.predict(model.name, np.array([[-50.0, 0.0], [-50.0, 1.0], [60.0, 0.0], [60.0, 1.0]]))
    assert list(answer.class_indices) == [0, 1, 0, 1]


def test_a_graph_that_is_there_is_not_paid_for_again(project: Project) -> None:
    points = X + 9
    dataset = project.upload(points).name
    first, second = (project.model(dataset, LABELS, solver=IRR) for _ in range(2))
    assert (first.graph.reused, second.graph.reused) == (False, True)
    assert first.graph.digest == second.graph.digest


def test_a_graph_that_is_lost_is_built_again(service: Service, project: Project) -> None:
    first = project.model(X + 2, LABELS, solver=IRR)
    [manifest] = (service.settings.data_dir / "blobs" / "graphs" / first.graph.digest).glob("*/manifest.json")
    manifest.unlink()
    second, third = (project.model(X + 2, LABELS, solver=IRR) for _ in range(2))
    assert (first.graph.reused, second.graph.reused, third.graph.reused) == (False, False, True)
    assert project.classes(second) == project.classes(first)


def test_points_inside_a_request_become_one_dataset(project: Project) -> None:
    models = [project.model(X, labels, solver=IRR) for labels in (LABELS, LABELS | {20: TRUTH[20]})]
    assert models[0].dataset == models[1].dataset
    listed = project.stub.ListDatasets(dataset_pb2.ListDatasetsRequest(parent=project.name)).datasets
    assert [dataset.name for dataset in listed] == [models[0].dataset]


def test_odd_points_have_a_documented_result(project: Project) -> None:
    few = project.model(X[:6], {0: "a", 1: "b", 2: "c"}, solver=IRR)
    assert "only 5 exist" in few.warnings[0]
    alike = project.model(np.zeros((30, 2)), {0: "a", 1: "b"})
    assert set(project.classes(alike)) <= {"a", "b"}
    far = np.vstack([X, X[:12] + 1e6])
    parted = project.model(far, {point: TRUTH[point] for point in range(9)})
    assert any("component" in warning for warning in parted.warnings)
    nothing = project.model(csr_array((30, 5)), {0: 1, 1: 2}, solver=IRR)
    assert nothing.point_count == 30


# -- transductions -----------------------------------------------------------------------------------------------------


def test_labels_are_added_changed_and_withdrawn(project: Project) -> None:
    first = project.model(X, {0: "a", 1: "b", 2: "a", 3: "a", 4: "b"})
    assert project.classes(first)[5] == "a"
    job = project.transduce(first.name, {2: "c", 8: "c"}, withdrawn=[3], model_id="next", calibrate=True)
    second = job.transduce.model
    assert second.name == f"{project.name}/models/next"
    assert (second.parent_model, second.dataset, second.job) == (first.name, first.dataset, job.name)
    assert values_of(second.classes) == ["a", "b", "c"]
    assert (second.labelled_count, second.point_count, second.dimension_count) == (5, 60, 4)
    assert second.graph.reused
    assert second.graph.digest == first.graph.digest
    assert second.calibrated
    assert project.classes(second) == ["abc"[number] for number in TRUTH]
    moved = sum(one != other for one, other in zip(project.classes(first), project.classes(second), strict=True))
    assert job.transduce.changed_point_count == moved > 0
    # Parents stay as they are, and a class goes with its last label.
    third = project.transduce(second.name, {}, withdrawn=[2, 8], validation=labels_of({5: "c"})).transduce.model
    assert values_of(third.classes) == ["a", "b"]
    assert third.error_rate == 1.0
    assert project.stub.GetModel(model_pb2.GetModelRequest(name=first.name)).model == first


def test_what_only_the_job_finds_out_names_its_field(project: Project) -> None:
    model = project.model(X, {0: "a", 1: "b"}, solver=solver(class_prior=shares(0.5, 0.5)))
    wrong: list[tuple[dict[int, Any], list[int], str]] = [
        ({}, [5], "withdrawn[0]"),
        ({0: "b"}, [0], "withdrawn[0]"),
        ({}, [0], "labels"),
        ({2: "c"}, [], "solver.class_prior.shares.values"),
    ]
    for labels, withdrawn, field in wrong:
        job = project.transduce(model.name, labels, withdrawn=withdrawn)
        assert job.state == pb.JOB_STATE_FAILED
        assert job.error.code == INVALID.value[0]
        assert [violation.field for violation in job.error.field_violations] == [field]
        assert job.error.message


# -- asking ------------------------------------------------------------------------------------------------------------


def test_the_same_key_and_request_are_the_same_job(project: Project, service: Service) -> None:
    request = project.fit_request(X, LABELS, solver=IRR, model_id="m", options=pb.JobOptions(request_id="key 1"))
    first = project.ended(project.stub.Fit(request).job)
    assert first.request_id == "key 1"
    # How it is run is no part of what is asked, and that the model exists does not matter for the second.
    request.options.priority = 5
    request.options.wait.seconds = 10
    assert project.stub.Fit(request).job == first
    request.calibrate = True
    answer = refusal(project.stub.Fit, request)
    assert (answer.code, answer.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_CONFLICT")
    other = pb.TransduceRequest(model=f"{project.name}/models/m", options=pb.JobOptions(request_id="key 1"))
    assert refusal(project.stub.Transduce, other).reason == "REQUEST_ID_CONFLICT"
    elsewhere = service.project()
    theirs = elsewhere.fit_request(X, LABELS, solver=IRR, options=pb.JobOptions(request_id="key 1"))
    assert elsewhere.stub.Fit(theirs).job.name != first.name
    # Without a key, every request is a job.
    request.ClearField("options")
    request.model_id = ""
    assert project.stub.Fit(request).job.name != project.stub.Fit(request).job.name


def test_a_repeated_request_is_answered_though_what_it_names_was_deleted(project: Project) -> None:
    dataset, options = project.upload(X).name, pb.JobOptions(request_id="key 2")
    request = project.fit_request(dataset, LABELS, solver=IRR, options=options)
    first = project.ended(project.stub.Fit(request).job)
    again = pb.TransduceRequest(model=first.fit.model.name, options=pb.JobOptions(request_id="key 3"))
    second = project.ended(project.stub.Transduce(again).job)
    project.stub.DeleteDataset(dataset_pb2.DeleteDatasetRequest(name=dataset))
    project.stub.DeleteModel(model_pb2.DeleteModelRequest(name=first.fit.model.name))
    assert project.stub.Fit(request).job == first
    assert project.stub.Transduce(again).job == second
    request.options.request_id = "key 4"
    assert refusal(project.stub.Fit, request).code == grpc.StatusCode.NOT_FOUND


def test_a_request_may_wait_for_its_job(project: Project) -> None:
    request = project.fit_request(X, LABELS, solver=IRR, options=pb.JobOptions(wait=seconds(50)))
    job = project.stub.Fit(request, timeout=PATIENCE).job
    assert job.state == pb.JOB_STATE_SUCCEEDED
    assert job.fit.model.point_count == 60


def test_a_model_id_is_taken_once(project: Project) -> None:
    project.model(X, LABELS, solver=IRR, model_id="m")
    for call, request in (
        (project.stub.Fit, project.fit_request(X, LABELS, model_id="m")),
        (project.stub.Transduce, pb.TransduceRequest(model=f"{project.name}/models/m", model_id="m")),
    ):
        assert refusal(call, request).code is grpc.StatusCode.ALREADY_EXISTS
    # Two at a time are both taken, and the second to end fails.
    requests = [project.fit_request(X, LABELS, solver=IRR, model_id="both") for _ in range(2)]
    jobs = [project.ended(job) for job in [project.stub.Fit(request).job for request in requests]]
    assert [job.state for job in jobs] == [pb.JOB_STATE_SUCCEEDED, pb.JOB_STATE_FAILED]
    assert jobs[1].error.code == grpc.StatusCode.ALREADY_EXISTS.value[0]


# -- watching ----------------------------------------------------------------------------------------------------------


def test_a_watch_sees_everything_from_the_first_event_to_the_result(project: Project) -> None:
    name = project.stub.Fit(project.fit_request(X, LABELS)).job.name
    seen = watched(project, name)
    events = [response.event for response in seen]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[0].state == pb.JOB_STATE_QUEUED
    assert events[1].state == pb.JOB_STATE_RUNNING
    assert events[-1].state == pb.JOB_STATE_SUCCEEDED
    phases = [event.progress.phase for event in events if event.HasField("progress")]
    assert list(dict.fromkeys(phases)) == ["load", "graph", "solve", "save"]
    fractions = [event.progress.fraction for event in events if event.HasField("progress")]
    assert fractions == sorted(fractions)
    assert [response.HasField("job") for response in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1].job == project.stub.GetJob(pb.GetJobRequest(name=name)).job
    assert seen[-1].job.last_sequence == len(seen)


def test_a_watch_is_resumed_by_the_last_number_it_saw(project: Project) -> None:
    name = project.fit(X, LABELS, solver=IRR).name
    everything = watched(project, name)
    for place in range(len(everything)):
        assert watched(project, name, after=place) == everything[place:]
    for beyond in (len(everything), len(everything) + 1, 2**63 - 1):
        assert watched(project, name, after=beyond) == [pb.WatchJobResponse(job=everything[-1].job)]
    answer = refusal(project.stub.WatchJob, pb.WatchJobRequest(name=name, after_sequence=-1))
    assert (answer.code, answer.fields) == (INVALID, ["after_sequence"])


# -- jobs that wait: a server without workers --------------------------------------------------------------------------


def queued(project: Project, **options: Any) -> pb.Job:
    return project.stub.Fit(project.fit_request(X, LABELS, options=pb.JobOptions(**options))).job


def test_waiting_ends_when_the_time_is_up(idle_project: Project) -> None:
    job = queued(idle_project, wait=seconds(0.05))
    assert job.state == pb.JOB_STATE_QUEUED
    request = pb.WaitJobRequest(name=job.name, timeout=seconds(0.05))
    assert idle_project.stub.WaitJob(request).job.state == pb.JOB_STATE_QUEUED
    # A deadline leaves time to answer.
    assert idle_project.stub.WaitJob(pb.WaitJobRequest(name=job.name), timeout=1.0).job.state == pb.JOB_STATE_QUEUED
    for wrong in (seconds(-1), seconds(1e12)):
        answer = refusal(idle_project.stub.WaitJob, pb.WaitJobRequest(name=job.name, timeout=wrong))
        assert (answer.code, answer.fields) == (INVALID, ["timeout"])


def test_a_queued_job_knows_its_place_and_is_cancelled_at_once(idle_project: Project) -> None:
    stub = idle_project.stub

    def place(job: pb.Job) -> int:
        return stub.GetJob(pb.GetJobRequest(name=job.name)).job.queue_position

    # Projects take turns, so that jobs of other tests may be among these.
    first, second, urgent = (queued(idle_project, priority=priority) for priority in (50, 50, 100))
    places = [place(job) for job in (urgent, first, second)]
    assert places == sorted(set(places))
    waiting = stub.WaitJob.future(pb.WaitJobRequest(name=first.name), timeout=PATIENCE)
    cancelled = stub.CancelJob(pb.CancelJobRequest(name=first.name)).job
    assert (cancelled.state, cancelled.cancel_requested) == (pb.JOB_STATE_CANCELLED, True)
    assert cancelled.HasField("finish_time")
    assert waiting.result().job == cancelled
    assert place(second) == places[1]
    assert stub.CancelJob(pb.CancelJobRequest(name=first.name)).job == cancelled
    seen = watched(idle_project, first.name)
    assert [response.event.state for response in seen] == [pb.JOB_STATE_QUEUED, pb.JOB_STATE_CANCELLED]


def test_watches_and_waits_end_with_their_job(idle_project: Project) -> None:
    stub, job = idle_project.stub, queued(idle_project)
    calls: list[Any] = [stub.WaitJob.future(pb.WaitJobRequest(name=job.name), timeout=PATIENCE) for _ in range(3)]
    watch = stub.WatchJob(pb.WatchJobRequest(name=job.name, after_sequence=1), timeout=PATIENCE)
    stub.CancelJob(pb.CancelJobRequest(name=job.name))
    assert [call.result().job.state for call in calls] == [pb.JOB_STATE_CANCELLED] * 3
    assert [response.event.sequence for response in watch] == [2]


def test_only_ended_jobs_are_deleted(idle_project: Project) -> None:
    stub, job = idle_project.stub, queued(idle_project)
    answer = refusal(stub.DeleteJob, pb.DeleteJobRequest(name=job.name))
    assert (answer.code, answer.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "JOB_NOT_ENDED")
    stub.CancelJob(pb.CancelJobRequest(name=job.name))
    stub.DeleteJob(pb.DeleteJobRequest(name=job.name))
    calls: list[tuple[Callable[..., Any], Any]] = [
        (stub.GetJob, pb.GetJobRequest(name=job.name)),
        (stub.WaitJob, pb.WaitJobRequest(name=job.name)),
        (stub.WatchJob, pb.WatchJobRequest(name=job.name)),
        (stub.CancelJob, pb.CancelJobRequest(name=job.name)),
        (stub.DeleteJob, pb.DeleteJobRequest(name=job.name)),
    ]
    for call, request in calls:
        assert refusal(call, request).code is grpc.StatusCode.NOT_FOUND


def test_jobs_are_listed_by_state_and_kind(idle_project: Project) -> None:
    stub = idle_project.stub
    jobs = [queued(idle_project).name for _ in range(4)]
    for name in jobs[:2]:
        stub.CancelJob(pb.CancelJobRequest(name=name))

    def listed(**filters: Any) -> list[str]:
        names, token = [], ""
        while True:
            request = pb.ListJobsRequest(parent=idle_project.name, page_size=1, page_token=token, **filters)
            page = stub.ListJobs(request)
            names += [job.name for job in page.jobs]
            token = page.next_page_token
            if not token:
                return names

    newest_first = jobs[::-1]
    assert listed() == listed(kind=pb.JOB_KIND_FIT) == listed(states=[pb.JOB_STATE_UNSPECIFIED]) == newest_first
    assert listed(states=[pb.JOB_STATE_CANCELLED]) == newest_first[2:]
    assert listed(states=[pb.JOB_STATE_QUEUED, pb.JOB_STATE_CANCELLED]) == newest_first
    assert listed(kind=pb.JOB_KIND_EMBED) == listed(states=[pb.JOB_STATE_RUNNING]) == []
    for field, value in {"states": [99], "kind": 99, "page_size": -5, "page_token": "-1"}.items():
        answer = refusal(stub.ListJobs, pb.ListJobsRequest(parent=idle_project.name, **{field: value}))
        assert (answer.code, answer.fields) == (INVALID, [field])


def test_a_full_queue_tells_when_to_come_back(idle_project: Project) -> None:
    jobs = [queued(idle_project).name for _ in range(5)]
    answer = refusal(idle_project.stub.Fit, idle_project.fit_request(X, LABELS))
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert answer.retry_seconds
    assert "the limit is 5" in answer.message
    idle_project.stub.CancelJob(pb.CancelJobRequest(name=jobs[2]))
    assert queued(idle_project).state == pb.JOB_STATE_QUEUED


# -- a job that runs ---------------------------------------------------------------------------------------------------


def test_a_running_job_stops_when_it_is_cancelled_and_one_without_its_dataset_fails(
    service: Service, project: Project
) -> None:
    stub = project.stub
    forever = solver(max_iter=100_000, tolerance=0)
    many = np.random.default_rng(0).normal(size=(3000, 5))
    request = project.fit_request(many, {point: point % 3 for point in range(30)}, solver=forever)
    running = stub.Fit(request).job
    watch = stub.WatchJob(pb.WatchJobRequest(name=running.name), timeout=PATIENCE)
    next(response for response in watch if response.event.progress.iteration > 0)
    computing = {pid for pid, command in descendants(service.process.pid).items() if "worker.child" in command}
    dataset = project.upload(X).name
    later = stub.Fit(project.fit_request(dataset, LABELS)).job
    stub.DeleteDataset(dataset_pb2.DeleteDatasetRequest(name=dataset))
    assert refusal(stub.DeleteJob, pb.DeleteJobRequest(name=running.name)).reason == "JOB_NOT_ENDED"

    assert stub.CancelJob(pb.CancelJobRequest(name=running.name)).job.cancel_requested
    assert list(watch)[-1].job.state == pb.JOB_STATE_CANCELLED
    eventually(lambda: not computing & set(descendants(service.process.pid)))
    orphan = project.ended(later)
    assert orphan.state == pb.JOB_STATE_FAILED
    assert orphan.error.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert dataset in orphan.error.message


def test_deleting_a_job_or_a_dataset_leaves_the_model(project: Project) -> None:
    dataset = project.upload(X + 2).name
    model = project.model(dataset, LABELS)
    project.stub.DeleteJob(pb.DeleteJobRequest(name=model.job))
    project.stub.DeleteDataset(dataset_pb2.DeleteDatasetRequest(name=dataset))
    assert project.classes(model) == TRUTH
    assert [TRUTH[5]] == list(project.predict(model.name, X[5:6] + 2.01).class_indices)
    assert project.transduce(model.name, {20: TRUTH[20]}).transduce.model.dataset == dataset
    assert refusal(project.stub.Fit, project.fit_request(dataset, LABELS)).code is grpc.StatusCode.NOT_FOUND
