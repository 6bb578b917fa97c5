"""Models over gRPC: got, listed, deleted; answers for new points and for a model's own."""

from __future__ import annotations

import shutil
from typing import Any

import grpc
import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily_client._pb import job_pb2
from homophily_client._pb import model_pb2 as pb
from homophily_client.names import ModelName
from homophily_service.storage.models import CLASS_INDICES, SCORES

from .serving import PATIENCE, Matrix, Project, Service, array_of, inline, labels_of, open_stores, refusal, values_of

RNG = np.random.default_rng(0)
TRUTH = np.arange(60) % 3
X = RNG.normal(size=(60, 4)) + 12 * np.eye(3, 4)[TRUTH]
NEW = RNG.normal(size=(30, 4)) + 12 * np.eye(3, 4)[TRUTH[:30]]
LABELS = {point: "abc"[TRUTH[point]] for point in range(9)}
ALL = [
    pb.SOLUTION_FIELD_CLASS_INDICES,
    pb.SOLUTION_FIELD_SCORES,
    pb.SOLUTION_FIELD_VALUES,
    pb.SOLUTION_FIELD_PROBABILITIES,
]
INVALID, PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture(scope="module")
def home(service: Service) -> Project:
    return service.project()


@pytest.fixture(scope="module")
def model(home: Project) -> pb.Model:
    return home.model(X, LABELS, calibrate=True)


@pytest.fixture(scope="module")
def plain(home: Project) -> pb.Model:
    """Of two classes, sparse, and not calibrated."""
    two = csr_array(np.maximum(X[TRUTH < 2], 0))
    return home.model(two, {point: point % 2 for point in range(6)})


# -- answers for new points --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [NEW, NEW.astype(np.float32), NEW[:1]], ids=["float64", "float32", "one"])
def test_new_points_get_the_class_of_their_neighbours(home: Project, model: pb.Model, points: Matrix) -> None:
    answer = home.predict(model.name, points, probabilities=True)
    assert answer.classes == model.classes
    assert values_of(answer.classes) == ["a", "b", "c"]
    assert list(answer.class_indices) == TRUTH[: len(points)].tolist()
    scores, probabilities = array_of(answer.scores), array_of(answer.probabilities)
    assert scores.shape == probabilities.shape == (len(points), 3)
    assert scores.dtype == probabilities.dtype == np.float64
    np.testing.assert_array_equal(probabilities.argmax(axis=1), answer.class_indices)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_two_classes_have_one_column_of_scores(home: Project, plain: pb.Model) -> None:
    answer = home.predict(plain.name, csr_array(np.maximum(NEW[TRUTH[:30] < 2], 0)))
    scores = array_of(answer.scores)
    assert scores.shape == (20, 1)
    np.testing.assert_array_equal(scores[:, 0] > 0, answer.class_indices)
    assert list(answer.class_indices) == [point % 2 for point in range(20)]
    assert not answer.HasField("probabilities")


def test_a_models_own_points_get_their_transduced_class(home: Project, model: pb.Model) -> None:
    assert list(home.predict(model.name, X).class_indices) == home.solution(model.name)[0].tolist()


def test_dense_and_sparse_are_two_ways_to_write_the_same_points(
    home: Project, model: pb.Model, plain: pb.Model
) -> None:
    positive = np.maximum(NEW, 0)
    for one in (model, plain):
        dense, sparse = (home.predict(one.name, points) for points in (positive, csr_array(positive)))
        assert dense.class_indices == sparse.class_indices
        np.testing.assert_allclose(array_of(dense.scores), array_of(sparse.scores))


def test_calls_at_the_same_time_get_the_answers_of_calls_by_themselves(
    home: Project, model: pb.Model, plain: pb.Model
) -> None:
    asked: list[pb.PredictRequest] = []
    for place in range(40):
        one, points = (model, NEW) if place % 4 else (plain, csr_array(np.maximum(NEW, 0)))
        some: Any = points[place % 20 : place % 20 + 1 + place % 7]
        some = some.astype(np.float32) if place % 5 == 0 else some
        asked.append(pb.PredictRequest(name=one.name, points=inline(some), probabilities=one.calibrated))
    alone = [home.stub.Predict(request, timeout=PATIENCE) for request in asked]
    together = [home.stub.Predict.future(request, timeout=PATIENCE) for request in asked]
    for one, other in zip(alone, (call.result() for call in together), strict=True):
        assert one.class_indices == other.class_indices
        np.testing.assert_allclose(array_of(one.scores), array_of(other.scores), rtol=1e-9, atol=1e-12)
        assert one.HasField("probabilities") == other.HasField("probabilities")


