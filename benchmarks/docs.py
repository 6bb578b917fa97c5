"""The figures that the documentation quotes, written into its pages from the records.

A page has figures between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. `python -m benchmarks docs`
updates them all, and a test fails where a page differs. Tables of the paper come from `RESULTS.md`, which is itself
generated from `results/table?.jsonl`. What a command prints comes from `results/records/`, where its last whole run
with `--data` is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import RECORDS, Options, Report, cell_text
from benchmarks.tables.few_sections import WORDS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MARKED = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end of figures -->)", re.DOTALL)

Cells = dict[str, str]


def run(options: Options, report: Report) -> None:  # noqa: ARG001
    for page in PAGES:
        before = page.read_text()
        after = rewritten(before)
        if after != before:
            page.write_text(after)
            report.note(f"Rewritten: {page.relative_to(ROOT)}")


def rewritten(page: str) -> str:
    """The page with all of its tables from the records."""
    return MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


def printed(command: str) -> str:
    """The tables and notes of a command, from the record of its last whole run."""
    record = json.loads((RECORDS / f"{command}.json").read_text())
    tables = [f"{title}:\n\n{_markdown(rows)}" for title, rows in record["tables"].items()]
    notes = "\n".join(f"- {note}" for note in record["notes"] if not note.startswith("Plot: "))
    return "\n\n".join([*tables, notes, f"Measured on {record['when'][:10]}, {record['cores']} cores."])


def _markdown(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    aligned = ["---" if isinstance(rows[0].get(column), str) else "---:" for column in columns]
    lines = [columns, aligned, *([cell_text(row.get(column)) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def results_table(section: str, heading: str) -> dict[str, Cells]:
    """A table of ``RESULTS.md``: for each row, its cells by column, without bold and brackets."""
    page = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    part = page.split(f"\n## {section}", 1)[1].split("\n## ", 1)[0]
    lines = part.split(f"\n**{heading}**", 1)[1].split("\n\n", 2)[1].splitlines()
    columns, _, *rows = [[cell.strip(" *ᵒ") for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(columns[1:], [cell.strip("()") for cell in row[1:]], strict=True)) for row in rows}


def excerpt(found: dict[str, Cells], rows: dict[str, str], columns: dict[str, str]) -> str:
    """Some rows and columns of a table, under other names; without standard errors."""
    lines = [
        f"| {name} | {' | '.join(found[row][column].split(' ±')[0] for column in columns)} |"
        for row, name in rows.items()
    ]
    return "\n".join([f"| error, % | {' | '.join(columns.values())} |", f"|---|{'---:|' * len(columns)}", *lines])


def classes() -> str:
    """Table 1: parameters chosen automatically."""
    rows = {
        "ERR, L²": "**ERR**",
        "IRR, L²": "IRR",
        "ERR, L², paper": "ERR, the paper",
        "scikit-learn LabelSpreading": "LabelSpreading",
        "scikit-learn LabelPropagation": "LabelPropagation",
        "graphlearning WNLL": "WNLL",
        "graphlearning Poisson": "Poisson learning",
        "graphlearning Poisson-MBO": "Poisson-MBO",
    }
    found = results_table("Table 1: classification", "Parameters chosen on the validation points")
    # Their data are not the paper's.
    for name in ("Pcmac", "CCAT", "GCAT"):
        found["ERR, L², paper"][name] = "–"
    names = {name: name for name in ("USPS", "Text", "BCI", "Pcmac", "CCAT", "GCAT")}
    return excerpt(found, rows, names | {"MNIST": "MNIST-60k, {2, 5}", "MNIST (multi-class)": "MNIST-2k, 10 classes"})


def defaults() -> str:
    """Table 1: nothing chosen."""
    rows = {"ERR, L²": "**ERR**", "IRR, L²": "IRR", "ERR, L": "ERR, `power=1`", "IRR, L": "IRR, `power=1`"}
    found = results_table("Table 1: classification", "Our defaults, nothing chosen")
    names = {name: name for name in ("USPS", "Text", "BCI", "Pcmac", "CCAT", "GCAT")}
    return excerpt(found, rows, names | {"MNIST": "MNIST-60k, {2, 5}", "MNIST (multi-class)": "MNIST-2k, 10 classes"})


SETS = {name: name for name in ("USPS", "MNIST", "Pendigits", "Iris", "Wine", "BCW", "Diabetes")}


def maps() -> str:
    """Table 3 with 100 links."""
    rows = {"ERR, defaults": "**ERR**, defaults", "ERR, tuned": "ERR, tuned", "ERR, paper": "ERR, the paper"}
    return excerpt(results_table("Table 3: maps", "s_R = 100"), rows | {"UMAP, defaults": "UMAP"}, SETS)


def clusters() -> str:
    """Table 2 with 500 links of each kind."""
    rows = {"ERR, defaults": "**ERR**, defaults", "ERR, paper": "ERR, the paper"}
    peers = {"SL, defaults": "SL", "CCSR, defaults": "CCSR", "COSC, defaults": "COSC", "PCKMeans, defaults": "PCKMeans"}
    return excerpt(results_table("Table 2: clustering", "s_R = 500 of each kind"), rows | peers, SETS)


def few_labels(protocol: str) -> str:
    """Table 5, one protocol: methods that are told nothing of the shares."""
    found = results_table("Table 5: one to fifty labels per class", f"({protocol}) {WORDS[protocol]}")
    graphlearning = ("Laplace", "WNLL", "Poisson", "Poisson-MBO", "VolumeMBO")
    peers = ("scikit-learn LabelSpreading", *(f"graphlearning {name}" for name in graphlearning))
    rows = {"ERR": "**ERR**", "IRR": "IRR"} | {name: name for name in (*peers, "draws")}
    return excerpt(found, rows, {name: name for name in next(iter(found.values()))})


def asked() -> str:
    """Active learning: the mean error of each curve, a row per set, then the other tables."""
    record = json.loads((RECORDS / "active.json").read_text())
    rows, others = [], []
    for title, table in record["tables"].items():
        if ": error in %" not in title:
            others.append(f"{title}:\n\n{_markdown(table)}")
            continue
        errors = {row["strategy"]: row["mean error, %"] for row in table}
        theirs = [error for name, error in errors.items() if name.startswith("graphlearning")]
        mine = {name: error for name, error in errors.items() if not name.startswith("graphlearning")}
        rows.append({"set": table[0]["set"], **mine, "best of graphlearning": min(theirs, default=None)})
    first = f"Mean error in % from one label per class to 100 labels, in batches of 5:\n\n{_markdown(rows)}"
    return "\n\n".join([first, *others, f"Measured on {record['when'][:10]}, {record['cores']} cores."])


#: Commands whose tables and notes the page of benchmarks shows.
SHOWN = (
    *("speed", "scaling", "graph", "append", "mnist", "calibration", "defaults", "roofline"),
    *("studio", "predict", "service", "address"),
)
TABLES: dict[str, Callable[[], str]] = {
    **{command: partial(printed, command) for command in SHOWN},
    "classes": classes,
    "many classes": partial(printed, "classes"),
    "defaults of table 1": defaults,
    "what to ask": asked,
    "looks of maps": partial(printed, "maps"),
    "maps": maps,
    "clusters": clusters,
    **{f"few labels, {protocol}": partial(few_labels, protocol) for protocol in WORDS},
}
