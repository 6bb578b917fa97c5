"""What the examples of the documentation print at full size, kept for the sentences that quote it.

The tests run the same examples on fewer points. Examples that need a running service are left out.
"""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from benchmarks.report import RECORDS, Options, Report

ROOT = Path(__file__).parents[1]
PRINTED = RECORDS / "examples.json"
PAGES = (
    "docs/index.md",
    "docs/tutorials/images.md",
    "docs/tutorials/maps.md",
    "docs/guides/calibration.md",
    "docs/guides/class-shares.md",
    "docs/guides/parameters.md",
)


def run(options: Options, report: Report) -> None:
    printed = {}
    for page in PAGES[:1] if options.quick else PAGES:
        report.progress(page)
        printed[page] = output((ROOT / page).read_text())
        report.note(f"{page}:\n{printed[page]}")
    if not options.quick:
        RECORDS.mkdir(exist_ok=True)
        PRINTED.write_text(json.dumps(printed, indent=1) + "\n")


def output(page: str, most: int | None = None) -> str:
    """What the Python blocks of a page print, one after the other: all of them, or the first ones."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:most]
    said = StringIO()
    with redirect_stdout(said):
        exec("\n".join(block for block in blocks if "homophily_client" not in block), {})
    return said.getvalue()
