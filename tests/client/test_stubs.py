"""Stubs that users generate from our protos live together with our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

PROTOS = Path(__file__).parents[2] / "proto"

PROGRAM = """
import {first}
import {second}
from homophily.v1 import homophily_service_pb2_grpc, job_pb2
from homophily import ERRClassifier
from homophily_client import Client
from homophily_client._pb import job_pb2 as ours

assert job_pb2.__file__ != ours.__file__
theirs = job_pb2.Job(name="projects/default/jobs/j")
assert ours.Job.FromString(theirs.SerializeToString()).name == theirs.name
assert homophily_service_pb2_grpc.HomophilyServiceStub
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    well_known = Path(protoc.__file__).parent / "_proto"
    sources = [str(path) for path in sorted(PROTOS.glob("homophily/v1/*.proto"))]
    outputs = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", f"-I{PROTOS}", f"-I{well_known}", *outputs, *sources]) == 0
    return folder


@pytest.mark.parametrize(
    ("first", "second"),
    [("homophily", "homophily_client._pb.job_pb2"), ("homophily_client._pb.job_pb2", "homophily.v1.job_pb2")],
    ids=["ours first", "theirs second"],
)
def test_generated_stubs_and_our_packages_are_imported_together(stubs: Path, first: str, second: str) -> None:
    program = PROGRAM.format(first=first, second=second)
    # Our packages of the checkout that is tested, if it is on the path.
    path = os.pathsep.join(filter(None, [str(stubs), os.environ.get("PYTHONPATH")]))
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path}, check=True)


def test_stubs_are_found_behind_our_packages_too(stubs: Path) -> None:
    behind = f"import sys; sys.path.append({str(stubs)!r})\n"
    program = behind + PROGRAM.format(first="homophily", second="homophily.v1")
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_copy_of_the_core_is_not_mixed_in(tmp_path: Path) -> None:
    (tmp_path / "homophily").mkdir()
    (tmp_path / "homophily" / "__init__.py").touch()
    (tmp_path / "homophily" / "stale.py").touch()
    program = f"import sys; sys.path.append({str(tmp_path)!r})\nimport homophily\nassert len(homophily.__path__) == 1"
    subprocess.run([sys.executable, "-c", program], check=True)
