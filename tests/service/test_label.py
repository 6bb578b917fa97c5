"""Files as people have them, by `homophily label` and by upload and fit: labelled with their ids, or refused."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from homophily import ERRClassifier

from .commands import Run

ROWS = 60
TRUTH = np.array(["a", "b"] * (ROWS // 2))


def frame(seed: int = 0) -> pd.DataFrame:
    """Two groups; every column but the id tells a little of which."""
    rng, group = np.random.default_rng(seed), np.arange(ROWS) % 2
    return pd.DataFrame(
        {
            "id": [f"row{row}" for row in range(ROWS)],
            "city": np.where(rng.random(ROWS) < 0.1, "Ulm", np.where(group == 1, "Kiel", "Bonn")),
            "income": rng.normal(30e3 + 30e3 * group, 3e3),
            "rate": rng.normal(0.1 + 0.1 * group, 0.01),
            "label": np.where(np.arange(ROWS) < 10, TRUTH, None),
        }
    )


class Case(NamedTuple):
    """A file, how to read it, and what comes out: the column of ids and the first id, or a sentence."""

    name: str
    write: Callable[[Path], Any]
    options: tuple[str, ...] = ()
    ids: tuple[str, Any] = ("id", "row0")
    refused: str = ""
    label: str = "label"


def text(change: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table, **how: Any) -> Callable[[Path], Any]:
    return lambda path: change(frame()).to_csv(path, index=False, **how)


def without_id(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns="id")


def with_gaps(table: pd.DataFrame) -> pd.DataFrame:
    table.loc[::5, "income"] = np.nan
    table.loc[::7, "city"] = None
    table.loc[3::9, "rate"] = np.nan
    return table


def wide(table: pd.DataFrame) -> pd.DataFrame:
    counts = np.zeros((ROWS, 200), dtype=int)
    for row in range(ROWS):
        counts[row, (row % 2) * 100 + (np.arange(40) * 7 + row) % 100] = 3
    return pd.concat([table[["id", "label"]], pd.DataFrame(counts, columns=[f"w{n}" for n in range(200)])], axis=1)


def vectors(path: Path) -> None:
    group = np.arange(ROWS) % 2
    embedding = np.random.default_rng(0).normal(5.0 * group[:, None], 1.0, (ROWS, 16)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(embedding.ravel()), 16)
    table = frame()
    parquet.write_table(pa.table({"id": table["id"], "embedding": column, "label": table["label"]}), path)


def json_lines(path: Path) -> None:
    rows = frame().astype(object).where(frame().notna(), None).to_dict("records")
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def packed(path: Path) -> None:
    path.write_bytes(gzip.compress(frame().to_csv(index=False).encode()))


def array(path: Path) -> None:
    numbers = frame()[["income", "rate"]].to_numpy() / [3e4, 0.1]
    classes = np.where(np.arange(ROWS) < 10, np.arange(ROWS) % 2, -1)
    np.savez(path, X=numbers, y=classes)


def notes(table: pd.DataFrame) -> pd.DataFrame:
    words = np.where(TRUTH == "a", "came late, again\nand again", 'paid "early" and twice')
    return table.assign(note=words).drop(columns=["city", "income", "rate"])


POINT = ("point", 0)
CASES = [
    Case("mixed.csv", text()),
    Case("european.csv", text(sep=";", decimal=",")),
    Case("table.tsv", text(sep="\t")),
    Case("pipes.csv", text(sep="|")),
    Case("table.csv.gz", packed),
    Case("vectors.parquet", vectors),
    Case("table.jsonl", json_lines),
    Case("table.arrow", lambda path: feather.write_feather(frame(), path)),
    Case("wide.csv", text(wide)),
    Case("gaps.csv", text(with_gaps)),
    Case("constant.csv", text(lambda table: table.assign(country="DE", version=3))),
    Case("duplicates.csv", text(lambda t: without_id(pd.concat([t[:20]] * 3, ignore_index=True))), ids=POINT),
    Case("größe.csv", text(lambda t: t.rename(columns={"rate": "Größe µ", "id": "Kürzel"})), ids=("Kürzel", "row0")),
    Case("zeros.csv", text(lambda t: t.assign(id=[f"{row:04d}" for row in range(ROWS)])), ids=("id", "0000")),
    Case("numbered.csv", text(lambda t: t.assign(id=np.arange(ROWS) + 100)), ids=("id", "100")),
    Case("whole.csv", text(lambda t: t.assign(label=t["label"].map({"a": 1.0, "b": 2.0})))),
    Case("truth.csv", text(lambda t: t.assign(member=TRUTH == "a"))),
    Case("notes.csv", text(notes, quoting=csv.QUOTE_NONNUMERIC), ("--text", "note")),
    Case("dates.csv", text(lambda t: t.assign(since="2020-01-02")), ("--drop", "since")),
    Case("headerless.csv", text(without_id, header=False), label="-1", ids=POINT),
    Case("array.npz", array, label="y", ids=POINT),
    Case("measured.csv", text(lambda t: t.assign(label=t["rate"])), refused="Measurements are not labels"),
    Case("since.csv", text(lambda t: t.assign(since="2020-01-02")), refused="Column 'since' holds dates"),
    Case("stray.csv", text(lambda t: t.assign(rate=[*t["rate"][:-1], "n.b."])), refused="but 'n.b.' in row 60"),
    Case(
        "names.csv",
        text(lambda t: t[["id", "label"]]),
        refused="feature: name some with --columns",
    ),
    Case("alone.csv", text(lambda t: t.assign(label="a")), refused="labels must be of at least two classes"),
    Case("lost.csv", text(), label="labels", refused="has no column 'labels', only id, city"),
    Case("sheet.xlsx", text(), refused="its ending says nothing about what it holds"),
    Case("cut.csv", lambda path: path.write_text('a,label\n1,x\n"2'), refused="cut.csv"),
]


def answers(path: Path) -> dict[str, list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def check(case: Case, path: Path) -> None:
    found = answers(path)
    name, first = case.ids
    assert next(iter(found)) == name
    assert found[name][0] == str(first)
    assert len(found["label"]) == ROWS
    expected = dict(zip(found["label"][:2], "ab", strict=True))
    wrong = np.mean([expected.get(label) != truth for label, truth in zip(found["label"], TRUTH, strict=True)])
    assert wrong <= 0.05, found["label"]
    assert found["given"][:2] == ["True", "True"]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.filterwarnings("ignore::homophily.HomophilyWarning")
def test_files_as_people_have_them(case: Case, run: Run, tmp_path: Path) -> None:
    path = tmp_path / case.name
    case.write(path)
    arguments = (path, "--label-column", case.label, *case.options)
    if case.refused:
        for command in ("label", "fit"):
            ended = run(command, *arguments, code=2)
            assert case.refused in ended.err
            assert "Traceback" not in ended.err
        return
    run("label", *arguments, "--output", "labelled.csv")
    check(case, tmp_path / "labelled.csv")
    run("fit", *arguments, "--output", "fitted.csv")
    check(case, tmp_path / "fitted.csv")
    run("upload", path, *arguments[1:], "--name", "table")
    assert run("datasets", "--json").json


def test_too_many_categories_name_the_choices_that_commands_have(run: Run, tmp_path: Path) -> None:
    rows = "".join(f"w{row % 150},{'ab '[row % 3]}\n" for row in range(300))
    (tmp_path / "words.csv").write_text(f"word,label\n{rows}")
    for command, code in (("label", 2), ("fit", 1)):
        refused = run(command, "words.csv", "--label-column", "label", code=code)
        assert "holds 150 different strings" in refused.err
        assert "name it as text or as the id, or drop it." in refused.err


def test_the_answers_stand_beside_the_columns_that_are_kept(run: Run, tmp_path: Path) -> None:
    frame().assign(label_note="x", given=1).to_csv(tmp_path / "t.csv", index=False)
    for ending in (".csv", ".tsv", ".parquet", ".arrow", ".jsonl"):
        run(
            "label",
            "t.csv",
            "--label-column",
            "label",
            "--drop",
            "label_note,given",
            "-o",
            f"o{ending}",
            "--keep",
            "all",
        )
    parts = {
        ".parquet": pd.read_parquet(tmp_path / "o.parquet"),
        ".arrow": pd.read_feather(tmp_path / "o.arrow"),
        ".jsonl": pd.read_json(tmp_path / "o.jsonl", lines=True),
        ".csv": pd.read_csv(tmp_path / "o.csv"),
        ".tsv": pd.read_csv(tmp_path / "o.tsv", sep="\t"),
    }
    for found in parts.values():
        assert found.columns.tolist() == [
            *("id", "city", "income", "rate", "original_label", "label_note", "original_given"),
            *("label", "probability", "probability_a", "probability_b", "given"),
        ]
        assert found["income"].tolist() == pytest.approx(frame()["income"].tolist())
        assert found["given"].tolist() == [row < 10 for row in range(ROWS)]


def test_the_summary_names_classes_sureness_and_what_to_label_next(run: Run, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    ended = run("label", "t.csv", "--label-column", "label")
    assert "Column 'id' is taken as the id, as all its values differ; --columns makes it a feature." in ended.err
    assert "2 numbers standardised; 1 category one-hot (city: 3)." in ended.err
    assert "No value is missing." in ended.err
    assert "a        30  50.00 %      5" in ended.out
    assert "Worth labelling next" in ended.out
    summary = run("label", "t.csv", "--label-column", "label", "--json").json
    assert [one["given"] for one in summary["classes"]] == [5, 5]
    assert all(one["row"].startswith("row") for one in summary["label_next"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("t.csv",), "Which column has the labels?"),
        (("t.csv", "--label-column", "label", "-o", "x.xls"), "must end in one of .csv"),
        (("t.csv", "--label-column", "label", "-o", "no/x.csv"), "there is no folder no"),
        (("t.csv", "--label-column", "label", "--keep", "all"), "--keep needs --output"),
        (("t.csv", "--label-column", "label", "--scale", "log"), "--scale must be one of auto, none, standard"),
        (("t.csv", "--label-column", "label", "--drop", "x"), "has no column 'x'"),
        (("none.csv", "--label-column", "label"), "none.csv: there is no such file"),
        (("t.csv", "--label-column", "label", "-o", "t.csv"), "is the file that is read, and would be lost"),
        (("t.csv", "--label-column", "label", "-o", "o.csv", "--keep", "x"), "--keep: the file has no column 'x'"),
        (("t.csv", "--label-column", "city"), "every row has a label"),
    ],
)
def test_mistakes_are_told_before_the_work(run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    assert sentence in run("label", *arguments, code=2).err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("fit", "t.csv", "--label-column", "label", "-o", "o.csv", "--keep", "x"),
            "--keep: the file has no column 'x'",
        ),
        (("fit", "t.csv", "--label-column", "income"), "Measurements are not labels"),
        (("fit", "t.csv", "--label-column", "label", "--drop", "x"), "has no column 'x'"),
        (("embed", "t.csv", "-o", "o.csv", "--keep", "x"), "--keep: the file has no column 'x'"),
    ],
)
def test_mistakes_are_found_before_the_upload(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    assert sentence in run(*arguments, code=2).err
    assert run("datasets", "--json").json == []


def test_one_column_that_decides_is_named(run: Run, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    ended = run("label", "t.csv", "--label-column", "label", "--scale", "none")
    assert "Warning: Column 'income' makes up 100.0 % of the squared distances" in ended.err


def test_class_names_are_no_formulas_in_a_spreadsheet(run: Run, tmp_path: Path) -> None:
    table = frame()
    table["label"] = table["label"].map({"a": "=1+1", "b": "@SUM(A1)"})
    table["id"] = [f"-{row}" for row in range(ROWS)]
    table.to_csv(tmp_path / "t.csv", index=False)
    run("label", "t.csv", "--label-column", "label", "--id-column", "id", "-o", "o.csv")
    found = answers(tmp_path / "o.csv")
    assert set(found["label"]) == {"'=1+1", "'@SUM(A1)"}
    assert "probability_=1+1" in found
    assert found["id"][:2] == ["-0", "-1"]


def test_new_rows_are_matched_by_name_or_refused(run: Run, tmp_path: Path) -> None:
    table = frame()
    table.to_csv(tmp_path / "t.csv", index=False)
    run("fit", "t.csv", "--label-column", "label", "--model", "m")
    new = frame(1)
    new[["rate", "id", "income", "city"]].to_csv(tmp_path / "new.csv", index=False)
    run("predict", "m", "new.csv", "-o", "o.csv", "--keep", "city")
    found = answers(tmp_path / "o.csv")
    assert list(found)[:3] == ["id", "city", "label"]
    assert np.mean(np.array(found["label"]) != TRUTH) <= 0.05
    new.drop(columns="rate").to_csv(tmp_path / "short.csv", index=False)
    assert "Missing: 'rate'" in run("predict", "m", "short.csv", code=2).err
    new.rename(columns={"rate": "Rate"}).to_csv(tmp_path / "other.csv", index=False)
    assert "Missing: 'rate'. Unexpected: 'Rate'" in run("predict", "m", "other.csv", code=2).err


def test_types_of_new_rows_are_those_of_the_model(run: Run, tmp_path: Path) -> None:
    table = frame().assign(zip=np.where(TRUTH == "a", "01067", "80331"))
    table.to_csv(tmp_path / "t.csv", index=False)
    run("fit", "t.csv", "--label-column", "label", "--model", "m")
    # One row without a leading zero, without an income, and with an id column of another name.
    new = table[1:2].assign(income=None).rename(columns={"id": "kid"})
    new.to_csv(tmp_path / "new.csv", index=False)
    run("predict", "m", "new.csv", "--id-column", "kid", "-o", "o.csv")
    found = answers(tmp_path / "o.csv")
    assert (found["kid"], found["label"]) == (["row1"], ["b"])
    assert "are the model's own" in run("predict", "m", "new.csv", "--scale", "none", code=2).err


def test_labels_are_given_by_id(run: Run, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "l.csv").write_text("id,label\nrow0,a\nrow1,b\nrow20,a\nrow21,b\n")
    run("fit", "t.csv", "--drop", "label", "--labels", "l.csv", "--model", "m", "-o", "o.csv")
    found = answers(tmp_path / "o.csv")
    assert [row for row in range(ROWS) if found["given"][row] == "True"] == [0, 1, 20, 21]
    (tmp_path / "more.csv").write_text("id,label\nrow30,a\n")
    run("transduce", "m", "--labels", "more.csv", "-o", "p.csv")
    assert answers(tmp_path / "p.csv")["given"][30] == "True"
    (tmp_path / "lost.csv").write_text("id,label\nrow99,a\n")
    assert "no row of the data has the id 'row99'" in run("transduce", "m", "--labels", "lost.csv", code=2).err
    run("embed", "t.csv", "--drop", "label", "--labels", "l.csv", "-o", "map.csv", "--keep", "city,rate")
    assert list(answers(tmp_path / "map.csv"))[:5] == ["id", "city", "rate", "x1", "x2"]


def test_labels_are_read_without_spaces_and_alike_ones_are_named(run: Run, tmp_path: Path) -> None:
    table = frame()
    table.loc[0, "label"], table.loc[1, "label"] = " a ", "B"
    table.to_csv(tmp_path / "t.csv", index=False)
    ended = run("label", "t.csv", "--label-column", "label", "--json")
    assert [one["label"] for one in ended.json["classes"]] == ["B", "a", "b"]
    assert "'B', 'b' count as different classes" in ended.err


def test_truth_values_are_classes_by_their_names(run: Run, tmp_path: Path) -> None:
    table = frame().assign(label=np.where(np.arange(ROWS) < 10, TRUTH == "a", None))
    table["label"] = table["label"].astype("boolean")
    parquet.write_table(pa.Table.from_pandas(table), tmp_path / "t.parquet")
    summary = run("label", "t.parquet", "--label-column", "label", "--json").json
    assert [one["label"] for one in summary["classes"]] == ["False", "True"]


def test_probabilities_are_calibrated_when_they_are_asked_for(run: Run, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    run("fit", "t.csv", "--label-column", "label", "--model", "m")
    ended = run("predict", "m", "t.csv", "--probabilities", "-o", "o.csv")
    assert "the calibrated model is m-calibrated" in ended.err
    assert "probability" in answers(tmp_path / "o.csv")
    ended = run("solution", "m", "--probabilities", "-o", "s.csv", "--table", "t.csv", "--keep", "rate")
    assert "calibrated model" not in ended.err
    assert list(answers(tmp_path / "s.csv"))[:4] == ["id", "rate", "label", "probability"]
    run("fit", "t.csv", "--label-column", "label", "--model", "n", "--probabilities", "-o", "n.csv")
    assert run("model", "n", "--json").json["calibrated"] is True


def test_a_map_of_a_table_comes_with_its_ids(run: Run, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    run("embed", "t.csv", "--label-column", "label", "--output", "map.csv")
    found = answers(tmp_path / "map.csv")
    assert found["id"][:2] == ["row0", "row1"]


def test_label_is_about_as_good_as_the_same_steps_by_hand(run: Run, tmp_path: Path) -> None:
    """The bar: at most 1.2 times the error of scikit-learn's one-hot and scaling with the same estimator."""
    rng, rows = np.random.default_rng(5), 400
    group = rng.integers(0, 2, rows)
    numbers = {f"x{n}": rng.normal(1.3 * group, 1.0) * scale for n, scale in enumerate([1, 1e3, 1e-2, 50, 7, 1e5])}
    cities, plans = np.array(["Bonn", "Kiel", "Ulm"]), np.array(["free", "pro"])
    table = pd.DataFrame(
        {
            "id": np.arange(rows) + 5000,
            "city": cities[np.where(rng.random(rows) < 0.6, group, rng.integers(0, 3, rows))],
            "plan": plans[np.where(rng.random(rows) < 0.6, group, rng.integers(0, 2, rows))],
            **numbers,
        }
    )
    known = np.where(np.arange(rows) < 40, group, -1)
    table.assign(y=known).to_csv(tmp_path / "t.csv", index=False)
    run("label", "t.csv", "--label-column", "y", "-o", "o.csv")
    error = np.mean(np.array(answers(tmp_path / "o.csv")["label"], dtype=int) != group)
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    by_hand = make_column_transformer((StandardScaler(), list(numbers)), (OneHotEncoder(), ["city", "plan"]))
    points = by_hand.fit_transform(table)
    expected = np.mean(ERRClassifier().fit(np.asarray(points), known).transduction_ != group)
    assert error <= 1.2 * expected
