"""Command line of the tables: ``python -m benchmarks table1`` and its like."""

from __future__ import annotations

import argparse
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tables import figures, page, table1, table2, table3, table4, table5
from benchmarks.tables.run import Options, run_cells
from benchmarks.tables.tracking import Tracker
from homophily import HomophilyWarning

TABLES: dict[str, Any] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "figures": figures,
}
#: Other names of tables.
ALIASES = {"few_labels": "table5"}


def main(arguments: list[str]) -> int:
    """Compute what is missing of a table, then write the page anew; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=(*TABLES, *ALIASES, "page", "download"))
    parser.add_argument("sets", nargs="*", help="download: which sets; all of them if none is named")
    parser.add_argument("--data", type=Path, help="folder of the data sets; stand-ins of a few of them without it")
    parser.add_argument("--seeds", type=int, help="draws of labels or links; slow methods on large sets have fewer")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once, each in a process of its own")
    parser.add_argument("--quick", action="store_true", help="fewer draws, trials and sets: ten minutes on two cores")
    parser.add_argument("--mlflow", metavar="URI", help="also keep every cell as a run of this MLflow")
    parser.add_argument("--results", type=Path, default=Options().results, help="folder of the records")
    chosen = parser.parse_args(arguments)
    if chosen.name == "download":
        from benchmarks.tables.download import download

        return download(chosen.data or Path("data"), chosen.sets)
    if chosen.sets:
        parser.error(f"{chosen.name} takes no names of sets. Got {' '.join(chosen.sets)} instead.")
    if chosen.data is not None and not chosen.data.is_dir():
        parser.error(f"--data must be a folder. Got {str(chosen.data)!r} instead.")
    for name in ("seeds", "jobs"):
        value = getattr(chosen, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1. Got {value} instead.")
    options = Options(chosen.data, chosen.seeds, chosen.jobs, chosen.quick, chosen.mlflow, chosen.results)
    if chosen.name == "page":
        return page.write(options.results)
    return run_table(ALIASES.get(chosen.name, chosen.name), options)


def run_table(name: str, options: Options) -> int:
    """Compute a table's missing cells; 0, 1 if some broke, 130 if it was stopped."""
    warnings.simplefilter("ignore", HomophilyWarning)
    module, store = TABLES[name], options.store(name)
    with Tracker(options.mlflow, name) as tracker:
        outcome = run_cells(partial(module.plan, options), module.compute, store, options, tracker.log)
        tracker.stopped = outcome.stopped
    if outcome.stopped:
        return 130
    if name == "figures":
        figures.draw(options)
    page.write(options.folder)
    print(f"{name}: {outcome.computed} cells computed, {outcome.broken} broken.", file=sys.stderr)
    return int(outcome.broken > 0)
