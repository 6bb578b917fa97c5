"""Random and garbled messages, and names that try to leave the data directory."""

from __future__ import annotations

import json
import os
import random
import string
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

import homophily_service
from homophily_client._pb import dataset_pb2, job_pb2, model_pb2
from homophily_client.names import DatasetName, EmbeddingName, InvalidName, JobName, ModelName, ProjectName, check_id

from .fuzz import METHODS, TEXTS, X, fuzz
from .serving import PATIENCE, PROGRAM, Project, Service, chunk, refusal, running, start

ALLOWED = set(string.ascii_lowercase + string.digits + "-")


def test_no_message_is_answered_with_a_mistake_of_the_service(service: Service, long: bool) -> None:
    before = lasting(service)
    found = fuzz(service, 100_000 if long else 1540, seed=4)
    # All calls were reached, and some of each went through or were refused for what they asked.
    assert {method for method, _ in found} == {method.name for method in METHODS}
    assert sum(times for (_, code), times in found.items() if code == "OK") > 100
    assert lasting(service) == before
    assert not [line for line in service.lines() if line["level"] == "error"]


def lasting(service: Service) -> set[int]:
    """The server's processes but for those that compute jobs, which a time limit may end."""
    return {pid for pid, command in service.descendants().items() if "worker.child" not in command}


def files_below(folder: Path) -> set[Path]:
    return {Path(where) / name for where, _, names in os.walk(folder) for name in names}


def test_names_do_not_lead_out_of_the_data_directory(idle: Service, idle_project: Project) -> None:
    data, stub, project = idle.settings.data_dir, idle_project.stub, idle_project.name
    root = data.parents[2]
    (root / "theirs").write_text("theirs")
    idle_project.upload(X, dataset_id="there")
    names = [text for text in TEXTS if not (text and ALLOWED.issuperset(text) and text[0] != "-")]
    names += ["../" * depth + "theirs" for depth in range(1, 7)] + [str(root / "theirs"), "there/../there", "."]
    for name in names:
        for request in (
            start(f"projects/{name}", X),
            start(project, X, name or "."),
            start(project, X, dataset_id=name or "."),
        ):
            assert refusal(stub.UploadDataset, iter([request])).reason == "INVALID_FIELD"
        for call, message in (
            (stub.GetUpload, dataset_pb2.GetUploadRequest(parent=project, upload_id=name)),
            (stub.GetUpload, dataset_pb2.GetUploadRequest(parent=f"projects/{name}", upload_id="u")),
            (stub.GetDataset, dataset_pb2.GetDatasetRequest(name=f"{project}/datasets/{name}")),
            (stub.DeleteDataset, dataset_pb2.DeleteDatasetRequest(name=f"projects/{name}/datasets/there")),
            (stub.DeleteModel, model_pb2.DeleteModelRequest(name=f"{project}/models/{name}")),
            (stub.Fit, idle_project.fit_request(X, {0: 1, 1: 2}, model_id=name or ".")),
            (stub.GetJob, job_pb2.GetJobRequest(name=f"{project}/jobs/{name}")),
        ):
            assert refusal(call, message).reason == "INVALID_FIELD"
    assert {path for path in files_below(root) if not path.is_relative_to(data)} == {root / "theirs"}
    assert (root / "theirs").read_text() == "theirs"
    mine = {path.relative_to(data / "blobs").parts[:3] for path in files_below(data / "blobs")}
    assert {parts for parts in mine if idle_project.id in parts} == {("datasets", idle_project.id, "there")}


# Notes every file and folder that the server itself asks the system for.
_NOTES = """
import json, os, sys
notes = os.open({path!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(event, arguments):
    if event == "open" or event.split(".")[0] in ("os", "shutil", "glob", "pathlib", "sqlite3"):
        for argument in arguments:
            if isinstance(argument, (str, bytes, os.PathLike)):
                os.write(notes, json.dumps([event, os.fsdecode(argument)]).encode() + b"\\n")
sys.addaudithook(note)
"""


