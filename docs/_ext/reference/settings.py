"""The service's settings."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from homophily_service.runtime.settings import ProjectLimits, Settings
from reference.markdown import described, directive

PREFIX = Settings.model_config["env_prefix"]


def generate() -> str:
    """All settings, under the headings that their class has as comments."""
    headings = dict(_headings())
    parts = []
    for name, field in Settings.model_fields.items():
        if name in headings:
            parts += [f"## {headings[name]}", ""]
        default = "no default" if field.default is None else f"default `{_value(field.default)}`"
        body = f"{described(field.description, f'the setting {name}')}\n\n"
        body += f"`{PREFIX}{name.upper()}` · {_type(name)} · {default}"
        parts.append(directive("confval", name, body))
    # Limits of single projects are described where the general ones are.
    for name in ProjectLimits.model_fields:
        if name not in Settings.model_fields:
            described(None, f"the limit {name} of a project")
    return "\n".join(parts)


def _headings() -> list[tuple[str, str]]:
    """The first setting below each comment ``# -- heading``."""
    found = re.findall(r"^    # -- (.+)\n    (\w+):", inspect.getsource(Settings), re.MULTILINE)
    return [(name, heading[0].upper() + heading[1:]) for heading, name in found]


def _type(name: str) -> str:
    written = str(inspect.get_annotations(Settings)[name])
    for long, short in (
        ("PositiveInt", "int > 0"),
        ("PositiveFloat", "float > 0"),
        ("SecretStr", "str"),
        (" | None", ""),
        ("ProjectLimits", "limits"),
    ):
        written = written.replace(long, short)
    choices = re.fullmatch(r"Literal\[(.*)\]", written)
    return re.sub("[\"']", "", choices[1]).replace(", ", " or ") if choices else written


def _value(default: Any) -> str:
    assert default is not PydanticUndefined
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if not isinstance(default, Path) else default.as_posix()
