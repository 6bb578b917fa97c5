"""Runs and models in a real MLflow server, of a real service beside it."""

from __future__ import annotations

import io
import json
import pickletools
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.browser import Page, browse
from homophily_client._pb import job_pb2, model_pb2
from homophily_service.cli import runs

from .chromium import need_chromium
from .commands import Run
from .mlflow_proxy import Fate, MlflowProxy
from .mlflow_server import MlflowServer
from .serving import PATIENCE, Project, Service, array_of, eventually, labels_of, running

# MLflow's own: of types that it could not check, and of what it is built on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:mlflow", "ignore::FutureWarning:mlflow")


class Tracked(NamedTuple):
    """A service, and the server that has its runs."""

    service: Service
    mlflow: MlflowServer
    #: Between the two.
    proxy: MlflowProxy

    def run_of(self, project: Project, job: job_pb2.Job, status: str = "FINISHED") -> Any:
        """The one run of a job, once it is in that state."""

        def found() -> Any:
            runs = self.mlflow.runs_of(job.name)
            assert len(runs) <= 1
            return runs and runs[0].info.status == status and runs[0]

        run = eventually(found, pause=0.2)
        known = eventually(lambda: (told := ask(project, job)).tracking_run and told)
        assert known.tracking_run == run.info.run_id
        assert known.tracking_url == page_of(self.mlflow, run)
        return run


def ask(project: Project, job: job_pb2.Job) -> job_pb2.Job:
    return project.stub.GetJob(job_pb2.GetJobRequest(name=job.name), timeout=PATIENCE).job


def page_of(mlflow: MlflowServer, run: Any) -> str:
    return f"{mlflow.url}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracked]:
    folder = tmp_path_factory.mktemp("tracked")
    mlflow = MlflowServer(folder / "mlflow")
    mlflow.start()
    proxy = MlflowProxy(mlflow.port)
    settings = {"tracking": True, "tracking_uri": proxy.url, "tracking_url": mlflow.url}
    try:
        with running(folder / "data", **settings) as service:
            yield Tracked(service, mlflow, proxy)
    finally:
        proxy.stop()
        mlflow.stop()


@pytest.fixture
def service(tracked: Tracked) -> Service:
    """The one that commands speak to."""
    return tracked.service


@pytest.fixture
def project(tracked: Tracked) -> Iterator[Project]:
    yield tracked.service.project()
    tracked.proxy.rule = lambda path, body: None  # noqa: ARG005


def quick_fit(project: Project, **more: Any) -> job_pb2.Job:
    job = project.fit(three_clouds()[0], {0: 0, 1: 1}, solver=IRR, **more)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.error
    return job


IRR = model_pb2.SolverParameters(method=model_pb2.METHOD_IRR)
SMOOTH = model_pb2.SolverParameters(sharpen=False)


def three_clouds(n_points: int = 300) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(7)
    y = np.arange(n_points) % 3
    return (4.0 * rng.normal(size=(3, 5))[y] + rng.normal(size=(n_points, 5))).astype(np.float32), y


def known(y: NDArray[np.int64], points: range, words: tuple[str, ...] = ("ant", "bee", "cat")) -> dict[int, str]:
    return {point: words[y[point]] for point in points}


