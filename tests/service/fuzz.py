"""Random and garbled messages to every call: ``python -m tests.service.fuzz --count 1000000``.

A message starts as a valid request of its call, in which some fields and then some bytes are changed; or it is random
bytes only. The server must always answer with a code that blames the message, and keep running.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from scipy.sparse import csr_array

from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2, server_pb2, suggestion_pb2
from homophily_client.points import Points
from homophily_client.tables import TableOptions, read_table
from homophily_service.contract import open_inference_pb2 as inference_pb2

from .serving import (
    DESCRIPTOR,
    Project,
    Service,
    bytes_of,
    chunk,
    end,
    inline,
    labels_of,
    links_of,
    running,
    start,
)

# All calls, of our own protocol and of the Open Inference Protocol.
METHODS = [*DESCRIPTOR.methods, *inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
# Codes that would be the service's own fault. It never returns ABORTED and CANCELLED.
OURS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.CANCELLED}
IN_FLIGHT = 16
PATIENCE = 20.0

X = np.random.default_rng(0).normal(size=(12, 3))
LABELS = {0: "a", 1: "b", 2: "c", 5: "a"}
TABLE = read_table(
    {
        "id": [f"r{row}" for row in range(12)],
        "x": X[:, 0],
        "city": ["Köln", "Ulm", ""] * 4,
        "vector": X[:, 1:],
        "note": ["a red car", "a blue sky"] * 6,
    },
    TableOptions(text=["note"], scale="standard", missing="mean", drop=[]),
)
NUMBERS = [0, 1, -1, 2, 3, 7, 12, 13, 127, 128, 255, 2**31 - 1, -(2**31), 2**32, 2**53, 2**62, 2**63 - 1, -(2**63)]
REALS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, 5e-324, float("nan"), float("inf"), -float("inf"), 1e-7, 123.456]
TEXTS = [
    "",
    "x",
    "..",
    "../..",
    "/etc/passwd",
    "a/../../b",
    "#",
    "%2f..%2f",
    "\0",
    "a\0b",
    "projects/..",
    "projects/p/models/..",
    "projects/p/models/%2e%2e",
    "projects//models/",
    "PROJECTS/P",
    "ж" * 70,
    "💥",
    "a" * 63,
    "a" * 64,
    "-a",
    "a\n",
    "nul",
    "~",
    "*",
    "'; drop table jobs; --",
    "{}%s${x}",
]


class Fuzzer:
    """Messages for a server that has a dataset, a model and a job to name."""

    def __init__(self, project: Project, seed: int) -> None:
        self.random = random.Random(seed)
        self.project = project
        model = project.model(X, LABELS, calibrate=True, model_id="seed")
        mapped = project.embed(X, [(0, 1)], [(2, 3)], n_clusters=2, embedding_id="seed")
        request = job_pb2.FitRequest(parent=project.name, labels=labels_of(LABELS), inline=Points(TABLE).message())
        of_table = project.ended(project.stub.Fit(request, timeout=PATIENCE).job).fit.model
        self.valid = self._valid(model, mapped, of_table)

    def _valid(
        self, model: model_pb2.Model, mapped: embedding_pb2.Embedding, of_table: model_pb2.Model
    ) -> dict[str, list[list[Message]]]:
        """Messages by call that are answered, more than one where a call is a stream."""
        parent = self.project.name
        sparse = csr_array(np.maximum(X, 0))
        fit = self.project.fit_request(model.dataset, LABELS)
        fit.solver.method = model_pb2.METHOD_IRR
        fit.options.request_id = "k"
        rich = self.project.fit_request(sparse, labels_of({0: 1, 1: -1}, weights=[1.0, 2.0]), calibrate=True)
        rich.graph.MergeFrom(model_pb2.GraphParameters(n_neighbors=3, sigma_x=1.0, exponent=1))
        rich.solver.MergeFrom(
            model_pb2.SolverParameters(
                method=model_pb2.METHOD_ERR,
                power=1,
                lambda1=0.1,
                lambda2=0.1,
                sigma_f=1.0,
                max_iter=5,
                tolerance=0.1,
                normalized=True,
                repulsion=1.0,
                class_prior=model_pb2.ClassPrior(shares=model_pb2.ClassShares(values=[0.5, 0.5])),
            )
        )
        rich.validation.CopyFrom(labels_of({3: 1}))
        rich.test.CopyFrom(labels_of({4: 1, 5: 2}))
        searched = self.project.fit_request(model.dataset, LABELS, model_id="found")
        searched.search.MergeFrom(
            model_pb2.SearchParameters(trials=2, seconds=1.0, seed=3, spread=True, warm_start=True)
        )
        searched.graph.MergeFrom(model_pb2.GraphParameters(space=model_pb2.SPACE_PRINCIPAL, n_directions=2))
        classes = len(set(LABELS.values()))
        searched.solver.class_prior.bounds.lows.extend([0.0] * classes)
        searched.solver.class_prior.bounds.highs.extend([1.0] * classes)
        searched.registration.MergeFrom(model_pb2.Registration(name="digits", aliases=["best"]))
        rich.options.MergeFrom(job_pb2.JobOptions(priority=1, max_attempts=1))
        rich.options.time_limit.seconds = 30
        rich.options.wait.nanos = 1000
        transduce = job_pb2.TransduceRequest(model=model.name, labels=labels_of({7: "b"}), withdrawn=[5])
        solution = model_pb2.ReadSolutionRequest(name=model.name, fields=[1, 2, 3, 4], start=2, count=5)
        wait = job_pb2.WaitJobRequest(name=model.job)
        wait.timeout.nanos = 1000
        listing = {"parent": parent, "page_size": 2, "page_token": "5"}
        uploads = []
        for points, upload_id in ((X, "u"), (X, ""), (sparse, "v"), (sparse, "")):
            data = bytes_of(points)
            uploads.append([start(parent, points, upload_id), chunk(0, data[:96]), chunk(96, data[96:]), end(data)])
        table = Points(TABLE)
        begin = dataset_pb2.UploadStart(parent=parent, upload_id="t", shape=table.shape_message())
        data = table.read(0, table.bytes)
        uploads.append([dataset_pb2.UploadDatasetRequest(start=begin), chunk(0, data), end(data)])
        tabular = job_pb2.FitRequest(parent=parent, labels=labels_of(LABELS), inline=table.message())
        valid: dict[str, list[list[Message]]] = {
            "GetServerInfo": [[server_pb2.GetServerInfoRequest()]],
            "UploadDataset": uploads,
            "GetUpload": [[dataset_pb2.GetUploadRequest(parent=parent, upload_id="u")]],
            "GetDataset": [[dataset_pb2.GetDatasetRequest(name=model.dataset)]],
            "ListDatasets": [[dataset_pb2.ListDatasetsRequest(**listing)]],
            "DeleteDataset": [[dataset_pb2.DeleteDatasetRequest(name=f"{parent}/datasets/u")]],
            "Fit": [[fit], [rich], [searched], [tabular]],
            "CreateDataset": [
                [
                    job_pb2.CreateDatasetRequest(
                        parent=parent,
                        address="s3://bucket/folder/a.parquet",
                        dataset_id="read",
                        description="a text",
                        table=job_pb2.TableColumns(id_column="id", drop=["label"], scale=1, missing=2),
                    )
                ]
            ],
            "AppendPoints": [
                [job_pb2.AppendPointsRequest(dataset=model.dataset, inline=inline(X[:2]), dataset_id="more")],
                [job_pb2.AppendPointsRequest(dataset=model.dataset, added_dataset=model.dataset, description="a text")],
            ],
            "ImportModel": [[job_pb2.ImportModelRequest(parent=parent, uri="models:/digits@best", model_id="here")]],
            "Transduce": [[transduce]],
            "Embed": self._maps(model, mapped),
            "GetJob": [[job_pb2.GetJobRequest(name=model.job)]],
            "ListJobs": [[job_pb2.ListJobsRequest(**listing, states=[1, 3], kind=job_pb2.JOB_KIND_FIT)]],
            "WaitJob": [[wait]],
            "WatchJob": [[job_pb2.WatchJobRequest(name=model.job, after_sequence=2)]],
            "CancelJob": [[job_pb2.CancelJobRequest(name=model.job)]],
            "DeleteJob": [[job_pb2.DeleteJobRequest(name=f"{parent}/jobs/none")]],
            "GetModel": [[model_pb2.GetModelRequest(name=model.name)]],
            "ListModels": [[model_pb2.ListModelsRequest(**listing)]],
            "DeleteModel": [[model_pb2.DeleteModelRequest(name=f"{parent}/models/none")]],
            "Predict": [
                [model_pb2.PredictRequest(name=model.name, points=inline(points), probabilities=True)]
                for points in (X[:4], X[:2].astype(np.float32), sparse[:3])
            ]
            + [[model_pb2.PredictRequest(name=of_table.name, points=table.message())]],
            "ReadSolution": [[solution], [model_pb2.ReadSolutionRequest(name=of_table.name, fields=[1, 5], ids=True)]],
            "Suggest": [
                [suggestion_pb2.SuggestRequest(name=model.name, count=3, strategy=2, excluded_points=[1], ids=True)],
                [suggestion_pb2.SuggestRequest(name=of_table.name, strategy=5, ids=True)],
                [
                    suggestion_pb2.SuggestRequest(
                        name=mapped.name, count=2, excluded_pairs=[embedding_pb2.Link(first=1, second=2)]
                    )
                ],
            ],
            "Explain": [
                [suggestion_pb2.ExplainRequest(name=model.name, points=[3, 4], label_count=2)],
                [suggestion_pb2.ExplainRequest(name=model.name, points=[1], new_points=inline(X[:2]))],
                [suggestion_pb2.ExplainRequest(name=of_table.name, new_points=table.message(0, 2), ids=True)],
            ],
            "GetEmbedding": [[embedding_pb2.GetEmbeddingRequest(name=mapped.name)]],
            "ReadEmbedding": [[embedding_pb2.ReadEmbeddingRequest(name=mapped.name, field=2, start=1, count=5)]],
            "ListEmbeddings": [[embedding_pb2.ListEmbeddingsRequest(**listing)]],
            "DeleteEmbedding": [[embedding_pb2.DeleteEmbeddingRequest(name=f"{parent}/embeddings/none")]],
        }
        valid |= self._inference(model, of_table)
        assert valid.keys() == {method.name for method in METHODS}
        return valid

    def _inference(self, model: model_pb2.Model, of_table: model_pb2.Model) -> dict[str, list[list[Message]]]:
        """Requests of the Open Inference Protocol."""
        request = inference_pb2.ModelInferRequest
        given = request.InferInputTensor
        typed = given(name="points", datatype="FP64", shape=X[:2].shape)
        typed.contents.fp64_contents.extend(X[:2].ravel())
        columns = [
            given(name="x", datatype="INT8", shape=[2]),
            given(name="city", datatype="BYTES", shape=[2]),
            given(name="vector", datatype="FP32", shape=[2, 2]),
            given(name="note", datatype="BYTES", shape=[2, 1]),
        ]
        strings = [b"\3\0\0\0Ulm\0\0\0\0", b"\1\0\0\0a\2\0\0\0b "]
        raw = [b"\1\2", strings[0], bytes(16), strings[1]]
        return {
            "ServerLive": [[inference_pb2.ServerLiveRequest()]],
            "ServerReady": [[inference_pb2.ServerReadyRequest()]],
            "ServerMetadata": [[inference_pb2.ServerMetadataRequest()]],
            "ModelReady": [[inference_pb2.ModelReadyRequest(name=model.name, version="1")]],
            "ModelMetadata": [[inference_pb2.ModelMetadataRequest(name=of_table.name)]],
            "ModelInfer": [
                [request(model_name=model.name, inputs=[typed], outputs=[{"name": "score"}])],
                [request(model_name=of_table.name, inputs=columns, raw_input_contents=raw, id="7")],
            ],
        }

    def _maps(self, model: model_pb2.Model, mapped: embedding_pb2.Embedding) -> list[list[Message]]:
        """Requests for maps of all sources."""
        project = self.project
        few = embedding_pb2.EmbeddingParameters(max_iter=1)
        rich = project.embed_request(X, [(0, 1), (1, 2)], [(3, 4)], labels=labels_of(LABELS), n_clusters=2)
        rich.graph.MergeFrom(model_pb2.GraphParameters(n_neighbors=3))
        rich.n_components = 3
        rich.solver.MergeFrom(
            embedding_pb2.EmbeddingParameters(
                data_weight=1.0,
                lambda2=0.1,
                lambda3=10.0,
                sigma_f=0.5,
                continuation=2.0,
                repulsion=1.0,
                closure=embedding_pb2.LINK_CLOSURE_TRANSITIVE,
                max_iter=3,
                tolerance=0.1,
                normalized=False,
            )
        )
        rich.options.time_limit.seconds = 10
        requests = [rich, project.embed_request(model.name, [(0, 1)], solver=few, n_clusters=0)]
        requests.append(project.embed_request(mapped.name, [(4, 5)], withdrawn=links_of([(0, 1)]), solver=few))
        return [[request] for request in requests]

    def messages(self, method: str) -> list[bytes]:
        """What is sent in one call."""
        if self.random.random() < 0.15:
            return [self.random.randbytes(self.random.randrange(60)) for _ in range(self.random.randrange(1, 3))]
        valid = self.random.choice(self.valid[method])
        chosen = [message.SerializeToString() for message in valid]
        place = self.random.randrange(len(valid))
        copy = type(valid[place])()
        copy.CopyFrom(valid[place])
        for _ in range(self.random.choice([0, 1, 1, 2, 4])):
            self._garble_field(copy)
        data = copy.SerializeToString()
        chosen[place] = self._garbled(data) if self.random.random() < 0.3 else data
        if len(chosen) > 1 and self.random.random() < 0.1:
            self.random.shuffle(chosen)
        return chosen

    def _garble_field(self, message: Message) -> None:
        """Change the value of a field, at any depth."""
        if not message.DESCRIPTOR.fields:
            return
        described = self.random.choice(message.DESCRIPTOR.fields)
        name = described.name
        if described.message_type is not None and not described.is_repeated:
            if self.random.random() < 0.15:
                message.ClearField(name)
            else:
                inner = getattr(message, name)
                inner.SetInParent()
                self._garble_field(inner)
        elif described.is_repeated:
            if described.message_type is None:
                values = getattr(message, name)
                change = self.random.randrange(4)
                if change == 0:
                    message.ClearField(name)
                elif change == 1 and values:
                    values[self.random.randrange(len(values))] = self._value(described)
                else:
                    values.extend(self._value(described) for _ in range(self.random.choice([1, 2, 30])))
            elif not described.message_type.GetOptions().map_entry:
                messages = getattr(message, name)
                chosen = self.random.choice(messages) if messages and self.random.random() < 0.5 else messages.add()
                self._garble_field(chosen)
        else:
            setattr(message, name, self._value(described))

    def _value(self, described: Any) -> Any:
        kind = described.cpp_type
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return self.random.choice(REALS)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.random.choice([0, 1, 2, 3, 4, 5, 99])
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if described.type == FieldDescriptor.TYPE_BYTES:
                return self.random.randbytes(self.random.choice([0, 1, 4, 8, 288]))
            return self.random.choice(TEXTS)
        number = self.random.choice(NUMBERS)
        if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32):
            number = max(-(2**31), min(2**31 - 1, number))
        is_unsigned = kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
        return abs(number) if is_unsigned else number

    def _garbled(self, data: bytes) -> bytes:
        """Change, add or remove bytes."""
        garbled = bytearray(data)
        for _ in range(self.random.choice([1, 1, 2, 5])):
            place = self.random.randrange(len(garbled) + 1)
            change = self.random.randrange(5)
            if change == 0 and place < len(garbled):
                garbled[place] ^= 1 << self.random.randrange(8)
            elif change == 1:
                garbled[place:place] = self.random.randbytes(self.random.randrange(1, 9))
            elif change == 2:
                del garbled[place : place + self.random.randrange(1, 9)]
            elif change == 3:
                garbled += garbled[place:]
            else:
                del garbled[place:]
        return bytes(garbled)


class Calls:
    """Every call of the service, given bytes."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.kinds: dict[str, Any] = {}
        for method in METHODS:
            path = f"/{method.containing_service.full_name}/{method.name}"
            if method.client_streaming:
                self.kinds[method.name] = channel.stream_unary(path)
            elif method.server_streaming:
                self.kinds[method.name] = channel.unary_stream(path)
            else:
                self.kinds[method.name] = channel.unary_unary(path)

    def begin(self, method: str, messages: list[bytes]) -> Any:
        """A call under way."""
        kind = self.kinds[method]
        if isinstance(kind, grpc.UnaryStreamMultiCallable):
            return kind(messages[0], timeout=PATIENCE)
        if isinstance(kind, grpc.StreamUnaryMultiCallable):
            return kind.future(iter(messages), timeout=PATIENCE)
        return kind.future(messages[0], timeout=PATIENCE)

    def code(self, method: str, call: Any) -> grpc.StatusCode:
        """The code with which a call ends."""
        if isinstance(self.kinds[method], grpc.UnaryStreamMultiCallable):
            with suppress(grpc.RpcError):
                for _ in call:
                    pass
        found: grpc.StatusCode = call.code()
        return found


