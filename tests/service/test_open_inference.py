"""The Open Inference Protocol: Triton's client, and requests that it does not make."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest

from homophily_client import Client, Model
from homophily_service.contract import open_inference_pb2 as pb

from .serving import PATIENCE, Service, refusal, running

TRITON = Path(__file__).with_name("triton")
RNG = np.random.default_rng(0)
Y = np.arange(120) % 3
X = (RNG.normal(size=(120, 4)) + 2.0 * Y[:, None]).astype(np.float32)
NAMES = np.array(["ant", "bee", "cat"])
NEW = X[:7] + np.float32(0.1)
TABLE = pd.DataFrame(
    {
        "income": RNG.normal(40e3, 9e3, 120),
        "rate": RNG.normal(0.1 + 0.05 * Y, 0.01),
        "city": np.array(["Bonn", "Kiel", "Ulm"])[Y],
        "note": ["left", "stayed"] * 60,
    }
)


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with Client(service.target) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: Client) -> Model:
    """A model of a matrix, in the project of short names."""
    return client.fit(X, {point: NAMES[Y[point]] for point in range(9)}, model_id="triton", calibrate=True).result(
        PATIENCE
    )


@pytest.fixture(scope="module")
def table_model(client: Client) -> Model:
    labels = {point: int(Y[point]) for point in range(9)}
    return client.fit(TABLE, labels, table={"drop": ["note"]}, model_id="triton-table").result(PATIENCE)


class Calls:
    """The calls of the protocol, on a channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            call = channel.unary_unary(
                f"/inference.GRPCInferenceService/{method.name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=getattr(pb, method.output_type.name).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.fixture
def calls(service: Service) -> Calls:
    return Calls(service.channel())


@pytest.fixture(scope="module")
def triton_python() -> Path:
    """A Python with Triton's client, which needs an older protobuf than ours; installed once and kept."""
    requirements = TRITON / "requirements.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "homophily"
    folder = caches / f"triton-{digest}"
    python = folder / "bin" / "python"
    if not folder.exists():
        caches.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=caches) as fresh:
            made = Path(fresh) / "made"
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)]
            try:
                subprocess.run([sys.executable, "-m", "venv", str(made)], check=True, timeout=PATIENCE)
                subprocess.run([str(made / "bin" / "python"), *install], check=True, timeout=10 * PATIENCE)
            except subprocess.SubprocessError:
                assert "CI" not in os.environ, (
                    "Triton's client cannot be installed, and continuous integration has to try it"
                )
                pytest.skip("Triton's client cannot be installed: it is not tried")
            # Fails if another run was first, which is as good.
            with suppress(OSError):
                made.rename(folder)
    return python


def numbers(name: str, datatype: str, field: str, values: Any) -> pb.ModelInferRequest.InferInputTensor:
    array = np.asarray(values)
    given = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=array.shape)
    getattr(given.contents, field).extend(array.ravel().tolist())
    return given


