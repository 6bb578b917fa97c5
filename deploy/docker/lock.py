"""Write requirements.txt and requirements-cuda.txt: the newest versions that pyproject.toml allows, for the images."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADER = "# Written by deploy/docker/lock.py out of pyproject.toml, for the Python of the images' base.\n"


def resolved(requirement: str) -> dict[str, str]:
    """Names and versions that pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-qq", "--report", "-"]
    answer = subprocess.run([*command, requirement], check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    found = (item["metadata"] for item in json.loads(answer)["install"])
    return {item["name"].lower(): item["version"] for item in found if item["name"] != "homophily"}


def write(name: str, versions: dict[str, str]) -> None:
    """Write a file of requirements."""
    lines = (f"{package}=={version}\n" for package, version in sorted(versions.items()))
    (HERE / name).write_text(HEADER + "".join(lines))


def main() -> None:
    """Resolve both images together, so that they share versions."""
    plain, cuda = ".[otel,service,tracking]", ".[gpu,otel,service,tracking]"
    both = resolved(cuda)
    needed = resolved(plain)
    write("requirements.txt", {name: both[name] for name in needed})
    write("requirements-cuda.txt", {name: version for name, version in both.items() if name not in needed})


if __name__ == "__main__":
    main()