def test_run_of_a_fit_holds_all_that_is_known_of_it(tracked: Tracked, project: Project) -> None:
    X, y = three_clouds(150)
    job = project.fit(
        X,
        known(y, range(20)),
        validation=labels_of(known(y, range(20, 60))),
        test=labels_of(known(y, range(60, 150))),
        solver=model_pb2.SolverParameters(lambda1=0.02),
        search=model_pb2.SearchParameters(trials=14, vary=["n_neighbors", "sigma_f", "lambda2"]),
        calibrate=True,
    )
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.error
    run, model = tracked.run_of(project, job), job.fit.model

    tags = run.data.tags
    assert tags["homophily.job"] == job.name == model.job
    assert tags["homophily.model"] == model.name
    assert tags["homophily.project"] == project.id
    assert tags["homophily.attempt"] == "1"
    parameters = run.data.params
    expected = {"solver.method": "err", "solver.lambda1": "0.02", "solver.max_iter": "50", "solver.power": "2"}
    expected |= {"graph.metric": "euclidean", "graph.symmetrize": "mean", "search.trials": "14", "search.seed": "0"}
    expected |= {"search.vary": "n_neighbors, sigma_f, lambda2", "search.spread": "False"}
    expected |= {"graph.space": "input", "graph.n_directions": "None", "search.warm_start": "False"}
    expected |= {"data.points": "150", "data.dimensions": "5", "data.classes": "3", "device": "cpu"}
    assert expected.items() <= parameters.items()
    assert float(parameters["solver.sigma_f"]) > 0
    assert parameters["graph.n_neighbors"] == str(model.graph_parameters.n_neighbors or 10)
    assert parameters["software.numpy"] == np.__version__

    measures = run.data.metrics
    assert measures["validation_error"] == model.validation.error_rate
    assert measures["test_error"] == model.test.error_rate
    assert measures["graph.edges"] == model.graph.edge_count
    assert measures["peak_memory_mb"] == pytest.approx(model.peak_memory_bytes / 1e6)
    assert {f"seconds.{phase}" for phase in ("graph", "solve", "calibrate", "save", "total")} <= measures.keys()
    # Each step once, whether it was told while the job ran or afterwards.
    trace = model.trace
    for key, values in (("energy", trace.energies), ("gradient_norm", trace.gradient_norms)):
        assert tracked.mlflow.history(run, key) == list(zip(trace.iterations, values, strict=True))
    steps, evaluations = zip(*tracked.mlflow.history(run, "evaluations"), strict=True)
    assert list(steps) == list(trace.iterations)
    assert list(evaluations) == list(trace.evaluation_counts)

    (points,) = run.inputs.dataset_inputs
    assert json.loads(points.dataset.source)["uri"] == model.dataset
    assert json.loads(points.dataset.profile)["points"] == 150
    assert json.loads(points.dataset.source)["sha256"].startswith(points.dataset.digest)

    pictures = {one.path for one in tracked.mlflow.client.list_artifacts(run.info.run_id, "pictures")}
    drawn = {"energy.png", "scores.png", "map.png", "map.html", "search-graph.png", "search-relationships.png"}
    drawn |= {f"{what}-{labels}.png" for what in ("confusion", "reliability") for labels in ("validation", "test")}
    assert pictures == {f"pictures/{name}" for name in drawn}
    # Not registered, so not logged whole either.
    assert not run.outputs.model_outputs

    trials = tracked.mlflow.runs(f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert len(trials) == len(model.search.trials) > 0
    told = {one.data.tags["homophily.trial"]: one for one in trials}
    for trial in model.search.trials:
        child = told[str(trial.number)]
        assert child.info.status == "FINISHED"
        assert child.data.params["graph.n_neighbors"] == str(trial.graph.n_neighbors)
        if trial.HasField("error_rate"):
            assert child.data.metrics["validation_error"] == trial.error_rate


def test_a_run_shows_doubtful_labels_and_how_the_error_fell_with_labels(tracked: Tracked, project: Project) -> None:
    X, y = three_clouds(150)
    test = labels_of(known(y, range(60, 150)))
    first = project.fit(X, known(y, range(6)) | {6: "bee"}, test=test, solver=IRR).fit.model
    assert y[6] == 0
    job = project.transduce(first.name, known(y, range(7, 30)), test=test)
    model = job.transduce.model
    run = tracked.run_of(project, job)
    history = [(7, first.test.error_rate), (30, model.test.error_rate)]
    assert tracked.mlflow.history(run, "test_error_by_labels") == history
    assert [(step.labelled_count, step.test_error) for step in model.label_steps] == history
    assert run.data.metrics["suspicious_labels"] == len(model.suspicious_labels) >= 1
    path = tracked.mlflow.client.download_artifacts(run.info.run_id, "suspicious_labels.json")
    table = json.loads(Path(path).read_text())
    listed = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert listed == [{"path": f"{name}.json", "type": "table"} for name in ("eval_results_table", "suspicious_labels")]
    assert table["columns"] == ["point", "label", "rather", "suspicion"]
    assert table["data"][0][:3] == [6, "bee", "ant"]


def test_runs_tell_of_maps_changed_labels_and_failures(tracked: Tracked, project: Project) -> None:
    X, _ = three_clouds()
    first = project.fit(X, {0: 0, 1: 1}, solver=model_pb2.SolverParameters(method=model_pb2.METHOD_IRR))
    changed = project.transduce(first.fit.model.name, {2: 1, 4: 0}, model_id="corrected")
    map_request = project.embed_request(X, [(0, 3)], [(0, 1)], n_clusters=2)
    mapped = project.ended(project.stub.Embed(map_request, timeout=PATIENCE).job)
    failed = project.transduce(first.fit.model.name, {}, withdrawn=[9])
    assert failed.state == job_pb2.JOB_STATE_FAILED

    run = tracked.run_of(project, first)
    assert run.data.params["solver.method"] == "irr"
    assert run.data.metrics["energy"] == pytest.approx(first.fit.model.energy)
    run = tracked.run_of(project, changed)
    assert run.info.run_name == "transduce corrected"
    assert run.data.tags["homophily.parent_model"] == first.fit.model.name
    assert run.data.metrics["changed_points"] == changed.transduce.changed_point_count
    run = tracked.run_of(project, mapped)
    assert run.data.tags["homophily.embedding"] == mapped.embed.embedding.name
    assert run.data.metrics["links.must"] == 1
    pictures = {one.path for one in tracked.mlflow.client.list_artifacts(run.info.run_id, "pictures")}
    assert {"pictures/map.png", "pictures/map.html", "pictures/energy.png"} <= pictures
    run = tracked.run_of(project, failed, "FAILED")
    assert run.data.tags["homophily.error"] == failed.error.message


@pytest.mark.parametrize("fate", ["unanswered", "doubled"])
def test_a_run_whose_making_was_not_answered_is_not_made_twice(tracked: Tracked, project: Project, fate: Fate) -> None:
    tracked.proxy.once("/runs/create", fate)
    job = quick_fit(project)
    eventually(lambda: tracked.proxy.fates)

    def finished() -> list[Any]:
        return [one for one in tracked.mlflow.runs_of(job.name) if one.info.status == "FINISHED"]

    run = eventually(finished, pause=0.2)[0]
    # The other of two is deleted at the end, and not shown any more.
    assert tracked.run_of(project, job).info.run_id == run.info.run_id
    assert tracked.proxy.fates == [fate]


def test_a_run_that_mlflow_refuses_for_now_keeps_no_other_waiting(tracked: Tracked, project: Project) -> None:
    refused: list[str] = []

    def of_the_first(path: str, body: str) -> Fate | None:
        if path.endswith("/runs/create") and not refused and project.id in body:
            refused.append(json.loads(body)["run_name"])
        return "refused" if refused and path.endswith("/runs/create") and refused[0] in body else None

    tracked.proxy.rule = of_the_first
    first, second = quick_fit(project), quick_fit(project)
    tracked.run_of(project, second)
    assert tracked.mlflow.runs_of(first.name) == []
    assert not ask(project, first).tracking_run
    tracked.proxy.rule = lambda path, body: None  # noqa: ARG005
    tracked.run_of(project, first)


def test_a_registration_that_mlflow_refuses_is_noted_and_the_run_ends(tracked: Tracked, project: Project) -> None:
    tracked.proxy.once("/registered-models/alias", "refused")
    registration = model_pb2.Registration(name="refused", aliases=["champion"])
    job = quick_fit(project, registration=registration)
    run = tracked.run_of(project, job)
    assert run.data.tags["homophily.refused"] == "INVALID_PARAMETER_VALUE: the proxy does not want it"
    assert tracked.mlflow.client.list_artifacts(run.info.run_id, "pictures")
    assert tracked.mlflow.client.get_model_version(f"{project.id}.refused", "1").run_id == run.info.run_id


def test_a_search_that_mlflow_missed_is_told_afterwards(tracked: Tracked, project: Project) -> None:
    tracked.proxy.rule = lambda path, body: "refused"  # noqa: ARG005
    X, y = three_clouds()
    job = project.fit(X, known(y, range(30)), solver=IRR, search=model_pb2.SearchParameters(trials=5))
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.error
    tracked.proxy.rule = lambda path, body: None  # noqa: ARG005
    run, search = tracked.run_of(project, job), job.fit.model.search
    errors = [trial.error_rate for trial in search.trials if trial.HasField("error_rate") and not trial.pruned]
    assert tracked.mlflow.history(run, "search.best_error_rate")[-1] == (5, min(errors))
    # By folds of the labels, as there are none to validate with.
    assert run.data.metrics["validation_error"] == search.trials[search.best].error_rate


def test_registered_model_is_served_by_mlflow_and_comes_back(
    tracked: Tracked, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = three_clouds()
    short = "insects"
    name = f"{project.id}.{short}"
    for aliases in (["first"], ["first", "champion"]):
        registration = model_pb2.Registration(name=short, aliases=aliases)
        job = project.fit(X, known(y, range(30)), calibrate=True, registration=registration)
        run = tracked.run_of(project, job)
    model, client = job.fit.model, tracked.mlflow.client
    version = client.get_model_version_by_alias(name, "champion")
    assert (version.version, version.run_id) == ("2", run.info.run_id)
    assert version.tags["homophily.job"] == job.name
    # The alias has moved from the first version on.
    assert client.get_model_version_by_alias(name, "first").version == "2"
    assert len(client.search_model_versions(f"name = '{name}'")) == 2
    assert [one.model_id for one in run.outputs.model_outputs] == [version.source.removeprefix("models:/")]

    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracked.mlflow.url)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    uri = f"models:/{name}@champion"
    folder = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path)))
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} <= {".npy", ".json", ".yaml", ".txt", ""}
    assert not [file for file in files if is_pickled(file)]
    loaded = mlflow.pyfunc.load_model(uri)
    assert loaded.metadata.signature.inputs.to_dict()[0]["tensor-spec"]["shape"] == (-1, 5)
    np.testing.assert_array_equal(loaded.input_example, X[:3])
    new = X[30:40] + np.float32(0.1)
    answer = project.predict(model.name, new, probabilities=True)
    table = loaded.predict(new)
    words = list(model.classes.strings.values)
    assert table["class"].tolist() == [words[index] for index in answer.class_indices]
    np.testing.assert_allclose(table[[f"score_{word}" for word in words]], array_of(answer.scores))
    np.testing.assert_allclose(table[[f"probability_{word}" for word in words]], array_of(answer.probabilities))

    assert served(folder, new)["predictions"][0]["class"] == table["class"][0]

    uri = f"models:/{short}@champion"
    request = job_pb2.ImportModelRequest(parent=project.name, uri=uri, model_id="back")
    imported = project.ended(project.stub.ImportModel(request, timeout=PATIENCE).job)
    assert imported.state == job_pb2.JOB_STATE_SUCCEEDED, imported.error
    back = imported.imported.model
    assert (back.name, back.source, back.calibrated) == (f"{project.name}/models/back", uri, True)
    assert back.solver_parameters == model.solver_parameters
    assert back.graph.digest != model.graph.digest
    same = project.predict(back.name, new, probabilities=True)
    assert same == answer
    assert project.classes(back) == project.classes(model)
    # It is a model like any other.
    corrected = project.transduce(back.name, {40: "ant"})
    assert corrected.state == job_pb2.JOB_STATE_SUCCEEDED, corrected.error

    request.uri, request.model_id = f"models:/{short}@nobody", ""
    missing = project.ended(project.stub.ImportModel(request, timeout=PATIENCE).job)
    assert missing.state == job_pb2.JOB_STATE_FAILED
    assert (missing.error.reason, missing.attempt) == ("NOT_FOUND", 1)

    # Neither by name nor by id does another project get it, nor moves it the alias.
    other = tracked.service.project()
    logged = version.source.removeprefix("models:/")
    by_id = f"models:/{logged}", f"runs:/{run.info.run_id}/model"
    for of_another in (f"models:/{name}@champion", f"models:/{name}/2", *by_id):
        request = job_pb2.ImportModelRequest(parent=other.name, uri=of_another)
        refused = other.ended(other.stub.ImportModel(request, timeout=PATIENCE).job)
        assert (refused.error.reason, refused.attempt) == ("NOT_FOUND", 1), of_another
    same_name = model_pb2.Registration(name=short, aliases=["champion"])
    tracked.run_of(other, other.fit(X, known(y, range(30)), registration=same_name))
    assert client.get_model_version_by_alias(name, "champion").version == "2"
    assert client.get_model_version_by_alias(f"{other.id}.{short}", "champion").version == "1"


