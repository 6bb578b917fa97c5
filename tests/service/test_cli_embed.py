"""Maps on the command line: links out of files, tables, pictures and pages."""

from __future__ import annotations

import base64
import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from homophily_client import Map
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.links import read_links
from homophily_service.plots.canvas import colours
from homophily_service.plots.maps import map_page, map_picture, to_draw

from .commands import Run

TRUTH = np.arange(60) % 3
X = np.random.default_rng(0).normal(size=(60, 4)) + 8 * np.eye(3, 4)[TRUTH]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "points.npy", X)
    (tmp_path / "links.csv").write_text("i,j,kind\n0,3,must\n4,1,must\n0,1,cannot\n")
    (tmp_path / "y.csv").write_text("\n".join("abc"[number] for number in TRUTH))
    return tmp_path


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def data_of(page: Path) -> dict[str, Any]:
    """What a page draws."""
    found = re.search(r"^const data = (.*);$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


# -- commands ----------------------------------------------------------------------------------------------------------


def test_a_map_is_made_and_written_into_files(run: Run, folder: Path) -> None:
    files = ["--out", "map.csv", "--plot", "map.png", "--html", "map.html"]
    ended = run("embed", "points.npy", "--links", "links.csv", "--n-clusters", "3", "--name", "first", *files)
    assert re.search(r"embedding +first", ended.out)
    assert re.search(r"must-links +2, of which 0 violated", ended.out)
    assert re.search(r"clusters +3; 0 must-links between them, 0 cannot-links within one", ended.out)
    assert "60 points are in map.csv." in ended.err
    table = rows(folder / "map.csv")
    assert table[0] == ["point", "x1", "x2", "cluster"]
    assert [row[0] for row in table[1:]] == [str(point) for point in range(60)]
    assert len({(int(row[3]), TRUTH[int(row[0])]) for row in table[1:]}) == 3
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")
    data = data_of(folder / "map.html")
    assert (data["count"], data["names"]) == (60, ["cluster 0", "cluster 1", "cluster 2"])
    places = np.frombuffer(base64.b64decode(data["places"]), "<f4").reshape(60, 2)
    expected = np.array([[float(row[1]), float(row[2])] for row in table[1:]])
    np.testing.assert_allclose(places * data["scale"] + data["centre"], expected, atol=1e-5)
    assert sum(kind["count"] for kind in data["links"]) == 3

    # More links, from the stored map; then the files of a map that was made before.
    ended = run("embed", "embeddings/first", "--must-link", "6,9", "--withdraw", "links.csv", "--name", "second")
    assert re.search(r"made from +first", ended.out)
    assert re.search(r"must-links +1, of which 0 violated", ended.out)
    ended = run("embedding", "second", "--output", "map.parquet", "--html", "again.html", "--color-by", "y.csv")
    assert re.search(r"embedding +second", ended.out)
    found = parquet.read_table(folder / "map.parquet").to_pydict()
    assert list(found) == ["point", "x1", "x2", "cluster", "label"]
    assert found["label"] == ["abc"[number] for number in TRUTH]
    assert data_of(folder / "again.html")["names"] == ["a", "b", "c"]
    listed = run("embeddings", "--json").json
    assert [one["name"].rpartition("/")[2] for one in listed] == ["second", "first"]
    assert listed[0]["parent_embedding"] == listed[1]["name"]
    assert re.search(r"second +60 +2 +3 +1 +0", run("embeddings").out)
    run("delete", "embeddings/first", "embeddings/second")
    run("embedding", "first", code=4)


@pytest.mark.usefixtures("folder")
def test_the_paper_s_form_is_asked_for_by_flags(run: Run) -> None:
    numbers = ["--data-weight", "0.017", "--repulsion", "1", "--continuation", "1", "--link-edges", "0", "--tol", "0"]
    numbers += ["--n-vectors", "2"]
    words = ["--closure", "false", "--link-loss", "squared", "--relationship", "gaussian", "--lambda2-per-link", "true"]
    ended = run("embed", "points.npy", "--links", "links.csv", "--max-iter", "3", *numbers, *words, "--json")
    assert ended.json["embedding"]["solver_parameters"] == {
        "data_weight": 0.017,
        "repulsion": 1.0,
        "continuation": 1.0,
        "link_edges": 0.0,
        "tol": 0.0,
        "max_iter": 3,
        "closure": False,
        "link_loss": "squared",
        "relationship": "gaussian",
        "lambda2_per_link": True,
        "n_vectors": 2,
    }


def test_labels_colour_a_map_without_clusters(run: Run, folder: Path) -> None:
    (folder / "few.csv").write_text("point,label\n0,left\n3,left\n1,right\n")
    ended = run("embed", "points.npy", "--labels", "few.csv", "--n-components", "3", "--html", "map.html", "--json")
    made = ended.json["embedding"]
    assert (made["labelled"], made["links"]["must"], made["links"]["cannot"], made["components"]) == (3, 1, 1, 3)
    data = data_of(folder / "map.html")
    groups = np.frombuffer(base64.b64decode(data["groups"]), "<i2")
    assert (data["names"], data["note"]) == (["left", "right"], "2 of 3 dimensions")
    assert np.flatnonzero(groups >= 0).tolist() == [0, 1, 3]


def test_violated_links_are_shown(run: Run, folder: Path) -> None:
    (folder / "both.csv").write_text("0,1,must\n0,1,cannot\n")
    ended = run("embed", "points.npy", "--links", "both.csv", "--closure", "false")
    assert re.search(r"Violated (must|cannot)-links: 0–1$", ended.err, re.MULTILINE)
    assert "Warning: The links contradict each other" in ended.err


def test_mistakes_are_told_before_the_work(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(sentence: str, *arguments: str | Path) -> None:
        assert sentence in run("embed", "points.npy", *arguments, code=2).err

    refused("map.txt: must end in one of .csv, .tsv, .parquet", "--out", "map.txt")
    refused("map.jpg: must end in one of .png", "--plot", "map.jpg")
    refused("map.svg: must end in one of .html", "--html", "map.svg")
    refused("there is no folder none", "--out", "none/map.csv")
    refused("when the map is ready", "--out", "map.csv", "--detach")
    refused("must be two points", "--must-link", "0")
    refused("--closure must be one of false, true, two-class", "--closure", "maybe")
    refused("n_clusters must be a number, 'suggest' or None", "--n-clusters", "many")
    refused("n_clusters must be at least 2", "--n-clusters", "0")
    refused("links.must[0].second: must be between 0 and 59; got 60", "--must-link", "0,60")
    refused("withdrawn: must be links of an earlier embedding", "--withdraw", "links.csv")
    refused("none.csv: there is no such file", "--links", "none.csv")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused("pictures need matplotlib, which is not installed: pip install 'homophily[plot]'", "--plot", "map.png")
    assert not (folder / "map.csv").exists()


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "i,j,kind\n3,17,must\n4,5,cannot\n"),
        ("l.csv", "3,17,must\n\n4,5,cannot-link\n"),
        ("l.csv", "Kind,who,J,I\nMUST_LINK,me,17,3\nCannot,you,5,4\n"),
        ("l.json", '[{"i": 3, "j": 17, "kind": "must", "by": "me"}, {"i": 4, "j": 5, "kind": "cannot"}]'),
        ("l.json", '{"must": [[3, 17]], "cannot": [[4, 5]]}'),
    ],
)
def test_links_are_read_as_people_write_them(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_links(tmp_path / name) == ([(3, 17)], [(4, 5)])


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("l.csv", "i,j\n3,17\n", "must have the columns i, j, kind. Got i, j instead"),
        ("l.csv", "3,17,maybe\n", "row 1: a link's kind must be must or cannot. Got 'maybe'"),
        ("l.csv", "3,-1,must\n", "row 1: a point must be a row number of the data, from 0. Got '-1'"),
        ("l.csv", "3,1.5,must\n", "a point must be a row number"),
        ("l.csv", "i,j,kind\n3\n", "row 1 must have 3 columns. Got 1"),
        ("l.json", '{"must": [[3]]}', r"must link 1 must be two points. Got [3]"),
        ("l.json", '{"perhaps": [[3, 4]]}', "kind must be must or cannot"),
        ("l.json", "[[3, 4]]", "must be a list of"),
        ("l.json", '[{"i": 3, "j": 4}]', "link 1 must have i, j, kind. Got i, j"),
        ("l.json", '[{"i": true, "j": 4, "kind": "must"}]', "a point must be a row number"),
        ("l.json", "{", "cannot be read"),
        ("l.json", '{"must": 3}', "cannot be read"),
        ("l.txt", "", "must be in a file that ends in one of .csv, .json"),
    ],
)
def test_wrong_links_are_told_by_their_place(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(WrongInput, match=re.escape(sentence)):
        read_links(tmp_path / name)


# -- drawings ----------------------------------------------------------------------------------------------------------


def example(count: int, links: int, dimensions: int = 2) -> Map:
    rng = np.random.default_rng(0)
    pairs = np.sort(rng.choice(count, (2 * links, 2)), axis=1)
    must, cannot = pairs[:links], pairs[links:]
    clusters = (np.arange(count) % 30).astype(np.int32)
    return Map(rng.normal(size=(count, dimensions)), clusters, must, cannot, must[: links // 2], cannot[:1])


@pytest.mark.parametrize(("count", "links", "dimensions"), [(10, 2, 2), (3, 1, 1), (100_000, 5000, 3)])
def test_drawings_hold_for_few_points_and_for_many(count: int, links: int, dimensions: int) -> None:
    drawing = to_draw("map", example(count, links, dimensions), None)
    drawn = sum(len(pairs) for _, pairs in drawing.links.values())
    assert drawn == 2 * links or (drawn <= 800 and "of 10,000 links drawn" in drawing.note)
    # Points of 30 clusters in a random order are noise, which PNG does not compress.
    assert 5000 < len(map_picture(drawing)) < 300_000
    assert len(map_page(drawing)) < 30 * count + 60_000


def test_a_page_needs_nothing_else_and_trusts_no_name(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script> & $x$ __DATA__ \u2028"
    drawing = to_draw("<b>__TITLE__", example(20, 1), dict.fromkeys(range(20), name))
    (tmp_path / "map.html").write_bytes(map_page(drawing))
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 1
    assert not re.search(r"(src|href|import|fetch|url)\s*[=(]", page)
    assert set(re.findall(r"https?://[^\"]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "<title>&lt;b&gt;__TITLE__</title>" in page
    assert data_of(tmp_path / "map.html")["names"] == [name]
    assert map_picture(drawing).startswith(b"\x89PNG")


def test_groups_have_colours_of_their_own() -> None:
    assert len(set(colours(200))) == 200
    assert colours(5) == colours(200)[:5]
    drawing = to_draw("map", example(60, 1), {0: 10, 1: 9, 2: "b"})
    assert drawing.names == ["9", "10", "b"]
    assert drawing.groups[:4].tolist() == [1, 0, 2, -1]