def test_no_name_makes_the_server_open_anything_outside_the_data_directory(tmp_path: Path, long: bool) -> None:
    data, notes = tmp_path / "a" / "b" / "data", tmp_path / "notes"
    program = _NOTES.format(path=str(notes)) + PROGRAM
    generator = random.Random(0)
    alphabet = "ab/" * 4 + "./\\\0#%2f~ \n:*ж💥"
    names = [text for text in TEXTS if text] + ["../" * depth + "notes" for depth in range(1, 7)] + [str(notes)]
    names += ["".join(generator.choices(alphabet, k=generator.randrange(1, 12))) for _ in range(10_000 if long else 50)]
    with running(data, program=program, workers=0, predictors=0) as service:
        project = service.project()
        project.upload(X, dataset_id="there")
        (data / "blobs" / "datasets" / project.id / "link").symlink_to("/etc")
        begins = notes.stat().st_size
        for name in [*names, "link", "link/passwd"]:
            for call, request in named_by(project, name):
                with suppress(grpc.RpcError):
                    call(request, timeout=PATIENCE)
        project.upload(X, dataset_id="also-there")
        seen = [json.loads(line) for line in notes.read_bytes()[begins:].splitlines()]
    assert any("also-there" in path for _, path in seen)
    outside = [(event, path) for event, path in seen if not is_inside(path, data)]
    assert outside == []


def named_by(project: Project, name: str) -> Iterator[tuple[Any, Any]]:
    """Calls that take a name to a file or a folder."""
    stub, parent = project.stub, project.name
    yield stub.UploadDataset, iter([start(parent, X, name), chunk(0, b"x")])
    yield stub.UploadDataset, iter([start(parent, X, dataset_id=name)])
    yield stub.UploadDataset, iter([start(f"projects/{name}", X, "u")])
    yield stub.GetUpload, dataset_pb2.GetUploadRequest(parent=parent, upload_id=name)
    yield stub.GetDataset, dataset_pb2.GetDatasetRequest(name=f"{parent}/datasets/{name}")
    yield stub.DeleteDataset, dataset_pb2.DeleteDatasetRequest(name=f"{parent}/datasets/{name}")
    yield stub.GetModel, model_pb2.GetModelRequest(name=f"{parent}/models/{name}")
    yield stub.DeleteModel, model_pb2.DeleteModelRequest(name=f"projects/{name}/models/{name}")
    yield stub.Fit, project.fit_request(f"{parent}/datasets/{name}", {0: 1, 1: 2})


def is_inside(path: str, data: Path) -> bool:
    """Whether a path is in the data directory, relative to a folder that is open, or of Python itself."""
    known = (data, *map(Path, (sys.prefix, sys.base_prefix)), Path(homophily_service.__file__).parent)
    where = Path(os.path.normpath(path))
    return ".." not in where.parts and (not where.is_absolute() or any(where.is_relative_to(one) for one in known))


def test_an_id_is_taken_only_if_it_is_safe_in_a_path(long: bool) -> None:
    count, generator = 100_000 if long else 20_000, random.Random(0)
    alphabet = "ab9-" * 8 + "./\\\0#%~ \n\tA_ж2e:*?\u202e\ud7ff\U0001f4a5"
    taken = 0

    def accepted(parse: Callable[[str], str], text: str) -> bool:
        try:
            return parse(text) == text
        except InvalidName:
            return False

    for _ in range(count):
        text = "".join(generator.choices(alphabet, k=generator.choice([0, 1, 2, 3, 5, 8, 62, 63, 64])))
        safe = 1 <= len(text) <= 63 and ALLOWED.issuperset(text) and text[0] != "-"
        taken += safe
        for parse in (
            lambda text: check_id(text, "field"),
            lambda text: ProjectName.parse(f"projects/{text}", "field").project,
            lambda text: DatasetName.parse(f"projects/{text}/datasets/x", "field").project,
            lambda text: JobName.parse(f"projects/p/jobs/{text}", "field").id,
        ):
            assert accepted(parse, text) == safe
    assert 0.01 < taken / count < 0.99


def test_a_name_is_of_its_own_collection() -> None:
    kinds = (DatasetName, ModelName, EmbeddingName, JobName)
    for kind in kinds:
        name = kind("p", "x")
        assert kind.parse(str(name), "field") == name
        for other in set(kinds) - {kind}:
            with pytest.raises(InvalidName):
                other.parse(str(name), "field")
        for wrong in (f"{name}/", f"/{name}", f"{name}/x", str(name).upper(), f" {name}", f"{name}\n"):
            with pytest.raises(InvalidName):
                kind.parse(wrong, "field")
