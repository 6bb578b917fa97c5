"""Bundle the page's TypeScript into page/studio.js; with --check, fail if the committed bundle differs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WEB = Path(__file__).resolve().parent
BUNDLE = WEB.parent / "page" / "studio.js"
ESBUILD = ("main.ts", "--bundle", "--minify", "--target=es2022", "--legal-comments=none", "--log-level=warning")


def main() -> int:
    """Exit code."""
    if shutil.which("npm") is None:
        print("npm is not installed: the bundle of the studio's page is not checked", file=sys.stderr)
        return int("CI" in os.environ)
    _run("npm", "ci", "--silent", "--no-audit", "--no-fund")
    _run("node_modules/.bin/tsc", "--noEmit")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / BUNDLE.name
        _run("node_modules/.bin/esbuild", *ESBUILD, f"--outfile={made}")
        if "--check" not in sys.argv:
            shutil.copy(made, BUNDLE)
        elif made.read_bytes() != BUNDLE.read_bytes():
            print(f"{BUNDLE.name} is not what its sources give: run `make studio`", file=sys.stderr)
            return 1
    return 0


def _run(*command: str) -> None:
    subprocess.run(command, cwd=WEB, check=True)


if __name__ == "__main__":
    sys.exit(main())
