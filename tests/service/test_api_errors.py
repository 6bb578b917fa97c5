"""Bad input over gRPC: the code, the field, the details and their size; and messages that are none."""

from __future__ import annotations

import time
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from scipy.sparse import csr_array

from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, points_pb2
from homophily_client._pb import model_pb2 as pb

from .fuzz import Calls
from .serving import (
    DESCRIPTOR,
    PATIENCE,
    SERVICE,
    Project,
    Refusal,
    Service,
    chunk,
    inline,
    labels_of,
    refusal,
    refusal_of,
    start,
    tensor,
)

X = np.random.default_rng(0).normal(size=(30, 3))
LABELS = {0: "a", 1: "b", 2: "c"}
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED


def with_value(value: float) -> points_pb2.Points:
    points = X.copy()
    points[3, 1] = value
    return inline(points)


def raw(shape: list[int], data: bytes = b"", data_type: int = points_pb2.DATA_TYPE_FLOAT32) -> points_pb2.Points:
    return points_pb2.Points(dense=points_pb2.Tensor(data_type=data_type, shape=shape, data=data))


def sparse(**wrong: Any) -> points_pb2.Points:
    points = csr_array(np.eye(5, 3))
    message = inline(points)
    for name, value in wrong.items():
        if isinstance(value, int):
            setattr(message.csr, name, value)
        else:
            getattr(message.csr, name).CopyFrom(tensor(np.array(value)))
    return message


POINTS: list[tuple[points_pb2.Points, str]] = [
    (with_value(np.nan), ".dense.data"),
    (with_value(np.inf), ".dense.data"),
    (with_value(-np.inf), ".dense.data"),
    (points_pb2.Points(), ""),
    (raw([2**62, 4]), ".dense.shape"),
    (raw([2**40, 2**24]), ".dense.data"),
    (raw([0, 2**62]), ".dense.shape"),
    (raw([0, 2**40]), ".dense.shape"),
    (raw([3, 0]), ".dense.shape"),
    (raw([-1, 4]), ".dense.shape"),
    (raw([-1, -4], b"x" * 16), ".dense.shape"),
    (raw([4], b"x" * 16), ".dense.shape"),
    (raw([]), ".dense.shape"),
    (raw([1] * 1000, b"x" * 4), ".dense.shape"),
    (raw([2, 2], b"x" * 15), ".dense.data"),
    (raw([2, 2], b"x" * 17), ".dense.data"),
    (raw([1, 1], b"x" * 4, 0), ".dense.data_type"),
    (raw([1, 1], b"x" * 4, points_pb2.DATA_TYPE_INT32), ".dense.data_type"),
    (raw([1, 1], b"x" * 4, 2**31 - 1), ".dense.data_type"),
    (sparse(columns=0), ".csr.columns"),
    (sparse(columns=2), ".csr.column_indices"),
    (sparse(columns=-1), ".csr.columns"),
    (sparse(values=np.array([1.0, np.nan, 1.0])), ".csr.values"),
    (sparse(values=np.ones(2)), ".csr.column_indices"),
    (sparse(values=np.ones((3, 1))), ".csr.values.shape"),
    (sparse(values=np.ones(3, np.int64)), ".csr.values.data_type"),
    (sparse(column_indices=np.array([0, 1, 3])), ".csr.column_indices"),
    (sparse(column_indices=np.array([0, -1, 2])), ".csr.column_indices"),
    (sparse(column_indices=np.ones(3)), ".csr.column_indices.data_type"),
    (sparse(row_starts=np.array([0])), ".csr.row_starts"),
    (sparse(row_starts=np.array([], np.int64)), ".csr.row_starts"),
    (sparse(row_starts=np.array([0, 3, 2, 3])), ".csr.row_starts"),
    (sparse(row_starts=np.array([0, 1, 2, 2**40, 3, 3])), ".csr.row_starts"),
]


@pytest.mark.parametrize(("points", "field"), POINTS)
def test_points_that_are_none_name_their_field(project: Project, points: points_pb2.Points, field: str) -> None:
    request = job_pb2.FitRequest(parent=project.name, inline=points, labels=labels_of(LABELS))
    answer = refusal(project.stub.Fit, request)
    assert (answer.code, answer.reason, answer.fields) == (INVALID, "INVALID_FIELD", ["inline" + field])
    assert answer.message.startswith("inline" + field)


def labels(points: list[int], **classes: list[Any]) -> pb.Labels:
    message = pb.Labels(points=points)
    if "strings" in classes:
        message.classes.strings.values.extend(classes["strings"])
    if "integers" in classes:
        message.classes.integers.values.extend(classes["integers"])
    return message


