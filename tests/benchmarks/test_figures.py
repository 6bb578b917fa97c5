"""The figures in README and docs are those of the records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import docs, examples, links
from benchmarks.report import RECORDS, RESULTS

ROOT = Path(__file__).parents[2]


def text(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_tables_in_the_docs_are_those_that_the_records_give(page: Path) -> None:
    assert docs.rewritten(page.read_text()) == page.read_text(), "run python -m benchmarks docs"


def test_every_table_of_figures_is_on_the_page_of_benchmarks() -> None:
    names = {found[2] for found in docs.MARKED.finditer((ROOT / "docs" / "method" / "benchmarks.md").read_text())}
    assert names == set(docs.TABLES)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/maps.md"])
def test_the_gain_from_links_is_that_of_the_record(page: str) -> None:
    records = {record["links"]: record for record in map(json.loads, links.RECORDS.read_text().splitlines())}
    before, after = (f"{np.mean(records[count]['clusters']):.1f} %" for count in (0, links.LINKS))
    assert before in text(page)
    assert after in text(page)
    assert f"{links.LINKS} " in text(page)
    assert not np.any(records[links.LINKS]["violated"])


def recorded(command: str, column: str, **row: object) -> float:
    """A figure from the first table of a command's record."""
    (name, value), table = (
        *row.items(),
        next(iter(json.loads((RECORDS / f"{command}.json").read_text())["tables"].values())),
    )
    return float(next(line[column] for line in table if line[name] == value))


def test_figures_in_sentences_are_those_of_the_records() -> None:
    steps = f"{recorded('scaling', '50 ERR steps s', points=10**6):.0f} s"
    memory = f"{recorded('scaling', 'peak MiB', points=10**6) / 1024:.1f} GiB for the whole process"
    digits = f"about {recorded('mnist', 'CPU seconds', method='ERR p = 2'):.0f} CPU seconds"
    (graph,) = re.findall(r"Graph: ([\d.]+) CPU s", (RECORDS / "mnist.json").read_text())
    assert f"50 steps take {steps} for a million points" in text("README.md")
    assert f"{steps} with {memory}" in text("docs/guides/large-data.md")
    assert f"{digits} once the graph is built, which takes {float(graph):.0f}" in text("docs/guides/large-data.md")
    assert f"{steps} and {memory}" in text("docs/comparison.md")
    assert f"{digits} with the default `power=2`, and {float(graph):.0f} for the graph" in text("docs/comparison.md")
    few, many, whole, all_steps = (
        f"{recorded('mnist', 'error %', method=f'ERR p = 2{settings}'):.2f}"
        for settings in ("", ", tol = 1e-4", ", repulsion = 1", ", repulsion = 1, tol = 1e-4")
    )
    sentence = f"from {few} to {many} % with `tol=1e-4`, and with `repulsion=1` from {whole} to {all_steps} %"
    assert sentence in text("docs/method/paper.md")


def printed_by(page: str, line: str) -> list[float]:
    """The numbers in a line that the examples of a page print at full size."""
    (found,) = re.findall(rf"^{line}(.*)$", json.loads(examples.PRINTED.read_text())[page], re.MULTILINE)
    return [float(number) for number in re.findall(r"[\d.]*\d", found)]


def test_sentences_about_examples_quote_what_these_print() -> None:
    right = float(json.loads(examples.PRINTED.read_text())["docs/index.md"])
    assert f"{100 * (1 - right) * 1797 / 1747:.0f} % of the other digits are wrong" in text("docs/index.md")
    (usual,), (directions,) = (
        printed_by("docs/tutorials/images.md", line) for line in ("ERR: ", "ERR on 20 directions:")
    )
    assert f"{100 * directions:.1f} % are wrong instead of {100 * usual:.1f} %" in text("docs/tutorials/images.md")
    (some,), (more,) = (printed_by("docs/tutorials/maps.md", line) for line in ("with links:", "more links:"))
    assert f"from {100 * some:.1f} % to {100 * more:.1f} %" in text("docs/tutorials/maps.md")
    page = "docs/guides/class-shares.md"
    (default,), (estimate,), (true,) = (printed_by(page, line) for line in ("default", "estimate", "true shares"))
    assert f"is wrong for {estimate:.0f} % of the points" in text(page)
    assert f"The default is wrong for {default:.0f} %, and the true shares for {true:.0f} %" in text(page)
    page = "docs/guides/parameters.md"
    (defaults,), (search,) = (printed_by(page, line) for line in ("defaults", "search"))
    assert f"{100 * search:.1f} % are wrong, and {100 * defaults:.1f} % with the defaults" in text(page)
    said = json.loads(examples.PRINTED.read_text())["docs/guides/calibration.md"]
    bins = re.findall(r"said 0\.(\d\d), right 0\.(\d\d), (\d+) points", said)
    sure, unsure = max(bins), min(bins)
    assert f"of the {sure[2]} digits that are said to be {sure[0]} % sure, {sure[1]} % are right" in text(
        "docs/guides/calibration.md"
    )
    assert f"of the {unsure[2]} at {unsure[0]} %, {unsure[1]} % are" in text("docs/guides/calibration.md")


def test_records_name_no_machine() -> None:
    assert not [path.name for path in RECORDS.iterdir() if str(ROOT) in path.read_text()]


def test_the_error_on_text_is_that_of_the_table() -> None:
    found = docs.results_table("Table 1: classification", "Our defaults, nothing chosen")["ERR, L²"]["Pcmac"]
    assert f"wrong for {float(found.split(' ±')[0]):.0f} % of the messages" in text("docs/tutorials/text.md")


def test_records_are_kept_in_git() -> None:
    kept = (ROOT / ".gitignore").read_text()
    assert f"!/{links.RECORDS.relative_to(ROOT)}" in kept
    assert f"!/{RECORDS.relative_to(ROOT)}/" in kept
    assert links.RECORDS.parent == RESULTS


def test_the_tutorial_on_tables_prints_what_it_says() -> None:
    said = re.findall(r'print\("(.+?): *",.*# ([\d.]+)$', (ROOT / "docs/tutorials/table.md").read_text(), re.MULTILINE)
    found = dict(
        re.findall(
            r"^(.+?): +([\d.]+)$", examples.output((ROOT / "docs/tutorials/table.md").read_text(), 3), re.MULTILINE
        )
    )
    assert len(said) == 2
    assert all(round(float(found[name]), 2) == float(value) for name, value in said)


def test_the_tutorial_on_embeddings_prints_what_it_says() -> None:
    nearest, ours = (
        float(number)
        for number in re.findall(
            r": +([\d.]+)", examples.output((ROOT / "docs/tutorials/embeddings.md").read_text(), 2)
        )
    )
    assert f"wrong for about one vector in {1 / nearest:.0f}." in text("docs/tutorials/embeddings.md")
    assert ours < 0.002
