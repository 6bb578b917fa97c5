"""The command line: files in every form, and commands against a real server."""

from __future__ import annotations

import csv
import json
import os
import pickle
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from pyarrow import parquet
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from homophily_service._pb import job_pb2
from homophily_service.cli import main
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.files import read_points
from homophily_service.cli.following import Pace
from homophily_service.cli.labels import read_labels
from homophily_service.client import JobEvent, JobState

from .serving import Project, Service, eventually

COMMAND = str(Path(sys.executable).parent / "homophily")
X = np.array([[0.0, 1.5], [2.0, 0.0], [0.25, 3.0]])


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# -- points out of files -----------------------------------------------------------------------------------------------


def test_npy_files_are_mapped_and_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", X)
    assert_array_equal(read_points(tmp_path / "points.npy").points, X)
    np.save(tmp_path / "objects.npy", np.array([["a", None]], dtype=object), allow_pickle=True)
    with pytest.raises(WrongInput, match=r"objects\.npy: holds Python objects"):
        read_points(tmp_path / "objects.npy")
    (tmp_path / "bomb.npy").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(WrongInput, match=r"bomb\.npy: holds Python objects, or is no NumPy file"):
        read_points(tmp_path / "bomb.npy")


def test_npz_files_hold_a_table_or_a_sparse_matrix_in_either_layout(tmp_path: Path) -> None:
    matrix = sparse.csr_array(X)
    sparse.save_npz(tmp_path / "scipy.npz", matrix)
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
    np.savez(tmp_path / "parts.npz", **parts, y=np.array([1, 0, 1]))
    np.savez(tmp_path / "dense.npz", X=X, y=np.array([1, 0, 1]), Z=X)
    assert_array_equal(read_points(tmp_path / "scipy.npz").points.toarray(), X)
    table = read_points(tmp_path / "parts.npz", "y")
    assert_array_equal(table.points.toarray(), X)
    assert table.labels == [1, 0, 1]
    assert_array_equal(read_points(tmp_path / "dense.npz").points, X)
    np.savez(tmp_path / "two.npz", A=X, B=X)
    with pytest.raises(WrongInput, match="Got A, B instead"):
        read_points(tmp_path / "two.npz")
    np.savez(tmp_path / "outside.npz", **(parts | {"indices": matrix.indices + 7}))
    with pytest.raises(WrongInput, match=r"outside\.npz: cannot be read"):
        read_points(tmp_path / "outside.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "dense.npz").read_bytes()[:200])
    with pytest.raises(WrongInput, match=r"cut\.npz"):
        read_points(tmp_path / "cut.npz")


@pytest.mark.parametrize(
    ("text", "column", "labels"),
    [
        ("0,1.5\n2,0\n0.25,3\n", None, None),
        ('\ufeff"a","b"\n0,1.5\n\n2,0\n0.25,3e0\n', None, None),
        ("a,b,kind\n0,1.5,cat\n2,0,\n0.25,3,dog\n", "kind", ["cat", "", "dog"]),
        # No header, although labels are words; and one over numbers only.
        ("cat,0,1.5\n?,2,0\ndog,0.25,3\n", "0", ["cat", "?", "dog"]),
        ("0,1,label\n0,1.5,4\n2,0,5\n0.25,3,4\n", "-1", ["4", "5", "4"]),
        # A number is a place, unless it is a name.
        ("0,2,1.5\n2,7,0\n0.25,2,3\n", "1", ["2", "7", "2"]),
    ],
)
def test_csv_files_with_and_without_header(
    tmp_path: Path, text: str, column: str | None, labels: list[str] | None
) -> None:
    table = read_points(written(tmp_path / "points.csv", text), column)
    assert_array_equal(table.points, X)
    assert table.labels == labels


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n3,cat\n", "column 'b' must hold numbers, but row 2 has 'cat'"),
        ("1,2\n3,\n", "column '1' must hold numbers, but row 2 has nothing"),
        ("1,2\n3,4,5\n", "row 2 must have 2 columns. Got 3 instead."),
        ("", "is empty"),
        ("a,b\n", "holds no points"),
    ],
)
def test_csv_files_are_refused_by_row_and_column(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(WrongInput, match=re.escape(sentence)):
        read_points(written(tmp_path / "points.csv", text))


def test_parquet_files_have_numbers_in_every_column_but_that_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "points.parquet"
    columns = {"a": pa.array(X[:, 0], pa.float32()), "kind": ["x", None, "y"], "b": pa.array(X[:, 1], pa.float32())}
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    table = read_points(path, "kind")
    assert table.points.dtype == np.float32
    assert_array_equal(table.points, X)
    assert table.labels == ["x", None, "y"]
    with pytest.raises(WrongInput, match="column 'kind' must hold numbers, but holds string"):
        read_points(path)
    with pytest.raises(WrongInput, match="has no column 'sort', only a, kind, b"):
        read_points(path, "sort")
    parquet.write_table(pa.table({"a": [1, 2, None]}), path)
    with pytest.raises(WrongInput, match="column 'a' must hold numbers, but row 3 is empty"):
        read_points(path)


def test_svmlight_files_are_sparse(tmp_path: Path) -> None:
    dump_svmlight_file(X, [1, -1, 1], str(tmp_path / "points.svmlight"))
    assert_array_equal(read_points(tmp_path / "points.svmlight").points.toarray(), X)
    assert read_points(tmp_path / "points.svmlight", n_features=5).points.shape == (3, 5)
    assert read_labels(f"{tmp_path}/points.svmlight", "?").by_point == {0: 1, 1: -1, 2: 1}


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"must end in one of \.npy"):
        read_points(written(tmp_path / "points.xls", "1"))
    with pytest.raises(WrongInput, match="there is no such file"):
        read_points(tmp_path / "points.npy")
    np.save(tmp_path / "flat.npy", np.arange(3))
    with pytest.raises(WrongInput, match="must have two dimensions"):
        read_points(tmp_path / "flat.npy")
    np.save(tmp_path / "words.npy", np.array([["a"]]))
    with pytest.raises(WrongInput, match="must hold real numbers"):
        read_points(tmp_path / "words.npy")