def test_probabilities_need_a_calibrated_model(home: Project, plain: pb.Model) -> None:
    request = pb.PredictRequest(name=plain.name, points=inline(NEW), probabilities=True)
    answer = refusal(home.stub.Predict, request)
    assert (answer.code, answer.reason) == (PRECONDITION, "NOT_CALIBRATED")
    answer = refusal(home.stub.ReadSolution, pb.ReadSolutionRequest(name=plain.name, fields=ALL))
    assert (answer.code, answer.reason) == (PRECONDITION, "NOT_CALIBRATED")


def test_a_server_without_predictors_says_so(idle: Service) -> None:
    project = idle.project(idle.token("*"))
    stores = open_stores(idle)
    with stores.database.write() as connection:
        bare = pb.Model(dimension_count=4)
        stores.catalog.add(connection, ModelName(project.id, "m"), bare.SerializeToString(), "x", graph="x")
    stores.close()
    request = pb.PredictRequest(name=f"{project.name}/models/m", points=inline(NEW))
    answer = refusal(project.stub.Predict, request)
    assert (answer.code, answer.reason) == (PRECONDITION, "NO_PREDICTORS")


# -- answers for a model's own points ----------------------------------------------------------------------------------


def test_a_solution_has_all_that_was_computed(home: Project, model: pb.Model, plain: pb.Model) -> None:
    indices, scores, values, probabilities = home.solution(model.name, *ALL)
    assert (indices.dtype, scores.dtype, values.dtype) == (np.int32, np.float64, np.float64)
    assert indices.tolist() == TRUTH.tolist()
    assert scores.shape == values.shape == probabilities.shape == (60, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), indices)
    scores, values = home.solution(plain.name, *ALL[1:3])
    assert scores.shape == values.shape == (40, 1)
    # In the order they were asked for, the class indices if nothing was.
    swapped = home.solution(model.name, *ALL[::-1])
    np.testing.assert_array_equal(swapped[3], indices)
    np.testing.assert_array_equal(home.solution(model.name)[0], indices)


@pytest.mark.parametrize(("start", "count", "expected"), [(0, 0, 60), (10, 0, 50), (10, 5, 5), (58, 100, 2)])
def test_a_range_of_a_solution(home: Project, model: pb.Model, start: int, count: int, expected: int) -> None:
    found = home.solution(model.name, start=start, count=count)[0]
    assert found.tolist() == TRUTH[start : start + expected].tolist()


def test_an_empty_range_has_no_answers(home: Project, model: pb.Model) -> None:
    assert list(home.stub.ReadSolution(pb.ReadSolutionRequest(name=model.name, start=60, count=3))) == []


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("start", {"start": -1}),
        ("start", {"start": 61}),
        ("count", {"count": -1}),
        ("fields[1]", {"fields": [1, 0]}),
        ("fields[0]", {"fields": [77]}),
        ("fields", {"fields": [1, 2, 1]}),
    ],
)
def test_ranges_and_fields_that_there_are_not(
    home: Project, model: pb.Model, field: str, wrong: dict[str, Any]
) -> None:
    answer = refusal(home.stub.ReadSolution, pb.ReadSolutionRequest(name=model.name, **wrong))
    assert (answer.code, answer.fields) == (INVALID, [field])


def test_a_large_solution_comes_in_chunks(service: Service, project: Project) -> None:
    points = 1_300_000
    arrays = {CLASS_INDICES: RNG.integers(0, 2, points, dtype=np.int32), SCORES: RNG.normal(size=(points, 1))}
    stores = open_stores(service)
    path = f"models/{project.id}/large/x"
    stores.blobs.write(path, arrays, {})
    large = pb.Model(name=f"{project.name}/models/large", point_count=points)
    with stores.database.write() as connection:
        stores.catalog.add(connection, ModelName(project.id, "large"), large.SerializeToString(), path)
    stores.close()
    request = pb.ReadSolutionRequest(name=large.name, fields=ALL[:2])
    responses = list(project.stub.ReadSolution(request, timeout=PATIENCE))
    assert len(responses) > 10
    assert max(response.ByteSize() for response in responses) < 2 << 20
    indices, scores = project.solution(large.name, *ALL[:2])
    np.testing.assert_array_equal(indices, arrays[CLASS_INDICES])
    np.testing.assert_array_equal(scores, arrays[SCORES])
    some = project.solution(large.name, start=1_000_000, count=200_000)[0]
    np.testing.assert_array_equal(some, arrays[CLASS_INDICES][1_000_000:1_200_000])