def fuzz(service: Service, count: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """Send ``count`` calls; returns how often each ended with each code. AssertionError if the service is at fault."""
    project = service.project()
    fuzzer, calls = Fuzzer(project, seed), Calls(service.channel())
    methods = list(fuzzer.valid)
    found: Counter[tuple[str, str]] = Counter()
    under_way: deque[tuple[str, list[bytes], Any]] = deque()

    def settle() -> None:
        method, messages, call = under_way.popleft()
        code = calls.code(method, call)
        found[method, code.name] += 1
        assert code not in OURS, f"{method} answered {code.name} ({call.details()}) to {messages}"

    for number in range(count):
        method = methods[number % len(methods)]
        messages = fuzzer.messages(method)
        under_way.append((method, messages, calls.begin(method, messages)))
        if len(under_way) >= IN_FLIGHT:
            settle()
    while under_way:
        settle()
    assert service.process.poll() is None
    check_jobs(project)
    return found


def check_jobs(project: Project) -> None:
    """Check that every job that was started ends, and none with an internal error."""
    jobs: list[job_pb2.Job] = []
    token = ""
    while True:
        page = project.stub.ListJobs(job_pb2.ListJobsRequest(parent=project.name, page_size=1000, page_token=token))
        jobs += page.jobs
        token = page.next_page_token
        if not token:
            break
    # The oldest first: a job behind a thousand others may take longer than the timeout.
    for job in reversed(jobs):
        ended = project.ended(job)
        wrong = ended.error.code in {code.value[0] for code in OURS}
        assert not wrong, f"a job ended with {ended.error}"


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), log_level="error", max_queued_jobs=100_000) as service,
    ):
        try:
            found = fuzz(service, arguments.count, arguments.seed)
        finally:
            for line in service.lines()[:20]:
                print("\n".join(str(value) for value in line.values()))
    for (method, code), times in sorted(found.items()):
        print(f"{method:<18}{code:<22}{times:>9}")
    print(f"{arguments.count} calls, none of them failed by the service's fault")


if __name__ == "__main__":
    main()
