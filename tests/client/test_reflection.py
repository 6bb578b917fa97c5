"""Every field of every answer is set by the server, and changes what the client returns.

Real answers are recorded. Then each field that is set somewhere is changed in a copy of such an answer, which a client
is given instead of the server's: a client that returns the same as before does not read the field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from scipy import sparse

from homophily_client import Client, ClientError, Dataset, Edges, Embedding, JobHandle, Model, Unavailable
from homophily_client._pb import dataset_pb2, embedding_pb2, homophily_service_pb2, job_pb2, model_pb2
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub
from homophily_client._sync.upload import Upload
from homophily_client.points import Points
from homophily_client.retries import Patience

from ..service.serving import PATIENCE, eventually, running

SERVICE = homophily_service_pb2.DESCRIPTOR.services_by_name["HomophilyService"]

#: Fields that the client does not read, and why. Every field is set by some answer.
NOT_READ = {
    "GetUploadResponse.total_bytes": "the client knows how much it uploads",
    "TrialResult.outcome": "only the search that the trial belongs to reads it",
    "CsrShape.values": "a detail of how sparse points are stored",
    "CsrShape.index_type": "a detail of how sparse points are stored",
}


class Answer(NamedTuple):
    """A message, and the method that it answered."""

    method: str
    message: Any


# -- recording


class Recording:
    """A channel that keeps all answers."""

    def __init__(self, channel: Any, answers: list[Answer]) -> None:
        self.channel, self.answers = channel, answers

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        def method(path: str, *, response_deserializer: Callable[[bytes], Any], **more: Any) -> Any:
            def read(data: bytes) -> Any:
                self.answers.append(Answer(path.rpartition("/")[2], response_deserializer(data)))
                return self.answers[-1].message

            return getattr(self.channel, kind)(path, response_deserializer=read, **more)

        return method


def three_blobs(points: int = 60) -> tuple[Any, Any]:
    """Points of two labelled blobs and of one far away, and the class of each point."""
    y = np.arange(points) % 3
    return np.random.default_rng(0).normal(20.0 * y[:, None], 1.0, (points, 4)), y


def ask_everything(client: Client, folder: Path) -> None:
    """Make every kind of call and of job, with every option that comes back in an answer."""
    X, y = three_blobs()
    words = np.array(["ant", "bee", "cat"])[y]
    few = {point: words[point] for point in (0, 1, 3, 4, 6, 7)}
    client.server_info()
    dataset = client.upload(X, name="dense", description="three blobs")
    client.upload(sparse.csr_array(np.abs(X)), name="sparse")
    client.get_dataset(dataset)
    _interrupt_upload(client)

    # The worker does one after the other, so that the last ones are queued.
    jobs: dict[str, JobHandle[Any]] = {}
    jobs["searched"] = client.fit(
        dataset,
        {point: words[point] for point in range(30)},
        search={"trials": 5, "spread": True, "vary": ["n_neighbors", "lambda1", "lambda2"]},
        solver={"max_iter": 5},
        validation={point: words[point] for point in range(30, 45)},
        test={point: words[point] for point in range(45, 60)},
        calibrate=True,
        register="blobs",
        aliases=["champion"],
        job={"priority": 7, "request_id": "searched", "time_limit": 600.0},
    )
    jobs["rich"] = client.fit(
        X,
        few | {2: "cat"},
        graph={
            "n_neighbors": 8,
            "metric": "euclidean",
            "weights": "fixed",
            "sigma_x": 4.0,
            "exponent": 1,
            "symmetrize": "max",
            "space": "principal",
            "n_directions": 3,
        },
        solver={
            "method": "err",
            "power": 1,
            "lambda1": 0.1,
            "lambda2": 0.1,
            "sigma_f": 1.0,
            "max_iter": 5,
            "tol": 0.001,
            "normalized": False,
            "multiclass": "one-vs-rest",
            "class_prior": [0.3, 0.3, 0.4],
            "repulsion": 1.0,
            "sharpen": True,
        },
    )
    neighbours = {"relationship_neighbors": 5, "class_prior": "estimate", "max_iter": 5}
    jobs["plain"] = client.fit(dataset, {0: 1, 1: 2}, graph={"n_neighbors": 3}, solver=neighbours, model_id="plain")
    jobs["hurried"] = client.fit(
        dataset, few, search={"trials": 4, "seconds": 1e-6}, solver={"max_iter": 1, "class_prior": "balanced"}
    )
    # Long enough to report its steps, and with wrong answers.
    noise = np.random.default_rng(1).normal(size=(1000, 4))
    classes = {point: point % 5 for point in range(200)}
    jobs["long"] = client.fit(noise, classes, validation={500: 1, 501: 2, 502: 3}, solver={"tol": 0.0, "max_iter": 20})
    bounds = [(0.0, 0.5)] * 5
    jobs["bounded"] = client.fit(noise, classes, solver={"method": "irr", "class_prior": bounds})
    jobs["cancelled"] = client.fit(dataset, few)
    jobs["cancelled"].cancel()
    list(client.list_jobs())
    for name in ("searched", "rich", "plain", "hurried", "long", "bounded"):
        list(jobs[name].watch())
        client.get_model(jobs[name].result(PATIENCE))
    list(client.list_jobs(kind="trial"))

    searched = jobs["searched"].info.model
    assert searched is not None
    changed = client.transduce("plain", {3: 2, 4: 1, 6: 2}).result(PATIENCE)
    assert changed.parent_model is not None
    for job in (client.transduce("plain", withdrawn=[0, 1]), jobs["cancelled"]):
        with pytest.raises(ClientError):
            job.result(PATIENCE)
    _ask_for_maps(client, changed, few)

    _ask_about_a_table(client, few)
    client.predict(searched, X[:5], probabilities=True)
    client.predict(changed, X[:5])
    client.suggest(changed, 5, strategy="margin", exclude=[8])
    client.explain(changed, [8, 9], X=X[[3, 50]] + 0.1)
    bounded = jobs["bounded"].info.model
    assert bounded is not None
    client.explain(bounded, [300, 301])
    client.read_solution(searched, ("labels", "scores", "values", "probabilities"))
    stub = client._connection.stub
    list(stub.ReadSolution(model_pb2.ReadSolutionRequest(name=searched.name, start=5, fields=[1])))
    for listing in (client.list_datasets(), client.list_models(), client.list_embeddings()):
        list(listing)
    _ask_for_pages(client)
    assert jobs["searched"].registered(PATIENCE) == "models:/default.blobs/1"
    eventually(lambda: jobs["searched"].refresh().tracking_complete)
    assert client.job(jobs["searched"]).info.tracking_url
    imported = client.import_model("models:/default.blobs@champion").result(PATIENCE)
    assert imported.source is not None
    _ask_for_files(client, folder)
    _append(client)


def _ask_for_files(client: Client, folder: Path) -> None:
    """Make a dataset of a file, and the same again."""
    (folder / "a.csv").write_text("name,x\n" + "".join(f"p{row},{row % 5}\n" for row in range(30)))
    for _ in range(2):
        job = client.create_dataset(f"file://{folder}/a.csv", name="read", description="from a file")
        client.get_dataset(job.result(PATIENCE))


def _append(client: Client) -> None:
    """Make a dataset of another one and more points, and wait for it; fit with edges beside points."""
    edges = Edges([(0, 1), (1, 2)], points=len(X))
    client.fit(X, {0: 0, 1: 1}, solver={"method": "irr"}, graph={"edge_share": 0.4}, edges=edges).result(PATIENCE)
    job = client.append_points(client.upload(X[:-2]), X[-2:], name="more", description="of today")
    client.get_dataset(job.result(PATIENCE))


def _interrupt_upload(client: Client) -> None:
    """Send half of an upload, and ask how much has arrived."""
    points = Points(np.zeros((10, 4)))
    start = dataset_pb2.UploadStart(parent="projects/default", upload_id="half", shape=points.shape_message())
    chunk = dataset_pb2.UploadChunk(offset=0, data=bytes(160))
    parts = [dataset_pb2.UploadDatasetRequest(start=start), dataset_pb2.UploadDatasetRequest(chunk=chunk)]
    with pytest.raises(ClientError):
        client._connection.upload(iter(parts))
    client._connection.call("GetUpload", dataset_pb2.GetUploadRequest(parent=start.parent, upload_id="half"))


def _ask_about_a_table(client: Client, few: dict[int, Any]) -> None:
    X, y = three_blobs()
    table = {"id": [f"p{point}" for point in range(60)], "vector": X, "kind": np.array(["ant", "bee", "cat"])[y]}
    options = {"scale": "none", "missing": "mean", "drop": ["more"]}
    model = client.fit({**table, "more": X[:, 0]}, few, table=options).result(PATIENCE)
    client.upload({**table, "more": X[:, 0]}, table=options, name="table")
    client.read_solution(model, ["labels", "given", "ids"])
    client.predict(model, {**table, "kind": ["dog"] * 60})
    client.suggest(model, 3)
    client.explain(model, [51], labels=2)
    embedding = client.embed(model, must_link=[(1, 3)], solver={"max_iter": 2}).result(PATIENCE)
    client.read_embedding(embedding, ["coordinates"])
    client.suggest(embedding, 2)
    client.explain(embedding, [0, 51])


def _ask_for_maps(client: Client, model: Model, few: dict[int, Any]) -> None:
    # Links that contradict each other: some are violated.
    apart, near = [(0, 1), (3, 4), (6, 7)], [(0, 3), (1, 4)]
    solver = {
        "data_weight": 1.0,
        "lambda2": 0.1,
        "lambda3": 10.0,
        "sigma_f": 0.5,
        "continuation": 2.0,
        "repulsion": 1.0,
        "closure": False,
        "max_iter": 5,
        "tol": 0.001,
        "normalized": False,
        "link_edges": 0.1,
        "link_loss": "squared",
        "relationship": "cauchy",
        "lambda2_per_link": True,
    }
    links: dict[str, Any] = {"must_link": near + apart, "cannot_link": near + apart}
    first = client.embed("dense", **links, labels=few, graph={"n_neighbors": 5}, solver=solver, n_clusters=3)
    mapped = first.result(PATIENCE)
    assert mapped.warnings
    again = client.embed(mapped, must_link=[(0, 6)], solver={"max_iter": 2}).result(PATIENCE)
    other = client.embed(model, solver={"max_iter": 2}).result(PATIENCE)
    for embedding in (mapped, again, other):
        client.get_embedding(embedding)
    client.read_embedding(mapped)
    list(client._connection.stub.ReadEmbedding(embedding_pb2.ReadEmbeddingRequest(name=mapped.name, start=5)))


def _ask_for_pages(client: Client) -> None:
    for collection in ("Datasets", "Models", "Embeddings", "Jobs"):
        method = SERVICE.methods_by_name[f"List{collection}"]
        client._connection.call(method.name, method.input_type._concrete_class(parent="projects/default", page_size=1))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    found: list[Answer] = []
    folder: Path = tmp_path_factory.mktemp("reflection")
    (folder / "shelf").mkdir()
    allowed = {"default": [f"file://{folder / 'shelf'}"]}
    with (
        running(folder / "data", tracking=True, predictors=1, dataset_addresses=allowed) as service,
        Client(service.target) as client,
    ):
        client._connection.stub = HomophilyServiceStub(Recording(client._connection._channel, found))  # type: ignore[arg-type]
        ask_everything(client, folder / "shelf")
    return found


# -- what the client returns for an answer

X = np.zeros((10, 4))
POINTS = Points(X)
LABELS = {0: 1, 1: 2}


class Answering:
    """Instead of a connection: gives one answer, then empty ones."""

    timeout = patience = 1.0

    def __init__(self, message: Any) -> None:
        self.message = message
        self.asked: list[Any] = []

    def call(self, _: str, request: Any, **__: Any) -> Any:
        self.asked.append(getattr(request, "page_token", ""))
        return self.message if len(self.asked) == 1 else type(self.message)()

    def stream(self, method: str, request: Any) -> Iterator[Any]:
        yield self.call(method, request)

    def upload(self, requests: Iterator[Any]) -> Any:
        self.asked += [one.chunk.offset for one in requests]
        is_upload = isinstance(self.message, dataset_pb2.UploadDatasetResponse)
        return self.message if is_upload else dataset_pb2.UploadDatasetResponse()

    def long(self, *_: Any, **__: Any) -> Patience:
        return Patience(lambda: 0.0)

    def close(self) -> None:
        pass


def _handle(client: Client) -> JobHandle[Any]:
    queued = job_pb2.Job(name="projects/default/jobs/j", state=job_pb2.JOB_STATE_QUEUED)
    return JobHandle(client._connection, queued)


def _watch(client: Client, _: Any) -> Any:
    handle, events = _handle(client), []
    # Unless the answer is the last one, the client waits for more in vain.
    with suppress(Unavailable):
        for event in handle.watch():
            events.append(event)  # noqa: PERF402
    return events, handle.info


def _wait(client: Client, _: Any) -> Any:
    handle = _handle(client)
    with suppress(ClientError, TimeoutError):
        handle.result(0.1)
    return handle.info


def _resume(client: Client, _: Any) -> Any:
    start = dataset_pb2.UploadStart(shape=POINTS.shape_message())
    return Upload(client._connection, start, POINTS).run(resume=True)


def _predict(client: Client, recorded: Any) -> Any:
    rows = np.zeros((len(recorded.class_indices), 4))
    return client.predict("x", rows, probabilities=recorded.HasField("probabilities"))


def _read_solution(client: Client, recorded: Any) -> Any:
    model = Model.from_message(model_pb2.Model(name="x", point_count=recorded.start + recorded.count))
    if recorded.ids:
        return client.read_solution(model, ("labels", "given", "ids"))
    return client.read_solution(model, ("labels", "scores", "values", "probabilities")[: len(recorded.tensors)])


#: The client's call for each of the service's methods, given the client and the answer that was recorded.
CALLS: dict[str, Callable[[Client, Any], Any]] = {
    "GetServerInfo": lambda client, _: client.server_info(),
    "UploadDataset": lambda client, _: client.upload(X),
    "GetUpload": _resume,
    "GetDataset": lambda client, _: client.get_dataset("x"),
    "ListDatasets": lambda client, _: list(client.list_datasets()),
    "Fit": lambda client, _: client.fit(X, LABELS).info,
    "Transduce": lambda client, _: client.transduce("x", LABELS).info,
    "Embed": lambda client, _: client.embed(X).info,
    "ImportModel": lambda client, _: client.import_model("models:/x/1").info,
    "CreateDataset": lambda client, _: client.create_dataset("file:///x/a.csv").info,
    "AppendPoints": lambda client, _: client.append_points(Dataset.from_message(DATASET), "y").info,
    "GetJob": lambda client, _: client.job("x").info,
    "ListJobs": lambda client, _: [job.info for job in client.list_jobs()],
    "WaitJob": _wait,
    "WatchJob": _watch,
    "CancelJob": lambda client, _: _handle(client).cancel(),
    "GetModel": lambda client, _: client.get_model("x"),
    "ListModels": lambda client, _: list(client.list_models()),
    "Predict": _predict,
    "ReadSolution": _read_solution,
    "Suggest": lambda client, _: client.suggest("x"),
    "Explain": lambda client, _: client.explain("x", [0]),
    "GetEmbedding": lambda client, _: client.get_embedding("x"),
    "ListEmbeddings": lambda client, _: list(client.list_embeddings()),
    "ReadEmbedding": lambda client, _: client.read_embedding(Embedding.from_message(EMBEDDING), ["coordinates"]),
}
EMBEDDING = embedding_pb2.Embedding(name="x")
DATASET = dataset_pb2.Dataset(name="projects/default/datasets/x", shape=Points(np.zeros((2, 2))).shape_message())


def returned(client: Client, answer: Answer, message: Any) -> Any:
    """What the client returns, or raises, if it gets the message instead of the answer that was recorded."""
    client._connection = connection = Answering(message)  # type: ignore[assignment]
    try:
        found = CALLS[answer.method](client, answer.message)
    except Exception as error:
        found = error
    return plain([found, connection.asked])


def plain(value: Any) -> Any:
    """All that is in a value, to be compared."""
    if isinstance(value, BaseException):
        return [type(value), str(value), plain(vars(value))]
    if is_dataclass(value):
        return [plain(getattr(value, one.name)) for one in fields(value)]
    if isinstance(value, np.ndarray):
        return [value.dtype, value.shape, value.tolist()]
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


# -- fields


def all_fields(message: Descriptor, seen: set[str] | None = None) -> Iterator[str]:
    """The fields of a message and of those inside it, as "Message.field"."""
    seen = set() if seen is None else seen
    if message.full_name in seen or not message.full_name.startswith("homophily."):
        return
    seen.add(message.full_name)
    for field in message.fields:
        yield f"{message.name}.{field.name}"
        if field.message_type is not None and not is_map(field):
            yield from all_fields(field.message_type, seen)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def set_fields(message: Any) -> Iterator[tuple[str, Any, FieldDescriptor]]:
    """The fields that are set in a message and in those inside it: name, message that has it, descriptor."""
    for field, value in message.ListFields():
        yield f"{message.DESCRIPTOR.name}.{field.name}", message, field
        ours = field.message_type is not None and field.message_type.full_name.startswith("homophily.")
        if ours and not is_map(field):
            for inner in value if field.is_repeated else [value]:
                yield from set_fields(inner)


def change(message: Any, field: FieldDescriptor) -> None:
    """Give a field another value."""
    value = getattr(message, field.name)
    if is_map(field) or (field.message_type is not None and not field.is_repeated):
        message.ClearField(field.name)
    elif field.is_repeated:
        del value[-1]
    elif field.enum_type is not None:
        setattr(message, field.name, 1 if value != 1 else 2)
    elif isinstance(value, str):
        setattr(message, field.name, f"{value}x")
    elif isinstance(value, bytes):
        setattr(message, field.name, value[:-1] + bytes([value[-1] ^ 1]))
    else:
        setattr(message, field.name, not value if isinstance(value, bool) else value - 1)


def is_read(client: Client, name: str, answers: list[Answer]) -> bool:
    """Whether the client returns something else if the field is changed in one of the answers."""
    for answer in answers:
        for place, (found, _, _) in enumerate(set_fields(answer.message)):
            if found == name:
                changed = type(answer.message)()
                changed.CopyFrom(answer.message)
                change(*next(islice(set_fields(changed), place, None))[1:])
                if returned(client, answer, changed) != returned(client, answer, answer.message):
                    return True
                break
    return False


EVERY_FIELD = sorted(set(chain.from_iterable(all_fields(method.output_type) for method in SERVICE.methods)))


def test_every_field_of_an_answer_is_set_by_the_server(answers: list[Answer]) -> None:
    seen = {name for answer in answers for name, _, _ in set_fields(answer.message)}
    assert sorted(set(EVERY_FIELD) - seen) == []


def test_every_field_of_an_answer_changes_what_the_client_returns(answers: list[Answer]) -> None:
    with_field: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        for name in {name for name, _, _ in set_fields(answer.message)}:
            with_field[name].append(answer)
    client = Client("localhost:1")
    client.close()
    unread = {name for name, where in with_field.items() if not is_read(client, name, where)}
    assert sorted(unread) == sorted(NOT_READ)


def test_every_method_that_answers_something_is_asked(answers: list[Answer]) -> None:
    assert CALLS.keys() == {method.name for method in SERVICE.methods if method.output_type.fields}
    assert {answer.method for answer in answers} >= CALLS.keys()