@pytest.fixture
def fit_command(tmp_path: Path) -> tuple[str, ...]:
    """A fit of three clouds."""
    X, y = three_clouds()
    np.save(tmp_path / "points.npy", X)
    (tmp_path / "few.csv").write_text("point,label\n" + "".join(f"{point},{y[point]}\n" for point in range(30)))
    return "fit", "points.npy", "--labels", "few.csv", "--method", "irr"


def test_commands_register_a_model_and_bring_it_back(project: Project, run: Run, fit_command: tuple[str, ...]) -> None:
    """They returned before the model was registered, so that the next command did not find it."""
    name = "sent"
    for alias in ("Latest", "V1"):
        fit = (*fit_command, "--register", name, "--alias")
        assert "not latest nor a version" in run(*fit, alias, code=2).err
    sent = run(*fit, "champion", "--model", "sent")
    assert f"Registered as models:/{project.id}.sent/1." in sent.err
    run("import", f"models:/{name}@champion", "--model", "first")
    changed = run("transduce", "sent", "--withdraw", "3", "--register", name, "--alias", "champion", "--json")
    assert changed.json["registered_version"] == f"models:/{project.id}.sent/2"
    assert changed.json["tracking_run"]
    # The page of a run is named where it is served.
    [job] = [one for one in run("jobs", "--kind", "fit", "--json").json if one["model"]["name"].endswith("/sent")]
    assert job["tracking_url"] in run("job", job["name"]).out
    run("import", f"models:/{name}@champion", "--model", "back")
    assert run("model", "back", "--json").json["source"] == f"models:/{name}@champion"