WRONG_LABELS: list[tuple[pb.Labels, str]] = [
    (pb.Labels(), "labels"),
    (labels([], strings=[]), "labels"),
    (labels([0, 1], strings=["a", "a"]), "labels"),
    (labels([0], integers=[1]), "labels"),
    (labels([0, 1]), "labels.classes"),
    (labels([0, 1], strings=["a"]), "labels.classes"),
    (labels([], strings=["a", "b"]), "labels.classes"),
    (labels([0, 30], strings=["a", "b"]), "labels.points[1]"),
    (labels([-1, 1], strings=["a", "b"]), "labels.points[0]"),
    (labels([0, 2**63 - 1], strings=["a", "b"]), "labels.points[1]"),
    (labels([5, 1, 5], strings=["a", "b", "c"]), "labels.points[2]"),
    (labels([0, 1], strings=["a", ""]), "labels.classes.strings.values[1]"),
    (labels([0, 1], strings=["a", "b\0"]), "labels.classes.strings.values[1]"),
    (labels([0, 1], strings=["a", "b" * 257]), "labels.classes.strings.values[1]"),
    (labels_of({0: 1, 1: 2}, weights=[1.0]), "labels.weights"),
    (labels_of({0: 1, 1: 2}, weights=[1.0, 0.0]), "labels.weights[1]"),
    (labels_of({0: 1, 1: 2}, weights=[np.nan, 1.0]), "labels.weights[0]"),
    (labels_of({0: 1, 1: 2}, weights=[np.inf, 1.0]), "labels.weights[0]"),
]


@pytest.mark.parametrize(("wrong", "field"), WRONG_LABELS)
def test_labels_that_teach_nothing_name_their_field(project: Project, wrong: pb.Labels, field: str) -> None:
    answer = refusal(project.stub.Fit, project.fit_request(X, wrong))
    assert (answer.code, answer.fields) == (INVALID, [field])
    if field not in ("labels",):
        request = project.fit_request(X, LABELS, validation=wrong)
        assert refusal(project.stub.Fit, request).fields == [field.replace("labels", "validation")]


@pytest.mark.parametrize("field", ["validation", "test"])
def test_labels_to_compare_with_are_of_the_same_kind(project: Project, field: str) -> None:
    numbers: Any = {field: labels([20, 21], integers=[1, 2])}
    search = pb.SearchParameters(trials=2)
    for request in (
        project.fit_request(X, LABELS, **numbers),
        project.fit_request(X, LABELS, search=search, **numbers),
    ):
        answer = refusal(project.stub.Fit, request)
        assert (answer.code, answer.fields) == (INVALID, [f"{field}.classes"])


def test_one_long_class_does_not_make_many_short_ones_large(project: Project) -> None:
    many = labels(list(range(200_000)), strings=["a", "b"] * 99_999 + ["c", "d" * 1_000_000])
    answer = refusal(project.stub.Fit, project.fit_request(X, many))
    assert answer.fields == ["labels.classes.strings.values[199999]"]


def test_too_many_classes_are_a_limit(project: Project) -> None:
    points = np.random.default_rng(0).normal(size=(2000, 2))
    answer = refusal(project.stub.Fit, project.fit_request(points, dict(enumerate(range(1001)))))
    assert answer.code is EXHAUSTED
    assert "1001 classes, the limit is 1000" in answer.message


def prior(*shares: float) -> pb.ClassPrior:
    return pb.ClassPrior(shares=pb.ClassShares(values=shares))


def bounds(lows: tuple[float, ...], highs: tuple[float, ...]) -> pb.ClassPrior:
    return pb.ClassPrior(bounds=pb.ClassShareBounds(lows=lows, highs=highs))


