"""What can be said of the images without building them; `make image-test` builds and runs one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "deploy" / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


def wanted(*extras: str) -> Iterator[Requirement]:
    """Direct requirements of the project with these extras."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    for requirement in (Requirement(line) for lines in lists for line in lines):
        if requirement.name == PROJECT["name"]:
            yield from wanted(*requirement.extras)
        elif requirement.name == CLIENT["name"]:
            yield from map(Requirement, CLIENT["dependencies"])
        else:
            yield requirement


def locked(*names: str) -> dict[str, Version]:
    pairs = re.findall(r"^([\w.-]+)==(\S+)", "".join((DOCKER / name).read_text() for name in names), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in pairs}


@pytest.mark.parametrize(
    ("extras", "files"),
    [
        (("otel", "service", "tracking"), ("requirements.txt",)),
        (("gpu", "otel", "service", "tracking"), ("requirements.txt", "requirements-cuda.txt")),
    ],
    ids=["cpu", "cuda"],
)
def test_locked_versions_are_those_that_the_project_wants(extras: tuple[str, ...], files: tuple[str, ...]) -> None:
    versions = locked(*files)
    for requirement in wanted(*extras):
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} is missing: make image-lock"
        assert requirement.specifier.contains(versions[name], prereleases=True), f"{name}: make image-lock"


@pytest.mark.parametrize("file", sorted(DOCKER.glob("requirements*.txt")), ids=lambda file: file.name)
def test_every_package_is_installed_by_its_hash(file: Path) -> None:
    text = file.read_text().replace("\\\n", "")
    packages = [line for line in text.splitlines() if not line.startswith("#")]
    for line in packages:
        assert re.fullmatch(r"[\w.-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", line), line
    (install,) = re.findall(rf"pip install .+--requirement /build/{file.name}", DOCKERFILE)
    assert "--require-hashes" in install
    # A source archive would be built by packages that are not locked.
    assert "--only-binary :all:" in install


def test_nothing_else_is_fetched() -> None:
    installs = re.findall(r"pip (?:install|wheel) (.+)", DOCKERFILE)
    others = [options for options in installs if "--require-hashes" not in options]
    assert others
    assert all("--no-deps" in options for options in others)
    assert all("--no-index" in options or "--no-build-isolation" in options for options in others)


def test_the_base_can_be_pinned_by_digest() -> None:
    """It is not by itself: a digest must be looked up where there is a registry."""
    assert re.search(r"^ARG BASE_IMAGE=\S+:[\d.]+-slim$", DOCKERFILE, re.MULTILINE)
    assert re.findall(r"^FROM (\S+) AS python$", DOCKERFILE, re.MULTILINE) == ["${BASE_IMAGE}"]


def test_everything_that_is_copied_is_let_through() -> None:
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(?:--chmod=\d+ )?(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert f"!{source}" in ignored
            assert (ROOT / source).exists()


def test_images_run_as_nobody_in_particular() -> None:
    users = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)
    assert users == ["10001:10001"]
    # Both targets stand on the stage that says so.
    assert re.findall(r"^FROM runtime AS (\w+)$", DOCKERFILE, re.MULTILINE) == ["cuda", "cpu"]


def test_kernels_are_compiled_for_the_processor_that_runs_them_by_name() -> None:
    names = re.findall(r"^ARG KERNEL_CPU=(.+)$", DOCKERFILE, re.MULTILINE)
    assert len(names) == 2
    assert len(set(names)) == 1
    assert f"= {names[0]} ]" in (DOCKER / "entrypoint.sh").read_text()