# -- labels out of files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("l.csv", "point,label\n3,1\n0,2\n", {3: 1, 0: 2}),
        ("l.csv", "label,point,who\n-1,3,me\n2,0,you\n", {3: -1, 0: 2}),
        ("l.csv", "3,cat\n0,dog\n", {3: "cat", 0: "dog"}),
        ("l.csv", "cat\n\n?\ndog\nNaN\n", {0: "cat", 3: "dog"}),
        ("l.csv", "label\n1\n-1\n2\n", {0: 1, 2: 2}),
        ("l.csv", "kind\n1.0\n-1.0\n2\n", {0: 1, 2: 2}),
        ("l.csv", "007\n7\n", {0: "007", 1: "7"}),
        ("l.csv:kind", "a,kind\n1,x\n2,\n3,y\n", {0: "x", 2: "y"}),
        ("l.csv:1", "1,4\n2,-1\n3,5\n", {0: 4, 2: 5}),
        ("l.json", '{"3": "cat", "0": "dog"}', {3: "cat", 0: "dog"}),
        ("l.json", '{"3": 12345678901234567, "0": -1}', {3: 12345678901234567, 0: -1}),
    ],
)
def test_labels_as_people_keep_them(tmp_path: Path, name: str, text: str, expected: dict[int, Any]) -> None:
    written(tmp_path / name.partition(":")[0], text)
    assert read_labels(f"{tmp_path}/{name}").by_point == expected


