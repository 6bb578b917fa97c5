"""What the studio's page can ask for, and who is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

from homophily_service.studio.workspace import MOST_PAIRS, pairs_between, pairs_within

from .serving import Project, Service
from .studio import Studio, studio

GROUPS = 3
PER_GROUP = 40


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three groups, in a file with names, a word, and the truth."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("table")
    with (folder / "flowers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "x", "y", "z", "colour", "truth", "picture"])
        for row in range(GROUPS * PER_GROUP):
            group = row % GROUPS
            centre = np.eye(3)[group] * 20
            cells = [f"flower {row}", *(centre + rng.normal(size=3)).round(4), "red" if group else "=1+1"]
            writer.writerow([*cells, "abc"[group], f"{row}.png"])
    (folder / "images").mkdir()
    (folder / "images" / "5.png").write_bytes(b"\x89PNG five")
    (folder / "secret.png").write_bytes(b"secret")
    return folder / "flowers.csv"


@pytest.fixture(scope="module")
def page(service: Service, table: Path) -> Iterator[Studio]:
    options = ["--drop", "picture,name", "--test-column", "truth", "--image-column", "picture"]
    project = service.project().id
    with studio(service.target, table, *options, "--image-folder", table.parent / "images", project=project) as found:
        yield found


@pytest.fixture(scope="module")
def opened(page: Studio) -> dict[str, Any]:
    found: dict[str, Any] = page.call("start")["opened"]
    return found


@pytest.fixture(scope="module")
def model(page: Studio, opened: dict[str, Any]) -> str:
    labels = [[0, "a"], [1, "b"], [2, "c"]]
    found = page.made(page.call("label", dataset=opened["dataset"], labels=labels)["job"])
    return str(found["made"])


@pytest.fixture(scope="module")
def embedding(page: Studio, opened: dict[str, Any]) -> str:
    return str(page.made(page.call("embed", source=opened["dataset"])["job"])["made"])


# -- who is refused


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "token"),
        ({"authorization": "Bearer wrong"}, "token"),
        ({"origin": "http://elsewhere.example"}, "elsewhere"),
        ({"origin": "null"}, "elsewhere"),
        ({"host": "evil.example"}, "own names"),
    ],
)
def test_calls_without_the_token_or_from_elsewhere_are_refused(
    page: Studio, headers: dict[str, str], reason: str
) -> None:
    known = {} if reason == "token" else {"authorization": f"Bearer {page.token}"}
    status, _, content = page.send("/api/start", **known, **headers)
    assert status == 403
    assert reason in content.decode()


def test_nothing_but_the_pages_own_files_runs_or_is_framed(page: Studio) -> None:
    status, headers, _ = page.send("/api/start", authorization=f"Bearer {page.token}")
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert status == 200
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert not {name for name in headers if name.lower() in ("set-cookie", "access-control-allow-origin")}


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("label", {"dataset": "d", "labels": [[0, 7]]}, "labels"),
        ("label", {"dataset": "d", "labels": [[0, " "]]}, "labels"),
        ("label", {"dataset": 3}, "dataset"),
        ("label", {"dataset": "d", "withdrawn": [0.5]}, "withdrawn"),
        ("embed", {"source": "d", "must_link": [[1]]}, "must_link"),
        ("embed", {"source": "d", "groups": "apart"}, "groups"),
        ("explain", {"model": "m", "points": []}, "points"),
        ("export", {"what": "secrets", "format": "csv"}, "what"),
        ("column", {"dataset": "d", "name": "none"}, "name"),
    ],
)
def test_wrong_requests_name_the_field(page: Studio, name: str, body: dict[str, Any], field: str) -> None:
    status, sentence = page.refusal(name, **body)
    assert status == 400
    assert sentence.startswith(f"{field}:")


def test_what_is_not_json_and_what_is_too_large_is_refused(page: Studio) -> None:
    token = {"authorization": f"Bearer {page.token}"}
    for body in (b"[1]", b"{", b" " * (5 << 20)):
        assert page.send("/api/rows", body, **token)[0] == 400


# -- files


def test_a_dropped_file_is_opened_by_what_it_holds_and_not_by_its_name(page: Studio, table: Path) -> None:
    name = "..%2f..%2f%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E.csv"
    status, found = page.upload(table, name)
    assert status == 200
    assert found["points"] == GROUPS * PER_GROUP
    assert set(found["dataset"].split("/")[-1]) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert (
        page.upload(table, "..%2f..%2f%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E.csv")[1]["dataset"] == found["dataset"]
    )


@pytest.mark.parametrize(("name", "content"), [("x.exe", b"MZ"), ("x.csv", b""), ("x.npy", b"\x93NUMPY"), ("", b"a")])
def test_files_that_cannot_be_read_are_refused_with_a_sentence(
    page: Studio, tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    status, found = page.upload(path, name or " ")
    assert status == 400
    assert found["error"]


def test_images_come_from_the_folder_that_was_allowed_and_from_nowhere_else(
    page: Studio, opened: dict[str, Any], service: Service, table: Path, tmp_path: Path
) -> None:
    assert page.bytes("image", dataset=opened["dataset"], points=[5]) == b"\x89PNG five"
    assert page.refusal("image", dataset=opened["dataset"], points=[6])[0] == 400
    text = table.read_text().replace("5.png", "../secret.png")
    (tmp_path / "other.csv").write_text(text)
    options = ["--drop", "picture,name,truth", "--image-column", "picture", "--image-folder", table.parent / "images"]
    with studio(service.target, tmp_path / "other.csv", *options, project=service.project().id) as other:
        dataset = other.call("start")["opened"]["dataset"]
        assert other.refusal("image", dataset=dataset, points=[5])[0] == 400


def test_rows_are_shown_found_and_coloured_by(page: Studio, opened: dict[str, Any]) -> None:
    dataset = opened["dataset"]
    assert opened["columns"] == ["name", "x", "y", "z", "colour", "truth", "picture"]
    (row,) = page.call("rows", dataset=dataset, points=[7])
    assert dict(row["cells"])["name"] == "flower 7"
    assert page.call("find", dataset=dataset, text="flower 11") == [
        11,
        110,
        111,
        112,
        113,
        114,
        115,
        116,
        117,
        118,
        119,
    ]
    assert page.call("find", dataset=dataset, text="7")[0] == 7
    content = page.bytes("column", dataset=dataset, name="truth")
    length = int.from_bytes(content[:4], "little")
    assert json.loads(content[4 : 4 + length]) == ["a", "b", "c"]
    codes = np.frombuffer(content[4 + length :], "<f4")
    assert codes.tolist() == [row % 3 for row in range(GROUPS * PER_GROUP)]
    x = page.bytes("column", dataset=dataset, name="x")
    assert np.isfinite(np.frombuffer(x[4 + int.from_bytes(x[:4], "little") :], "<f4")).all()


# -- acts


def test_three_labels_label_everything_and_are_compared_with_the_truth(
    page: Studio, opened: dict[str, Any], model: str
) -> None:
    count = GROUPS * PER_GROUP
    answers = page.bytes("answers", model=model)
    classes = np.frombuffer(answers, "<i4", count)
    sure = np.frombuffer(answers, "<f4", count, 4 * count)
    given = np.frombuffer(answers, "u1", count, 8 * count)
    assert (classes == np.arange(count) % 3).all()
    assert ((sure > 0.3) & (sure <= 1.0)).all()
    assert np.flatnonzero(given).tolist() == [0, 1, 2]
    (described,) = page.call("state", dataset=opened["dataset"])["models"]
    assert described["classes"] == ["a", "b", "c"]
    assert described["error_rate"] == 0.0


def test_labels_are_changed_and_withdrawn_in_a_model_of_their_own(
    page: Studio, opened: dict[str, Any], model: str
) -> None:
    job = page.call("label", dataset=opened["dataset"], model=model, labels=[[3, "b"]], withdrawn=[1])["job"]
    made = page.made(job)["made"]
    given = np.frombuffer(page.bytes("answers", model=made), "u1", GROUPS * PER_GROUP, 8 * GROUPS * PER_GROUP)
    assert np.flatnonzero(given).tolist() == [0, 2, 3]
    newest = page.call("state", dataset=opened["dataset"])["models"][0]
    assert (newest["name"], newest["parent"]) == (made, model)


def test_classes_that_are_numbers_stay_numbers_and_square_rows_are_images(service: Service, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    points = np.repeat([[0.0], [9.0]], 15, axis=0) + rng.normal(size=(30, 64))
    np.save(tmp_path / "points.npy", np.column_stack([points, np.where(np.arange(30) % 15, -1, np.arange(30) // 15)]))
    with studio(service.target, tmp_path / "points.npy", "--label-column", "-1", project=service.project().id) as page:
        opened = page.call("start")["opened"]
        (row,) = page.call("rows", dataset=opened["dataset"], points=[0])
        assert (row["side"], min(row["pixels"]), max(row["pixels"])) == (8, 0, 255)
        model = page.made(opened["job"])["made"]
        status, sentence = page.refusal("label", dataset=opened["dataset"], model=model, labels=[[3, "cat"]])
        assert (status, "'cat'" in sentence) == (400, True)
        made = page.made(page.call("label", dataset=opened["dataset"], model=model, labels=[[3, "7"]])["job"])["made"]
        state = page.call("state", dataset=opened["dataset"])
        assert {one["name"]: one["classes"] for one in state["models"]}[made] == ["0", "1", "7"]


def test_a_map_follows_links_between_points_and_groups(page: Studio, opened: dict[str, Any], embedding: str) -> None:
    count = GROUPS * PER_GROUP
    assert len(page.bytes("coordinates", embedding=embedding)) == 8 * count
    body = {"source": embedding, "same": [0, 3, 6], "groups": "cannot_link", "first": [0], "second": [1]}
    made = page.made(page.call("embed", **body)["job"])["made"]
    links = page.call("links", embedding=made)
    assert sorted(map(sorted, links["must_link"])) == [[0, 3], [3, 6]]
    assert [sorted(pair) for pair in links["cannot_link"]] == [[0, 1]]
    withdrawn = page.made(page.call("embed", source=made, withdrawn_must=[[0, 3]])["job"])["made"]
    assert len(page.call("links", embedding=withdrawn)["must_link"]) == 1
    contradicted = page.made(page.call("embed", source=made, cannot_link=[[0, 6]])["job"])
    assert any("0" in warning and "6" in warning for warning in contradicted["warnings"]), contradicted
    names = [one["name"] for one in page.call("state", dataset=opened["dataset"])["embeddings"]]
    assert {embedding, made, withdrawn, contradicted["made"]} <= set(names)


def test_given_labels_can_pull_the_map(page: Studio, embedding: str, model: str) -> None:
    made = page.made(page.call("embed", source=embedding, labels_of=model)["job"])["made"]
    links = page.call("links", embedding=made)
    assert sorted(map(sorted, links["cannot_link"])) == [[0, 1], [0, 2], [1, 2]]


def test_questions_and_explanations_come_with_words(page: Studio, model: str, embedding: str) -> None:
    asked = page.call("suggest", source=model, count=3, excluded_points=[4])
    assert len(asked["points"]) == 3
    assert all(one["text"] and one["point"] not in (0, 1, 2, 4) for one in asked["points"])
    assert page.call("suggest", source=embedding, count=2)["pairs"]
    why = page.call("explain", model=model, points=[4])
    assert why["answer"] == "b"
    assert why["parts"][0]["point"] == 1


def test_labels_links_and_the_page_can_be_kept(page: Studio, model: str, embedding: str) -> None:
    text = page.bytes("export", what="labels", format="csv", model=model).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["label"] for row in rows[:4]] == ["a", "b", "c", "a"]
    assert [row["given"] for row in rows[:4]] == ["1", "1", "1", "0"]
    assert page.bytes("export", what="labels", format="parquet", model=model)[:4] == b"PAR1"
    assert page.bytes("export", what="links", format="csv", embedding=embedding).decode().strip() == "i,j,kind"
    assert b"<html" in page.bytes("export", what="page", format="html", embedding=embedding, model=model)
    assert page.refusal("export", what="labels", format="xls", model=model)[0] == 400


def test_classes_that_a_spreadsheet_would_compute_are_harmless_in_exports(page: Studio, opened: dict[str, Any]) -> None:
    labels = [[0, "=HYPERLINK(1)"], [1, "b"], [2, "c"]]
    made = page.made(page.call("label", dataset=opened["dataset"], labels=labels)["job"])["made"]
    rows = list(csv.DictReader(io.StringIO(page.bytes("export", what="labels", format="csv", model=made).decode())))
    assert rows[0]["label"] == "'=HYPERLINK(1)"


def test_a_dataset_a_model_or_a_map_can_be_opened_by_name(
    service: Service, project: Project, page: Studio, opened: dict[str, Any], model: str, embedding: str
) -> None:
    for name, shown in ((opened["dataset"], {}), (model, {"model": model}), (embedding, {"embedding": embedding})):
        found = page.call("open", name=name)
        assert found["dataset"] == opened["dataset"]
        assert shown.items() <= found.items()
    assert page.call("open", name=model.rpartition("/")[2])["model"] == model
    status, sentence = page.refusal("open", name="nothing-has-this-name")
    assert (status, "nothing-has-this-name" in sentence) == (404, True)
    with studio(service.target, project=project.id) as empty:
        assert empty.call("start") == {"opened": None, "datasets": []}


def test_a_job_can_be_cancelled(page: Studio, opened: dict[str, Any]) -> None:
    job = page.call("embed", source=opened["dataset"])["job"]
    page.call("cancel", job=job)
    assert page.made(job)["state"] in ("cancelled", "succeeded")


def test_a_service_brings_the_page_with_it_and_takes_it_along(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "homophily_service", "serve", "--studio", "--port", "0", "--workers", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMOPHILY_")}
    command += ["--data-dir", str(tmp_path), "--set", "predictors=0", "--set", "tracking=false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            page = Studio(lines[2].removeprefix("Open ").strip())
            assert page.call("start") == {"opened": None, "datasets": []}
        finally:
            process.terminate()
    assert process.returncode == 0
    with pytest.raises(URLError):
        page.call("start")


def test_groups_become_a_bounded_number_of_pairs() -> None:
    assert pairs_within([4, 7, 9]) == [(4, 7), (7, 9)]
    assert len(pairs_within(list(range(1000)))) == MOST_PAIRS
    assert pairs_between([1, 2, 3], [8]) == [(1, 8), (2, 8), (3, 8)]
    many = pairs_between(list(range(500)), list(range(500, 1500)))
    assert len(many) == MOST_PAIRS
    assert all(first < 500 <= second for first, second in many)
    assert pairs_between([1, 2], [2, 1]) == [(1, 2), (2, 1)]
    assert pairs_between([1], [1]) == []
