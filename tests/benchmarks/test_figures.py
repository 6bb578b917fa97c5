"""The figures in README and docs are those of the records."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from benchmarks import docs, links
from benchmarks.report import RESULTS

ROOT = Path(__file__).parents[2]
MEASURED = {line["what"]: line for line in map(json.loads, docs.MEASURED.read_text().splitlines())}


def text(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_tables_in_the_docs_are_those_that_the_records_give(page: Path) -> None:
    assert docs.rewritten(page.read_text()) == page.read_text(), "run python -m benchmarks docs"


def test_every_table_of_figures_is_on_the_page_of_benchmarks() -> None:
    names = {found[2] for found in docs.MARKED.finditer((ROOT / "docs" / "method" / "benchmarks.md").read_text())}
    assert names == set(docs.TABLES)


def test_measured_figures_come_from_commands_that_exist() -> None:
    from benchmarks.__main__ import COMMANDS

    assert {line["command"] for line in MEASURED.values() if line["command"]} <= set(COMMANDS)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/maps.md"])
def test_the_gain_from_links_is_that_of_the_record(page: str) -> None:
    records = {record["links"]: record for record in map(json.loads, links.RECORDS.read_text().splitlines())}
    before, after = (f"{np.mean(records[count]['clusters']):.1f} %" for count in (0, links.LINKS))
    assert before in text(page)
    assert after in text(page)
    assert f"{links.LINKS} " in text(page)
    assert not np.any(records[links.LINKS]["violated"])


@pytest.mark.parametrize(
    ("page", "sentence", "what"),
    [
        ("docs/guides/large-data.md", "18 s with 1.4 GiB for the whole process", "10⁶ points: 50 plain steps"),
        ("docs/guides/large-data.md", "in about 4 s once", "… ERR, p = 2, defaults"),
        ("docs/guides/large-data.md", "which takes 21 s", "300 labels, 5 draws: graph"),
        ("docs/comparison.md", "18 s and 1.4 GiB", "10⁶ points: 50 plain steps"),
        ("docs/comparison.md", "about 4 s", "… ERR, p = 2, defaults"),
        ("docs/method/paper.md", "to 1.40 and 1.41 %", "… ERR with two draws"),
    ],
)
def test_figures_in_sentences_are_measured(page: str, sentence: str, what: str) -> None:
    assert sentence in text(page)
    numbers = re.findall(r"[\d.]*\d", sentence)
    (figure,) = [line["figure"] for name, line in MEASURED.items() if what in name]
    assert all(number in figure for number in numbers)


def test_the_error_on_text_is_that_of_the_table() -> None:
    found = docs.results_table("Table 1: classification", "Our defaults, nothing chosen")["ERR, L²"]["Pcmac"]
    assert f"wrong for {float(found.split(' ±')[0]):.0f} % of the messages" in text("docs/tutorials/text.md")


def test_records_are_kept_in_git() -> None:
    kept = (ROOT / ".gitignore").read_text()
    assert all(f"!/{path.relative_to(ROOT)}" in kept for path in (docs.MEASURED, links.RECORDS))
    assert links.RECORDS.parent == RESULTS


def printed(page: str, blocks: int) -> str:
    """What the first Python blocks of a page print."""
    code = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    output = StringIO()
    with redirect_stdout(output):
        exec("\n".join(code[:blocks]), {})
    return output.getvalue()


def test_the_tutorial_on_tables_prints_what_it_says() -> None:
    said = re.findall(r'print\("(.+?): *",.*# ([\d.]+)$', (ROOT / "docs/tutorials/table.md").read_text(), re.MULTILINE)
    found = dict(re.findall(r"^(.+?): +([\d.]+)$", printed("docs/tutorials/table.md", 3), re.MULTILINE))
    assert len(said) == 2
    assert all(round(float(found[name]), 2) == float(value) for name, value in said)


def test_the_tutorial_on_embeddings_prints_what_it_says() -> None:
    nearest, ours = (float(number) for number in re.findall(r": +([\d.]+)", printed("docs/tutorials/embeddings.md", 2)))
    assert f"wrong for about one vector in {1 / nearest:.0f}." in text("docs/tutorials/embeddings.md")
    assert ours < 0.002
