"""RESULTS.md from the records: our figures, the paper's and the peers' side by side; with causes from causes.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

from benchmarks.tables.cells import Records, Store
from benchmarks.tables.few_sections import table5_section
from benchmarks.tables.link_sections import table2_section, table3_section
from benchmarks.tables.run import STAND_IN, Options
from benchmarks.tables.sections import bars, figures_section, table1_section, table4_section
from benchmarks.tables.summary import Group, Shortfall, groups

PAGE = Path(__file__).parents[1] / "RESULTS.md"
CAUSES = Path(__file__).with_name("causes.toml")
TABLES = ("table1", "table2", "table3", "table4", "table5")

HEAD = """# The paper's tables

Our figures, the paper's, and those of other systems on the same data, graphs and labels. This page is written by
`python -m benchmarks page` from the records in `results/`; `make table1 DATA=folder` (`table2` …) computes what is
missing of a table and writes the page anew. All errors are in percent, the mean over draws of labels or links ± the
standard error of that mean; without ± there was one draw. Bold is the lowest of a column. Seconds are CPU
seconds, of all threads together: the machine is shared, and the clock would tell of other work too.
"""

STAND_IN_NOTE = (
    "**These are figures of stand-ins**, other data under the names of the paper's sets: to see that everything runs, "
    "and to compare with nothing."
)


def write(folder: Path) -> int:
    """The page of a folder's records: of the real ones in its place, of others beside them."""
    real = folder.resolve() == Options().results.resolve()
    target = PAGE if real else folder / PAGE.name
    target.parent.mkdir(parents=True, exist_ok=True)
    records = {name: Store(folder / f"{name}.jsonl").read() for name in TABLES}
    target.write_text(text(records, note="" if folder.name != STAND_IN else STAND_IN_NOTE))
    print(f"Written: {target}")
    return 0


def text(records: dict[str, Records], note: str = "") -> str:
    """The whole page, with a note below its head."""
    found: dict[str, list[Group]] = {name: groups(records.get(name, {})) for name in TABLES}
    shortfalls: list[Shortfall] = []
    sections = [
        HEAD,
        note,
        measured(records),
        bars(found),
        table1_section(found["table1"], shortfalls),
        table2_section(found["table2"], shortfalls),
        table3_section(found["table3"], shortfalls),
        table4_section(found["table4"], shortfalls),
        table5_section(found["table5"]),
        figures_section(),
        fall_short(shortfalls),
    ]
    return "\n\n".join(section.strip() for section in sections if section.strip()) + "\n"


def measured(records: dict[str, Records]) -> str:
    """How much of each table there is."""
    lines = []
    for name, kept in records.items():
        if kept:
            last = max(record.when for record in kept.values())[:10]
            lines.append(f"{name}: {len(kept)} cells, the last of {last}")
    return f"Records: {'; '.join(lines)}." if lines else "There are no records yet."


def fall_short(shortfalls: list[Shortfall]) -> str:
    """Where we are above the paper, by how much, and what is known of the cause."""
    causes = tomllib.loads(CAUSES.read_text())
    lines = ["## Where we fall short of the paper"]
    if not shortfalls:
        return f"{lines[0]}\n\nNowhere in what has been run so far."
    for table in dict.fromkeys(shortfall.table for shortfall in shortfalls):
        lines.append(
            f"\n**{table.replace('table', 'Table ')}.** {causes.get(table, {}).get('all', '')}".rstrip() + "\n"
        )
        here = [shortfall for shortfall in shortfalls if shortfall.table == table]
        for data in dict.fromkeys(shortfall.data for shortfall in here):
            parts = "; ".join(str(shortfall) for shortfall in here if shortfall.data == data)
            cause = causes.get(table, {}).get(data, "")
            lines.append(f"- {data}: {parts}.{f' {cause}' if cause else ''}")
    return "\n".join(lines)