def test_what_is_lost_is_told_of_as_lost_and_not_as_never_known(service: Service, project: Project) -> None:
    # Arrays that the janitor had wiped, with their records in place, were NOT_FOUND.
    model = project.model(X, LABELS)
    [folder] = (service.settings.data_dir / "blobs" / "models" / project.id).glob("*/*")
    kept = folder.rename(folder.parent / "elsewhere")
    transduce = job_pb2.TransduceRequest(model=model.name, labels=labels_of({1: "b"}))
    for call, request in (
        (project.stub.ReadSolution, pb.ReadSolutionRequest(name=model.name)),
        (project.stub.Predict, pb.PredictRequest(name=model.name, points=inline(X[:3]))),
    ):
        answer = refusal(call, request)
        assert answer.code is grpc.StatusCode.DATA_LOSS
        assert f"models/{project.id}" in answer.message
        assert "homophily fsck" in answer.message
    error = project.ended(project.stub.Transduce(transduce).job).error
    assert error.code == grpc.StatusCode.DATA_LOSS.value[0]
    # The same for the points, where a job needs them; a graph is built again.
    kept.rename(folder)
    assert project.ended(project.stub.Transduce(transduce).job).state == job_pb2.JOB_STATE_SUCCEEDED
    shutil.rmtree(service.settings.data_dir / "blobs" / "datasets" / project.id)
    again = job_pb2.FitRequest(
        parent=project.name, dataset=model.dataset, labels=labels_of(LABELS), graph=pb.GraphParameters(n_neighbors=4)
    )
    error = project.ended(project.stub.Fit(again).job).error
    assert error.code == grpc.StatusCode.DATA_LOSS.value[0]
    # What was deleted is not lost.
    project.stub.DeleteModel(pb.DeleteModelRequest(name=model.name))
    assert refusal(project.stub.ReadSolution, pb.ReadSolutionRequest(name=model.name)).code is grpc.StatusCode.NOT_FOUND


def test_damaged_files_are_told_of_and_not_answered_from(service: Service, project: Project) -> None:
    model = project.model(X, LABELS)
    [folder] = (service.settings.data_dir / "blobs" / "models" / project.id).glob("*/*")
    file = folder / f"{CLASS_INDICES}.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 16
    file.write_bytes(content)
    for call, request in (
        (project.stub.ReadSolution, pb.ReadSolutionRequest(name=model.name)),
        (project.stub.Predict, pb.PredictRequest(name=model.name, points=inline(NEW))),
    ):
        answer = refusal(call, request)
        assert (answer.code, answer.reason) == (grpc.StatusCode.DATA_LOSS, "DATA_LOSS")
        assert f"{CLASS_INDICES}.npy" in answer.message


# -- get, list, delete -------------------------------------------------------------------------------------------------


def test_models_are_listed_and_deleted(service: Service, project: Project) -> None:
    solver = pb.SolverParameters(method=pb.METHOD_IRR)
    made = [project.model(X, LABELS, solver=solver, model_id=f"m{number}") for number in range(3)]
    page = project.stub.ListModels(pb.ListModelsRequest(parent=project.name, page_size=2))
    rest = project.stub.ListModels(
        pb.ListModelsRequest(parent=project.name, page_size=2, page_token=page.next_page_token)
    )
    assert [*page.models, *rest.models] == made[::-1]
    assert rest.next_page_token == ""
    assert list(project.predict(made[1].name, NEW).class_indices) == TRUTH[:30].tolist()
    project.stub.DeleteModel(pb.DeleteModelRequest(name=made[1].name))
    assert len(list((service.settings.data_dir / "blobs" / "models" / project.id).iterdir())) == 2
    for call, request in (
        (project.stub.GetModel, pb.GetModelRequest(name=made[1].name)),
        (project.stub.DeleteModel, pb.DeleteModelRequest(name=made[1].name)),
        (project.stub.Predict, pb.PredictRequest(name=made[1].name, points=inline(NEW))),
        (project.stub.ReadSolution, pb.ReadSolutionRequest(name=made[1].name)),
    ):
        assert refusal(call, request).code is grpc.StatusCode.NOT_FOUND
    # The graph is shared, and stays.
    assert list(project.predict(made[0].name, NEW).class_indices) == TRUTH[:30].tolist()


def test_a_models_child_outlives_it(project: Project) -> None:
    parent = project.model(X, LABELS)
    child = project.transduce(parent.name, {20: "abc"[TRUTH[20]]}).transduce.model
    project.stub.DeleteModel(pb.DeleteModelRequest(name=parent.name))
    assert list(project.predict(child.name, NEW).class_indices) == TRUTH[:30].tolist()
