"""What docs/_ext generates from the code is complete. What has no description is a warning, which fails `make docs`."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import Field
from pydantic_settings import BaseSettings

from .pages import DOCS, ROOT


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """The extensions, as docs/conf.py makes them importable."""
    sys.path.insert(0, str(DOCS / "_ext"))
    yield
    sys.path.remove(str(DOCS / "_ext"))


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Sphinx's warnings."""
    monkeypatch.setattr(logging.getLogger("sphinx"), "propagate", True)
    return caplog


def generator(name: str) -> Any:
    return importlib.import_module(f"reference.{name}")


@pytest.mark.parametrize("name", ["commands", "metrics", "protos", "settings"])
def test_everything_is_described(name: str, warned: pytest.LogCaptureFixture) -> None:
    assert len(generator(name).generate()) > 1000
    assert warned.messages == []


def test_all_settings_and_their_variables_are_listed() -> None:
    from homophily_service.runtime.settings import Settings

    text = generator("settings").generate()
    for name in Settings.model_fields:
        assert f"{{confval}} {name}\n" in text
        assert f"`HOMOPHILY_{name.upper()}`" in text


def test_the_metrics_are_those_of_the_dashboard_and_the_alerts() -> None:
    declared = {metric.name for metric in generator("metrics").set_of_metrics()}
    folder = ROOT / "deploy" / "observability"
    used = json.dumps(json.loads((folder / "dashboard.json").read_text())) + (folder / "alerts.yaml").read_text()
    names = set(re.findall(r"\bhomophily_[a-z_]+", used)) - {"homophily_client"}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in names} <= declared


def test_the_labels_of_metrics_are_found() -> None:
    labels = {metric.name: metric.labels for metric in generator("metrics").set_of_metrics()}
    assert labels["homophily_jobs"] == ["state", "kind"]
    assert labels["homophily_rpc_seconds"] == ["method", "code"]
    assert labels["homophily_untracked_jobs"] == []


def test_every_call_and_every_message_is_listed() -> None:
    text = generator("protos").generate()
    for path in (ROOT / "proto").rglob("*.proto"):
        for kind, name in re.findall(r"^\s*(rpc|message|enum) (\w+)", path.read_text(), re.MULTILINE):
            assert (f"\n`{name}`\n" if kind == "rpc" else f"\n### {name}\n") in text


def test_every_command_is_listed() -> None:
    from homophily_service.cli.commands import app

    text = generator("commands").generate()
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"\n### homophily {name}\n" in text
    assert "### homophily token create" in text


def test_exported_names_are_public_once() -> None:
    names = generator("python").public_modules()
    assert {"homophily", "homophily.baselines", "homophily.model_selection", "homophily.selection"} <= set(names)
    assert "Search" in names["homophily"]
    assert "Search" not in names["homophily.selection"]
    assert "__version__" not in names["homophily_client"]


def test_a_setting_without_a_description_is_noticed(
    warned: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Undescribed(BaseSettings):
        new: int = Field(1)

    monkeypatch.setattr(generator("settings"), "Settings", Undescribed)
    generator("settings").generate()
    assert "the setting new has no description" in warned.messages


def test_an_option_without_help_is_noticed(warned: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command("one", rich_help_panel="Panel")
    def one(new: int = 1) -> None:
        """Say something about it."""

    @app.command("two", rich_help_panel="Panel")
    def two() -> None:
        pass

    monkeypatch.setattr(generator("commands"), "app", app)
    generator("commands").generate()
    assert warned.messages == ["--new of homophily one has no description", "homophily two has no description"]


def test_a_metric_without_help_is_noticed(
    warned: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = 'Counter("homophily_new_total", "")\nGauge(NAME, "What it is")\n'
    (tmp_path / "new.py").write_text(f"from prometheus_client import Counter, Gauge\n{code}")
    monkeypatch.setattr(generator("metrics").homophily_service, "__path__", [str(tmp_path)])
    generator("metrics").generate()
    assert "the metric homophily_new_total has no description" in warned.messages
    assert any("not a literal" in message for message in warned.messages)


def test_a_field_without_a_comment_is_noticed(
    warned: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proto = tmp_path / "homophily" / "v1" / "new.proto"
    proto.parent.mkdir(parents=True)
    proto.write_text('syntax = "proto3";\npackage homophily.v1;\n// A thing.\nmessage New {\n  string name = 1;\n}\n')
    protos = generator("protos")
    monkeypatch.setattr(protos, "PROTOS", tmp_path)
    protos.files.cache_clear()
    try:
        protos.generate()
    finally:
        protos.files.cache_clear()
    assert warned.messages == ["New.name in homophily/v1/new.proto has no description"]


def test_a_section_is_cut_out_of_a_file() -> None:
    repository = importlib.import_module("repository")
    text = "# T\n\n## A `b`\none\n\n```sh\n# no heading\n```\n### C\ntwo\n\n## D\nthree\n"
    assert repository.section(text, "a-b") == "## A `b`\none\n\n```sh\n# no heading\n```\n### C\ntwo\n\n"
    assert repository.section(text, "e") is None


def test_links_lead_to_the_pages_that_show_a_file() -> None:
    repository = importlib.import_module("repository")
    repository.shown.cache_clear()
    page, source = DOCS / "service" / "promises.md", ROOT / "deploy" / "SECURITY.md"

    def relinked(text: str) -> str:
        return str(repository.relinked(text, source, page))

    assert relinked("[a](UPGRADES.md)") == "[a](../operations/upgrades.md)"
    assert relinked("[a](README.md#the-image)") == "[a](../operations/docker.md#the-image)"
    assert relinked("[a](roles.sql)") == "[a](<path:../../deploy/roles.sql>)"
    assert relinked("![a](../README.md)") == "![a](../../README.md)"
    assert relinked("[a](docker)") == "a (`deploy/docker/`)"
    assert relinked("`[a](UPGRADES.md)` [b](https://example.com)") == "`[a](UPGRADES.md)` [b](https://example.com)"