def test_labels_in_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "l.npy", np.array([-1, 3, -1, 5]))
    assert read_labels(f"{tmp_path}/l.npy") == ({1: 3, 3: 5}, 4)
    np.save(tmp_path / "f.npy", np.array([np.nan, 3.0, 0.0]))
    assert read_labels(f"{tmp_path}/f.npy", "0").by_point == {1: 3}
    np.savez(tmp_path / "l.npz", y=np.array(["a", "", "b"]))
    assert read_labels(f"{tmp_path}/l.npz:y").by_point == {0: "a", 2: "b"}
    parquet.write_table(pa.table({"x": [1.0, 2.0], "y": ["a", None]}), tmp_path / "l.parquet")
    assert read_labels(f"{tmp_path}/l.parquet:y").by_point == {0: "a"}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("l.csv", "point,label\n3,1\n3,2\n", "row 2: point 3 is labelled twice"),
        ("l.csv", "point,label\n-3,1\n", "row 1: a point must be a row number"),
        ("l.csv", "point,label\n3,\n", "row 1 has no label"),
        ("l.csv", "a,b,c\n1,2,3\n", "must have the columns point and label, or one column. Got 3 columns"),
        ("l.csv:z", "a,b\n1,2\n", "has no column 'z', only a, b"),
        ("l.json", "[1, 2]", 'must be {"point": label'),
        ("l.json", '{"1": 2', "cannot be read"),
        ("l.json", '{"1": 2.5}', "labels must be whole numbers or words. Got 2.5 instead."),
        ("l.txt", "1", "must be in a file that ends in one of"),
    ],
)
def test_wrong_labels_are_refused(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    written(tmp_path / name.partition(":")[0], text)
    with pytest.raises(WrongInput, match=re.escape(sentence)):
        read_labels(f"{tmp_path}/{name}")


def test_time_left_follows_from_how_fast_a_phase_goes() -> None:
    from datetime import UTC, datetime, timedelta

    now = datetime.now(UTC)

    def event(seconds: float, phase: str | None, fraction: float | None, state: JobState) -> JobEvent:
        when = now + timedelta(seconds=seconds)
        return JobEvent(1, when, state, 1, phase, 0, 0, None, None, fraction, "")

    pace = Pace()
    pace.see(event(-60, None, None, JobState.QUEUED))
    assert pace.elapsed == pytest.approx(60, abs=5)
    pace.see(event(-30, "graph", 0.05, JobState.RUNNING))
    assert pace.left is None
    pace.see(event(-10, "solve", 0.4, JobState.RUNNING))
    assert pace.left is None
    pace.see(event(0, "solve", 0.6, JobState.RUNNING))
    assert pace.left == pytest.approx(20, abs=1)
    assert pace.elapsed == pytest.approx(30, abs=5)


# -- commands ----------------------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture
def run(
    service: Service,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    """A command in a project of its own, in this process: loading the client takes longer than most commands."""
    monkeypatch.chdir(tmp_path)
    for name, value in environment(service.target, project).items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str | Path, code: int = 0) -> Ended:
        monkeypatch.setattr(sys, "argv", ["homophily", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        found = Ended(int(ended.value.code or 0), *capfd.readouterr())
        assert found.code == code, found
        return found

    return run


def environment(target: str, project: Project, token: str = "") -> dict[str, str]:
    return {"HOMOPHILY_TARGET": target, "HOMOPHILY_PROJECT": project.id} | ({"HOMOPHILY_TOKEN": token} if token else {})


def two_groups(count: int = 60) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    y = np.arange(count) % 2
    points = np.random.default_rng(0).normal(size=(count, 3)) + 8.0 * y[:, None]
    return points.astype(np.float32), y


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Points and labels in every form."""
    points, y = two_groups()
    names = np.array(["cat", "dog"])[y]
    np.save(tmp_path / "points.npy", points)
    sparse.save_npz(tmp_path / "sparse.npz", sparse.csr_array(np.abs(points)))
    with (tmp_path / "points.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "kind"])
        writer.writerows(
            [*row, name if place < 10 else ""] for place, (row, name) in enumerate(zip(points, names, strict=True))
        )
    parquet.write_table(
        pa.table({f"c{place}": column for place, column in enumerate(points.T)}), tmp_path / "points.parquet"
    )
    dump_svmlight_file(points, y + 1, str(tmp_path / "points.svmlight"))
    np.save(tmp_path / "few.npy", np.where(np.arange(len(y)) < 10, y, -1))
    np.save(tmp_path / "truth.npy", y)
    written(tmp_path / "more.csv", "point,label\n20,0\n21,1\n")
    np.save(tmp_path / "new.npy", np.array([[0.0, 0, 0], [8, 8, 8]]))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("points.npy", [], "dense"),
        ("sparse.npz", [], "sparse"),
        ("points.csv", ["--label-column", "kind"], "dense"),
        ("points.parquet", [], "dense"),
        ("points.svmlight", [], "sparse"),
    ],
)
def test_upload_of_every_kind_of_file(run: Run, files: Path, name: str, options: list[str], kind: str) -> None:
    dataset = run("upload", files / name, "--name", "mine", "--description", "a few", *options, "--json").json
    assert (dataset["points"], dataset["dimensions"], dataset["description"]) == (60, 3, "a few")
    assert dataset["is_sparse"] == (kind == "sparse")
    assert f"mine    {'':7}" not in run("datasets").out
    assert re.search(rf"mine +60 +3 +{kind} +\S+ \S+ +\d+ s ago +a few", run("datasets").out)


def test_a_model_from_fit_to_deletion(run: Run, files: Path) -> None:
    shown = run("upload", "points.npy").out
    assert re.search(r"dataset +points\n?", shown)
    fitted = run(
        "fit", "points", "--labels", "few.npy", "--validation", "truth.npy", "--model", "first", "--n-neighbors", "5"
    )
    for expected in ("model +first", "ERR, n_neighbors=5", "60 of 3 features, 10 labelled", "2: 0, 1", "0.00 % of the"):
        assert re.search(expected, fitted.out), fitted.out
    assert "built" in fitted.out
    assert "solve" in fitted.err
    assert "succeeded" in fitted.err
    changed = run("transduce", "first", "--labels", "more.csv", "--withdraw", "3,4", "--model", "second", "--json").json
    assert changed["model"]["labelled"] == 10
    assert changed["model"]["parent_model"].endswith("/models/first")
    assert changed["model"]["graph"]["reused"]
    answers = run("predict", "second", "new.npy")
    assert [row.split(",")[:2] for row in answers.out.splitlines()] == [["point", "label"], ["0", "0"], ["1", "1"]]
    for suffix in ("csv", "npy", "parquet"):
        run("solution", "second", "--output", f"solution.{suffix}")
    assert_array_equal(np.load(files / "solution.npy"), np.arange(60) % 2)
    assert parquet.read_table(files / "solution.parquet").column("label").to_pylist() == [0, 1] * 30
    assert (files / "solution.csv").read_text().startswith("point,label\n0,0\n1,1\n")
    assert re.search(r"second +ERR +60 +10 +2 +– ", run("models").out)
    assert run("model", "second", "--json").json["name"].endswith("/models/second")
    listed = run("jobs", "--kind", "transduce").out
    assert re.search(r"[0-9a-f]{24} +transduce +succeeded +\d+ s ago +[\d.]+", listed)
    assert [job["kind"] for job in run("jobs", "--json", "--state", "succeeded").json] == ["transduce", "fit"]
    run("delete", "models/second", "datasets/points")
    run("model", "second", code=4)
    assert run("embeddings", "--json").json == []


def test_fit_on_a_file_uploads_it_once(run: Run, files: Path) -> None:
    first = run("fit", files / "points.csv", "--label-column", "kind", "--method", "irr", "--calibrate")
    assert "points.csv is uploaded, as points-" in first.err
    assert "2: cat, dog" in first.out
    again = run("fit", files / "points.csv", "--label-column", "kind", "--method", "irr", "--calibrate", "--json")
    assert "is on the service already" in again.err
    assert again.json["model"]["graph"]["reused"]
    model = again.json["model"]["name"]
    found = run("predict", model, files / "new.npy", "--probabilities", "--json").json
    assert found["labels"] == ["cat", "dog"]
    assert len(found["probabilities"][0]) == 2
    labels = run("fit", files / "points.svmlight", "--labels", files / "points.svmlight", "--json").json["model"][
        "classes"
    ]
    assert labels == [1, 2]


def test_a_detached_job_is_watched(run: Run, files: Path) -> None:
    run("upload", files / "points.npy")
    name = run("fit", "points", "--labels", "few.npy", "--detach", "--priority", "5").out.strip()
    assert re.fullmatch("[0-9a-f]{24}", name)
    assert "60 of 3 features" in run("watch", name).out
    lines = [json.loads(line) for line in run("watch", name, "--json").out.splitlines()]
    assert [line["event"]["sequence"] for line in lines[:-1]] == list(range(1, len(lines)))
    assert lines[-1]["job"]["state"] == "succeeded"
    assert re.search("priority +5", run("job", name).out)
    assert run("cancel", name, "--json").json["state"] == "succeeded"
    waited = run("fit", "points", "--labels", "few.npy", "--wait", "60", "--json").json
    assert waited["state"] == "succeeded"


def test_errors_are_a_sentence_and_a_code(run: Run, files: Path) -> None:
    run("upload", "points.npy")

    def refused(code: int, sentence: str, *arguments: str) -> None:
        ended = run(*arguments, code=code)
        assert ended.out == ""
        assert sentence in ended.err
        assert len(ended.err.splitlines()) == 1, ended.err

    refused(
        2, "Error: graph.n_neighbors: must be between", "fit", "points", "--labels", "few.npy", "--n-neighbors", "0"
    )
    refused(2, "Error: method must be one of 'err', 'irr'", "fit", "points", "--labels", "few.npy", "--method", "x")
    refused(2, "Error: Labels are needed", "fit", "points")
    refused(2, "Error: there-is-none.csv: there is no such file", "fit", "there-is-none.csv", "--labels", "few.npy")
    refused(2, "--label-column needs a file", "fit", "points", "--label-column", "kind")
    np.save(files / "short.npy", np.array([0, 1]))
    refused(2, "must have an entry for each of 60 points. Got 2", "fit", "points", "--labels", "short.npy")
    np.save(files / "signs.npy", np.where(np.arange(60) % 2, 1, -1))
    refused(2, "at least two classes. Got 1 instead. If -1 is a class", "fit", "points", "--labels", "signs.npy")
    refused(2, "must be one of datasets/ID", "delete", "points")
    refused(2, "datasets/points exists", "upload", "points.npy")
    refused(2, "--state must be one of queued", "jobs", "--state", "asleep")
    refused(2, "--withdraw must be whole numbers", "transduce", "points", "--withdraw", "a")
    refused(4, "models/none does not exist", "predict", "none", "new.npy")
    refused(4, "jobs/none does not exist", "watch", "none")
    refused(1, "This version of the service cannot do that", "embed", "points", "--must-link", "0,2")
    assert "No such option" in run("jobs", "--nope", code=2).err


def test_failed_jobs_and_services_out_of_reach_have_codes_of_their_own(run: Run, tmp_path: Path, idle: Service) -> None:
    noise(tmp_path)
    ended = run("fit", "noise.npy", "--labels", "y.npy", "--calibrate", "--time-limit", "0.05", code=1)
    assert re.search("Error: projects/.* failed: .*0.05 s", ended.err)
    assert re.search(r"fit +failed: TIME_LIMIT", run("jobs").out)
    assert "The service cannot be reached" in run("jobs", "--target", "127.0.0.1:1", code=3).err
    assert run("health").out.endswith(": SERVING\n")
    run("health", "--target", "127.0.0.1:1", "--timeout", "0.2", code=3)
    run("jobs", "--target", idle.target, code=5)
    run("jobs", "--target", idle.target, "--token", "wrong", code=5)


def noise(folder: Path) -> None:
    """What takes long: ten classes in noise."""
    np.save(folder / "noise.npy", np.random.default_rng(0).normal(size=(4000, 20)))
    np.save(folder / "y.npy", np.where(np.arange(4000) < 500, np.arange(4000) % 10, -1))


# -- processes ---------------------------------------------------------------------------------------------------------


def start(arguments: Sequence[str], variables: dict[str, str], **more: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen([COMMAND, *arguments], env=os.environ | variables, text=True, **pipes)


@pytest.mark.parametrize("state", ["queued", "running"])
def test_ctrl_c_cancels_the_job_and_says_so(
    state: str, service: Service, idle: Service, tmp_path: Path, files: Path
) -> None:
    if state == "queued":
        token = idle.token("*")
        project, variables = idle.project(token), environment(idle.target, idle.project(token), token)
        variables["HOMOPHILY_PROJECT"] = project.id
        points: Any = files / "points.npy"
        options = ["--labels", str(files / "few.npy")]
    else:
        project = service.project()
        variables = environment(service.target, project)
        noise(tmp_path)
        points = tmp_path / "noise.npy"
        options = ["--labels", str(tmp_path / "y.npy"), "--calibrate", "--tol", "0", "--max-iter", "10000"]
    process = start(["fit", str(points), *options], variables)

    def jobs() -> list[job_pb2.Job]:
        found = project.stub.ListJobs(job_pb2.ListJobsRequest(parent=project.name)).jobs
        return [job for job in found if job.state == job_pb2.JobState.Value(f"JOB_STATE_{state.upper()}")]

    [job] = eventually(jobs)
    # It is followed by now: the command has said where it is.
    assert process.stderr is not None
    seen = ""
    while state not in seen.splitlines():
        seen += process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert f"Cancelling job {job.name.rpartition('/')[2]}" in err
    assert "is cancelled." in err
    ended = project.stub.GetJob(job_pb2.GetJobRequest(name=job.name)).job
    assert ended.state == job_pb2.JOB_STATE_CANCELLED


def test_a_terminal_shows_a_bar_and_colours_only_if_wanted(service: Service, project: Project, files: Path) -> None:
    shown = {}
    for variables in ({"NO_COLOR": "1"}, {"NO_COLOR": ""}):
        ours, theirs = pty.openpty()
        terminal = {"TERM": "xterm-256color", "COLUMNS": "80", **variables, **environment(service.target, project)}
        arguments = ["fit", str(files / "points.npy"), "--labels", str(files / "few.npy")]
        process = start(arguments, terminal, stdout=theirs, stderr=theirs, stdin=theirs)
        os.close(theirs)
        screen = b""
        # The end of a terminal is an error.
        try:
            while more := os.read(ours, 65536):
                screen += more
        except OSError:
            pass
        os.close(ours)
        assert process.wait(60) == 0, screen
        shown[variables["NO_COLOR"]] = screen.decode()
    for screen in shown.values():
        assert "━" in screen
        assert "60 of 3 features" in screen
    assert re.search(r"\x1b\[\d*;?3\d", shown[""])
    assert not re.search(r"\x1b\[\d*;?3\d", shown["1"])


def test_help_and_lists_load_nothing_that_computes(service: Service, project: Project) -> None:
    heavy = ["sklearn", "numba", "faiss", "sqlalchemy", "homophily", "matplotlib", "pydantic_settings"]
    program = (
        "import sys\nfrom homophily_service.cli import main\n"
        f"sys.argv = ['homophily', *sys.argv[1:]]\ntry:\n    main()\nfinally:\n"
        f"    print([name for name in {heavy} if name in sys.modules], 'grpc' in sys.modules)\n"
    )
    for arguments, uses_grpc in ((["--help"], False), (["jobs"], True)):
        ended = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | environment(service.target, project),
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.splitlines()[-1] == f"[] {uses_grpc}", ended
