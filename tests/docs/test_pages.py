"""The README is short and true, and the pages of docs/ lead to each other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from .pages import DOCS, README, ROOT, RUN, blocks, markdown_pages

LINKED = [
    README,
    *sorted(ROOT.glob("[A-Z]*.md")),
    *markdown_pages(),
    *sorted((ROOT / "deploy").rglob("*.md")),
    *sorted((ROOT / "proto").glob("*.md")),
]


def test_the_readme_is_short() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.encode()) <= 9 << 10


def test_the_figures_of_the_readme_are_those_of_the_records() -> None:
    lines = (ROOT / "benchmarks" / "results" / "readme.jsonl").read_text().splitlines()
    records = {record["method"]: record for record in map(json.loads, lines)}
    shown = dict(re.findall(r"^\| \*{0,2}([\w ,'()-]+?)\*{0,2} \| \*{0,2}([\d.]+) %", README.read_text(), re.MULTILINE))
    assert len(shown) == len(records)
    for name, record in records.items():
        (row,) = [row for row in shown if row.split(",")[0].split(" (")[0] == name.split(",")[0].split(" (")[0]]
        assert float(shown[row]) == round(float(np.mean(record["errors"])), 1), name
        assert len(record["draws"]) == 10


def without_code(text: str) -> str:
    """The text outside fences and code."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", dict.fromkeys(LINKED), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", without_code(page.read_text()))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_code_is_narrow_enough_to_be_seen_without_scrolling() -> None:
    """On a screen of 1280 pixels a block is about 90 characters wide."""
    read = [DOCS / "index.md", DOCS / "comparison.md"]
    read += [page for page in markdown_pages() if page.parent.name in ("tutorials", "guides", "service")]
    wide = [
        f"{block.place}: {line}"
        for page in read
        for block in blocks(page)
        if block.language in RUN
        for line in block.code.splitlines()
        if len(line) > 88
    ]
    assert wide == []


def contents(page: Path) -> set[Path]:
    """The pages in the tables of contents of a page."""
    found = set()
    for options in re.findall(
        r"^(?:```|:::)\{toctree\}\n(.*?)^(?:```|:::)$", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        entries = [line.strip() for line in options.splitlines() if line.strip() and not line.startswith(":")]
        for entry in entries:
            entry = entry.partition("<")[2].removesuffix(">") or entry
            found |= (
                {path.resolve() for path in page.parent.glob(f"{entry.removesuffix('.md')}.md")}
                if ".." not in entry
                else {(page.parent / f"{entry.removesuffix('.md')}.md").resolve()}
            )
    return found


def test_every_page_is_in_a_table_of_contents() -> None:
    reached, waiting = set(), {DOCS / "index.md"}
    while waiting:
        page = waiting.pop()
        reached.add(page)
        waiting |= contents(page) - reached
    assert reached == set(markdown_pages())
