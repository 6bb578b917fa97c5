"""The command line: commands against a real server."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from pyarrow import parquet
from scipy import sparse
from typer.core import TyperGroup
from typer.main import get_command

from homophily_client._pb import job_pb2
from homophily_service.cli.commands import app

from .commands import Run, environment
from .serving import Project, Service, eventually

COMMAND = str(Path(sys.executable).parent / "homophily")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# -- commands ----------------------------------------------------------------------------------------------------------


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
    from sklearn.datasets import dump_svmlight_file

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
    assert (files / "solution.csv").read_text().startswith("point,label,given\n0,0,True\n1,1,True\n")
    assert re.search(r"second +ERR +60 +10 +2 +– +– ", run("models").out)
    assert run("model", "second", "--json").json["name"].endswith("/models/second")
    listed = run("jobs", "--kind", "transduce").out
    assert re.search(r"[0-9a-f]{24} +transduce +succeeded +\d+ s ago +[\d.]+", listed)
    assert [job["kind"] for job in run("jobs", "--json", "--state", "succeeded").json] == ["transduce", "fit"]
    run("delete", "models/second", "datasets/points")
    run("model", "second", code=4)
    assert run("embeddings", "--json").json == []


def test_the_list_of_models_has_their_known_errors(run: Run, files: Path) -> None:
    """The error on test labels was shown nowhere but on the page of each model."""
    y = two_groups()[1]
    np.save(files / "wrong.npy", np.where(np.arange(60) < 40, 1 - y, y))
    fit = ("fit", files / "points.npy", "--labels", "few.npy", "--method", "irr")
    run(*fit, "--validation", "truth.npy", "--test", "wrong.npy", "--model", "both")
    run(*fit, "--test", "wrong.npy", "--model", "tested")
    run(*fit, "--model", "neither")
    listed = run("models").out
    assert re.search(r"validation error +test error", listed)
    tested = run("model", "tested", "--json").json["test"]["error_rate"]
    assert tested > 0.0
    for name, errors in (
        ("both", rf"0\.00 % +{100 * tested:.2f} %"),
        ("tested", rf"– +{100 * tested:.2f} %"),
        ("neither", "– +–"),
    ):
        assert re.search(rf"{name} +IRR +60 +10 +2 +{errors} ", listed), listed


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


def test_spaces_and_warm_starts_are_asked_for_by_their_names(run: Run, files: Path) -> None:
    run("upload", files / "points.npy")
    options = ["--space", "whitened", "--n-directions", "2"]
    shown = run("fit", "points", "--labels", "few.npy", *options, "--model", "m").out
    assert "ERR, space=whitened, n_directions=2" in shown
    assert run("predict", "m", "new.npy", "--json").json["labels"] == [0, 1]
    mapped = run("embed", "points", "--labels", "few.npy", "--space", "principal", "--json").json
    assert mapped["embedding"]["graph_parameters"] == {"space": "principal"}
    options = ["--search", "--trials", "6", "--vary", "space,lambda2", "--warm-start"]
    search = run("fit", "points", "--labels", "few.npy", *options, "--json").json["model"]["search"]
    assert len({trial["graph"]["space"] for trial in search["trials"]}) > 1
    refused = run("fit", "points", "--labels", "few.npy", "--warm-start", code=2)
    assert "--warm-start, --vary and --spread need --search" in refused.err


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
    refused(2, "Error: --method must be one of irr, err", "fit", "points", "--labels", "few.npy", "--method", "x")
    shares = "--class-prior", "0.1:0.3,0.7"
    refused(2, "--class-prior must have a low:high", "fit", "points", "--labels", "few.npy", *shares)
    refused(2, "uploaded with a column of labels; this one has none", "fit", "points")
    refused(2, "Error: Labels are needed", "fit", "points.npy")
    refused(2, "Error: there-is-none.csv: there is no such file", "fit", "there-is-none.csv", "--labels", "few.npy")
    refused(2, "Columns can be chosen in a file", "fit", "points", "--label-column", "kind")
    np.save(files / "short.npy", np.array([0, 1]))
    refused(2, "must have an entry for each of 60 points. Got 2", "fit", "points", "--labels", "short.npy")
    np.save(files / "signs.npy", np.where(np.arange(60) % 2, 1, -1))
    refused(2, "at least two classes. Got 1 instead. If -1 is a class", "fit", "points", "--labels", "signs.npy")
    refused(2, "must be one of datasets/ID", "delete", "points")
    refused(2, "datasets/points exists", "upload", "points.npy")
    refused(2, "--state must be one of queued", "jobs", "--state", "asleep")
    refused(2, "--withdraw must be integers", "transduce", "points", "--withdraw", "a")
    refused(4, "models/none does not exist", "predict", "none", "new.npy")
    refused(4, "jobs/none does not exist", "watch", "none")
    assert "No such option" in run("jobs", "--nope", code=2).err


def test_failed_jobs_and_services_out_of_reach_have_codes_of_their_own(run: Run, tmp_path: Path, idle: Service) -> None:
    noise(tmp_path)
    # Longer than the least that it could take, or it would be refused at once.
    ended = run("fit", "noise.npy", "--labels", "y.npy", "--calibrate", "--time-limit", "1.05", code=1)
    assert re.search("Error: projects/.* failed: .*1.05 s", ended.err)
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


def test_every_command_that_ends_by_itself_can_print_json() -> None:
    tool = get_command(app)
    assert isinstance(tool, TyperGroup)
    groups = [one for one in tool.commands.values() if isinstance(one, TyperGroup)]
    inner = [one for group in groups for one in group.commands.values()]
    commands = [*(one for one in tool.commands.values() if one not in groups), *inner]
    without = {one.name for one in commands if not any("--json" in option.opts for option in one.params)}
    assert without == {"serve", "worker", "tracker", "ui", "studio"}