def test_tritons_client_sees_the_models_and_gets_the_answers_of_predict(
    service: Service, client: Client, model: Model, table_model: Model, triton_python: Path, tmp_path: Path
) -> None:
    new = TABLE.iloc[:5]
    inputs = tmp_path / "inputs.npz"
    columns = {"income": new.income.to_numpy(), "rate": new.rate.to_numpy(), "city": new.city.to_numpy(dtype=str)}
    np.savez(inputs, X=NEW, **columns)
    command = [str(triton_python), str(TRITON / "client.py"), service.target, "triton", table_model.name, str(inputs)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    saw = json.loads(run.stdout)

    assert (saw["live"], saw["ready"], saw["model_ready"], saw["other_ready"]) == (True, True, True, False)
    assert saw["server"]["name"] == "homophily"
    assert saw["metadata"]["platform"] == "homophily"
    assert saw["metadata"]["inputs"] == [{"name": "points", "datatype": "FP64", "shape": ["-1", "4"]}]
    assert [one["name"] for one in saw["metadata"]["outputs"]] == ["label", "score", "probabilities"]
    assert saw["table_metadata"]["inputs"] == [
        {"name": "income", "datatype": "FP64", "shape": ["-1"]},
        {"name": "rate", "datatype": "FP64", "shape": ["-1"]},
        {"name": "city", "datatype": "BYTES", "shape": ["-1"]},
    ]

    expected = client.predict(model, NEW, probabilities=True)
    assert saw["answer"]["label"]["values"] == expected.labels.tolist()
    assert saw["answer"]["score"]["bits"] == expected.scores.tobytes().hex()
    assert expected.probabilities is not None
    assert saw["answer"]["probabilities"]["bits"] == expected.probabilities.tobytes().hex()
    assert saw["answer"]["score"]["shape"] == ["7", "3"]
    assert saw["id"] == "seven"
    assert saw["label_only"] == ["label"]
    of_table = client.predict(table_model, new)
    assert saw["table_answer"]["label"]["bits"] == of_table.labels.astype(np.int64).tobytes().hex()
    assert saw["table_answer"]["score"]["bits"] == of_table.scores.tobytes().hex()

    assert saw["unknown_model"][0] == "StatusCode.NOT_FOUND"
    assert saw["unknown_input"] == ["StatusCode.INVALID_ARGUMENT", "inputs[0].name: must be one of points; got 'rows'"]
    assert saw["wrong_width"][0] == "StatusCode.INVALID_ARGUMENT"
    assert "4 features" in saw["wrong_width"][1]
    assert saw["other_project"][0] == "StatusCode.INVALID_ARGUMENT"
    assert saw["classification"][1] == "outputs[0].parameters[classification]: is not supported: leave it out"


def test_typed_contents_are_answered_by_typed_contents(calls: Calls, client: Client, model: Model) -> None:
    given = numbers("points", "FP32", "fp32_contents", NEW)
    answer = calls.ModelInfer(pb.ModelInferRequest(model_name="triton", inputs=[given], id="a"))
    expected = client.predict(model, NEW)
    label, score, _ = answer.outputs
    assert [text.decode() for text in label.contents.bytes_contents] == expected.labels.tolist()
    assert list(score.contents.fp64_contents) == expected.scores.ravel().tolist()
    assert not answer.raw_output_contents
    assert (answer.model_name, answer.model_version, answer.id) == ("triton", "1", "a")


def test_columns_come_in_any_order_type_and_shape_and_unused_ones_are_ignored(
    calls: Calls, client: Client, table_model: Model
) -> None:
    rows = TABLE.iloc[:6].assign(income=TABLE.income[:6].round())
    city = pb.ModelInferRequest.InferInputTensor(name="city", datatype="BYTES", shape=[6, 1])
    city.contents.bytes_contents.extend(text.encode() for text in rows.city)
    inputs = [
        pb.ModelInferRequest.InferInputTensor(name="note", datatype="BYTES", shape=[6]),
        numbers("rate", "FP64", "fp64_contents", rows[["rate"]]),
        city,
        numbers("income", "INT64", "int64_contents", rows.income.astype(int)),
    ]
    answer = calls.ModelInfer(pb.ModelInferRequest(model_name=table_model.name, model_version="1", inputs=inputs))
    assert list(answer.outputs[0].contents.int64_contents) == client.predict(table_model, rows).labels.tolist()


def _infer(**more: Any) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(**({"model_name": "triton"} | more))


GOOD = numbers("points", "FP32", "fp32_contents", NEW)
INPUT = pb.ModelInferRequest.InferInputTensor


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (_infer(), "inputs"),
        (_infer(model_version="2", inputs=[GOOD]), "model_version"),
        (_infer(model_name="Not a name", inputs=[GOOD]), "model_name"),
        (_infer(inputs=[GOOD, GOOD]), "inputs[1].name"),
        (_infer(inputs=[GOOD], raw_input_contents=[b"", b""]), "raw_input_contents"),
        (_infer(inputs=[GOOD], raw_input_contents=[b"123"]), "raw_input_contents[0]"),
        (_infer(inputs=[numbers("points", "FP16", "fp32_contents", NEW)]), "inputs[0].datatype"),
        (_infer(inputs=[INPUT(name="points", datatype="FP32", shape=[-1, 4])]), "inputs[0].shape"),
        (
            _infer(inputs=[INPUT(name="points", datatype="FP32", shape=[1 << 40, 4])]),
            "inputs[0].contents.fp32_contents",
        ),
        (_infer(inputs=[INPUT(name="points", datatype="FP32", shape=[4])]), "inputs[0].shape"),
        (
            _infer(inputs=[numbers("points", "INT8", "int_contents", [[300, 0, 0, 0]])]),
            "inputs[0].contents.int_contents",
        ),
        (_infer(inputs=[numbers("points", "INT64", "int64_contents", [[1 << 60, 0, 0, 0]])]), "inputs[0]"),
        (_infer(inputs=[numbers("points", "FP32", "fp32_contents", [[np.nan, 0, 0, 0]])]), "points.dense.data"),
        (_infer(inputs=[GOOD], outputs=[{"name": "odds"}]), "outputs[0].name"),
        (_infer(inputs=[GOOD], parameters={"sequence_id": {"int64_param": 1}}), "parameters[sequence_id]"),
        (_infer(model_name="triton-table", inputs=[numbers("rate", "FP64", "fp64_contents", [1.0])]), "inputs"),
        (
            _infer(
                model_name="triton-table",
                inputs=[
                    numbers("rate", "FP64", "fp64_contents", [1.0]),
                    numbers("income", "FP64", "fp64_contents", [1.0]),
                    numbers("city", "FP64", "fp64_contents", [1.0]),
                ],
            ),
            "inputs[2].datatype",
        ),
        (
            _infer(
                model_name="triton-table",
                inputs=[
                    numbers("rate", "FP64", "fp64_contents", [1.0, 2.0]),
                    numbers("income", "FP64", "fp64_contents", [1.0]),
                    INPUT(name="city", datatype="BYTES", shape=[1]),
                ],
            ),
            "inputs[0].shape",
        ),
        (
            _infer(
                model_name="triton-table",
                inputs=[
                    INPUT(name="rate", datatype="FP64", shape=[1]),
                    INPUT(name="income", datatype="FP64", shape=[1]),
                    INPUT(name="city", datatype="BYTES", shape=[1]),
                ],
                raw_input_contents=[bytes(8), bytes(8), b"\xff\xff\xff\x7fKiel"],
            ),
            "raw_input_contents[2]",
        ),
    ],
)
def test_a_wrong_request_is_refused_and_its_field_is_named(
    calls: Calls, model: Model, table_model: Model, request_: pb.ModelInferRequest, field: str
) -> None:
    assert model.name
    assert table_model.name
    refused = refusal(calls.ModelInfer, request_)
    assert refused.code == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.fields == [field]