WRONG_PARAMETERS: list[tuple[dict[str, Any], str]] = [
    *[({"graph": pb.GraphParameters(n_neighbors=value)}, "graph.n_neighbors") for value in (0, -1, 10_001)],
    ({"graph": pb.GraphParameters(metric=9)}, "graph.metric"),
    ({"graph": pb.GraphParameters(weights=9)}, "graph.weights"),
    ({"graph": pb.GraphParameters(symmetrize=9)}, "graph.symmetrize"),
    ({"graph": pb.GraphParameters(space=9)}, "graph.space"),
    *[
        ({"graph": pb.GraphParameters(space=pb.SPACE_PRINCIPAL, n_directions=value)}, "graph.n_directions")
        for value in (0, -1)
    ],
    ({"graph": pb.GraphParameters(n_directions=2)}, "graph.n_directions"),
    ({"graph": pb.GraphParameters(space=pb.SPACE_INPUT, n_directions=2)}, "graph.n_directions"),
    ({"graph": pb.GraphParameters(exponent=3)}, "graph.exponent"),
    ({"graph": pb.GraphParameters(weights=pb.EDGE_WEIGHTS_FIXED)}, "graph.sigma_x"),
    *[({"graph": pb.GraphParameters(sigma_x=value)}, "graph.sigma_x") for value in (0, -1, np.nan, np.inf)],
    ({"solver": pb.SolverParameters(method=9)}, "solver.method"),
    ({"solver": pb.SolverParameters(multiclass=9)}, "solver.multiclass"),
    *[({"solver": pb.SolverParameters(power=value)}, "solver.power") for value in (0, 9)],
    *[({"solver": pb.SolverParameters(lambda1=value)}, "solver.lambda1") for value in (0, -1, np.nan, 1e300)],
    *[({"solver": pb.SolverParameters(lambda2=value)}, "solver.lambda2") for value in (-1, np.nan, np.inf)],
    *[({"solver": pb.SolverParameters(sigma_f=value)}, "solver.sigma_f") for value in (0, np.nan, 1e-300)],
    *[({"solver": pb.SolverParameters(repulsion=value)}, "solver.repulsion") for value in (-1, np.nan)],
    *[({"solver": pb.SolverParameters(tolerance=value)}, "solver.tolerance") for value in (-1, np.nan)],
    *[({"solver": pb.SolverParameters(max_iter=value)}, "solver.max_iter") for value in (-1, 100_001)],
    ({"solver": pb.SolverParameters(relationship_neighbors=0)}, "solver.relationship_neighbors"),
    ({"solver": pb.SolverParameters(relationship_neighbors=5, power=2)}, "solver.power"),
    ({"solver": pb.SolverParameters(method=pb.METHOD_IRR, lambda2=1)}, "solver.lambda2"),
    ({"solver": pb.SolverParameters(method=pb.METHOD_IRR, tolerance=0)}, "solver.tolerance"),
    *[
        ({"solver": pb.SolverParameters(class_prior=prior(*shares))}, "solver.class_prior.shares.values")
        for shares in ((), (0.5, 0.5), (0.5, 0.5, 0.0), (1, 1, -1), (0.2, 0.2, 0.2), (np.nan, 0.5, 0.5))
    ],
    *[
        ({"solver": pb.SolverParameters(class_prior=bounds(lows, highs))}, f"solver.class_prior.bounds.{field}")
        for lows, highs, field in (
            ((0.0, 0.0), (1.0, 1.0), "lows"),
            ((0.5, 0.5, 0.5), (1.0, 1.0, 1.0), "lows"),
            ((-0.1, 0.0, 0.0), (1.0, 1.0, 1.0), "lows"),
            ((np.nan, 0.0, 0.0), (1.0, 1.0, 1.0), "lows"),
            ((0.0, 0.0, 0.0), (0.2, 0.2, 0.2), "highs"),
            ((0.3, 0.0, 0.0), (0.2, 1.0, 1.0), "highs"),
            ((0.0, 0.0, 0.0), (1.0, 1.0), "highs"),
            ((0.0, 0.0, 0.0), (np.nan, 1.0, 1.0), "highs"),
        )
    ],
    ({"model_id": "../m"}, "model_id"),
    ({"model_id": "M"}, "model_id"),
    ({"options": job_pb2.JobOptions(priority=101)}, "options.priority"),
    ({"options": job_pb2.JobOptions(max_attempts=0)}, "options.max_attempts"),
    ({"options": job_pb2.JobOptions(request_id="x" * 129)}, "options.request_id"),
    ({"options": job_pb2.JobOptions(request_id="a\nb")}, "options.request_id"),
    ({"options": job_pb2.JobOptions(request_id="ä")}, "options.request_id"),
    ({"options": job_pb2.JobOptions(wait=Duration(seconds=-1))}, "options.wait"),
    ({"options": job_pb2.JobOptions(wait=Duration(nanos=2_000_000_000))}, "options.wait"),
    ({"options": job_pb2.JobOptions(time_limit=Duration())}, "options.time_limit"),
    ({"options": job_pb2.JobOptions(time_limit=Duration(seconds=2**62))}, "options.time_limit"),
    ({"options": job_pb2.JobOptions(time_limit=Duration(seconds=90_000))}, "options.time_limit"),
    ({"parent": "projects/A"}, "parent"),
    ({"parent": ""}, "parent"),
]


