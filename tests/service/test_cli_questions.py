"""``homophily suggest``, ``explain`` and ``suspects`` against a real service."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .commands import Run


def wine_data(**how: Any) -> Any:
    from sklearn.datasets import load_wine

    return load_wine(**how)


@pytest.fixture
def wine(run: Run, tmp_path: Path) -> Path:
    """A table of which every sixth row has a label, one of them a wrong one, and a model of it."""
    data = wine_data(as_frame=True)
    frame = data.frame.rename(columns={"target": "cultivar"})
    frame["cultivar"] = [f"cultivar {number}" for number in data.target]
    frame.loc[24, "cultivar"] = "cultivar 2"
    frame["cultivar"] = frame["cultivar"].where(frame.index % 6 == 0)
    frame.index = [f"bottle {number}" for number in frame.index]
    frame.to_csv(tmp_path / "wine.csv", index_label="bottle")
    run("fit", "wine.csv", "--label-column", "cultivar", "--model", "wine")
    return tmp_path


def test_what_is_suggested_can_be_filled_in_and_given_back(run: Run, wine: Path) -> None:
    shown = run("suggest", "wine", "--n", "3")
    assert "why" in shown.out
    ended = run("suggest", "wine", "--n", "6", "--table", "wine.csv", "--keep", "alcohol", "--output", "ask.csv")
    assert "6 suggestions are in ask.csv" in ended.err
    with (wine / "ask.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["bottle", "perhaps", "why", "alcohol", "label"]
    with (wine / "wine.csv").open() as file:
        alcohol = {row["bottle"]: float(row["alcohol"]) for row in csv.DictReader(file)}
    assert [float(row["alcohol"]) for row in rows] == [alcohol[row["bottle"]] for row in rows]
    assert {row["label"] for row in rows} == {""}
    # A person knows four of them.
    for row in rows[:4]:
        row["label"] = f"cultivar {wine_data().target[int(row['bottle'].split()[1])]}"
    with (wine / "ask.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    run("transduce", "wine", "--labels", "ask.csv", "--model", "wine-2")
    assert run("model", "wine-2", "--json").json["labelled"] == 34
    again = run("suggest", "wine-2", "--n", "20", "--json").json["points"]
    answered = {row["bottle"] for row in rows[:4]}
    assert not answered & {one["id"] for one in again}


def test_what_a_person_cannot_tell_is_excluded(run: Run, wine: Path) -> None:  # noqa: ARG001
    first = [one["point"] for one in run("suggest", "wine", "--n", "2", "--json").json["points"]]
    listed = ",".join(map(str, first))
    assert not set(first) & {
        one["point"] for one in run("suggest", "wine", "--exclude", listed, "--json").json["points"]
    }
    refused = run("suggest", "wine", "--exclude", "some", code=2)
    assert "row numbers" in refused.err


def test_an_answer_is_explained(run: Run, wine: Path) -> None:
    ended = run("explain", "wine", "--point", "17", "--labels", "3")
    assert ended.out.startswith("Point 17 is cultivar 0 rather than ")
    assert "steps away" in ended.out or "step away" in ended.out
    found = run("explain", "wine", "--point", "17", "--point", "100", "--json").json["explanations"]
    assert [one["point"] for one in found] == [17, 100]
    assert found[0]["contributions"][0]["id"].startswith("bottle ")
    (wine / "new.csv").write_text("\n".join((wine / "wine.csv").read_text().splitlines()[:2]) + "\n")
    assert "The new point is cultivar 0" in run("explain", "wine", "--new", "new.csv").out
    again = run("explain", "wine", "--point", "17", "--refit", "--json").json["explanations"][0]
    assert (found[0]["score_without_largest"], again["score_without_largest"] is None) == (None, False)
    assert "without the largest" in run("explain", "wine", "--point", "17", "--refit").out
    assert "--point ROW" in run("explain", "wine", code=2).err
    assert "points[0]" in run("explain", "wine", "--point", "178", code=2).err


def test_a_wrong_label_is_a_suspect(run: Run, wine: Path) -> None:  # noqa: ARG001
    first = run("suspects", "wine", "--json").json[0]
    assert (first["point"], first["class_position"], first["answer_position"]) == (24, 2, 0)
    assert "bottle 24" in run("suspects", "wine").out
    assert "see homophily suspects" in run("model", "wine").out


def test_pairs_are_suggested_for_a_map(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", wine_data().data)
    run("embed", "points.npy", "--name", "map", "--max-iter", "3")
    found = run("suggest", "embeddings/map", "--n", "3", "--json").json["pairs"]
    assert len(found) == 3
    listed = ",".join(f"{one['first']}-{one['second']}" for one in found)
    again = run("suggest", "embeddings/map", "--n", "3", "--exclude", listed, "--output", "pairs.csv", "--json").json[
        "pairs"
    ]
    assert not {(one["first"], one["second"]) for one in found} & {(one["first"], one["second"]) for one in again}
    assert (tmp_path / "pairs.csv").read_text().splitlines()[0] == "first,second,together,why,answer"
    assert "pairs of points" in run("suggest", "embeddings/map", "--exclude", "17", code=2).err


def test_the_place_of_a_point_is_explained(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", wine_data().data)
    (tmp_path / "links.csv").write_text("i,j,kind\n0,1,must\n0,100,cannot\n")
    run("embed", "points.npy", "--links", "links.csv", "--name", "held", "--max-iter", "3")
    shown = run("explain", "embeddings/held", "--point", "0").out
    assert shown.startswith("Point 0 meets no link on 0% of its walks.")
    assert "0 – 100" in shown
    assert "apart" in shown
    found = run("explain", "held", "--point", "7", "--json").json["places"][0]
    assert found["free"] + sum(link["share"] for link in found["links"]) > 0.999
    assert "--new" in run("explain", "embeddings/held", "--new", "points.npy", code=2).err