def test_a_command_says_that_a_registration_is_pending_while_mlflow_is_down(
    tracked: Tracked,
    project: Project,
    run: Run,
    fit_command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "REGISTRATION_SECONDS", 1.0)
    tracked.proxy.rule = lambda path, body: "refused"  # noqa: ARG005
    ended = run(*fit_command, "--register", "late", "--model", "m", "--output", "answers.csv")
    pending = "pending: the model is made, but after 1 s not yet registered as late"
    assert pending in ended.err
    assert (tmp_path / "answers.csv").exists()
    [advice] = re.findall(r"homophily (watch \w+ --registered) waits for it", ended.err)
    tracked.proxy.rule = lambda path, body: None  # noqa: ARG005
    assert f"Registered as models:/{project.id}.late/1." in run(*advice.split()).err
    assert f"models:/{project.id}.late/1" in run("job", advice.split()[1]).out


def test_a_command_fails_if_mlflow_refuses_the_registration(
    tracked: Tracked, run: Run, fit_command: tuple[str, ...], tmp_path: Path
) -> None:
    tracked.proxy.once("/registered-models/alias", "refused")
    registration = ("--register", "unwanted", "--alias", "champion")
    ended = run(*fit_command, *registration, "--output", "answers.csv", code=1)
    assert "is not registered, and will not be" in ended.err
    # The model is there.
    assert "300 of 5 features" in ended.out
    assert (tmp_path / "answers.csv").exists()