def fit_with(project: Project, wrong: dict[str, Any]) -> job_pb2.FitRequest:
    request = project.fit_request(X, LABELS)
    for name, value in wrong.items():
        if isinstance(value, str):
            setattr(request, name, value)
        else:
            getattr(request, name).CopyFrom(value)
    return request


@pytest.mark.parametrize(("wrong", "field"), WRONG_PARAMETERS)
def test_parameters_out_of_range_name_their_field(project: Project, wrong: dict[str, Any], field: str) -> None:
    answer = refusal(project.stub.Fit, fit_with(project, wrong))
    assert (answer.code, answer.fields) == (INVALID, [field])


def test_what_is_wrong_is_refused_at_once(project: Project, long: bool) -> None:
    if not long:
        pytest.skip("measures time: a part of make chaos")
    large = np.zeros((1000, 1000), np.float32)
    large[-1, -1] = np.nan
    chain = [(point, point + 1) for point in range(len(X) - 1)]
    transitive = embedding_pb2.EmbeddingParameters(closure=embedding_pb2.LINK_CLOSURE_TRANSITIVE)
    for call, request in (
        *((project.stub.Fit, fit_with(project, {"inline": points})) for points, _ in POINTS),
        (project.stub.Fit, fit_with(project, {"inline": inline(large)})),
        *((project.stub.Fit, project.fit_request(X, wrong)) for wrong, _ in WRONG_LABELS),
        *((project.stub.Fit, fit_with(project, wrong)) for wrong, _ in WRONG_PARAMETERS),
        # The ends of a chain of must-links belong apart.
        (project.stub.Embed, project.embed_request(X, chain, [(0, len(X) - 1)], solver=transitive)),
    ):
        seconds = []
        for _ in range(9):
            began = time.perf_counter()
            answer = refusal(call, request)
            seconds.append(time.perf_counter() - began)
        assert answer.code is INVALID
        assert np.median(seconds) < 0.05, (seconds, answer.fields)


def test_sparse_points_have_no_principal_directions(project: Project) -> None:
    points, graph = csr_array(np.maximum(X, 0)), pb.GraphParameters(space=pb.SPACE_PRINCIPAL)
    # Not even with the metric that the others have.
    for metric in (pb.METRIC_UNSPECIFIED, pb.METRIC_EUCLIDEAN):
        graph.metric = metric
        for call, request in (
            (project.stub.Fit, project.fit_request(points, LABELS, graph=graph)),
            (project.stub.Embed, project.embed_request(points, graph=graph)),
        ):
            answer = refusal(call, request)
            assert (answer.code, answer.fields) == (INVALID, ["graph.space"])


def test_a_fit_needs_points_of_its_own_project(service: Service, project: Project) -> None:
    request = job_pb2.FitRequest(parent=project.name, labels=labels_of(LABELS))
    assert refusal(project.stub.Fit, request).fields == ["points"]
    request.dataset = service.project().upload(X).name
    assert refusal(project.stub.Fit, request).fields == ["dataset"]
    request.dataset = f"{project.name}/datasets/none"
    assert refusal(project.stub.Fit, request).code is grpc.StatusCode.NOT_FOUND


def test_a_transduction_is_checked_against_its_model(project: Project) -> None:
    model = project.model(X, LABELS, solver=pb.SolverParameters(method=pb.METHOD_IRR)).name
    wrong: dict[str, job_pb2.TransduceRequest] = {
        "labels.points[0]": job_pb2.TransduceRequest(model=model, labels=labels([30], strings=["a"])),
        "labels.classes": job_pb2.TransduceRequest(model=model, labels=labels([3], integers=[1])),
        "validation.points[0]": job_pb2.TransduceRequest(model=model, validation=labels([-3], strings=["a"])),
        "validation.classes": job_pb2.TransduceRequest(model=model, validation=labels([3], integers=[1])),
        "withdrawn[1]": job_pb2.TransduceRequest(model=model, withdrawn=[0, 30]),
        "withdrawn[0]": job_pb2.TransduceRequest(model=model, withdrawn=[-1]),
        "withdrawn": job_pb2.TransduceRequest(model=model, withdrawn=[0, 1, 0]),
        "model": job_pb2.TransduceRequest(model=model.replace("models", "datasets")),
        "model_id": job_pb2.TransduceRequest(model=model, model_id="."),
        "options.priority": job_pb2.TransduceRequest(model=model, options=job_pb2.JobOptions(priority=-101)),
    }
    for field, request in wrong.items():
        answer = refusal(project.stub.Transduce, request)
        assert (answer.code, answer.fields) == (INVALID, [field])
    answer = refusal(project.stub.Transduce, job_pb2.TransduceRequest(model=f"{project.name}/models/none"))
    assert answer.code is grpc.StatusCode.NOT_FOUND