def test_more_strings_than_a_request_may_hold_are_refused(calls: Calls, table_model: Model) -> None:
    rows = 200_001
    inputs = [
        INPUT(name="rate", datatype="FP64", shape=[rows]),
        INPUT(name="income", datatype="FP64", shape=[rows]),
        INPUT(name="city", datatype="BYTES", shape=[rows]),
    ]
    raw = [bytes(8 * rows), bytes(8 * rows), bytes(4 * rows)]
    request = _infer(model_name=table_model.name, inputs=inputs, raw_input_contents=raw)
    refused = refusal(calls.ModelInfer, request)
    assert refused.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "200,000 strings" in refused.message


def test_probes_need_no_token_and_models_do(tmp_path: Path) -> None:
    with running(tmp_path, auth="tokens", workers=0, predictors=0) as service:
        calls, secret = Calls(service.channel()), service.token("mine")
        assert calls.ServerLive(pb.ServerLiveRequest()).live
        assert calls.ServerReady(pb.ServerReadyRequest()).ready
        mine = (("authorization", f"Bearer {secret}"),)
        assert calls.ServerMetadata(pb.ServerMetadataRequest(), metadata=mine).name == "homophily"
        # A short name is one of the token's project.
        assert not calls.ModelReady(pb.ModelReadyRequest(name="m"), metadata=mine).ready
        other = pb.ModelReadyRequest(name="projects/other/models/m")
        assert refusal(calls.ModelReady, other, metadata=mine).code == grpc.StatusCode.PERMISSION_DENIED
        for call, request in (
            (calls.ServerMetadata, pb.ServerMetadataRequest()),
            (calls.ModelReady, pb.ModelReadyRequest(name="m")),
            (calls.ModelMetadata, pb.ModelMetadataRequest(name="m")),
            (calls.ModelInfer, _infer(inputs=[GOOD])),
        ):
            assert refusal(call, request).code == grpc.StatusCode.UNAUTHENTICATED
