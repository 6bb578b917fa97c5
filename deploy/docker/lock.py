"""Write the requirements*.txt of the images: the newest versions that are allowed, with the hashes of their files.

The versions are those that pip resolves pyproject.toml to. The hashes are of the wheels that pip chooses for each
Python and processor below. The Dockerfile installs with --require-hashes, so a file that was tampered with is refused.

To update the hashes and keep the versions: PIP_CONSTRAINT=versions.txt python deploy/docker/lock.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADER = "# Written by deploy/docker/lock.py from pyproject.toml; the hashes are of wheels for Linux with glibc.\n"
# What the images may be built for: the Pythons of Debian 12 and 13 and Ubuntu 24.04, on x86-64 and ARM.
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
# Built from this repository.
OURS = ("homophily", "homophily-client")
# glibc of Debian 12: wheels for a newer one are not chosen.
NEWEST_GLIBC, OLDEST_GLIBC = 36, 17


def report(*arguments: str) -> list[dict[str, Any]]:
    """What pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-qq", "--report", "-"]
    answer = subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    found: list[dict[str, Any]] = json.loads(answer)["install"]
    return found


def resolved(requirement: str) -> dict[str, str]:
    """Names and versions that a requirement resolves to."""
    found = (item["metadata"] for item in report("./client", requirement))
    return {item["name"].lower(): item["version"] for item in found if item["name"] not in OURS}


def hashes(versions: dict[str, str]) -> dict[str, set[str]]:
    """The SHA-256 of each wheel that pip would take, by package."""
    found: dict[str, set[str]] = defaultdict(set)
    compiled = dict(versions)
    for python, machine in product(PYTHONS, MACHINES):
        glibc = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
        older = [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
        platforms = [word for name in (*glibc, *older, f"linux_{machine}") for word in ("--platform", name)]
        options = ["--no-deps", "--python-version", python, "--only-binary", ":all:", "--target", "unused", *platforms]
        # One by one: a package without a wheel for one processor may have one for the other.
        for package, version in tuple(compiled.items()):
            try:
                (item,) = report(*options, f"{package}=={version}")
            except subprocess.CalledProcessError:
                print(f"{package} {version} has no wheel for Python {python} on {machine}", file=sys.stderr)
                continue
            file = item["download_info"]
            found[package].add(file["archive_info"]["hashes"]["sha256"])
            if file["url"].endswith("-none-any.whl"):
                # It is the same for all Pythons and processors.
                del compiled[package]
    return found


def write(name: str, versions: dict[str, str]) -> None:
    """Write a file of requirements."""
    digests = hashes(versions)
    lines = (
        " \\\n    ".join([f"{package}=={version}", *(f"--hash=sha256:{digest}" for digest in sorted(digests[package]))])
        for package, version in sorted(versions.items())
    )
    (HERE / name).write_text(HEADER + "".join(f"{line}\n" for line in lines))


def main() -> None:
    """Resolve both images together, so that they share versions; and what builds our own wheel."""
    plain, cuda = ".[otel,service,tracking]", ".[gpu,otel,service,tracking]"
    both = resolved(cuda)
    needed = resolved(plain)
    write("requirements.txt", {name: both[name] for name in needed})
    write("requirements-cuda.txt", {name: version for name, version in both.items() if name not in needed})
    (build,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    items = (item["metadata"] for item in report(build))
    write("requirements-build.txt", {item["name"].lower(): item["version"] for item in items})


if __name__ == "__main__":
    main()