def is_pickled(file: Path) -> bool:
    """Whether a file is a pickle, or an array of pickled objects."""
    content = file.read_bytes()
    if file.suffix == ".npy":
        return np.lib.format.descr_to_dtype(np.load(file, allow_pickle=False).dtype.str).hasobject
    try:
        pickletools.dis(content, out=io.StringIO())
    except Exception:
        return False
    return True


def served(model: Path, points: NDArray[np.float32]) -> Any:
    """What `mlflow models serve` answers."""
    server = MlflowServer(model.parent / "serving")
    command = ["mlflow", "models", "serve", "-m", str(model), "--env-manager", "local", "--host", "127.0.0.1"]
    server.run([*command, "--port", str(server.port)], ready="/ping")
    try:
        body, kind = json.dumps({"inputs": points.tolist()}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}/invocations", data=body, headers=kind)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())
    finally:
        server.stop()


def test_people_find_the_metric_and_the_picture_in_mlflows_pages(
    tracked: Tracked, project: Project, tmp_path: Path
) -> None:
    need_chromium()
    X, y = three_clouds()
    validation = labels_of(known(y, range(30, 130)))
    job = project.fit(X, known(y, range(30)), validation=validation, model_id="looked-at", solver=SMOOTH)
    run = tracked.run_of(project, job)
    page_url = ask(project, job).tracking_url

    async def look(page: Page) -> None:
        await page.open(page_url)
        await page.shows("document.body.innerText.includes('validation_error')")
        text = await page.shows("document.body.innerText")
        assert "solver.lambda2" in text
        assert "projects/" in text
        assert str(run.data.metrics["energy"]) in text
        picture = "document.querySelector('img[alt=\"pictures/energy.png\"]')"
        await page.open(f"{page_url}/artifacts/pictures/energy.png")
        # As wide as it was drawn: it is loaded, not only named.
        assert await page.shows(f"{picture} && {picture}.naturalWidth") > 300

    browse(tmp_path / "browser", look)
