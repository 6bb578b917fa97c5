"""``homophily report`` against a real service: a model and a map, into a folder that a person opens."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homophily_client import Client
from homophily_service.cli.report import principal_components

from .commands import Run

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A few hundred digits; 40 labelled, 100 held back."""
    from sklearn.datasets import load_digits

    data: Any = load_digits(n_class=4)
    points, truth = data.data[:400], data.target[:400]
    np.save(tmp_path / "points.npy", points)
    for name, part in (("few", range(40)), ("later", range(40, 140))):
        rows = [f"{point},no <{truth[point]}>" for point in part]
        (tmp_path / f"{name}.csv").write_text("point,label\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_a_model_is_reported_on_with_pictures_and_a_page(run: Run, digits: Path) -> None:
    labels = ["--labels", "few.csv", "--validation", "later.csv"]
    run("fit", "points.npy", *labels, "--calibrate", "--model", "digits", "--sharpen", "false")
    ended = run("report", "digits")
    assert ended.out.strip() == "digits-report/report.html"
    folder = digits / "digits-report"
    drawn = {file.name for file in folder.iterdir()} - {"report.html"}
    pictures = {"energy.png", "scores.png", "confusion-validation.png", "reliability-validation.png", "map.png"}
    assert drawn == {*pictures, "map.html"}
    assert all((folder / name).read_bytes().startswith(PNG) for name in pictures)
    assert "Beside it are " in ended.err
    assert all(name in ended.err for name in drawn)
    assert "principal components of the scores" in (folder / "map.html").read_text()
    assert "after `homophily embed models/digits` a report shows that map" in ended.err
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert "no &lt;0&gt;, no &lt;1&gt;" in page
    assert not re.search(r"<no|(src|href)=\"(?!data:|map.html)", page)
    error = run("model", "digits", "--json").json["error_rate"]
    assert f"{100 * error:.2f} % of the validation labels" in page

    again = run("report", "models/digits", "--output", "there/it/is", "--json").json
    assert again["report"] == "there/it/is/report.html"
    assert sorted(Path(file).name for file in again["pictures"]) == sorted(drawn)
    for file in again["pictures"]:
        assert (digits / file).read_bytes() == (folder / Path(file).name).read_bytes()


def test_a_report_draws_its_map_without_a_job(run: Run, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It submitted a job that nobody had asked for, waited for up to two minutes behind others, and deleted it."""
    run("fit", "points.npy", "--labels", "few.csv", "--method", "irr", "--model", "m")
    submitted: list[str] = []
    submit = Client._submit

    def noting(self: Client, method: str, *arguments: Any) -> Any:
        submitted.append(method)
        return submit(self, method, *arguments)

    monkeypatch.setattr(Client, "_submit", noting)
    run("report", "m")
    assert (digits / "m-report" / "map.png").exists()
    assert submitted == []
    run("embed", "models/m", "--max-iter", "2", "--name", "drawn")
    run("report", "m", "-o", "again")
    assert "on the map drawn" in (digits / "again" / "map.html").read_text()


def test_scores_are_mapped_by_what_they_differ_in_most() -> None:
    scores = np.array([[0.0, 3.0, 1.0], [0.0, -3.0, 1.0], [1.0, 0.0, 1.0], [-1.0, 0.0, 1.0], [np.nan, 9.0, np.inf]])
    places = principal_components(scores)
    np.testing.assert_allclose(places, [[3, 0], [-3, 0], [0, 1], [0, -1], [0, 0]], atol=1e-12)
    assert principal_components(np.array([0.5, -0.5])).tolist() == [[0.5], [-0.5]]


def test_a_report_on_a_model_that_was_searched_shows_the_trials_and_the_chosen_one(run: Run, digits: Path) -> None:
    run("fit", "points.npy", "--labels", "few.csv", "--search", "--trials", "16", "--model", "tuned")
    run("report", "tuned")
    folder = digits / "tuned-report"
    surfaces = {"search-graph.png", "search-relationships.png"}
    assert surfaces <= {file.name for file in folder.iterdir()}
    assert all((folder / name).read_bytes().startswith(PNG) for name in surfaces)
    page = (folder / "report.html").read_text()
    search = run("model", "tuned", "--json").json["search"]
    assert f"Best of {len(search['trials'])} trials of the search" in page
    assert page.count(f'<tr class="best"><td class="number">{search["best"]}</td>') == 1


def test_a_search_whose_time_was_over_is_reported_on_without_a_chosen_trial(run: Run, digits: Path) -> None:
    searched = ["--search", "--search-seconds", "0.000001", "--model", "hasty"]
    run("fit", "points.npy", "--labels", "few.csv", *searched)
    assert run("model", "hasty", "--json").json["search"]["best"] is None
    assert "the chosen one" not in run("model", "hasty").out
    run("report", "hasty")
    page = (digits / "hasty-report" / "report.html").read_text()
    assert "trials of the search" not in page
    assert 'class="best"' not in page


def test_a_map_is_reported_on_by_the_same_command(run: Run, digits: Path) -> None:
    run("embed", "points.npy", "--must-link", "0,10", "--n-clusters", "4", "--max-iter", "5", "--name", "map")
    run("report", "map", "-o", "out")
    run("report", "embeddings/map", "-o", "same")
    files = {file.name for file in (digits / "out").iterdir()}
    assert files == {"energy.png", "map.png", "map.html", "report.html"}
    assert files == {file.name for file in (digits / "same").iterdir()}
    page = (digits / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert '<a href="map.html">' in page
    assert "cluster 3" in (digits / "out" / "map.html").read_text()


def test_what_cannot_be_reported_on_is_told(run: Run, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "models/none" in run("report", "none", code=4).err
    assert "embeddings/none" in run("report", "embeddings/none", code=4).err
    assert "must be the name of a model or of an embedding" in run("report", "jobs/none", code=2).err
    run("fit", "points.npy", "--labels", "few.csv", "--method", "irr", "--model", "plain")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = run("report", "plain", code=2)
    assert "pictures need matplotlib, which is not installed: pip install 'homophily[plot]'" in ended.err
    assert not (digits / "plain-report").exists()
