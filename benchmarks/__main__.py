"""Command line of the benchmarks."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

from benchmarks.report import Options, Report
from homophily import HomophilyWarning

COMMANDS = (
    "active",
    "address",
    "speed",
    "scaling",
    "graph",
    "append",
    "classes",
    "calibration",
    "mnist",
    "roofline",
    "defaults",
    "engines",
    "optimizer",
    "predict",
    "service",
    "studio",
    "embedding",
    "clustering",
    "scatter",
    "capacity",
    "estimates",
    "partitions",
    "spread",
    "gpu",
    "examples",
    "readme",
    "links",
    "maps",
    "docs",
)
TABLES = ("table1", "table2", "table3", "table4", "table5", "few_labels", "figures", "page", "download")
"""Commands with options of their own: ``python -m benchmarks table1 --help``."""


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in TABLES:
        return int(import_module("benchmarks.tables.command").main(arguments))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=(*COMMANDS, *TABLES, "all"))
    parser.add_argument("--data", type=Path, help="folder of the real data sets; stand-ins are drawn without it")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--seeds", type=int, help="draws of labels (mnist: 5, defaults: 10)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of these draws (defaults)")
    parser.add_argument("--max-points", type=int, default=1_000_000, help="largest size of scaling")
    chosen = parser.parse_args(arguments)
    if chosen.data is not None and not chosen.data.is_dir():
        parser.error(f"--data must be a folder. Got {str(chosen.data)!r} instead.")
    if chosen.name == "all":
        return run_all(arguments)
    # Small components without a label are common in these graphs, and counted as errors like any others.
    warnings.simplefilter("ignore", HomophilyWarning)
    options = Options(chosen.data, chosen.quick, chosen.seeds, chosen.first_seed, chosen.max_points)
    report = Report(chosen.name, options)
    import_module(f"benchmarks.{chosen.name}").run(options, report)
    report.close()
    return int(report.failed)


def run_all(arguments: list[str]) -> int:
    """Every command in a process of its own, so that each peak of memory is its own; the count of those that failed."""
    rest = [argument for argument in arguments if argument != "all"]
    return sum(
        subprocess.run([sys.executable, "-m", "benchmarks", name, *rest], check=False).returncode != 0
        for name in COMMANDS
    )


if __name__ == "__main__":
    # Read when gRPC is imported: the transport that takes the least of the clients' time, as they share the cores with
    # what is measured.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
    sys.exit(main(sys.argv[1:]))