def test_new_points_are_checked_as_points_are(project: Project) -> None:
    model = project.model(X, LABELS, solver=pb.SolverParameters(method=pb.METHOD_IRR)).name
    for points, field in [(with_value(np.nan), "points.dense.data"), (inline(X[:, :2]), "points"), (raw([]), None)]:
        answer = refusal(project.stub.Predict, pb.PredictRequest(name=model, points=points))
        assert (answer.code, answer.fields) == (INVALID, [field or "points.dense.shape"])
    assert list(project.predict(model, X[:1] * 1e30).class_indices)


# -- messages ----------------------------------------------------------------------------------------------------------


def sized(size: int) -> job_pb2.GetJobRequest:
    """A message of so many bytes."""
    request = job_pb2.GetJobRequest(name="x" * (size - 5))
    assert request.ByteSize() == size
    return request


def test_the_limit_of_a_message_is_exact_and_says_where_larger_data_goes(service: Service, project: Project) -> None:
    limit = service.settings.max_message_bytes
    for size in (limit - 1, limit):
        answer = refusal(project.stub.GetJob, sized(size))
        assert (answer.code, answer.fields) == (INVALID, ["name"])
    answer = refusal(project.stub.GetJob, sized(limit + 1))
    assert (answer.code, answer.reason) == (EXHAUSTED, "MESSAGE_TOO_LARGE")
    assert f"the limit is {limit}" in answer.message
    assert "UploadDataset" in answer.message
    for call, request in (
        (project.stub.UploadDataset, iter([start(project.name, X), chunk(0, b"x" * limit)])),
        (project.stub.WatchJob, job_pb2.WatchJobRequest(name="x" * limit)),
    ):
        assert refusal(call, request).reason == "MESSAGE_TOO_LARGE"
    # Far beyond, gRPC itself refuses.
    with pytest.raises(grpc.RpcError) as error:
        project.stub.GetJob(sized(limit + (20 << 20)), timeout=PATIENCE)
    assert error.value.code() is EXHAUSTED


METHODS = [method.name for method in DESCRIPTOR.methods]


def answered(service: Service, method: str, data: bytes) -> Refusal:
    """What a call says to some bytes that it must not take."""
    calls = Calls(service.channel())
    call = calls.begin(method, [data])
    assert calls.code(method, call) is not grpc.StatusCode.OK
    return refusal_of(call)


#: Calls that name something; a request for the server's own description has no fields, so that nothing in it is wrong.
NAMING = [method for method in METHODS if method != "GetServerInfo"]


@pytest.mark.parametrize("method", NAMING)
def test_bytes_that_are_no_message_are_refused(service: Service, method: str) -> None:
    for data in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01\xff", b"\x80" * 100):
        answer = answered(service, method, data)
        assert (answer.code, answer.fields) == (INVALID, ["request"])


@pytest.mark.parametrize("method", NAMING)
def test_an_empty_message_names_the_name_that_is_missing(service: Service, method: str) -> None:
    answer = answered(service, method, b"")
    assert answer.code is INVALID
    assert answer.fields[0] in ("start", "parent", "model", "dataset", "name")


def test_a_method_that_there_is_not_is_unimplemented(service: Service) -> None:
    with pytest.raises(grpc.RpcError) as error:
        service.channel().unary_unary(f"/{SERVICE}/Guess")(b"", timeout=PATIENCE)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("text", ["x" * 2_000_000, "ж" * 1_000_000, "\n" * 1_000_000, "%/" * 1_000_000])
def test_trailers_stay_small_for_large_fields(project: Project, text: str) -> None:
    # That they do is asserted for every refusal.
    for call, request in (
        (project.stub.GetJob, job_pb2.GetJobRequest(name=text)),
        (project.stub.ListJobs, job_pb2.ListJobsRequest(parent=project.name, page_token=text)),
        (project.stub.GetDataset, dataset_pb2.GetDatasetRequest(name=f"projects/p/datasets/{text}")),
        (project.stub.Fit, project.fit_request(X, {0: "a", 1: text})),
        (project.stub.Fit, project.fit_request(X, LABELS, options=job_pb2.JobOptions(request_id=text))),
        (project.stub.Predict, pb.PredictRequest(name=text)),
    ):
        assert refusal(call, request).code is INVALID
    many = job_pb2.FitRequest(parent=project.name, inline=raw([2**40] * 300_000), labels=labels_of(LABELS))
    assert refusal(project.stub.Fit, many).code is INVALID
